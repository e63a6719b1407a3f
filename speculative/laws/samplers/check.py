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
from functools import partial
from pathlib import Path
from typing import NamedTuple

from speculative.laws.paths import EXACT, NotRepeatable, TooManyPaths, distance
from speculative.laws.samplers.cases import CASES, Case, interleaved
from speculative.laws.samplers.causes import cause_of
from speculative.laws.samplers.drawn import draw_texts
from speculative.laws.samplers.guard import as_user_errors
from speculative.laws.samplers.sampler import FORMS, Sampler
from speculative.laws.samplers.texts import MOST_PATHS, law_of_texts, stand_ins_in
from speculative.laws.samplers.words import counterexample, coverage, drawn_in_words
from speculative.laws.walks import WALK
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

    sampler: Sampler
    laws: dict[Case, dict] = field(default_factory=dict)
    distances: dict[Case, float] = field(default_factory=dict)  # from the target's laws
    cause: str | None = None
    not_followed: str = ""  # why its random numbers cannot be

    @property
    def wrong(self) -> list[Case]:
        """Those whose law is not the target's, in the order of LINES."""
        return [case for case in CASES if self.distances.get(case, 0) > EXACT]

    def leaves_out(self, case: Case) -> bool:
        """Whether the sampler cannot do with the case's vocabulary."""
        return vocabulary(case) in self.sampler.left_out


def law(function: Callable) -> Verdict:
    """Compare the law of a function's texts with the target's: exactly, else by texts that are drawn.

    The function keeps the Verdict as its attribute `verdict`, which measure/observe.py shows where a decode has it as
    its rule. Raises UserError if its parameters are none of FORMS, or if it raises an error.
    """
    checked = function
    if isinstance(function, type):
        with as_user_errors():
            checked = function()
    had_torch = "torch" in sys.modules
    findings = follow(checked)
    if had_torch != ("torch" in sys.modules):  # it imported PyTorch, whose numbers were not ours yet
        findings = follow(checked)
    verdict = drawn_verdict(checked, findings) if findings.not_followed else exact_verdict(findings)
    with contextlib.suppress(AttributeError):  # a method has no attributes
        function.verdict = verdict  # type: ignore[attr-defined]
    return verdict


def follow(function: Callable) -> Findings:
    """Follow every path of the cases. Raises UserError if the parameters are none of FORMS."""
    findings = Findings(Sampler(function))
    try:
        with working("following every path", len(CASES), "case", delay=2) as bar, stand_ins_in(function):
            findings.sampler.choose_decoder(distance_in_first_cases)
            follow_cases(findings, bar)
            if findings.wrong:
                findings.cause = cause_of(findings.sampler.decode, findings.laws, findings.wrong)
    except UserError as error:
        # Also an error of its own code: what it does with an unknown number may be right for a real one. If it is not,
        # the error comes again where texts are drawn.
        findings.not_followed = str(error)
    return findings


def distance_in_first_cases(decode: Callable) -> float:
    """The largest distance of the first cases from the target's laws. Raises UserError."""
    distances = [0.0]
    for case in interleaved(CASES)[:N_TRIED]:
        with contextlib.suppress(TooManyPaths):
            distances.append(distance(law_of_texts(decode, case), case.law()))
    return max(distances)


def follow_cases(findings: Findings, bar) -> None:
    """Follow as many cases as there are nodes for, of each line at least one. Raises UserError."""
    n_before = WALK.n_nodes
    lines_tried = set()
    for case in interleaved(CASES):
        bar.update(1)
        is_over_budget = WALK.n_nodes - n_before > MOST_NODES
        if (is_over_budget and case.line in lines_tried) or findings.leaves_out(case):
            continue
        lines_tried.add(case.line)  # also if it has too many paths: the next one of the line has more texts
        with contextlib.suppress(TooManyPaths):
            follow_case(case, findings)
    if not findings.laws:
        raise UserError(f"each case has more than {MOST_PATHS:,} paths")


def follow_case(case: Case, findings: Findings) -> None:
    """Add the law of a case, or leave out its vocabulary. Raises UserError."""
    # Once a case is wrong, so is the sampler: the cases after it tell only the cause, and quick ones tell it too.
    most_paths = MOST_PATHS // 8 if findings.wrong else MOST_PATHS
    enumerate_law = partial(law_of_texts, findings.sampler.decode, case, most_paths)
    try:
        own_law = enumerate_law()
        from_target = distance(own_law, case.law())
        if from_target > EXACT and not findings.wrong:
            check_repeats(own_law, enumerate_law)
    except (NotRepeatable, TooManyPaths):
        raise
    except UserError as error:
        if not may_leave_out(case, findings):
            raise
        findings.sampler.left_out[vocabulary(case)] = str(error)
        return
    findings.laws[case] = own_law
    findings.distances[case] = from_target


def check_repeats(law: dict, enumerate_law: Callable) -> None:
    """Raise NotRepeatable if the same case has another law, when it is followed once more.

    A sampler may keep state between texts that few paths show, as a count of its calls. Its paths then are not those of
    one sampler, and the law that they add up to is nobody's. So the first wrong law is not believed at once.
    """
    if distance(law, enumerate_law()) > EXACT:
        raise NotRepeatable


def may_leave_out(case: Case, findings: Findings) -> bool:
    """Whether the verdict can do without this case's vocabulary, as the function may be written for another.

    If a case is wrong, the verdict is known. Else 3 tokens cannot be left out, because half of all cases have 3.
    """
    is_right_elsewhere = findings.laws and case.n_vocab != 3
    return bool(findings.wrong or is_right_elsewhere)


def vocabulary(case: Case) -> str:
    return f"a vocabulary of {case.n_vocab}"


def exact_verdict(findings: Findings) -> Verdict:
    """The verdict on the laws of the cases."""
    furthest = max(findings.distances.values())
    if not findings.wrong:
        covered = coverage([*findings.laws], findings.sampler.left_out, not_tried(findings))
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


def not_tried(findings: Findings) -> str:
    """A line about the cases that there was no time for, "" if there are none."""
    n_cases = sum(case not in findings.laws and not findings.leaves_out(case) for case in CASES)
    if not n_cases:
        return ""
    return (
        f"Not tried: {n_cases} more cases of the same kinds, which have over {MOST_PATHS:,} paths each, "
        f"or came after {MOST_NODES:,} random numbers and calls.\n"
    )


def drawn_verdict(function: Callable, findings: Findings) -> Verdict:
    """The verdict on texts that are drawn. Raises UserError with the error that the function raises then, too."""
    with working("drawing texts", None, "text", delay=2):
        draws = draw_texts(function, findings.sampler)
    words = drawn_in_words(draws, findings.not_followed)
    if not draws.wrong_case:
        return Verdict(None, draws.least(), None, None, words)
    return Verdict(False, draws.distance(draws.wrong_case), draws.wrong_case, None, words)


# ---- The command -----------------------------------------------------------------------------------------------------


def main(words: list[str]) -> None:
    """The command. It ends with a STATUS. Raises UserError."""
    if len(words) != 1 or words[0] in ("-h", "--help"):
        return print(f"{__doc__.strip()}\n\nForms of NAME, by default speculative_sampling:\n\n{FORMS}")
    path, _, name = words[0].partition(".py:")
    verdict = law(function_in(path, name or "speculative_sampling"))
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
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), as_user_errors():
        return runpy.run_path(str(file), run_name="law")
