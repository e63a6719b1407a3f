"""The words of a verdict."""

import numpy as np

from speculative.law.samplers.cases import CASES, Case
from speculative.law.samplers.drawn import Draws
from speculative.law.samplers.rows import SMALLEST

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


def drawn_in_words(draws: Draws, reason: str) -> str:
    """What was seen in texts that were drawn, and why they were."""
    why = f"Its random numbers cannot be followed: {reason}."
    if draws.wrong_case:
        example = counterexample(draws.wrong_case, draws.law(draws.wrong_case))
        return f"Not lossless, by {draws.n_texts:,} texts, twice. {why}\n{example}"
    if draws.are_constant():
        return f"Cannot tell: it returned the same texts {draws.n_texts:,} times, as from a fixed seed. {why}"
    return (
        f"No loss seen in {draws.n_texts:,} texts of each of {len(draws.cases)} cases: a loss above "
        f"{draws.least():.1%} would most likely have shown. {why}\n{coverage(draws.cases, {})}"
    )
