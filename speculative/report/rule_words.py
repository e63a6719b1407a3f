"""What the tables and the page say of each rule of acceptance."""

from typing import NamedTuple


class RuleWords(NamedTuple):
    """The words of a rule. In braces stand places for numbers: {number} is the one in the rule's name, 0.5 of
    lenient:0.5.

    In `comparison`, which close_up.comparison fills: {u} {p} {q} {w} {h}, the fields of trees.Tested; {product}, which
    is number · u · p; {sign}, "<" if the test passed and else "≥"; {more}, " > 0" if it passed.
    """

    formula: str  # of the chance of acceptance at a position; words_of fills it
    step_3: str  # its heading on a page
    comparison: str  # what a test compared
    replaced_by: str  # the distribution that replaces a rejected draft


RULE_WORDS = {  # of each kind of rule
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
        "q, cut to what is typical",
    ),
}
USERS = RuleWords(  # of a user's function
    "unknown", "Accept or reject the drafts", "u = {u}, p = {p}, q = {q}", "what the rule leaves of q"
)


def words_of(kind: str, number: float | None) -> RuleWords:
    """Return the words of this kind of rule, its formula with the number."""
    words = RULE_WORDS.get(kind, USERS)
    return words._replace(formula=words.formula.format(number=number))
