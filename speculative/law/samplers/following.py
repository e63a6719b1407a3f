"""The laws of a sampler's texts in the cases, by every path that its random numbers can take."""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from speculative.law.forks import NO_PROGRESS, WALK, NotFollowed
from speculative.law.paths import EXACT, INFINITY, NotRepeatable, TooManyPaths, distance, law_of
from speculative.law.samplers.cases import CASES, Case, interleaved
from speculative.law.samplers.guard import MOST_PATHS, Effort, Program, Progress, law_of_texts, stand_ins_in
from speculative.law.samplers.mistakes import cause_of
from speculative.law.samplers.places import is_file_of_library
from speculative.law.samplers.sampler import Sampler, Trial
from speculative.law.samplers.shown import Fault, case_to_show, events_to, fault_in
from speculative.law.samplers.stand_ins import OF_THE_SYSTEM, UnknownStandIns
from speculative.support.errors import UserError

# Random numbers and calls of models, after which no more cases of a line are followed; and if the check is thorough, in
# all cases. The first case of each line is followed anyway. What does not use PyTorch is quick, and checked thoroughly.
MOST_NODES_OF_LINE = 1_500
MOST_NODES = 80_000
N_FIRST = 4  # cases by which a decoder is chosen
MOST_NODES_OF_FIRST = 10_000


@dataclass
class Findings:
    """The laws of the cases that could be followed."""

    sampler: Sampler
    is_thorough: bool = False
    laws: dict[Case, dict] = field(default_factory=dict)
    distances: dict[Case, float] = field(default_factory=dict)  # distances from the target's laws
    raised: dict[Case, UserError] = field(default_factory=dict)  # errors that the sampler raised
    efforts: dict[Case, list[Effort]] = field(default_factory=dict)  # the efforts of all paths
    cause: str | None = None
    fault: Fault | None = None  # the fault in the case that is shown
    events: list[str] = field(default_factory=list)  # the events of a path that leads to the fault
    not_followed: str = ""  # the reason why its random numbers cannot be followed

    @property
    def wrong(self) -> list[Case]:
        """The cases whose law is not the target's, in the order of LINES."""
        return [case for case in CASES if self.distances.get(case, 0) > EXACT]

    @property
    def shown(self) -> Case:
        """The wrong case that the verdict shows."""
        return case_to_show({case: self.distances[case] for case in self.wrong})

    def not_tried(self) -> str:
        """A line about the cases that there was no time for, "" if there are none."""
        n_cases = sum(case not in self.laws and case not in self.raised for case in CASES)
        if not n_cases:
            return ""
        words = (
            f"Not tried: {n_cases} more cases of the same kinds, which have over {MOST_PATHS:,} paths each, or came "
        )
        if self.is_thorough:
            return f"{words}after {MOST_NODES:,} random numbers and calls.\n"
        return f"{words}after enough others: --thorough tries more of them.\n"


def follow(function: Callable, is_thorough: bool = False) -> Findings:
    """Follow every path of the cases. Raises UserError if the parameters are none of FORMS."""
    findings = Findings(Sampler(function), is_thorough)
    stand_ins = UnknownStandIns()
    try:
        with Progress() as progress, stand_ins_in(function, stand_ins):
            findings.sampler.choose_decoder(trial_in_first_cases)
            follow_cases(findings, progress)
            if not findings.wrong:
                findings.sampler.leave_out(findings.raised, findings.laws)
            else:
                findings.cause = cause_of(findings.sampler.decode, findings.laws, findings.wrong)
                find_fault(findings)
    except UserError as error:
        # Also an error of its own code: what it does with an unknown number may be right for a real one. If it is not,
        # the error comes again where texts are drawn.
        findings.not_followed = str(error)
        own = [asked for asked in stand_ins.asked if not is_file_of_library(asked.file)]
        if isinstance(error, NotRepeatable) and own:
            asked = min(own, key=lambda asked: [*OF_THE_SYSTEM].index(asked.name))
            findings.not_followed += f": {asked.name}, line {asked.line}"
        if NO_PROGRESS in findings.not_followed:
            findings.not_followed += "; the paths of a loop that draws until something is accepted have no end"
    return findings


def trial_in_first_cases(decode: Callable) -> Trial:
    """How a decoder does in the first cases. Raises NotFollowed."""
    trial = Trial([], [])
    for case in interleaved(CASES)[:N_FIRST]:
        try:
            law = law_of_texts(decode, case, most_nodes=MOST_NODES_OF_FIRST)
            if law.keys() != {()}:  # else nothing could be drawn, whichever way it went: it did not run
                trial.distances.append(distance(law, case.law()))
        except TooManyPaths:
            trial.distances.append(0.0)
        except NotFollowed:
            raise
        except UserError as error:
            trial.errors.append(error)
    return trial


def follow_cases(findings: Findings, progress: Progress) -> None:
    """Follow as many cases as there are nodes for, of each line at least one. Raises UserError."""
    n_nodes: Counter = Counter()  # nodes of each line that was tried
    findings.is_thorough |= "tensors" not in WALK.of_path  # whether the last path made no tensors
    for case in interleaved(CASES):
        progress.show(so_far(findings))
        # A wrong one is followed further, as more cases tell its causes apart.
        is_over_budget = n_nodes[case.line] > MOST_NODES_OF_LINE * (4 if findings.wrong else 1)
        if findings.is_thorough:
            is_over_budget = n_nodes.total() > MOST_NODES
        is_first = not n_nodes[case.line]
        if is_over_budget and not is_first:
            continue
        most_nodes = INFINITY if is_first or findings.is_thorough else MOST_NODES_OF_LINE
        n_before = WALK.n_nodes
        with contextlib.suppress(TooManyPaths):
            follow_case(case, findings, most_nodes)
        n_nodes[case.line] += WALK.n_nodes - n_before  # also if it has too many paths: the next one has more texts
    if not findings.laws and not findings.raised:
        raise UserError(f"each case has more than {MOST_PATHS:,} paths")


def find_fault(findings: Findings) -> None:
    """Find what the verdict shows."""
    case = findings.shown
    findings.fault = fault_in(case, findings.laws[case], findings.distances[case])
    if findings.fault:
        with contextlib.suppress(UserError):
            findings.events = events_to(findings.fault, findings.sampler.decode)


def so_far(findings: Findings) -> str:
    """Words while it goes on."""
    if findings.wrong:
        return f"{len(findings.wrong)} of {len(findings.laws)} cases are wrong; looking for the cause ..."
    return f"no loss in the first {len(findings.laws)} of {len(CASES)} cases; going on ..."


def follow_case(case: Case, findings: Findings, most_nodes: float) -> None:
    """Add the law of a case, or the error that the sampler raises in it. Raises TooManyPaths and NotRepeatable."""
    # Once a case is wrong, so is the sampler: the cases after it are there for the cause, which quick ones tell too.
    most_paths = MOST_PATHS // 8 if findings.wrong else MOST_PATHS
    program = Program(findings.sampler.decode, case)
    enumerate_law = partial(law_of, program, most_paths, most_nodes=most_nodes)
    try:
        own_law = enumerate_law()
        from_target = distance(own_law, case.law())
        if from_target > EXACT and not findings.wrong:
            check_repeats(own_law, enumerate_law)
    except (NotRepeatable, TooManyPaths):
        raise
    except UserError as error:
        # A length with random numbers that cannot be followed is none that the sampler cannot do: its texts are drawn.
        if isinstance(error.__cause__ or error, NotFollowed) and not findings.wrong:
            raise
        findings.raised[case] = error
        return
    findings.laws[case] = own_law
    findings.efforts[case] = [*program.efforts.values()]
    findings.distances[case] = from_target


def check_repeats(law: dict, enumerate_law: Callable) -> None:
    """Raise NotRepeatable if the same case has another law, when it is followed once more.

    A sampler may keep state between texts that few paths show, as a count of its calls. Its paths then are not those of
    one sampler, and the law that they add up to is nobody's. So the first wrong law is not believed at once.
    """
    if distance(law, enumerate_law()) > EXACT:
        raise NotRepeatable
