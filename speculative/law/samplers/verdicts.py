"""The verdict on what was followed, or on texts that are drawn; and its words."""

from collections.abc import Callable
from typing import NamedTuple

from speculative.law.samplers.cases import CASES, SMALLEST, Case
from speculative.law.samplers.decoders import with_sample
from speculative.law.samplers.drawn import Draws, draw_texts
from speculative.law.samplers.following import Findings
from speculative.law.samplers.guard import Effort
from speculative.law.samplers.sampler import Sampler
from speculative.law.samplers.shown import row_in_words

ROUNDED = 1e-4  # a distance that is larger has another cause
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


def told_apart(first, second, in_words: Callable) -> tuple[str, str]:
    """Two numbers or rows in words, with as many digits as tell them apart, 3 at least. in_words(thing, digits)."""
    for digits in range(3, 17):
        words = in_words(first, digits), in_words(second, digits)
        if words[0] != words[1]:
            break
    return words


def smallest(case: Case) -> str:
    """The first line about a case that is shown."""
    lengths = f"N = {case.N}, K = {case.K}"
    return f"The smallest case: a vocabulary of {case.n_vocab} tokens, prompt {case.prompt}, {lengths}."


def counterexample(case: Case, law: dict) -> str:
    """A case in words, with the text whose probability is most wrong."""
    expected = case.law()

    def error(text):
        return abs(law.get(text, 0) - expected.get(text, 0))

    text = max(law | expected, key=error)
    should, has = told_apart(expected.get(text, 0), law.get(text, 0), lambda p, digits: f"{p:.{digits}g}")
    fault = f"The text {[*text]} should have probability {should}, and has {has}."
    if () in law:
        fault = "Something is drawn from numbers that are not probabilities: NaN, or their sum is not 1."
    p, q = (row_in_words(model(case.prompt, 1)[0]) for model in case.models())
    return f"{smallest(case)}\nAfter the prompt the draft has p = {p}, the target q = {q}.\n{fault}"


def fault_in_words(findings: Findings) -> str:
    """The case that is shown: the shortest text whose next token is wrong, and a path that leads there."""
    case, fault = findings.shown, findings.fault
    if not fault or () in findings.laws[case]:
        return counterexample(case, findings.laws[case])
    p = case.models()[0]([*case.prompt, *fault.text], 1)[0]  # [n_vocab]
    q, own = told_apart(fault.q, fault.own, row_in_words)
    lines = [
        smallest(case),
        f"After {[*case.prompt, *fault.text]} the target has q = {q}, yours gives {own}; the draft has "
        f"p = {row_in_words(p)}.",
    ]
    if findings.events:
        lines += ["One path that leads there:", *(f"  {event}" for event in findings.events)]
    return "\n".join(lines)


def effort_in_words(efforts: dict[Case, list[Effort]], sampler: Sampler) -> str:
    """A line about what it saves, in the cases of several windows; "" if it does not draft at all, as sample(p)."""
    several = [effort for case, of_case in efforts.items() for effort in of_case if case.N > case.K + 1]
    if not several or getattr(sampler.decode, "func", None) is with_sample:
        return ""
    n_tokens = sum(effort.weight * effort.n_tokens for effort in several)
    n_calls = sum(effort.weight * effort.n_calls for effort in several)
    n_drafts = sum(effort.weight * effort.n_drafts for effort in several)
    if n_calls == 0:
        return "It never calls the target.\n"
    if n_tokens <= n_calls:
        return "It calls the target at least once for each token, as without drafts.\n"
    n_kept = n_tokens - n_calls
    kept = f"keeps {n_kept / n_drafts:.0%} of its drafts: " if n_kept <= n_drafts else "gives "
    return f"In these cases it {kept}{n_tokens / n_calls:.1f} tokens a call of the target.\n"


def drawn_in_words(draws: Draws, sampler: Sampler, reason: str) -> str:
    """Say what was seen in texts that were drawn, and why they were."""
    why = f"Its random numbers cannot be followed: {reason}."
    efforts = {case: [*program.efforts.values()] for case, program in draws.programs.items()}
    effort = effort_in_words(efforts, sampler)
    if draws.wrong_case:
        example = counterexample(draws.wrong_case, draws.law(draws.wrong_case))
        return f"Not lossless, by {draws.n_texts:,} texts, twice. {why}\n{effort}{example}"
    if draws.are_constant():
        return f"Cannot tell: it returned the same texts {draws.n_texts:,} times, as from a fixed seed. {why}"
    return (
        f"No loss seen in {draws.n_texts:,} texts of each of {len(draws.cases)} cases: a loss above "
        f"{draws.least():.1%} would most likely have shown. {why}\n{effort}{coverage(draws.cases, sampler.left_out)}"
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
    effort = effort_in_words(findings.efforts, findings.sampler)
    if not findings.wrong:
        covered = coverage([*findings.laws], findings.sampler.left_out, findings.not_tried())
        words = f"Lossless: {len(findings.laws)} cases, largest distance {furthest:.0e}.\n{effort}{covered}"
        return Verdict(True, furthest, None, None, words)
    words = (
        f"Not lossless: the distribution of its texts is up to {furthest:.2g} (total variation) away from the "
        f"target's.\n{effort}{fault_in_words(findings)}"
    )
    if findings.cause:
        words += f"\nUsual cause: {findings.cause}."
    elif furthest < ROUNDED:
        words += "\nAll distances are small: rounding, or an epsilon in a quotient; not the method."
    return Verdict(False, furthest, findings.shown, findings.cause, words)


def drawn_verdict(function: Callable, findings: Findings) -> Verdict:
    """The verdict on texts that are drawn. Raises UserError with the error that the function raises then, too."""
    draws = draw_texts(function, findings.sampler)
    words = drawn_in_words(draws, findings.sampler, findings.not_followed)
    if not draws.wrong_case:
        return Verdict(None, draws.least(), None, None, words)
    return Verdict(False, draws.distance(draws.wrong_case), draws.wrong_case, None, words)
