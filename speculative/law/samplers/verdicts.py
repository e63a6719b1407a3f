"""The verdict on what was followed, or on texts that are drawn."""

from collections.abc import Callable
from typing import NamedTuple

from speculative.law.samplers.cases import Case
from speculative.law.samplers.drawn import draw_texts
from speculative.law.samplers.following import Findings
from speculative.law.samplers.words import counterexample, coverage, drawn_in_words
from speculative.support.progress import working


class Verdict(NamedTuple):
    """The result of the check."""

    lossless: bool | None  # None if that cannot be told exactly
    distance: float  # the largest total variation distance from the target's law
    case: Case | None  # the one that goes wrong
    cause: str | None
    words: str  # as the command prints them

    def __str__(self) -> str:
        return self.words


def exact_verdict(findings: Findings) -> Verdict:
    """The verdict on the laws of the cases."""
    furthest = max(findings.distances.values())
    if not findings.wrong:
        covered = coverage([*findings.laws], findings.sampler.left_out, findings.not_tried())
        words = f"Lossless: {len(findings.laws)} cases, largest distance {furthest:.0e}.\n{covered}"
        return Verdict(True, furthest, None, None, words)
    example = case_to_show(findings)
    words = (
        f"Not lossless: the distribution of its texts is up to {furthest:.2g} (total variation) away from the "
        "target's.\n"
        f"{counterexample(example, findings.laws[example])}"
    )
    if findings.cause:
        words += f"\nUsual cause: {findings.cause}."
    return Verdict(False, furthest, example, findings.cause, words)


def case_to_show(findings: Findings) -> Case:
    """Of the line of the smallest wrong case (see Case.size), the wrong case that is furthest from the target's law."""
    smallest = min(findings.wrong, key=Case.size)
    of_line = [case for case in findings.wrong if case.line == smallest.line]
    return max(of_line, key=findings.distances.__getitem__)


def drawn_verdict(function: Callable, findings: Findings) -> Verdict:
    """The verdict on texts that are drawn. Raises UserError with the error that the function raises then, too."""
    with working("drawing texts", None, "text", delay=2):
        draws = draw_texts(function, findings.sampler)
    words = drawn_in_words(draws, findings.not_followed)
    if not draws.wrong_case:
        return Verdict(None, draws.least(), None, None, words)
    return Verdict(False, draws.distance(draws.wrong_case), draws.wrong_case, None, words)
