"""Numbers and names as they are shown: on the screen, on the page and in tables."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from speculative import drafters
from speculative.report.record import Model
from speculative.rules import RULES
from speculative.run.options import ModelOptions


def duration(seconds: float) -> str:
    """0.00123 -> "1.23 ms", 0.0123 -> "12.3 ms", 12.3 -> "12.30 s"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    n_digits = 2 if seconds < 0.01 else 1
    return f"{1000 * seconds:.{n_digits}f} ms"


def blog_time(seconds: float) -> str:
    """The time of a decode: a second and more as the blog prints it, "60.64s"; less as "18.3 ms"."""
    return f"{seconds:.2f}s" if seconds >= 1 else duration(seconds)


def label(name: str) -> str:
    """Return the name of a drafter in a sentence."""
    spec = drafters.DRAFTERS.get(name)
    return (spec.phrase if spec else "") or name


def times(speedup: float) -> str:
    """2.2 -> "2.20x"."""
    return f"{speedup:.2f}x"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def rate_text(rate: float) -> str:
    """Tokens a second: 1234.5 -> "1,234", 92.64 -> "92.6"."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def many(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def listed(names: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def digits(p: float) -> str:
    """Three digits, so that small numbers can be compared."""
    return str(int(p)) if p in (0, 1) else f"{p:#.3g}"


def functions_used(models: Sequence[Model], o: ModelOptions) -> list[str]:
    """Return the target, drafters and rule of a run that are functions of the user, in words."""
    names = []
    for model in models:
        if model.role == "target" and not model.weight_bytes:
            names.append(f"the target {model.size}")
    for name in re.split("[+/]", o.drafter):
        if name not in drafters.DRAFTERS:
            names.append(f"the drafter {name}")
    if o.accept.partition(":")[0] not in RULES:
        names.append(f"the rule {o.accept}")
    return names


# ---- The rules of acceptance -----------------------------------------------------------------------------------------


class RuleWords(NamedTuple):
    """The words of a rule. In braces stand places for numbers: {number} is the one in the rule's name, 0.5 of
    lenient:0.5.

    In `comparison`, which close_up.comparison fills: {u} {p} {q} {w} {h}, the fields of rules.Tested; {product}, which
    is number · u · p; {sign}, "<" if the test passed and else "≥"; {more}, " > 0" if it passed.
    """

    formula: str  # the formula of the chance of acceptance at a position; words_of fills it
    step_3: str  # its heading on a page
    comparison: str  # the comparison of a test
    replaced_by: str  # the distribution that replaces a rejected draft


RULE_WORDS = {  # the words of each kind of rule
    "token": RuleWords(
        "Σ min(p, q) = 1 - TVD(p, q)",
        "Accept from left to right, if u < q / p",
        "u · p = {u} · {p} = {product} {sign}\u00a0{q}\u00a0=\u00a0q",
        "max(0, q − p), normalised",
    ),
    "block": RuleWords(
        "Σ min(p / w, q), by block",
        "Keep the drafts up to the last one that passes: u < h",
        "w = {w}; u = {u} {sign}\u00a0{h}\u00a0=\u00a0h",
        "max(0, w · q − p), normalised",
    ),
    "match": RuleWords(
        "Σ p q",
        "Accept from left to right what the target samples too: if u < q",
        "u = {u} {sign}\u00a0{q}\u00a0=\u00a0q",
        "q without the draft",
    ),
    "lenient": RuleWords(
        "Σ min(p, q / {number:g})",
        "Accept from left to right, if B · u < q / p",
        "B · u · p = {number} · {u} · {p} = {product} {sign}\u00a0{q}\u00a0=\u00a0q",
        "max(0, q − p), normalised",
    ),
    "typical": RuleWords(
        "Σ p of the tokens that are typical",
        "Accept from left to right what is typical of q",
        "q = {q}{more}, of the typical tokens",
        "q, restricted to the typical tokens",
    ),
}
USERS = RuleWords(  # the words of a user's function
    "unknown", "Accept or reject the drafts", "u = {u}, p = {p}, q = {q}", "the rest of q, by this rule"
)


def words_of(kind: str, number: float | None) -> RuleWords:
    """Return the words of this kind of rule, its formula with the number."""
    words = RULE_WORDS.get(kind, USERS)
    return words._replace(formula=words.formula.format(number=number))
