"""Exact output distributions: runs a random program along every path it can take, and weighs each."""

from collections import defaultdict
from functools import cache

import numpy as np

GRID = 64  # random() is taken to be uniform on 0, 1/64, ..., 63/64: as a float's is on a finer grid, and 0 is on it


class Paths:
    """A generator that follows one path: a list of branch numbers, extended by 0 where it ends.

    exact: random() is uniform on [0, 1) itself and not on the grid. Then p and q need not be multiples of 1/64, but
    < and <= are the same.
    """

    def __init__(self, path, exact=False):
        self.path, self.depth, self.weight, self.options, self.exact = list(path), 0, 1.0, [], exact

    def branch(self, probabilities):  # [n] -> which of the n branches this path takes
        possible = np.flatnonzero(probabilities)
        if self.depth == len(self.path):
            self.path.append(0)
        self.options.append(len(possible))
        taken = possible[self.path[self.depth]]
        self.depth += 1
        self.weight *= float(probabilities[taken]) / float(np.sum(probabilities, dtype=np.float64))
        return int(taken)

    def random(self):
        return ExactUniform(self) if self.exact else Uniform(self)


class Uniform:
    """What random() returns: a number not yet known, of which only `u * p < q` (or <=) is asked."""

    def __init__(self, rng):
        self.rng, self.values = rng, np.arange(GRID) / GRID

    def __mul__(self, factor):
        self.values = self.values * factor
        return self

    def __lt__(self, bound):
        share = np.mean(self.values < bound)
        return bool(self.rng.branch(np.array([1 - share, share])))

    def __le__(self, bound):
        share = np.mean(self.values <= bound)
        return bool(self.rng.branch(np.array([1 - share, share])))


class ExactUniform:
    def __init__(self, rng):
        self.rng, self.factor = rng, 1.0

    def __mul__(self, factor):
        self.factor *= factor
        return self

    def __lt__(self, bound):
        share = min(1.0, bound / self.factor)
        return bool(self.rng.branch(np.array([1 - share, share])))


def branch_on(p, rng):
    """Stands in for sampling.sample: every id of positive probability is a path of its own."""
    return rng.branch(p)


def output_distribution(program, exact=False):
    """program(rng) -> tuple, for every path -> {tuple: its exact probability}."""
    distribution, path = defaultdict(float), []
    while path is not None:
        rng = Paths(path, exact)
        distribution[program(rng)] += rng.weight
        path = rng.path[: rng.depth]
        while path and path[-1] + 1 == rng.options[len(path) - 1]:
            path.pop()
        path = [*path[:-1], path[-1] + 1] if path else None
    return dict(distribution)


def total_variation(a, b):
    return sum(abs(a.get(key, 0) - b.get(key, 0)) for key in a.keys() | b.keys()) / 2


def random_model(seed, n_vocab, powers_of_two=False):
    """A model whose rows depend on the last two tokens. Multiples of 1/64, zeros among them, so that u * p is exact
    and the grid gives each acceptance its exact probability q / p (p is a power of two)."""

    @cache
    def row(*context):
        rng = np.random.default_rng([seed, *context])
        if powers_of_two:
            shapes = [[64], [32, 32], [32, 16, 16], [16, 16, 16, 16], [32, 16, 8, 8]]
            counts = shapes[rng.integers(len(shapes) if n_vocab > 3 else 3)]
            counts = counts + [0] * (n_vocab - len(counts))
        else:
            keep = rng.random(n_vocab) < 0.7
            keep[rng.integers(n_vocab)] = True
            counts = rng.multinomial(64, keep / keep.sum())
        return rng.permutation(np.array(counts, np.float32)) / 64  # [n_vocab]

    def model(x, n_last=1):
        x = [0, *(int(token) for token in x)]
        return np.stack([row(*x[i - 1 : i + 1]) for i in range(len(x) - n_last, len(x))])  # [n_last, n_vocab]

    return model
