"""What cannot be followed is drawn: texts with real random numbers, beside the law that they should have.

Pearson's statistic says by how much the counts of the texts are too far from what is expected. If it is too large, as
many texts are drawn once more with other seeds: only what fails twice is called wrong.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from speculative.laws.cases import CASES, Case, in_rounds
from speculative.laws.forms import Form
from speculative.laws.models import Way, ways
from speculative.laws.replaced import Salted
from speculative.laws.texts import followed, program_of
from speculative.laws.traced import TracedRandom
from speculative.support.errors import UserError

SIGMAS = 5  # of the statistic, which chance passes once in 3 million
POWER = 1.65  # standard deviations by which a loss would have passed that, 19 times out of 20
USUAL = 5  # texts that are expected less often are counted together
ROUND = 250  # texts of each case, before it is asked whether there is time for more
MOST_TEXTS = 4_000  # of a case
SECONDS = 30
N_CASES = 2  # of each line


class Draws:
    """Texts of each case, by number. What stands in the place of seeds asks for the number."""

    def __init__(self, form: Form, cases: list[Case]):
        self.counts: dict[Case, Counter] = {case: Counter() for case in cases}
        self.programs = {case: program_of(form.decode, case) for case in cases}
        self.number = 0
        self.stand_ins = Salted(lambda: self.number)

    def draw(self, case: Case, n: int) -> None:
        """Draw n more texts."""
        for _ in range(n):
            self.number += 1
            TracedRandom.walk.begin([])
            np.random.seed(0)  # of this number, as all seeds
            random.seed(0)
            if torch := sys.modules.get("torch"):
                torch.manual_seed(0)
            text = self.programs[case](np.random.Generator(np.random.PCG64(self.stand_ins.seed("rng"))))
            self.counts[case][text] += 1

    def forget(self) -> None:
        for counts in self.counts.values():
            counts.clear()

    def are_constant(self) -> bool:
        """Whether each case that should have several texts has one, as from a fixed seed."""
        return all(len(counts) == 1 for case, counts in self.counts.items() if len(case.law()) > 1)


class Drawn(NamedTuple):
    """What was seen."""

    n_texts: int  # of each case
    cases: list[Case]
    wrong: Case | None
    counts: Counter  # of the texts of the wrong case
    least: float  # the distance from the law that would have shown
    is_constant: bool  # whether it is always the same text

    def law(self) -> dict:
        """The law of the wrong case, as far as its texts tell."""
        return {text: n / self.counts.total() for text, n in self.counts.items()}


def draw_texts(function: Callable, form: Form) -> Drawn:
    """Draw as many texts as there is time for. Raises UserError if the function does."""
    cases = [case for case in in_rounds(CASES) if case.number < N_CASES and case.n_vocab < 64]
    draws = Draws(form, cases)
    until = time.monotonic() + SECONDS
    n_texts = 0
    with followed(function, draws.stand_ins):
        form.way = first_that_works(form, draws)
        while not n_texts or (n_texts < MOST_TEXTS and time.monotonic() < until):
            n_texts += ROUND
            for case in cases:
                draws.draw(case, ROUND)
        is_constant = draws.are_constant()
        wrong = None if is_constant else next(failed_twice(draws, n_texts), None)
    least = max(detectable(case, n_texts) for case in cases)
    return Drawn(n_texts, cases, wrong, draws.counts[wrong or cases[0]], least, is_constant)


def first_that_works(form: Form, draws: Draws) -> Way:
    """The way to give it texts and models: the first whose texts follow the law, else the first without an error."""
    errors: list[UserError] = []
    right: list[bool] = []
    tried: list[Way] = []
    for form.way in ways():
        try:
            for case in [*draws.counts][:N_CASES]:
                draws.draw(case, ROUND)
        except UserError as error:
            errors.append(error)
            continue
        tried.append(form.way)
        right.append(all(sigmas(counts, case.law()) < SIGMAS for case, counts in draws.counts.items() if counts))
        draws.forget()
        if right[-1]:
            break
    if not tried:
        raise errors[0]
    return tried[right.index(True)] if any(right) else tried[0]


def failed_twice(draws: Draws, n_texts: int) -> Iterator[Case]:
    """The cases whose texts do not follow the law, nor do other ones."""
    for case in draws.counts:
        if sigmas(draws.counts[case], case.law()) > SIGMAS:
            draws.counts[case] = Counter()
            draws.draw(case, n_texts)
            if sigmas(draws.counts[case], case.law()) > SIGMAS:
                yield case


def sigmas(counts: Counter, law: dict) -> float:
    """By how many standard deviations texts are too far from a law: Pearson's statistic, by the cube root of Wilson and
    Hilferty (1931)."""
    n = counts.total()
    if counts.keys() - law.keys():
        return np.inf
    usual = [text for text, q in law.items() if n * q >= USUAL]
    observed = np.array([counts[text] for text in usual])
    expected = np.array([n * law[text] for text in usual])
    n_others = n - expected.sum()
    if n_others > 0.5:
        observed = np.append(observed, n - observed.sum())
        expected = np.append(expected, n_others)
    statistic = np.sum((observed - expected) ** 2 / expected)
    freedom = max(1, len(expected) - 1)
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - 1 + spread) / spread**0.5


def detectable(case: Case, n: int) -> float:
    """The total variation distance d that n texts would have shown: it adds at least n (2d)² to the statistic.

    The statistic of freedom f has the mean f + n (2d)², and twice the variance f + 2 n (2d)².
    """
    usual = [q for q in case.law().values() if n * q >= USUAL]
    freedom = max(1, len(usual))
    limit = SIGMAS * np.sqrt(2 * freedom)
    added = limit
    for _ in range(20):  # until it changes no more
        variance = 2 * (freedom + 2 * added)
        added = limit + POWER * np.sqrt(variance)
    return float(np.sqrt(added / n) / 2)
