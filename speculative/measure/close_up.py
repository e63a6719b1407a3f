"""The close-up of a page: the drafts of each step, their tests, and the target's own token. Captions: web/glass.js."""

from collections.abc import Sequence
from itertools import accumulate
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
    texts = accumulate((placed.step.text for placed in steps), initial=record.prompts[0].text)
    return [close_up(placed, before, record.rule, names) for placed, before in zip(steps, texts, strict=False)]


def opening(steps: Sequence[Placed]) -> int:
    """Return the number of the step to show first: a rejection after an accepted draft teaches most."""
    rejections = [placed for placed in steps if placed.step.accepted < placed.step.drafted]
    after_accepted = [placed for placed in rejections if placed.step.accepted]
    return [*after_accepted, *rejections, *steps][0].number


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
    end = text[-MOST_BEFORE:]
    return f"…{end}" if len(end) < len(text) else end


def own_origin(step: TextStep) -> str | None:
    """Return the origin of the target's own token; None if a stop text has cut it off."""
    return step.origins[-1] if len(step.origins) > step.accepted else None


def chain(step: TextStep, rule: RuleUsed, names: dict[int, str]) -> dict[str, Any]:
    """Return the drafts of a step that drafted a chain, the tests, and the draw of the target's own token."""
    drafts, own = step.details["drafts"], step.details["own"]
    several = len({*step.source}) > 1
    by = [label(name) if several else "" for name in step.source] or [""] * len(drafts)
    tested = []
    for test in step.details["tested"]:
        about = {"passed": test["passed"], "formula": comparison(test, rule)}
        tested.append(about | likeliest(test, names))
    if own:
        own = {"from": own["from"], "u": digits(own["u"]), **likeliest(own, names)}
    return {
        "drafts": [[names[draft], name] for draft, name in zip(drafts, by, strict=True)],
        "tested": tested,
        "own": own,
    }


def likeliest(drawn: dict, names: dict[int, str]) -> dict[str, Any]:
    """Return a token, and the likeliest tokens in its place with their probabilities, and the token's row there."""
    tokens = [token for token, *_ in drawn["top"]]
    rows = [[names[token], *chances] for token, *chances in drawn["top"]]
    return {"token": names[drawn["token"]], "rows": rows, "drawn": tokens.index(drawn["token"])}


def branches(tree: dict, names: dict[int, str], node: int = 0) -> list[list]:
    """Return the children of a node of a tree: [token, whether it was accepted, its children]."""
    children = []
    for child, (token, parent) in enumerate(zip(tree["tokens"], tree["parents"], strict=True), start=1):
        if parent == node:
            children.append([names[token], child in tree["path"], branches(tree, names, child)])
    return children


def comparison(test: dict, rule: RuleUsed) -> str:
    """Return the numbers that a rule compared, in the rule's own letters."""
    numbers = {name: digits(test[name]) for name in "upqwh" if name in test}
    numbers["product"] = digits((rule.number or 1) * test["u"] * test["p"])
    sign = "<" if test["passed"] else "≥"
    more = " > 0" if test["passed"] else ""
    number = "" if rule.number is None else f"{rule.number:g}"
    return rule.comparison.format(number=number, sign=sign, more=more, **numbers)
