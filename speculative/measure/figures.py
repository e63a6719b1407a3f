"""The figures of a run, computed from the records of both decoders: acceptance, times, predictions.

Whatever depends on K is an average over the iterations, so the figures also hold where K changes or a window is cut
short.
"""

from collections import Counter
from statistics import mean
from typing import Any

from speculative.measure.analysis import blog_speedup, expected_tokens, leviathan_tokens
from speculative.measure.better import NOISE, better_K, gains_of_other_K, most_gaining_K
from speculative.measure.record import Iteration, Record
from speculative.measure.timing import costs, level_costs, prefill_seconds, share

DISAGREE = 1.5  # the factor between measured and predicted speedup, from which on one of them must be wrong
# The keys of predictions(), which are there also where nothing was measured.
PREDICTED = (
    *("t_target", "t_draft", "c", "beta", "mean_beta", "largest_beta", "best_K", "better_K"),
    *("predicted_blog", "predicted_leviathan", "predicted_by_position", "predicted_best", "predicted_if"),
)


def figures(autoregressive: Record, speculative: Record) -> dict[str, Any]:
    """All that is known of two decoders' runs over the same prompt, ready for JSON; None where nothing was measured."""
    found = counts(speculative) | times(autoregressive, speculative)
    return found | predictions(autoregressive, speculative, found)


def counts(speculative: Record) -> dict[str, Any]:
    """Counts of the drafts, and of those that were accepted."""
    iterations = speculative.iterations
    met = Counter(j for i in iterations for j in range(len(i.alpha)))
    accepted = Counter(j for i in iterations for j in range(i.step.accepted))
    by_proposer = Counter(name for i in iterations for name in i.by[: len(i.alpha)])
    passed = Counter(name for i in iterations for name in i.by[: i.step.accepted])
    by_position = [[i.alpha[j] for i in iterations if j < len(i.alpha)] for j in range(len(met))]
    histogram = Counter(len(i.step.tokens) for i in iterations)
    usual = Counter(i.step.drafted for i in iterations).most_common(1)
    return {
        **sums(iterations),
        "iterations": len(iterations),
        "tree": any(i.tree for i in iterations),
        "largest_K": max((i.step.drafted for i in iterations), default=0),
        "usual_K": usual[0][0] if usual else None,
        "tokens_per_iteration_histogram": with_texts(dict(sorted(histogram.items()))),
        "met_by_position": [met[j] for j in range(len(met))],
        "accepted_by_position": [accepted[j] for j in range(len(met))],
        "by_proposer": {name: [passed[name], n_met] for name, n_met in by_proposer.most_common()},
        "levels": levels(speculative),
        "alpha_by_position": [*map(average, by_position)],
        "matching": average(a for i in iterations for a in i.matching),
        "useful_row_calls": share(len(iterations), speculative.row_calls),
    }


def sums(iterations: list[Iteration]) -> dict[str, Any]:
    """The counts that a decoder and a level of its drafter have in common."""
    n_tokens = sum(len(i.step.tokens) for i in iterations)
    drafted = sum(i.step.drafted for i in iterations)
    return {
        "tokens": n_tokens,
        "drafted": drafted,
        "accepted": sum(i.step.accepted for i in iterations),
        "r": share(n_tokens, drafted + len(iterations)),
        "tokens_per_iteration": share(n_tokens, len(iterations)),
        "alpha": average(a for i in iterations for a in i.alpha),
    }


def levels(speculative: Record) -> list[dict[str, Any]]:
    """The figures of each level that has another one inside it, the outermost first."""
    of = {}
    for iteration in speculative.iterations:
        for name, calls in iteration.levels.items():
            of.setdefault(name, []).extend(calls)
    return [level_figures(name, calls) for name, calls in of.items() if calls]


def level_figures(name: str, calls: list[Iteration]) -> dict[str, Any]:
    """The figures of one level. predicted_seconds is what one of its tokens takes by the blog's formula."""
    level = {
        "name": name,
        "calls": len(calls),
        **sums(calls),
        "K": mean(i.step.drafted for i in calls),
        "drafting": total(i.drafting for i in calls),
        "scoring": total(i.scoring for i in calls),
        **dict.fromkeys(("t_row", "t_draft", "c", "beta", "predicted_seconds")),
    }
    known = level_costs(calls)
    if known is None:
        return level
    beta = known.mean_beta([i.step.drafted + 1 for i in calls])
    seconds = known.t_target / blog_speedup(level["r"], level["K"], known.c, beta)
    timed = {"t_row": known.t_target, "t_draft": known.t_draft, "c": known.c, "beta": beta}
    return level | timed | {"predicted_seconds": seconds}


def times(autoregressive: Record, speculative: Record) -> dict[str, Any]:
    """The seconds of each part, and the measured speedup, with the prefill and without."""
    drafting = total(i.drafting for i in speculative.iterations)
    scoring = total(i.scoring for i in speculative.iterations)
    records = {"autoregressive": autoregressive, "speculative": speculative}
    prefills = {name: prefill_seconds(record) for name, record in records.items()}
    seconds = [per_token(record, record.seconds) for record in records.values()]
    later = [per_token(record, record.seconds - prefills[name]) for name, record in records.items()]
    return {
        "seconds": {
            **{name: record.seconds for name, record in records.items()},
            "drafting": drafting,
            "scoring": scoring,
            "rest": None if drafting is None else speculative.seconds - drafting - scoring,
            "prefill": prefills["speculative"],
        },
        "decodes": {name: record.decodes for name, record in records.items()},
        "speedup": share(*seconds) or None,  # where one decoder was not asked, there is nothing to compare
        "speedup_without_prefill": share(*later) or None,
    }


def predictions(autoregressive: Record, speculative: Record, found: dict[str, Any]) -> dict[str, Any]:
    """The speedups that the formulas give for the measured costs and acceptance, and the best K."""
    predicted = dict.fromkeys(PREDICTED) | {"busy": False, "disagree": False}
    known = costs(autoregressive, speculative)
    if known is None:
        return predicted
    predicted |= {"t_target": known.t_target, "t_draft": known.t_draft}
    windows = [i.step.drafted for i in speculative.iterations]
    K = mean(windows)
    c = known.c
    beta = known.mean_beta([m + 1 for m in windows])
    if beta < 1 - NOISE:  # no window takes less time than one of its rows
        return predicted | {"busy": True}

    measured = found["speedup_without_prefill"]
    by_blog = blog_speedup(found["r"], K, c, beta)
    predicted |= {
        "c": None if known.t_draft is None else c,
        "beta": with_texts(known.beta),
        "mean_beta": beta,
        "predicted_blog": by_blog,
        "disagree": len(windows) > 4 and not 1 / DISAGREE < (measured or by_blog) / by_blog < DISAGREE,
    }
    if found["alpha"] is None or found["tree"]:  # the others are formulas for a chain
        return predicted
    cost = K * c + beta
    tokens = found["tokens_per_iteration"]
    if speculative.rule.name != "block":
        predicted["predicted_leviathan"] = mean(leviathan_tokens(found["alpha"], m) for m in windows) / cost
    predicted |= {
        "predicted_by_position": mean(expected_tokens(found["alpha_by_position"], m) for m in windows) / cost,
        "largest_beta": tokens - K * c,  # with the tokens that were measured, in place of those that α gives
        "predicted_if": {  # what each obstacle costs: the speedup if it were gone
            "every draft were accepted": (K + 1) / cost,
            "drafting were free": tokens / beta,
            "a window cost no more than a row": tokens / (K * c + 1),
        },
    }
    gains = gains_of_other_K(autoregressive, speculative)
    best, gain = most_gaining_K(gains)
    # Of what was measured, so that no best K is said to be slower than this run.
    return predicted | {"best_K": best, "predicted_best": gain * (measured or by_blog), "better_K": better_K(gains)}


def with_texts(by_number: dict[int, Any]) -> dict[str, Any]:
    """JSON has no numbers for keys."""
    return {str(number): value for number, value in by_number.items()}


def per_token(record: Record, seconds: float) -> float:
    """Seconds a token, as a stop text may cut the two texts at different places; 0 where nothing was decoded."""
    return seconds / record.n_tokens if record.n_tokens else 0.0


def total(seconds) -> float | None:
    """Their sum, None where any of them is not known."""
    seconds = list(seconds)
    return None if None in seconds else sum(seconds)


def average(values) -> float | None:
    values = list(values)
    return mean(values) if values else None
