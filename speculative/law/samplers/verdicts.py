"""The verdict on what was followed, or on texts that are drawn; and its words."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speculative.law.samplers.cases import CASES, SMALLEST, Case
from speculative.law.samplers.drawn import Draws, draw_texts
from speculative.law.samplers.following import Findings

MOST_NUMBERS = 8  # of a row, in one line
NOT_SEEN = "Not seen: what shows only in longer texts, with more drafts, more tokens or smaller probabilities."


def coverage(cases: list[Case], left_out: dict, not_tried: str = "") -> str:
    """These cases in words, and what they cannot see. left_out: {what: the reason}."""
    vocabularies = values_of(cases, "n_vocab")
    prompts = values_of(cases, "n_prompt")
    N = values_of(cases, "N")
    K = values_of(cases, "K")
    words = f"Covered: {len(cases)} of {len(CASES)} cases: vocabularies of {vocabularies} tokens, "
    words += f"prompts of {prompts}, N = {N}, K = {K}, probabilities down to {SMALLEST:.0e}.\n"
    for what, reason in left_out.items():
        words += f"Left out: {what} ({reason}).\n"
    return words + not_tried + NOT_SEEN


def values_of(cases: list[Case], name: str) -> str:
    """The values that these cases have of a field of Line."""
    values = {getattr(case.line, name) for case in cases}
    return ", ".join(map(str, sorted(values)))


def row_in_words(row) -> str:  # [n_vocab]
    """The row's numbers, of a long one the largest."""
    if len(row) <= MOST_NUMBERS:
        numbers = " ".join(f"{p_j:.3g}" for p_j in row)
        return f"[{numbers}]"
    largest = [j for j in np.argsort(-row, kind="stable")[:3] if row[j]]
    some = [f"{row[j]:.3g} for token {j}" for j in largest]
    if len(largest) == 3:
        some.append("less for the others")
    return f"({', '.join(some)})"


def told_apart(first: float, second: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart, 3 at least."""
    for digits in range(3, 17):
        words = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if words[0] != words[1]:
            break
    return words


def counterexample(case: Case, law: dict) -> str:
    """A case in words, with the text whose probability is most wrong."""
    expected = case.law()

    def error(text):
        return abs(law.get(text, 0) - expected.get(text, 0))

    text = max(law | expected, key=error)
    should, has = told_apart(expected.get(text, 0), law.get(text, 0))
    fault = f"The text {[*text]} should have probability {should}, and has {has}."
    if () in law:
        fault = "Something is drawn from numbers that are not probabilities: NaN, or their sum is not 1."
    p, q = (row_in_words(model(case.prompt, 1)[0]) for model in case.models())
    return (
        f"The smallest case: a vocabulary of {case.n_vocab} tokens, prompt {case.prompt}, N = {case.N}, K = {case.K}.\n"
        f"After the prompt the draft has p = {p}, the target q = {q}.\n{fault}"
    )


def drawn_in_words(draws: Draws, left_out: dict, reason: str) -> str:
    """What was seen in texts that were drawn, and why they were."""
    why = f"Its random numbers cannot be followed: {reason}."
    if draws.wrong_case:
        example = counterexample(draws.wrong_case, draws.law(draws.wrong_case))
        return f"Not lossless, by {draws.n_texts:,} texts, twice. {why}\n{example}"
    if draws.are_constant():
        return f"Cannot tell: it returned the same texts {draws.n_texts:,} times, as from a fixed seed. {why}"
    return (
        f"No loss seen in {draws.n_texts:,} texts of each of {len(draws.cases)} cases: a loss above "
        f"{draws.least():.1%} would most likely have shown. {why}\n{coverage(draws.cases, left_out)}"
    )


# ---- The verdict -----------------------------------------------------------------------------------------------------


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
    draws = draw_texts(function, findings.sampler)
    words = drawn_in_words(draws, findings.sampler.left_out, findings.not_followed)
    if not draws.wrong_case:
        return Verdict(None, draws.least(), None, None, words)
    return Verdict(False, draws.distance(draws.wrong_case), draws.wrong_case, None, words)
