"""Exact output distributions: runs a random program along every path it can take, and weighs each."""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from speculative.sampling import autoregressive_sampling


class Paths:
    """A generator that follows one path: a list of branch numbers, extended by 0 where it ends."""

    def __init__(self, path):
        self.path, self.depth, self.weight, self.options = list(path), 0, 1.0, []

    def branch(self, probabilities):  # [n], a list -> which of the n branches this path takes
        possible = [i for i, probability in enumerate(probabilities) if probability]
        if self.depth == len(self.path):
            self.path.append(0)
        self.options.append(len(possible))
        taken = possible[self.path[self.depth]]
        self.depth += 1
        self.weight *= probabilities[taken] / sum(probabilities)
        return taken

    def random(self):
        return Uniform(self)


class Uniform:
    """A result of random(): a number from 0 to 1 of which all comparisons are known."""

    def __init__(self, rng):
        self.rng, self.low, self.high, self.factor = rng, 0.0, 1.0, 1.0

    def __mul__(self, factor):
        self.factor *= factor
        return self

    def __lt__(self, bound):
        if bound is self:  # as np.searchsorted asks
            return False
        at = bound / self.factor if self.factor else float(bound > 0)
        at = min(max(at, self.low), self.high)
        is_below = self.rng.branch([at - self.low, self.high - at]) == 0
        if is_below:
            self.high = at
        else:
            self.low = at
        return is_below

    def __gt__(self, bound):
        return not self < bound


def output_distribution(program):
    """program(rng) -> something hashable, for every path -> {what came out: its exact probability}."""
    distribution, path = defaultdict(float), []
    while path is not None:
        rng = Paths(path)
        distribution[program(rng)] += rng.weight
        path = rng.path[: rng.depth]
        while path and path[-1] + 1 == rng.options[len(path) - 1]:
            path.pop()
        path = [*path[:-1], path[-1] + 1] if path else None
    assert sum(distribution.values()) == pytest.approx(1)
    return dict(distribution)


def text_distribution(decode):
    """decode(rng) -> Steps -> {the tokens of all steps: their exact probability}."""
    return output_distribution(lambda rng: tuple(token for step in decode(rng) for token in step.tokens))


def total_variation(a, b):
    return sum(abs(a.get(key, 0) - b.get(key, 0)) for key in a.keys() | b.keys()) / 2


def distance_from_target(decode, target, x, N):
    """Total variation between what decode(rng) gives and the target's own N tokens after x."""
    expected = text_distribution(lambda rng: autoregressive_sampling(x, target, N, rng))
    return total_variation(expected, text_distribution(decode))


def remembered(model):
    """The same model; its rows for the same x are computed once for all paths."""
    rows = cache(lambda x, n_last: model(np.array(x), n_last))
    return lambda x, n_last=1: rows(tuple(np.asarray(x).tolist()), n_last)


def random_model(seed, n_vocab):
    """A model whose rows depend on the last two tokens. Multiples of 1/64, zeros among them."""

    @cache
    def row(*context):
        rng = np.random.default_rng([seed, *context])
        keep = rng.random(n_vocab) < 0.7
        keep[rng.integers(n_vocab)] = True
        return rng.multinomial(64, keep / keep.sum()).astype(np.float32) / 64  # [n_vocab]

    def model(x, n_last):
        x = [0, *x.tolist()]
        return np.stack([row(*x[i - 1 : i + 1]) for i in range(len(x) - n_last, len(x))])  # [n_last, n_vocab]

    return remembered(model)
