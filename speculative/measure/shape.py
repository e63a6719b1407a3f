"""Whether a file holds what the page of a run needs: its keys, what they hold, and lists that agree with each other."""

from types import NoneType

NUMBER = (int, float)
MAYBE = (int, float, NoneType)
TEXT = str
FLAG = bool
LARGEST = 1e15  # what can still be drawn

# A dict needs these keys, and under "*" says what any others hold; a list is of any length; a tuple is of types.
TOP = {"tokens": [int], "p": [NUMBER], "q": [NUMBER]}
LEVEL = {
    "name": TEXT,
    "iterations": [
        {
            "tokens": int,
            "drafted": int,
            "accepted": int,
            "drafting": MAYBE,
            "scoring": MAYBE,
            "alpha": [NUMBER],
            "by": [TEXT],
        }
    ],
}
ITERATION = {
    "tokens": int,
    "drafted": int,
    "accepted": int,
    "draft_prefill": FLAG,
    "prefill": FLAG,
    "by": [TEXT],
    "levels": [LEVEL],
    "drafting": MAYBE,
    "scoring": MAYBE,
    "seconds": MAYBE,
}
DETAILS = {"drafts": [int], "tested": [{"u": NUMBER, "p": NUMBER, "q": NUMBER, "passed": FLAG, "top": TOP}]}
OWN = {"from": TEXT, "u": NUMBER, "top": {"tokens": [int], "probability": [NUMBER]}}
TREE = {"tokens": [int], "parents": [int], "path": [int]}
SAMPLE = {"pieces": [TEXT], "tokens": [int], "origins": [TEXT], "iterations": [ITERATION]}
COUNTS = dict.fromkeys(("tokens", "iterations", "drafted", "accepted"), int)
FIGURES = COUNTS | {
    "met_by_position": [int],
    "accepted_by_position": [int],
    "tokens_per_iteration_histogram": {"*": int},
    "seconds": {"*": MAYBE},
    "beta": (dict, NoneType),
    "predicted_if": (dict, NoneType),
    "alpha_by_position": list,
    "levels": list,
    "tree": FLAG,
    "busy": FLAG,
    "*": (*MAYBE, dict),
}
RUN = {
    "options": {"temperature": NUMBER, "lenience": NUMBER, "drafter": TEXT, "engine": TEXT},
    "machine": {"processor": TEXT, "cpus": int},
    "prompt": {"text": TEXT},
    "autoregressive": {"samples": [SAMPLE]},
    "speculative": {"samples": [SAMPLE]},
    "figures": FIGURES,
}
ORIGINS = {"accepted", "resampled", "bonus", "autoregressive"}


def is_run(run) -> bool:
    """run: what a JSON file holds. Raises what a wrong type or a missing key raises."""
    samples = [*run["autoregressive"]["samples"], *run["speculative"]["samples"]]
    return fits(run, RUN) and all(agrees(sample, run.get("vocabulary", {})) for sample in samples)


def fits(value, shape) -> bool:
    if isinstance(shape, dict):
        known = {key: shape.get(key, shape.get("*", object)) for key in [*shape, *value] if key != "*"}
        return isinstance(value, dict) and all(fits(value[key], part) for key, part in known.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(value, bool):  # which Python counts among the numbers
        return shape in (FLAG, object)
    return isinstance(value, shape) and not (isinstance(value, NUMBER) and abs(value) > LARGEST)


def agrees(sample: dict, vocabulary: dict) -> bool:
    """Whether the lists of a sample are as long as they should be, and every token that is shown has a text."""
    n = len(sample["tokens"])
    iterations = sample["iterations"]
    counted = sum(i["tokens"] for i in iterations) == n == len(sample["pieces"]) == len(sample["origins"])
    return counted and {*sample["origins"]} <= ORIGINS and all(agrees_in_itself(i, vocabulary) for i in iterations)


def agrees_in_itself(iteration: dict, vocabulary: dict) -> bool:
    accepted = iteration["accepted"]
    n_tokens = iteration["tokens"]
    details = iteration.get("details")
    if not 0 <= accepted <= n_tokens <= accepted + 1 <= iteration["drafted"] + 1:
        return False
    tree = iteration.get("tree")
    if tree:
        n_nodes = len(tree["tokens"])
        return (
            fits(tree, TREE)
            and n_nodes == len(tree["parents"]) == iteration["drafted"]
            and all(0 <= parent <= node for node, parent in enumerate(tree["parents"]))
            and all(isinstance(vocabulary[str(token)], str) for token in tree["tokens"])
        )
    if details is None:
        return True
    own = details["own"]
    tested = details["tested"]
    tops = [test["top"] for test in tested]
    if own:
        tops.append(own["top"])
    shown = [*details["drafts"], *(token for top in tops for token in top["tokens"])]
    return (
        fits(details, DETAILS)
        and (own is None or fits(own, OWN))
        and (own is None) == (n_tokens == accepted)
        and accepted <= len(tested) <= len(details["drafts"]) == iteration["drafted"]
        and all(len({len(column) for column in top.values()}) == 1 for top in tops)
        and all(isinstance(vocabulary[str(token)], str) for token in shown)
    )
