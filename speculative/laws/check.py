"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME]

The function NAME decodes with random models of 2 to 64 tokens: small probabilities, zeros, ties, nearly equal and
greedy rows are among them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes
are then made in a loop of ours, and the one that gives the same laws is named. If its random numbers cannot be
followed, as those of JAX, texts are drawn and counted.

The status is 0 if it is lossless, 1 if it is not, 2 if that cannot be told exactly.
"""

import contextlib
import inspect
import io
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from speculative.laws.cases import CASES, Case, in_rounds
from speculative.laws.causes import cause_of
from speculative.laws.drawn import draw_texts
from speculative.laws.forms import FORMS, Form
from speculative.laws.paths import EXACT, NotRepeatable, TooManyPaths, distance
from speculative.laws.texts import MOST_PATHS, errors_as_lines, followed, law_of_texts
from speculative.laws.walks import WALK
from speculative.laws.words import counterexample, coverage, drawn_in_words
from speculative.support.errors import UserError, did_you_mean
from speculative.support.progress import working

MOST_NODES = 80_000  # random numbers and calls of models, in all cases
N_TRIED = 4  # cases by which a decoder is chosen
STATUS = {True: 0, False: 1, None: 2}


class Verdict(NamedTuple):
    """The result of the check."""

    lossless: bool | None  # None if that cannot be told exactly
    distance: float  # the largest total variation distance from the target's law
    case: Case | None  # the one that goes wrong
    cause: str | None
    words: str  # as the command prints them

    def __str__(self) -> str:
        return self.words


@dataclass
class Findings:
    """The laws of the cases that could be followed."""

    form: Form
    laws: dict[Case, dict] = field(default_factory=dict)
    far: dict[Case, float] = field(default_factory=dict)  # {case: distance from the target's law}
    cause: str | None = None
    not_tried: str = ""  # how many cases were not, as a line
    refusal: str = ""  # why its random numbers cannot be followed

    def add(self, case: Case, law: dict) -> None:
        self.laws[case] = law
        self.far[case] = distance(law, case.law())

    @property
    def wrong(self) -> list[Case]:
        """Those whose law is not the target's, the smallest first."""
        return [case for case in CASES if self.far.get(case, 0) > EXACT]


def law(function: Callable) -> Verdict:
    """Return the Verdict on a function, which keeps it as its attribute `verdict`. Raises UserError, as check_law."""
    verdict = check_law(function)
    with contextlib.suppress(AttributeError):  # a method has no attributes
        function.verdict = verdict  # type: ignore[attr-defined]
    return verdict


def check_law(function: Callable) -> Verdict:
    """Compare the law of a function's texts with the target's: exactly, else by texts that are drawn.

    Raises UserError if its parameters are none of FORMS, or if it raises an error.
    """
    if isinstance(function, type):
        with errors_as_lines():
            function = function()
    had_torch = "torch" in sys.modules
    findings = follow_exactly(function)
    if had_torch != ("torch" in sys.modules):  # it imported PyTorch, whose numbers were not ours yet
        findings = follow_exactly(function)
    if findings.refusal:
        return by_draws(function, findings)
    return in_words(findings)


def follow_exactly(function: Callable) -> Findings:
    """Follow every path of the cases. Raises UserError if the parameters are none of FORMS."""
    findings = Findings(Form(function))
    try:
        with working("following every path", len(CASES), "case", delay=2) as bar, followed(function):
            findings.form.choose_decoder(how_far)
            follow(findings, bar)
            if findings.wrong:
                findings.cause = cause_of(findings.form.decode, findings.laws, findings.wrong)
    except UserError as error:
        findings.refusal = str(error)
    return findings


def how_far(decode: Callable) -> float:
    """The largest distance of the first cases from the target's laws. Raises UserError."""
    distances = [0.0]
    for case in in_rounds(CASES)[:N_TRIED]:
        with contextlib.suppress(TooManyPaths):
            law = law_of_texts(decode, case)
            distances.append(distance(law, case.law()))
    return max(distances)


def follow(findings: Findings, bar) -> None:
    """Add the laws of as many cases as there are nodes for, of each line at least one. Raises UserError."""
    left_out = findings.form.left_out
    until = WALK.n_nodes + MOST_NODES
    lines: set[tuple] = set()
    for case in in_rounds(CASES):
        bar.update(1)
        is_over_budget = WALK.n_nodes > until and case.line in lines
        if is_over_budget or vocabulary(case) in left_out:
            continue
        lines.add(case.line)  # also if it has too many paths: the next one of the line has more texts
        with contextlib.suppress(TooManyPaths):
            follow_case(case, findings)
    if not findings.far:
        raise UserError(f"each case has more than {MOST_PATHS:,} paths")
    n_skipped = sum(case not in findings.far and vocabulary(case) not in left_out for case in CASES)
    if n_skipped:
        findings.not_tried = (
            f"Not tried: {n_skipped} more cases of the same kinds, which have over {MOST_PATHS:,} paths each, "
            f"or came after {MOST_NODES:,} random numbers and calls.\n"
        )


def follow_case(case: Case, findings: Findings) -> None:
    """Add the law of a case, or leave out its vocabulary. The first wrong one is asked for twice. Raises UserError."""
    decode = findings.form.decode
    most_paths = MOST_PATHS // 8 if findings.wrong else MOST_PATHS  # fewer, once another case is wrong
    try:
        law = law_of_texts(decode, case, most_paths)
        is_first_wrong = not findings.wrong and distance(law, case.law()) > EXACT
        again = law_of_texts(decode, case, most_paths) if is_first_wrong else law
    except (NotRepeatable, TooManyPaths):
        raise
    except UserError as error:
        if not may_leave_out(case, findings):
            raise
        findings.form.left_out[vocabulary(case)] = str(error)
        return
    if distance(law, again) > EXACT:
        raise NotRepeatable
    findings.add(case, law)


def may_leave_out(case: Case, findings: Findings) -> bool:
    """Whether the verdict can do without this case's vocabulary, as the function may be written for another.

    If a case is wrong, the verdict is known. Else 3 tokens cannot be left out, because half of all cases have 3.
    """
    is_right_elsewhere = bool(findings.far) and case.n_vocab != 3
    return bool(findings.wrong) or is_right_elsewhere


def vocabulary(case: Case) -> str:
    return f"a vocabulary of {case.n_vocab}"


def in_words(findings: Findings) -> Verdict:
    furthest = max(findings.far.values())
    if not findings.wrong:
        covered = coverage([*findings.far], findings.form.left_out, findings.not_tried)
        words = f"Lossless: {len(findings.far)} cases, largest distance {furthest:.0e}.\n{covered}"
        return Verdict(True, furthest, None, None, words)
    smallest = [case for case in findings.wrong if case.line == findings.wrong[0].line]
    worst = max(smallest, key=findings.far.__getitem__)
    words = (
        f"Not lossless: the distribution of its texts is up to {furthest:.2g} (total variation) away from the "
        "target's.\n"
        f"{counterexample(worst, findings.laws[worst])}"
    )
    if findings.cause:
        words += f"\nUsual cause: {findings.cause}."
    return Verdict(False, furthest, worst, findings.cause, words)


def by_draws(function: Callable, findings: Findings) -> Verdict:
    """The verdict on texts that are drawn. Raises UserError with the error that the function raises then, too."""
    with working("drawing texts", None, "text", delay=2):
        draws = draw_texts(function, findings.form)
    words = drawn_in_words(draws, findings.refusal)
    if not draws.wrong:
        return Verdict(None, draws.least(), None, None, words)
    far = distance(draws.law(), draws.wrong.law())
    return Verdict(False, far, draws.wrong, None, words)


# ---- The command -----------------------------------------------------------------------------------------------------


def main(words: list[str]) -> None:
    """The command. It ends with a STATUS. Raises UserError."""
    if len(words) != 1 or words[0] in ("-h", "--help"):
        return print(f"{__doc__.strip()}\n\nForms of NAME, by default speculative_sampling:\n\n{FORMS}")
    path, _, name = words[0].partition(".py:")
    verdict = check_law(function_in(path, name or "speculative_sampling"))
    print(verdict.words)
    sys.exit(STATUS[verdict.lossless])


def function_in(path: str, name: str) -> Callable:
    """The function of this name in a file, which is run. Raises UserError."""
    file = Path(path if path.endswith(".py") else f"{path}.py")
    if not file.is_file():
        raise UserError(f"{file} is not a file: python -m speculative law FILE.py[:NAME]")
    defined = names_in(file)
    if not callable(defined.get(name)):
        functions = [key for key, thing in defined.items() if inspect.isfunction(thing) and thing.__module__ == "law"]
        hint = did_you_mean(name, functions)
        raise UserError(f"{file} has no function {name}: it has {', '.join(functions) or 'none'}{hint}")
    return defined[name]


def names_in(file: Path) -> dict:
    """What a file defines, which is run without a word. Raises UserError."""
    sys.path.insert(0, str(file.resolve().parent))
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), errors_as_lines():
        return runpy.run_path(str(file), run_name="law")
