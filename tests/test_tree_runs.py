"""--tree from the command line, and the shape that chooses itself."""

import itertools
import re

import numpy as np
import pytest
from tiny import decoded, refusal

from speculative import autotree
from speculative.autotree import AutoTree, best_shape, depth
from speculative.measure import report
from speculative.one_hot import OneHot
from speculative.trees import Tree, regular, tree_speculative_sampling

# ---- The best shape --------------------------------------------------------------------------------------------------


def all_shapes(levels, ranks):
    """Every shape of so many levels and ranks."""
    if levels == 0:
        return [()]
    below = all_shapes(levels - 1, ranks)
    return [shape for n in range(ranks + 1) for shape in itertools.product(below, repeat=n)]


def expected(shape, chances, level, row, beta):
    """Speedup, node by node."""
    nodes, branching = [(1.0, 0, shape)], 0
    tokens, n = 1.0, 0
    while nodes:
        reached, d, below = nodes.pop()
        branching += bool(below)
        for chance, child in zip(chances[d] if below else [], below, strict=False):
            tokens, n = tokens + reached * chance, n + 1
            nodes.append((reached * chance, d + 1, child))
    levels = depth(shape)
    return tokens / (levels * level + (branching - levels) * row + beta(n + 1))


@pytest.mark.parametrize("seed", range(20))
def test_no_shape_is_better(seed):
    rng = np.random.default_rng(seed)
    chances = [sorted(rng.dirichlet(np.ones(3))[:2], reverse=True) for _ in range(3)]
    level, row, further = rng.uniform(0, 0.3), seed % 2 * rng.uniform(0, 0.05), rng.uniform(0, 0.1)
    costs = level, row, lambda rows: 1 + further * (rows - 1)
    shape, speedup = best_shape(chances, *costs)
    best = max(expected(other, chances, *costs) for other in all_shapes(3, 2))
    assert speedup == pytest.approx(expected(shape, chances, *costs)) == pytest.approx(best, rel=0.02 if row else 1e-6)


def test_the_time_of_choosing_is_bounded():
    """At most so many nodes are looked at for each depth."""
    shape, _ = best_shape([[0.9, 0.05, 0.03, 0.01]] * autotree.DEPTH, 0, 0, lambda rows: 1)
    assert depth(shape) == autotree.DEPTH


class World:
    """Models of 7 tokens that take time: the target counts, and the draft's `width` guesses hold what is right."""

    def __init__(self, right, level=0.1, node=0.01, further=0.02):
        """right(place) -> the rank of the right token among the guesses, None where none is."""
        self.now, self.right, self.costs = 0.0, right, (level, node, further)

    def clock(self):
        return self.now

    def target(self, x, tree=None):
        self.now += 1 + self.costs[2] * (len(tree.tokens) - 1 if isinstance(tree, Tree) else 0)
        tokens = tree.tokens if isinstance(tree, Tree) else [x[-1]]
        return [OneHot((token + 1) % 7, 7) for token in tokens]

    def draft(self, x, shape):
        tree, level = Tree([int(x[-1])]), [(0, shape, len(x))]
        while level := [item for item in level if item[1]]:
            self.now += self.costs[0] + self.costs[1] * (len(level) - 1)
            below = []
            for node, shapes, place in level:
                guesses = [(tree.tokens[node] + 2 + rank) % 7 for rank in range(4)]
                if (rank := self.right(place)) is not None:
                    guesses[rank] = (tree.tokens[node] + 1) % 7
                for token, shape_below in zip(guesses, shapes, strict=False):
                    below.append((tree.add(node, token, OneHot(token, 7)), shape_below, place + 1))
            level = below
        return tree

    def auto(self, N):
        auto = AutoTree(clock=self.clock)
        steps = [*auto.decode([0], self.draft, self.target, N, np.random.default_rng(0))]
        assert decoded(steps) == [i % 7 for i in range(1, N + 1)]
        return self.now, steps

    def fixed(self, shape, N):
        rng = np.random.default_rng(0)
        steps = [*tree_speculative_sampling([0], self.draft, self.target, N, shape, rng)]
        assert sum(len(step.tokens) for step in steps) == N
        return self.now


SHAPES = [(), *(regular([1] * K) for K in (1, 2, 4, 8)), *map(regular, ([2], [2, 1], [2, 2], [2, 2, 2], [2, 2, 1, 1]))]


@pytest.mark.parametrize(
    "right",
    [
        lambda place: 0,
        lambda place: 1,
        lambda place: place * 7 % 3 % 2,
        lambda place: None,
        lambda place: 0 if place > 150 else None,
    ],
)
def test_auto_is_nearly_the_best_fixed_tree(right):
    """Targets for which the first guess is right, the second, either, none, and none for long."""
    took, _ = World(right).auto(300)
    assert took <= min(World(right).fixed(shape, 300) for shape in SHAPES) / 0.95


def test_with_dear_rows_it_is_a_chain():
    _, steps = World(lambda place: 0, further=0.3).auto(300)
    assert all(step.drafted == step.accepted for step in steps[20:])


# ---- From the command line -------------------------------------------------------------------------------------------


def test_it_is_reported(run_json):
    out, document = run_json(tree="2,2,1", verbose=True)
    assert re.search(r"\d of \d", out)
    assert "by position" in out
    # Whatever the times of this run, which the sentence goes by.
    told = {"seconds": {"rest": 0, "speculative": 1}, "speedup_without_prefill": 1.0, "predicted_blog": 1.0}
    told |= {"busy": False, "disagree": False, "predicted_if": {"drafting were free": 1.5}}
    assert "were accepted" in report.advice(document["figures"] | told)
    sample = document["speculative"]["samples"][0]
    assert sum(i["tokens"] for i in sample["iterations"]) == 12 == len(sample["origins"])
    for i in sample["iterations"]:
        if i["drafted"]:
            assert len(i["tree"]["tokens"]) == len(i["tree"]["parents"]) == i["drafted"]
            assert len(i["tree"]["path"]) == i["accepted"]
            assert len(i["alpha"]) >= min(1, i["drafted"])
    assert document["options"]["tree"] == [2, 2, 1]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"tree": "1,1,1,1", "n_tokens_to_generate": "4"}, "depth 4 needs --n_tokens_to_generate of at least 5"),
        ({"tree": "64", "n_tokens_to_generate": "100"}, "take .* places of a context of"),
        ({"tree": "2", "drafter": "model/ngram"}, "--tree does not go with the levels of --drafter model/ngram"),
    ],
)
def test_a_tree_that_cannot_be_drafted(run, flags, line):
    assert re.search(line, refusal(run, **flags))
