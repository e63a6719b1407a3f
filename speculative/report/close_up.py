"""The close-up of a page: the blog's Steps 1 to 4 of each step, in sentences and cards, which web/glass.js draws."""

from collections.abc import Sequence
from itertools import zip_longest

from speculative.report.race import Placed
from speculative.report.record import RuleUsed, RunRecord
from speculative.report.words import digits, duration, label, many
from speculative.run.steps import TextStep

VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})  # white space of a token that is shown alone
MOST_BEFORE = 60  # characters of the text before a step


Names = dict[int, str]  # {token: its text}


def close_ups(record: RunRecord, steps: Sequence[Placed]) -> list[dict]:
    """Return the page's view of each step of the speculative decoder."""
    names = {token: text.translate(VISIBLE) for token, text in record.vocabulary.items()}
    before = record.prompts[0].text
    cards = []
    for placed in steps:
        where = f"{placed.number} of {len(steps)}"
        cards.append(close_up(placed.step, before, record.rule, names, where))
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


def close_up(step: TextStep, before: str, rule: RuleUsed, names: Names, where: str) -> dict:
    """Return one step. before: the text. where: its number, in words."""
    own = step.origins[step.accepted :]  # the target's own token; none if a stop text has cut it off
    verdict = f"{step.accepted} of {many(step.drafted, 'draft')} accepted" if step.drafted else "nothing was drafted"
    origin = own[-1] if own else "none, because the text ended"
    return {
        "accepted": step.accepted,
        "drafted": step.drafted,
        "before": before if len(before) <= MOST_BEFORE else f"…{before[-MOST_BEFORE:]}",
        "outcome": f"Iteration {where}: {verdict}; the target's own token: {origin}.",
        "steps": blog_steps(step, rule, names),
    }


# ---- The blog's Steps 1 to 4 -----------------------------------------------------------------------------------------


def blog_steps(step: TextStep, rule: RuleUsed, names: Names) -> list[dict]:
    """Return the Steps of an iteration: {title, text; chips, cards or tree before or after the text}. Without the tests
    there are none."""
    if step.tree:
        return steps_of_tree(step, step.tree, names)
    if not step.details:
        return []
    if not step.drafted:
        return steps_without_drafts(step, step.details, names)
    return steps_of_chain(step, step.details, rule, names)


def seconds_of(seconds: float, prefill: bool) -> str:
    """ "in 1.23 ms." """
    return f"in {duration(seconds)}{', which includes reading the prompt' if prefill else ''}."


def rows_of(step: TextStep) -> str:
    return f"{many(step.drafted + 1, 'row')}, {seconds_of(step.scoring, step.prefill)}"


def steps_without_drafts(step: TextStep, details: dict, names: Names) -> list[dict]:
    only = "Only the target is called, as in autoregressive decoding."
    return [
        {"title": "Step 1. Nothing is proposed", "text": only},
        {"title": "Step 2. The target scores the text", "text": rows_of(step)},
        {
            "title": "Step 4. The target samples a token",
            "cards": [card_of_own(step, details["own"], names, "The target's token", "q")],
        },
    ]


def steps_of_chain(step: TextStep, details: dict, rule: RuleUsed, names: Names) -> list[dict]:
    own = details["own"]
    is_rejected = step.accepted < step.drafted
    cards = [card_of_test(step, j, test, rule, names) for j, test in enumerate(details["tested"])]
    if is_rejected and own:
        left = "q: p and q differ by rounding alone" if own["from"] == "q" else rule.replaced_by
        cards.append(card_of_own(step, own, names, "In its place", left))
    n_unused = step.drafted - step.accepted - 1
    after = is_rejected and n_unused
    last: dict = {"title": "Step 4. If all were accepted, the target adds a bonus token"}
    if is_rejected:
        last["text"] = f"Not reached: draft {step.accepted + 1} was rejected."
    elif own:
        last["cards"] = [card_of_own(step, own, names, "Bonus", "q, after the last draft")]
    else:
        last["text"] = "Not reached: the text ended."
    return [
        {
            "title": f"Step 1. The draft proposes {many(step.drafted, 'token')}",
            "chips": chips_of(step, details, names),
            "text": f" {seconds_of(step.drafting, step.draft_prefill)}",
        },
        {
            "title": "Step 2. The target scores them in one call",
            "text": f"One row for each draft and one more: {rows_of(step)}",
        },
        {
            "title": f"Step 3. {rule.step_3}",
            "cards": cards,
            "text": f"Not used: {many(n_unused, 'draft')} after the rejected one." if after else "",
        },
        last,
    ]


def steps_of_tree(step: TextStep, tree: dict, names: Names) -> list[dict]:
    accepted = f"{many(step.accepted, 'draft')} accepted, marked ✓."
    siblings = "Siblings are tested in turn, each against the part of q that the rejected ones before it left."
    return [
        {
            "title": f"Step 1. The draft proposes a tree of {many(step.drafted, 'token')}",
            "tree": branches(tree, names),
        },
        {
            "title": "Step 2. The target scores all of them in one call",
            "text": f"{step.drafted + 1} rows, in {duration(step.scoring)}.",
        },
        {
            "title": "Steps 3 and 4. Walk down the tree, then add the target's own token",
            "text": f"{accepted} {siblings}",
        },
    ]


def chips_of(step: TextStep, details: dict, names: Names) -> list[list]:
    """Return [token, its drafter or "", whether it was tested] of each draft."""
    is_mixed = len({*step.source}) > 1  # then each draft has the name of its drafter
    n_tested = len(details["tested"])
    chips = []
    for j, (draft, drafter) in enumerate(zip_longest(details["drafts"], step.source)):
        chips.append([names[draft], label(drafter) if is_mixed else "", j < n_tested])
    return chips


# ---- The cards -------------------------------------------------------------------------------------------------------


def card_of_test(step: TextStep, j: int, test: dict, rule: RuleUsed, names: Names) -> dict:
    """Return the card of draft j, which was tested."""
    is_kept = j < step.accepted
    if not is_kept:
        verdict = "✗ rejected"
    else:
        verdict = "✓ accepted" if test["passed"] else "✓ kept, because a later draft passed"
    return {
        "title": f"Draft {j + 1}",
        "verdict": verdict,
        "kept": is_kept,
        "position": j if is_kept else None,  # the token's position in the step, by which its card is found
        "formula": comparison(test, rule),
        "caption": "The likeliest tokens here",
        "columns": ["p", "q"],
    } | likeliest(test, names)


def card_of_own(step: TextStep, own: dict, names: Names, title: str, caption: str) -> dict:
    """Return the card of the target's own token."""
    return {
        "title": title,
        "origin": step.origins[-1] if len(step.origins) > step.accepted else None,
        "position": step.accepted,
        "formula": f"sampled with u = {digits(own['u'])}",
        "caption": caption,
        "columns": ["chance"],
    } | likeliest(own, names)


def likeliest(drawn: dict, names: Names) -> dict:
    """Return a token, and the likeliest tokens in its place with their probabilities, and the token's row there. If all
    are 0 or 1, the one that is 1 says as much as p and q."""
    tokens = [token for token, *_ in drawn["top"]]
    rows = [[names[token], *chances] for token, *chances in drawn["top"]]
    is_one_hot = all(chance in (0, 1) for _, *chances in rows for chance in chances)
    certain = [token for token, *_, q in rows if q == 1]
    return {
        "token": names[drawn["token"]],
        "rows": rows,
        "drawn": tokens.index(drawn["token"]),
        "certain": certain[0] if is_one_hot and certain else None,
    }


def branches(tree: dict, names: Names, node: int = 0) -> list[list]:
    """Return the children of a node of a tree: [token, whether it was accepted, its children]."""
    children = []
    for child, (token, parent) in enumerate(zip(tree["tokens"], tree["parents"], strict=True), start=1):
        if parent == node:
            is_accepted = child in tree["path"]
            children.append([names[token], is_accepted, branches(tree, names, child)])
    return children


def comparison(test: dict, rule: RuleUsed) -> str:
    """Return the numbers that a rule compared, in the rule's own letters: see words.RuleWords."""
    numbers = {name: digits(test[name]) for name in "upqwh" if name in test}
    factor = 1.0 if rule.number is None else rule.number
    return rule.comparison.format(
        **numbers,
        number=f"{factor:g}",
        product=digits(factor * test["u"] * test["p"]),
        sign="<" if test["passed"] else "≥",
        more=" > 0" if test["passed"] else "",
    )
