"""--tree from the command line, and the shape that chooses itself."""

import itertools
import json
import re
from functools import partial

import numpy as np
import pytest
from test_flags import refusal
from test_main import run, run_json, texts  # noqa: F401

import main
from speculative import autotree
from speculative.autotree import AutoTree, best_shape, depth
from speculative.costs import best_k
from speculative.drafters.lookup import lookup_tree
from speculative.measure import report, verify
from speculative.sampling import autoregressive_sampling
from speculative.trees import Tree, by_paths, one_hot, regular, tree_speculative_sampling

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


@pytest.mark.parametrize("a", [0.0, 0.3, 0.8, 1.0])
def test_without_a_second_guess_it_is_the_best_chain(a):
    beta = lambda rows: 1 + 0.05 * (rows - 1)  # noqa: E731
    shape, speedup = best_shape([[a]] * 8, 0.1, 0.0, beta)
    K, chain = best_k([a] * 8, 0.1, beta)
    assert shape == regular([1] * K) and speedup == pytest.approx(chain)


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
        return [one_hot((token + 1) % 7, 7) for token in tokens]

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
                    below.append((tree.add(node, token, one_hot(token, 7)), shape_below, place + 1))
            level = below
        return tree

    def auto(self, N):
        auto = AutoTree(clock=self.clock)
        steps = [*auto.decode([0], self.draft, self.target, N, np.random.default_rng(0))]
        assert [token for step in steps for token in step.tokens] == [i % 7 for i in range(1, N + 1)]
        return self.now, steps

    def fixed(self, shape, N):
        rng = np.random.default_rng(0)
        steps = [*tree_speculative_sampling([0], self.draft, self.target, N, shape, rng)]
        assert sum(len(step.tokens) for step in steps) == N
        return self.now


RIGHT = {
    "always the first": lambda place: 0,
    "always the second": lambda place: 1,
    "first or second": lambda place: place * 7 % 3 % 2,
    "never": lambda place: None,
}
SHAPES = [(), *(regular([1] * K) for K in (1, 2, 4, 8)), *map(regular, ([2], [2, 1], [2, 2], [2, 2, 2], [2, 2, 1, 1]))]


@pytest.mark.parametrize("right", RIGHT)
def test_auto_is_nearly_the_best_fixed_tree(right):
    took, _ = World(RIGHT[right]).auto(300)
    assert took <= min(World(RIGHT[right]).fixed(shape, 300) for shape in SHAPES) / 0.95


def test_auto_branches_where_the_second_guess_is_right():
    _, steps = World(RIGHT["always the second"]).auto(300)
    assert np.mean([step.accepted for step in steps[-20:]]) > 2
    _, steps = World(RIGHT["always the first"], further=0.3).auto(300)
    assert all(step.drafted == step.accepted for step in steps[20:]), "with dear rows, a chain"


def test_a_tree_after_autoregressive_decoding():
    """Where K was 0 for long, guesses are tried again and found to be good."""
    world = World(lambda place: None if place < 150 else 0)
    _, steps = world.auto(300)
    assert sum(step.drafted for step in steps[60:120]) < 20 and np.mean([s.accepted for s in steps[-5:]]) > 3


# ---- From the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "ngram", "prompt_lookup+model"])
@pytest.mark.parametrize("tree", ["2,2,1", "1", "4,1", "auto"])
def test_greedy_texts_are_equal(run, drafter, tree):  # noqa: F811
    plain, speculative = texts(run(quiet=True, tree=tree, drafter=drafter))
    assert plain == speculative


def test_it_is_reported(run_json):  # noqa: F811
    _, document = run_json(tree="2,2,1")
    told = {"seconds": {"rest": 0, "speculative": 1}, "speedup_without_prefill": 1.0, "predicted_blog": 1.0}
    assert "were accepted" in report.advice(document["figures"] | told)
    sample = document["speculative"]["samples"][0]
    assert sum(i["tokens"] for i in sample["iterations"]) == 12 == len(sample["origins"])
    for i in sample["iterations"]:
        if i["drafted"]:
            assert len(i["tree"]["tokens"]) == len(i["tree"]["parents"]) == i["drafted"]
            assert len(i["tree"]["path"]) == i["accepted"] and len(i["alpha"]) >= min(1, i["drafted"])
    assert document["options"]["tree"] == [2, 2, 1]
    json.dumps(document)


def test_it_is_shown(run):  # noqa: F811
    out = run(tree="2,1", verbose=True)
    assert re.search(r"\d of \d", out) and "by position" in out
    assert texts(run(tree="2,2", temperature=1, seed=7, quiet=True))


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            {"tree": "1,1,1,1", "n_tokens_to_generate": 4},
            "a tree of 4 levels needs --n_tokens_to_generate of at least 5",
        ),
        ({"tree": "64", "n_tokens_to_generate": 100}, "take .* places of a context of"),
        ({"tree": "2", "drafter": "model/ngram"}, "--tree does not go with the levels of --drafter model/ngram"),
        ({"tree": "2", "engine": "jax"}, "--tree is for --engine numpy"),
        ({"tree": "0"}, "--tree must be children by depth"),
    ],
)
def test_a_tree_that_cannot_be_drafted(tiny_pair, flags, line):
    usual = {"target_model_size": "target", "draft_model_size": "draft", "models_dir": tiny_pair, "prompt": "the thing"}
    assert re.search(line, refusal(main.main, **usual | {key: str(value) for key, value in flags.items()}))


def test_verify_with_a_tree(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr(verify, "verify", partial(verify.verify, draws=30))
    for tree in ("2,1", "auto"):
        out = run(tree=tree, verify=True)
        assert "passed  nodes" in out and f"tree {tree}" in out and "no loss found" in out


def test_the_time_of_choosing_is_bounded():
    """At most so many nodes are looked at for each depth."""
    shape, _ = best_shape([[0.9, 0.05, 0.03, 0.01]] * autotree.DEPTH, 0, 0, lambda rows: 1)
    assert depth(shape) == autotree.DEPTH


def test_lookups_offer_what_the_text_offers():
    x = np.array([1, 2, 3, 1, 2, 4, 1, 2])
    steps = tree_speculative_sampling(
        x,
        lookup_tree(7),
        by_paths(lambda x, n_last=1: [one_hot(3, 7)] * n_last),
        3,
        regular([2]),
        np.random.default_rng(0),
    )
    assert next(steps).accepted == 1  # 4 came last, 3 before
    assert [s.tokens for s in autoregressive_sampling(x, lambda x: [one_hot(3, 7)], 1, np.random.default_rng(0))] == [
        [3]
    ]
