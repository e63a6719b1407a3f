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

from speculative.laws.cases import CASES, Case, in_rounds
from speculative.laws.forms import Form
from speculative.laws.replaced import SaltedStandIns
from speculative.laws.texts import followed, program_of
from speculative.laws.walks import WALK

SIGMAS = 5  # of the statistic, which chance passes once in 3 million
POWER = 1.65  # standard deviations by which a loss would have passed that, 19 times out of 20
USUAL = 5  # texts that are expected less often are counted together
ROUND = 250  # texts of each case, before it is asked whether there is time for more
MOST_TEXTS = 4_000  # of a case
SECONDS = 30
N_CASES = 2  # of each line


class Draws:
    """Texts of each case, by number. The stand-ins of seeds ask for the number."""

    def __init__(self, decode: Callable, cases: list[Case]):
        self.decode = decode
        self.cases = cases
        self.counts: dict[Case, Counter] = {case: Counter() for case in cases}
        self.wrong: Case | None = None
        self.n_texts = 0  # of each case
        self.number = 0
        self.stand_ins = SaltedStandIns(lambda: self.number)

    def draw(self, case: Case, n: int) -> None:
        """Draw n more texts."""
        program = program_of(self.decode, case)
        for _ in range(n):
            self.number += 1
            WALK.begin_path([])
            np.random.seed(0)  # of this number, as all seeds
            random.seed(0)
            if torch := sys.modules.get("torch"):
                torch.manual_seed(0)
            text = program(np.random.Generator(np.random.PCG64(self.stand_ins.seed("rng"))))
            self.counts[case][text] += 1

    def draw_anew(self, case: Case, n: int) -> None:
        self.counts[case].clear()
        self.draw(case, n)

    def is_far(self, case: Case) -> bool:
        return sigmas(self.counts[case], case.law()) > SIGMAS

    def is_wrong(self, decode: Callable) -> bool:
        """Whether texts of a few cases, decoded in this way, do not follow the law."""
        self.decode = decode
        few = self.cases[:N_CASES]
        for case in few:
            self.draw_anew(case, ROUND)
        return any(map(self.is_far, few))

    def is_far_twice(self, case: Case) -> bool:
        """Whether neither its texts follow the law, nor as many new ones."""
        if not self.is_far(case):
            return False
        self.draw_anew(case, self.n_texts)
        return self.is_far(case)

    def are_constant(self) -> bool:
        """Whether each case that should have several texts has one, as from a fixed seed."""
        return all(len(counts) == 1 for case, counts in self.counts.items() if len(case.law()) > 1)

    def law(self) -> dict:
        """The law of the wrong case, as far as its texts tell."""
        counts = self.counts[self.wrong]
        return {text: n / counts.total() for text, n in counts.items()}

    def least(self) -> float:
        """The distance from the law that would have shown."""
        return max(detectable(case, self.n_texts) for case in self.cases)


def draw_texts(function: Callable, form: Form) -> Draws:
    """Draw as many texts as there is time for. Raises UserError if the function does."""
    draws = Draws(form.decode, [case for case in in_rounds(CASES) if case.number < N_CASES and case.n_vocab < 64])
    until = time.monotonic() + SECONDS
    with followed(function, draws.stand_ins):
        form.choose_decoder(draws.is_wrong)
        draws.decode = form.decode
        for counts in draws.counts.values():
            counts.clear()
        while not draws.n_texts or (draws.n_texts < MOST_TEXTS and time.monotonic() < until):
            draws.n_texts += ROUND
            for case in draws.cases:
                draws.draw(case, ROUND)
        if not draws.are_constant():
            draws.wrong = next(filter(draws.is_far_twice, draws.cases), None)
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
