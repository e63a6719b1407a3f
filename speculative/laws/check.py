"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME]

The function NAME decodes with random models of 2 to 64 tokens: small probabilities, zeros, ties, nearly equal and
greedy rows are among them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes
are then made in a loop of ours, and the one that gives the same laws is named.

The status is 0 if it is lossless, 1 if it is not, 2 if that cannot be told.
"""

import contextlib
import inspect
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from speculative.laws.cases import CASES, SMALLEST, Case
from speculative.laws.causes import cause_of
from speculative.laws.forms import FORMS, decoder_of
from speculative.laws.paths import EXACT, distance
from speculative.laws.texts import errors_as_lines, law_of_texts, somebodys_code
from speculative.laws.unknown import MOST
from speculative.support.errors import UserError, did_you_mean


class Verdict(NamedTuple):
    """The result of the check."""

    lossless: bool
    distance: float  # the largest total variation distance from the target's law
    case: Case | None  # the one that goes wrong
    cause: str | None
    covered: str  # the cases that were tried
    words: str  # as the command prints them


def law(function: Callable) -> Verdict:
    """Return the Verdict on a function, which keeps it as its attribute `verdict`. Raises UserError, as check_law."""
    verdict = check_law(function)
    with contextlib.suppress(AttributeError):  # a method has no attributes
        function.verdict = verdict  # type: ignore[attr-defined]
    return verdict


def check_law(function: Callable) -> Verdict:
    """Compare the law of a function's texts with the target's, from the smallest cases to the largest.

    Raises UserError if its parameters are none of FORMS, it raises an error, its random numbers cannot be followed, or
    a case has too many paths.
    """
    others = {"torch", "jax.random"} & {*sys.modules}
    left_out: dict = {}  # {a vocabulary, or a kind of window: the reason}
    decode = decoder_of(function, left_out)
    laws: dict[Case, dict] = {}
    far: dict[Case, float] = {}  # {case: distance from the target's law}
    wrong: list[Case] = []
    with somebodys_code():
        for case in CASES:
            if case.n_vocab in left_out:
                continue
            try:
                laws[case] = law_of_texts(decode, case, MOST // 8 if wrong else MOST)
            except UserError as error:
                if not wrong and (case.n_vocab == 3 or not far):
                    raise
                left_out[case.n_vocab] = str(error)  # it may be written for one vocabulary
                continue
            far[case] = distance(laws[case], case.law())
            wrong += [case] if far[case] > EXACT else []
        cause = cause_of(decode, laws, wrong) if wrong else None
    if others != {"torch", "jax.random"} & {*sys.modules}:  # it imported one, whose random numbers were not ours yet
        return check_law(function)
    covered = coverage([*far], left_out)
    if not wrong:
        words = f"Lossless: {len(far)} cases, largest distance {max(far.values()):.0e}.\n{covered}"
        return Verdict(True, max(far.values()), None, None, covered, words)
    worst = max((case for case in wrong if case[:4] == wrong[0][:4]), key=far.__getitem__)
    words = f"Not lossless: the distance is {far[worst]:.2g}.\n{counterexample(worst, laws[worst])}"
    return Verdict(False, far[worst], worst, cause, covered, f"{words}\nUsual cause: {cause}." if cause else words)


def coverage(cases: list[Case], left_out: dict) -> str:
    """These cases in words, and what they cannot see."""
    N, K, n_vocab, n_prompt = (", ".join(map(str, sorted({case[i] for case in cases}))) for i in range(4))
    words = f"Covered: vocabularies of {n_vocab} tokens, prompts of {n_prompt}, N = {N}, K = {K}, "
    words += f"probabilities down to {SMALLEST:.0e}.\n"
    for what, reason in left_out.items():
        words += f"Left out: {f'a vocabulary of {what}' if isinstance(what, int) else what} ({reason}).\n"
    return words + "Not seen: what shows only in longer texts, with more drafts, more tokens or smaller probabilities."


def counterexample(case: Case, law: dict) -> str:
    """A case in words, with the text whose probability is most wrong."""
    expected = case.law()
    text = max(law | expected, key=lambda text: abs(law.get(text, 0) - expected.get(text, 0)))
    p, q = (" ".join(f"{p_j:.3g}" for p_j in model(case.prompt, 1)[0]) for model in case.models())
    found = f"The text {[*text]} should have probability {expected.get(text, 0):.6f}, and has {law.get(text, 0):.6f}."
    if () in law:
        found = "Something is drawn from numbers that are not probabilities: NaN, or their sum is not 1."
    return (
        f"The smallest case: a vocabulary of {case.n_vocab} tokens, prompt {case.prompt}, N = {case.N}, K = {case.K}.\n"
        f"After the prompt the draft has p = [{p}], the target q = [{q}].\n{found}"
    )


def main(words: list[str]) -> None:
    """The command. It ends with status 0 if the function is lossless, else 1. Raises UserError."""
    if len(words) != 1 or words[0] in ("-h", "--help"):
        return print(f"{__doc__.strip()}\n\nForms of NAME, by default speculative_sampling:\n\n{FORMS}")
    path, _, name = words[0].partition(".py:")
    file = Path(path if path.endswith(".py") else f"{path}.py")
    if not file.is_file():
        raise UserError(f"{file} is not a file: python -m speculative law FILE.py[:NAME]")
    sys.path.insert(0, str(file.resolve().parent))
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), errors_as_lines():
        defined = runpy.run_path(str(file), run_name="law")
    name = name or "speculative_sampling"
    if not callable(defined.get(name)):
        functions = [name for name, one in defined.items() if inspect.isfunction(one) and one.__module__ == "law"]
        hint = did_you_mean(name, functions)
        raise UserError(f"{file} has no function {name}: it has {', '.join(functions) or 'none'}{hint}")
    verdict = check_law(defined[name])
    print(verdict.words)
    sys.exit(not verdict.lossless)
