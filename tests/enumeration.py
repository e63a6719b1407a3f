"""Exact output distributions: runs a random program along every path it can take, and weighs each."""

import inspect
import sys
import types
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest import mock

import numpy as np
import pytest

from speculative import sampling
from speculative.sampling import autoregressive_sampling

GRID = 64  # random() is taken to be uniform on 0, 1/64, ..., 63/64: as a float's is on a finer grid, and 0 is on it


class Paths:
    """A generator that follows one path: a list of branch numbers, extended by 0 where it ends.

    exact: random() is uniform on [0, 1) itself. Else it is uniform on the grid, where u = 0 has its weight, so that <
    differs from <=; then p and q have to be multiples of 1/64.
    """

    def __init__(self, path, exact=True):
        self.path, self.depth, self.weight, self.options, self.exact = list(path), 0, 1.0, [], exact

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
        return Uniform(self) if self.exact else GridUniform(self)


class Uniform:
    """What random() returns: a number not yet known, of which only `u * p < q` is asked."""

    def __init__(self, rng):
        self.rng, self.factor = rng, 1.0

    def __mul__(self, factor):
        self.factor *= factor
        return self

    def __lt__(self, bound):
        share = min(1.0, bound / self.factor) if self.factor else float(bound > 0)
        return bool(self.rng.branch([1 - share, share]))


class GridUniform:
    """The same on the grid, of which `u * p <= q` may be asked too."""

    def __init__(self, rng):
        self.rng, self.values = rng, np.arange(GRID) / GRID

    def __mul__(self, factor):
        self.values = self.values * factor
        return self

    def __lt__(self, bound):
        share = float(np.mean(self.values < bound))
        return bool(self.rng.branch([1 - share, share]))

    def __le__(self, bound):
        share = float(np.mean(self.values <= bound))
        return bool(self.rng.branch([1 - share, share]))


def branch_on(p, rng):
    """Stands in for sampling.sample: every id of positive probability is a path of its own."""
    return rng.branch(p.tolist())


original_sample = sampling.sample


@contextmanager
def branching_samples():
    """Puts branch_on in the place of sampling.sample, in every module of ours that has it."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("speculative.") and getattr(module, "sample", None) is original_sample:
                stack.enter_context(mock.patch.object(module, "sample", branch_on))
        yield


@contextmanager
def broken(module, right, wrong):
    """A module of ours with the first such piece of its source replaced; branching_samples reaches into it too."""
    source = inspect.getsource(module)
    assert right in source
    copy = types.ModuleType("speculative.broken")
    copy.__package__ = module.__package__
    with mock.patch.dict(sys.modules, {copy.__name__: copy}):
        exec(compile(source.replace(right, wrong, 1), "broken.py", "exec"), vars(copy))
        yield copy


def output_distribution(program, exact=True):
    """program(rng) -> something hashable, for every path -> {what came out: its exact probability}."""
    distribution, path = defaultdict(float), []
    with branching_samples():
        while path is not None:
            rng = Paths(path, exact)
            distribution[program(rng)] += rng.weight
            path = rng.path[: rng.depth]
            while path and path[-1] + 1 == rng.options[len(path) - 1]:
                path.pop()
            path = [*path[:-1], path[-1] + 1] if path else None
    assert sum(distribution.values()) == pytest.approx(1)
    return dict(distribution)


def text_distribution(decode, exact=True):
    """decode(rng) -> Steps -> {the tokens of all steps: their exact probability}."""
    return output_distribution(lambda rng: tuple(token for step in decode(rng) for token in step.tokens), exact)


def total_variation(a, b):
    return sum(abs(a.get(key, 0) - b.get(key, 0)) for key in a.keys() | b.keys()) / 2


def distance_from_target(decode, target, x, N, exact=True):
    """Total variation between what decode(rng) gives and the target's own N tokens after x."""
    expected = text_distribution(lambda rng: autoregressive_sampling(x, target, N, rng), exact)
    return total_variation(expected, text_distribution(decode, exact))


def remembered(model):
    """The same model; its rows for the same x are computed once for all paths."""
    rows = cache(lambda x, n_last: model(np.array(x), n_last))
    return lambda x, n_last=1: rows(tuple(np.asarray(x).tolist()), n_last)


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

    def model(x, n_last):
        x = [0, *x.tolist()]
        return np.stack([row(*x[i - 1 : i + 1]) for i in range(len(x) - n_last, len(x))])  # [n_last, n_vocab]

    return remembered(model)
