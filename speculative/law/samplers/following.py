"""The laws of a sampler's texts in the cases, by every path that its random numbers can take."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from speculative.law.forks import WALK
from speculative.law.paths import EXACT, NotRepeatable, TooManyPaths, distance
from speculative.law.samplers.cases import CASES, Case, interleaved
from speculative.law.samplers.guard import MOST_PATHS, Progress, law_of_texts, stand_ins_in
from speculative.law.samplers.mistakes import cause_of
from speculative.law.samplers.sampler import Sampler
from speculative.support.errors import UserError

MOST_NODES = 80_000  # random numbers and calls of models, in all cases
N_FIRST = 4  # cases by which a decoder is chosen


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

    def not_tried(self) -> str:
        """A line about the cases that there was no time for, "" if there are none."""
        n_cases = sum(case not in self.laws and not self.leaves_out(case) for case in CASES)
        if not n_cases:
            return ""
        return (
            f"Not tried: {n_cases} more cases of the same kinds, which have over {MOST_PATHS:,} paths each, "
            f"or came after {MOST_NODES:,} random numbers and calls.\n"
        )


def follow(function: Callable) -> Findings:
    """Follow every path of the cases. Raises UserError if the parameters are none of FORMS."""
    findings = Findings(Sampler(function))
    try:
        with Progress() as progress, stand_ins_in(function):
            findings.sampler.choose_decoder(distance_in_first_cases)
            follow_cases(findings, progress)
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
    for case in interleaved(CASES)[:N_FIRST]:
        with contextlib.suppress(TooManyPaths):
            distances.append(distance(law_of_texts(decode, case), case.law()))
    return max(distances)


def follow_cases(findings: Findings, progress: Progress) -> None:
    """Follow as many cases as there are nodes for, of each line at least one. Raises UserError."""
    n_before = WALK.n_nodes
    lines_tried = set()
    for case in interleaved(CASES):
        progress.show(
            f"following every path: {len(findings.laws)} of {len(CASES)} cases, {len(findings.wrong)} of them wrong"
        )
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
    # Once a case is wrong, so is the sampler: the cases after it are there for the cause, which quick ones tell too.
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
