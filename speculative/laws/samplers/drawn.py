"""What cannot be followed is drawn: texts with real random numbers, beside the law that they should have.

Pearson's statistic says by how much the counts of the texts are too far from what is expected. If it is too large, as
many texts are drawn once more with other seeds: only what fails twice is called wrong.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from speculative.laws.samplers.cases import CASES, Case, interleaved
from speculative.laws.samplers.sampler import Sampler
from speculative.laws.samplers.stand_ins import SaltedStandIns
from speculative.laws.samplers.texts import program_of, stand_ins_in
from speculative.laws.walks import WALK

SIGMAS = 5  # of the statistic, which chance passes once in 3 million
POWER = 1.65  # standard deviations by which a loss would have passed that, 19 times out of 20
USUAL = 5  # texts that are expected less often are counted together
PORTION = 250  # texts of each case, before it is asked whether there is time for more
MOST_TEXTS = 4_000  # of a case
SECONDS = 30
N_CASES = 2  # of each line


class Draws:
    """Texts of each case, by number. The stand-ins of seeds ask for the number."""

    decode: Callable  # that is tried, in the end the sampler's

    def __init__(self, cases: list[Case]):
        self.cases = cases
        self.counts: dict = {case: Counter() for case in cases}  # of the texts
        self.wrong_case: Case | None = None
        self.n_texts = 0  # of each case
        self.number = 0
        self.stand_ins = SaltedStandIns(lambda: self.number)

    def draw(self, case: Case, n: int) -> None:
        """Draw n more texts."""
        program = program_of(self.decode, case)
        for _ in range(n):
            self.number += 1
            WALK.begin_path([])  # which counts the calls of this text, and its seconds
            np.random.seed(0)  # of this number, as all seeds
            random.seed(0)
            if torch := sys.modules.get("torch"):
                torch.manual_seed(0)
            text = program(np.random.Generator(np.random.PCG64(self.stand_ins.seed("rng"))))
            self.counts[case][text] += 1

    def draw_anew(self, case: Case, n: int) -> None:
        self.counts[case].clear()
        self.draw(case, n)

    def differs(self, case: Case) -> bool:
        """Whether its texts do not follow the law."""
        return sigmas(self.counts[case], case.law()) > SIGMAS

    def few_differ(self, decode: Callable) -> bool:
        """Whether texts of a few cases do not follow the law with this decoder."""
        self.decode = decode
        few = self.cases[:N_CASES]
        for case in few:
            self.draw_anew(case, PORTION)
        return any(map(self.differs, few))

    def differs_twice(self, case: Case) -> bool:
        """Whether neither its texts follow the law, nor as many new ones."""
        if not self.differs(case):
            return False
        self.draw_anew(case, self.n_texts)
        return self.differs(case)

    def are_constant(self) -> bool:
        """Whether each case that should have several texts has one, as from a fixed seed."""
        return all(len(counts) == 1 for case, counts in self.counts.items() if len(case.law()) > 1)

    def law(self) -> dict:
        """The law of the wrong case, as far as its texts tell."""
        counts = self.counts[self.wrong_case]
        return {text: n / counts.total() for text, n in counts.items()}

    def least(self) -> float:
        """The distance from the law that would have shown."""
        return max(detectable(case, self.n_texts) for case in self.cases)


def draw_texts(function: Callable, sampler: Sampler) -> Draws:
    """Draw as many texts as there is time for. Raises UserError if the function does."""
    draws = Draws([case for case in interleaved(CASES) if case.number < N_CASES and case.n_vocab < 64])
    until = time.monotonic() + SECONDS
    with stand_ins_in(function, draws.stand_ins):
        sampler.choose_decoder(draws.few_differ)
        draws.decode = sampler.decode
        for counts in draws.counts.values():
            counts.clear()
        while not draws.n_texts or (draws.n_texts < MOST_TEXTS and time.monotonic() < until):
            draws.n_texts += PORTION
            for case in draws.cases:
                draws.draw(case, PORTION)
        if not draws.are_constant():
            draws.wrong_case = next(filter(draws.differs_twice, draws.cases), None)
    return draws


def sigmas(counts: Counter, law: dict) -> float:
    """By how many standard deviations texts are too far from a law: Pearson's statistic, by the cube root of Wilson and
    Hilferty (1931)."""
    n = counts.total()
    if counts.keys() - law.keys():
        return np.inf
    expected: Counter = Counter()
    observed: Counter = Counter()
    for text, q in law.items():
        group = text if n * q >= USUAL else "others"
        expected[group] += n * q
        observed[group] += counts[text]
    if expected["others"] <= 0.5:
        del expected["others"]
    statistic = sum((observed[group] - n_expected) ** 2 / n_expected for group, n_expected in expected.items())
    freedom = max(1, len(expected) - 1)
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - 1 + spread) / spread**0.5


def detectable(case: Case, n: int) -> float:
    """The total variation distance d that n texts would have shown: it adds at least n (2d)² to the statistic.

    The statistic of freedom f has the mean f + n (2d)², and twice the variance f + 2 n (2d)².
    """
    n_usual = sum(n * q >= USUAL for q in case.law().values())
    freedom = max(1, n_usual)
    least = SIGMAS * np.sqrt(2 * freedom)
    added = least
    for _ in range(50):  # until it exceeds the least by POWER of its own standard deviations
        variance = 2 * (freedom + 2 * added)
        added = least + POWER * np.sqrt(variance)
    return float(np.sqrt(added / n) / 2)
