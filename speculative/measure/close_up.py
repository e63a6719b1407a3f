"""The close-up of a page: the drafts of each step, their tests, and the target's own token. Captions: web/glass.js."""

from collections.abc import Sequence
from typing import Any

from speculative.measure.race import Placed
from speculative.measure.record import RuleUsed, RunRecord
from speculative.measure.words import digits, duration, label
from speculative.steps import TextStep

VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})  # white space of a token that is shown alone
MOST_BEFORE = 60  # characters of the text before a step


def close_ups(record: RunRecord, steps: Sequence[Placed]) -> list[dict]:
    """Return what the page shows of each step of the speculative decoder."""
    names = {token: text.translate(VISIBLE) for token, text in record.vocabulary.items()}
    before = record.prompts[0].text
    cards = []
    for placed in steps:
        cards.append(close_up(placed, before, record.rule, names))
        before += placed.step.text
    return cards


def opening(steps: Sequence[Placed]) -> int:
    """Return the number of the step to show first: a rejection after an accepted draft teaches most."""
    return max(steps, key=lambda placed: (worth(placed.step), -placed.number)).number


def worth(step: TextStep) -> int:
    """Return how much a step teaches."""
    if step.accepted == step.drafted:
        return 0
    return 2 if step.accepted else 1


def close_up(placed: Placed, before: str, rule: RuleUsed, names: dict[int, str]) -> dict[str, Any]:
    """Return one step. before: the text. names: {token: its text}."""
    step = placed.step
    about: dict[str, Any] = {
        "accepted": step.accepted,
        "drafted": step.drafted,
        "draft_prefill": step.draft_prefill,
        "prefill": step.prefill,
        "before": end_of(before),
        "origin": own_origin(step),
        "drafting": duration(step.drafting),
        "scoring": duration(step.scoring),
    }
    if step.tree:
        return about | {"tree": branches(step.tree, names)}
    if step.details:
        return about | chain(step, rule, names)
    return about


def end_of(text: str) -> str:
    """Return the last characters of a text."""
    return text if len(text) <= MOST_BEFORE else f"…{text[-MOST_BEFORE:]}"


def own_origin(step: TextStep) -> str | None:
    """Return the origin of the target's own token; None if a stop text has cut it off."""
    was_cut = len(step.origins) <= step.accepted
    return None if was_cut else step.origins[-1]


def chain(step: TextStep, rule: RuleUsed, names: dict[int, str]) -> dict[str, Any]:
    """Return the drafts of a step that drafted a chain, the tests, and the draw of the target's own token."""
    drafts = [names[draft] for draft in step.details["drafts"]]
    by = [""] * len(drafts)
    if len({*step.source}) > 1:
        by = [label(drafter) for drafter in step.source]
    tested = []
    for test in step.details["tested"]:
        about = {"passed": test["passed"], "formula": comparison(test, rule)}
        tested.append(about | likeliest(test, names))
    own = step.details["own"]
    if own:
        about = {"from": own["from"], "u": digits(own["u"])}
        own = about | likeliest(own, names)
    return {"drafts": [*zip(drafts, by, strict=True)], "tested": tested, "own": own}


def likeliest(drawn: dict, names: dict[int, str]) -> dict[str, Any]:
    """Return a token, and the likeliest tokens in its place with their probabilities, and the token's row there."""
    tokens = []
    rows = []
    for token, *chances in drawn["top"]:
        tokens.append(token)
        rows.append([names[token], *chances])
    token = drawn["token"]
    return {"token": names[token], "rows": rows, "drawn": tokens.index(token)}


def branches(tree: dict, names: dict[int, str], node: int = 0) -> list[list]:
    """Return the children of a node of a tree: [token, whether it was accepted, its children]."""
    children = []
    for child, token in enumerate(tree["tokens"], start=1):
        parent = tree["parents"][child - 1]
        if parent == node:
            below = branches(tree, names, child)
            is_accepted = child in tree["path"]
            children.append([names[token], is_accepted, below])
    return children


def comparison(test: dict, rule: RuleUsed) -> str:
    """Return the numbers that a rule compared, in the rule's own letters."""
    numbers = {name: digits(test[name]) for name in "upqwh" if name in test}
    factor = 1.0 if rule.number is None else rule.number
    passed = test["passed"]
    return rule.comparison.format(
        **numbers,
        number=f"{factor:g}",
        product=digits(factor * test["u"] * test["p"]),
        sign="<" if passed else "≥",
        more=" > 0" if passed else "",
    )
