"""The close-up of a page: the drafts of each step, their tests, and the target's own token. Captions: web/glass.js."""

from collections.abc import Sequence
from itertools import zip_longest

from speculative.report.race import Placed
from speculative.report.record import RuleUsed, RunRecord
from speculative.report.words import digits, duration, label
from speculative.run.steps import TextStep

VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})  # white space of a token that is shown alone
MOST_BEFORE = 60  # characters of the text before a step


Names = dict[int, str]  # {token: its text}


def close_ups(record: RunRecord, steps: Sequence[Placed]) -> list[dict]:
    """Return what the page shows of each step of the speculative decoder."""
    names = {token: text.translate(VISIBLE) for token, text in record.vocabulary.items()}
    before = record.prompts[0].text
    cards = []
    for placed in steps:
        cards.append(close_up(placed.step, before, record.rule, names))
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


def close_up(step: TextStep, before: str, rule: RuleUsed, names: Names) -> dict:
    """Return one step. before: the text."""
    own = step.origins[step.accepted :]  # the target's own token; none if a stop text has cut it off
    about = {
        "accepted": step.accepted,
        "drafted": step.drafted,
        "draft_prefill": step.draft_prefill,
        "prefill": step.prefill,
        "before": before if len(before) <= MOST_BEFORE else f"…{before[-MOST_BEFORE:]}",
        "origin": own[-1] if own else None,
        "drafting": duration(step.drafting),
        "scoring": duration(step.scoring),
    }
    if step.tree:
        return about | {"tree": branches(step.tree, names)}
    return about | chain(step, rule, names) if step.details else about


def chain(step: TextStep, rule: RuleUsed, names: Names) -> dict:
    """Return the drafts of a step that drafted a chain, the tests, and the draw of the target's own token."""
    details = step.details
    is_mixed = len({*step.source}) > 1  # then each draft has the name of its drafter
    drafts = []
    for draft, drafter in zip_longest(details["drafts"], step.source):
        drafts.append((names[draft], label(drafter) if is_mixed else ""))
    tested = []
    for test in details["tested"]:
        passed = {"passed": test["passed"], "formula": comparison(test, rule)}
        tested.append(passed | likeliest(test, names))
    own = details["own"]
    if own:
        own = {"from": own["from"], "u": digits(own["u"])} | likeliest(own, names)
    return {"drafts": drafts, "tested": tested, "own": own}


def likeliest(drawn: dict, names: Names) -> dict:
    """Return a token, and the likeliest tokens in its place with their probabilities, and the token's row there."""
    tokens = [token for token, *_ in drawn["top"]]
    rows = [[names[token], *chances] for token, *chances in drawn["top"]]
    return {"token": names[drawn["token"]], "rows": rows, "drawn": tokens.index(drawn["token"])}


def branches(tree: dict, names: Names, node: int = 0) -> list[list]:
    """Return the children of a node of a tree: [token, whether it was accepted, its children]."""
    children = []
    for child, (token, parent) in enumerate(zip(tree["tokens"], tree["parents"], strict=True), start=1):
        if parent == node:
            is_accepted = child in tree["path"]
            children.append([names[token], is_accepted, branches(tree, names, child)])
    return children


def comparison(test: dict, rule: RuleUsed) -> str:
    """Return the numbers that a rule compared, in the rule's own letters: see rule_words.RuleWords."""
    numbers = {name: digits(test[name]) for name in "upqwh" if name in test}
    factor = 1.0 if rule.number is None else rule.number
    return rule.comparison.format(
        **numbers,
        number=f"{factor:g}",
        product=digits(factor * test["u"] * test["p"]),
        sign="<" if test["passed"] else "≥",
        more=" > 0" if test["passed"] else "",
    )
