"""Texts of a sampler that cannot be followed: drawn with real random numbers, beside the law that they should have.

Pearson's statistic says by how much the counts of the texts are too far from what is expected. If it is too large, as
many texts are drawn once more with other seeds: only what fails twice is called wrong.
"""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from speculative.law.forks import WALK
from speculative.law.paths import distance
from speculative.law.samplers.cases import CASES, Case, interleaved
from speculative.law.samplers.guard import Program, Progress, stand_ins_in
from speculative.law.samplers.sampler import Sampler, Trial
from speculative.law.samplers.stand_ins import SaltedStandIns
from speculative.support.errors import UserError

SIGMAS = 5  # standard deviations of the statistic, which chance passes once in 3 million
POWER = 1.96  # standard deviations by which a loss passes that 39 times out of 40: so twice 19 times out of 20
USUAL = 5  # texts that are expected less often are counted together
PORTION = 250  # texts of each case, before it is asked whether there is time for another case, or for more
MOST_TEXTS = 4_000  # texts of a case
SECONDS = 20  # seconds of the processor
N_CASES = 2  # cases of each line
N_FEW = 2  # cases by which a decoder is chosen


class Draws:
    """Texts of a decoder that are drawn, of each case as many."""

    def __init__(self, decode: Callable, stand_ins: SaltedStandIns):
        self.decode = decode
        self.stand_ins = stand_ins
        self.programs: dict[Case, Program] = {}
        self.counts: dict[Case, Counter] = {}  # counts of the texts
        self.n_texts = PORTION  # texts of each case
        self.raised: dict[Case, UserError] = {}  # errors that the sampler raised: these cases are not drawn any more
        self.wrong_case: Case | None = None

    @property
    def cases(self) -> list[Case]:
        return [*self.counts]

    def draw(self, case: Case, n: int) -> None:
        """Draw n more texts of a case, or note the error that the sampler raises."""
        program = self.programs.setdefault(case, Program(self.decode, case))
        counts = self.counts.setdefault(case, Counter())
        try:
            for _ in range(n):
                WALK.begin_path([])  # a path counts the calls of this text; guard.PathClock begins anew with it
                counts[program(self.stand_ins.begin_text())] += 1
        except UserError as error:
            self.raised[case] = error
            del self.counts[case]

    def draw_all(self, cases: list[Case], progress: Progress) -> None:
        """Draw as many texts as there is time for: PORTION of each case, or of as many as a quarter of the time is
        enough for; then more of these."""
        began = time.process_time()
        for case in cases:
            if self.counts and time.process_time() - began > SECONDS / 4:
                break
            self.draw(case, PORTION)
        seconds_a_portion = time.process_time() - began
        while self.n_texts < MOST_TEXTS and time.process_time() - began + seconds_a_portion < SECONDS:
            progress.show(f"drawing texts: {self.n_texts:,} of each of {len(self.cases)} cases")
            for case in self.cases:
                self.draw(case, PORTION)
            self.n_texts += PORTION

    def find_wrong(self) -> Case | None:
        """Find the smallest case whose texts do not follow the law, if one does not. Constant texts tell nothing."""
        if not self.are_constant():
            growing = sorted(self.cases, key=Case.size)
            self.wrong_case = next(filter(self.differs_twice, growing), None)
        return self.wrong_case

    def are_constant(self) -> bool:
        """Whether each case that should have several texts has one, as from a fixed seed."""
        return all(len(counts) == 1 for case, counts in self.counts.items() if len(case.law()) > 1)

    def differs_twice(self, case: Case) -> bool:
        """Whether neither its texts follow the law, nor as many new ones."""
        if not self.differs(case):
            return False
        self.counts[case].clear()
        self.draw(case, self.n_texts)
        return case in self.counts and self.differs(case)

    def differs(self, case: Case) -> bool:
        """Whether its texts do not follow the law."""
        return sigmas(self.counts[case], case.law()) > SIGMAS

    def law(self, case: Case) -> dict:
        """The law, as far as the texts tell."""
        counts = self.counts[case]
        return {text: n / counts.total() for text, n in counts.items()}

    def distance(self, case: Case) -> float:
        """How far the texts are from the target's law."""
        return distance(self.law(case), case.law())

    def least(self) -> float:
        """The distance from the law that would most likely have shown."""
        return max(detectable(case, self.n_texts) for case in self.cases)


def draw_texts(function: Callable, sampler: Sampler) -> Draws:
    """Draw as many texts as there is time for. Raises UserError if the function does."""
    cases = [case for case in interleaved(CASES) if case.number < N_CASES and case.n_vocab < 64]
    stand_ins = SaltedStandIns()

    def trial_in_few(decode):
        """How a decoder does in the first cases: distances that chance explains are 0."""
        few = Draws(decode, stand_ins)
        for case in cases[:N_FEW]:
            few.draw(case, PORTION)
        distances = [few.distance(case) if few.differs(case) else 0.0 for case in few.cases]
        return Trial(distances, [*few.raised.values()])

    with Progress() as progress, stand_ins_in(function, stand_ins):
        if len(sampler.decoders) > 1:
            sampler.choose_decoder(trial_in_few)
        draws = Draws(sampler.decode, stand_ins)
        draws.draw_all(cases, progress)
        if not draws.find_wrong():
            sampler.leave_out(draws.raised, draws.cases)
    return draws


def sigmas(counts: Counter, law: dict) -> float:
    """By how many standard deviations texts are too far from a law, by Pearson's statistic."""
    n = counts.total()
    if counts.keys() - law.keys():
        return np.inf
    expected: Counter = Counter()
    observed: Counter = Counter()
    for text, q in law.items():
        group = text if n * q >= USUAL else "others"
        expected[group] += n * q
        observed[group] += counts[text]
    if expected["others"] <= 0.5:  # the statistic divides by it: a single text, which may well come, would be too much
        del expected["others"]
    statistic = sum((observed[group] - n_expected) ** 2 / n_expected for group, n_expected in expected.items())
    freedom = max(1, len(expected) - 1)
    return sigmas_of(statistic, freedom)


def sigmas_of(statistic: float, freedom: int, added=0.0):
    """By how many standard deviations a statistic is above what is expected, by its cube root: Wilson and Hilferty
    (1931).

    added: how much a loss adds to its mean. The statistic of freedom f then has the mean f + added, and the variance
    2 (f + 2 added): Abdel-Aty (1954).
    """
    mean = freedom + added
    spread = 2 * (mean + added) / (9 * mean**2)
    return ((statistic / mean) ** (1 / 3) - 1 + spread) / spread**0.5


def detectable(case: Case, n: int) -> float:
    """The total variation distance d that n texts would most likely have shown.

    It adds at least n (2d)² to the statistic, so its mean is f + n (2d)², and the variance 2 (f + 2n (2d)²). A loss
    among texts that are counted together does not show.
    """
    n_usual = sum(n * q >= USUAL for q in case.law().values())
    freedom = max(1, n_usual)
    statistics = freedom * np.geomspace(1, 1e4, 10_000)
    least = statistics[sigmas_of(statistics, freedom) > SIGMAS][0]
    added = np.geomspace(1, 1e6, 10_000)
    least_added = added[sigmas_of(least, freedom, added) < -POWER][0]
    return float(np.sqrt(least_added / n) / 2)
