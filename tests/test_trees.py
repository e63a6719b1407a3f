"""Trees: what they offer, the joint distribution computed exactly, and the chain as the tree with one child each."""

import numpy as np
import pytest
from enumeration import distance_from_target, random_model
from tiny import counts

from speculative.accept import TOKEN, typical
from speculative.drafters import first_tree_of
from speculative.drafters.lookup import lookup_tree, prompt_lookup
from speculative.drafters.model import model_drafter, model_tree
from speculative.sampling import sample, speculative_sampling
from speculative.stop import cut
from speculative.trees import Tree, by_paths, regular, tree_speculative_sampling


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_the_chain_is_the_tree_with_one_child_each(seed, depth):
    """The same steps for the same random numbers."""
    target, model = random_model(seed, 4), random_model(seed + 100, 4)
    rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
    chain = speculative_sampling([1], model_drafter(model, rng), target, 30, depth, rng)
    draft, shape = model_tree(by_paths(model), again), regular([1] * depth)
    tree = tree_speculative_sampling([1], draft, by_paths(target), 30, shape, again)
    for by_tree, by_chain in zip(tree, chain, strict=True):
        assert counts(by_tree) == counts(by_chain)
        assert [test[:4] for test in by_tree.tests] == by_chain.tests
        assert by_tree.own.u == by_chain.own.u
    assert rng.random() == again.random()


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_a_lookup_chain_is_prompt_lookup(depth):
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.integers(3, size=rng.integers(1, 20))
        tree = lookup_tree(3)(x, regular([1] * depth))
        tokens, p, by = prompt_lookup(3)(x, depth)
        assert tree.tokens[1:] == list(tokens)
        assert np.array_equal(np.reshape(tree.p[1:], (-1, 3)), p)
        assert [tree.by] * len(tokens) == by


def test_several_places_give_several_continuations():
    a, b, c, d = range(4)
    x = np.array([a, b, c, a, b, d, a, b, c, a, b])  # c a b was followed by d a; a b also by c a, twice
    tree = lookup_tree(4)(x, regular([2, 2]))
    assert tree.tokens == [b, d, a, c, a]
    assert tree.parents == [-1, 0, 1, 0, 3]
    assert lookup_tree(4)(x, regular([1, 1])).tokens == [b, d, a]
    assert lookup_tree(4)(np.array([a, b, c]), regular([2, 2])).tokens == [c]  # nothing was found


def test_greedy_siblings_are_the_likeliest():
    row = np.array([0.1, 0.4, 0.4, 0.1, 0.0], np.float32)
    draft = model_tree(lambda x, tree, nodes: np.tile(row, (len(nodes), 1)), None, greedy=True)
    tree = draft([0], regular([3, 1]))
    assert tree.tokens == [0, 1, 2, 0, 1, 1, 1]
    assert tree.parents == [-1, 0, 0, 0, 1, 2, 3]
    assert all(p[token] == p.sum() == 1 for token, p in zip(tree.tokens[1:], tree.p[1:], strict=True))
    assert draft([0], regular([9])).tokens == [0, 1, 2, 0, 3]


def test_a_stop_cuts_a_tree_to_its_depth():
    """A cut leaves a whole tree of that depth, with its rows and the chances that it had."""
    target, model = random_model(1, 4), random_model(2, 4)
    rng = np.random.default_rng(3)
    n_cut = 0
    draft = model_tree(by_paths(model), rng)
    for step in tree_speculative_sampling([1], draft, by_paths(target), 300, regular([2, 2, 1]), rng):
        path = [test.node for test in step.tests if test.passed]
        assert [step.proposal.tokens[node] for node in path] == step.tokens[:-1]
        for n in range(1, step.accepted + 1):
            part = cut(step, n)
            tree = part.proposal
            assert counts(part) == (step.tokens[:n], len(tree.tokens) - 1, n)
            assert [tree.tokens[test.node] for test in part.tests if test.passed] == step.tokens[:n]
            assert len(part.q) == len(tree.tokens)
            assert max(len(tree.path(node)) for node in range(len(tree.tokens))) == n
            for rule in (TOKEN, typical(0.3)):
                assert rule.chances(part) == rule.chances(step)[:n]
            n_cut += 1
    assert n_cut > 50


def repeating(model, rng):
    """Siblings may be drawn with replacement, if p says so: each from the same row, the same token maybe twice."""

    def draft(x, shape):
        tree = Tree([int(x[-1])])
        [row] = model(x)
        for _ in shape:
            tree.add(0, sample(row, rng), row)
        return tree

    return draft


def drawn(model, rng):
    return model_tree(by_paths(model), rng)


def one_hot(model, rng):
    return first_tree_of(lookup_tree(3), model_tree(by_paths(model), None, greedy=True))


SHAPES = [*map(regular, ([1], [2], [3], [2, 1], [2, 2], [3, 2], [4, 4])), (((), ()), ()), ((((),),), (), ())]
CASES = [*((drawn, shape, 3) for shape in SHAPES), (repeating, regular([3]), 3), (one_hot, regular([2, 2]), 4)]
LONG = [*map(regular, ([3, 2], [4, 4]))]  # seconds each


@pytest.mark.parametrize(
    ("seed", "drafter", "shape", "N"),
    [(seed, *case) for seed in range(2) for case in CASES if seed == 0 or case[1] not in LONG],
)
def test_the_joint_law_is_the_targets_exactly(seed, drafter, shape, N):
    """Over every path: several draws, acceptances and residuals, siblings of probability 0 among them."""
    target, model = random_model(seed, 3), random_model(seed + 1000, 3)
    decode = lambda rng: tree_speculative_sampling([1], drafter(model, rng), by_paths(target), N, shape, rng)  # noqa: E731
    assert distance_from_target(decode, target, [1], N) < 1e-6
