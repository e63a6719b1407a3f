"""Trees: the walk by script, the joint distribution computed exactly, and the chain as the tree with one child each."""

import numpy as np
import pytest
from enumeration import broken, distance_from_target, output_distribution, random_model, remembered

from speculative import trees
from speculative.drafters import first_tree_of
from speculative.drafters import model as model_module
from speculative.drafters.lookup import lookup_tree, prompt_lookup
from speculative.drafters.model import model_drafter, model_tree
from speculative.sampling import speculative_sampling
from speculative.trees import Tree, acceptance_by_depth, by_paths, one_hot, regular, tree_speculative_sampling

WIDTHS = [[1], [2], [3], [2, 1], [2, 2], [1, 2], [3, 2], [4, 4]]
SHAPES = [*map(trees.regular, WIDTHS), (((), ()), ()), ((((),),), (), ())]  # the last two are not regular


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_the_chain_is_the_tree_with_one_child_each(seed, depth):
    """The same steps for the same random numbers."""
    target, model = remembered(random_model(seed, 4)), remembered(random_model(seed + 100, 4))
    rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
    chain = speculative_sampling([1], model_drafter(model, rng), target, 30, depth, rng)
    tree = tree_speculative_sampling(
        [1], model_tree(by_paths(model), again), by_paths(target), 30, regular([1] * depth), again
    )
    assert [*chain] == [*tree]
    assert rng.random() == again.random()


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_a_lookup_chain_is_prompt_lookup(depth):
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.integers(3, size=rng.integers(1, 20))
        tree = lookup_tree(3)(x, regular([1] * depth))
        tokens, p, by = prompt_lookup(3)(x, depth)
        assert tree.tokens[1:] == list(tokens) and np.array_equal(np.reshape(tree.p[1:], (-1, 3)), p)
        assert [tree.by] * len(tokens) == by


def test_several_places_give_several_continuations():
    a, b, c, d = range(4)
    x = np.array([a, b, c, a, b, d, a, b, c, a, b])  # c a b was followed by d a; a b also by c a, twice
    tree = lookup_tree(4)(x, regular([2, 2]))
    assert tree.tokens == [b, d, a, c, a] and tree.parents == [-1, 0, 1, 0, 3]
    assert lookup_tree(4)(x, regular([1, 1])).tokens == [b, d, a]
    assert lookup_tree(4)(np.array([a, b, c]), regular([2, 2])).tokens == [c]  # nothing was found


def test_greedy_siblings_are_the_likeliest():
    row = np.array([0.1, 0.4, 0.4, 0.1, 0.0], np.float32)
    tree = model_tree(lambda x, tree, nodes: np.tile(row, (len(nodes), 1)), None, greedy=True)([0], regular([3, 1]))
    assert tree.tokens == [0, 1, 2, 0, 1, 1, 1] and tree.parents == [-1, 0, 0, 0, 1, 2, 3]
    assert all(p[token] == p.sum() == 1 for token, p in zip(tree.tokens[1:], tree.p[1:], strict=True))
    assert model_tree(lambda x, tree, nodes: row[None], None, greedy=True)([0], regular([9])).tokens == [0, 1, 2, 0, 3]


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("right", [0, 1, 2, 9])
def test_the_sibling_that_is_right_is_accepted(width, right):
    """The target counts. Of the guesses at each depth, number `right` is right; after the last, it is resampled."""

    trees = []

    def draft(x, shape):
        tree, level = Tree([int(x[-1])]), [(0, shape)]
        trees.append(tree)
        while level:
            add = [(n, tree.tokens[n] + 1 + i - right, b) for n, below in level for i, b in enumerate(below)]
            level = [(tree.add(n, token % 5, one_hot(token % 5, 5)), below) for n, token, below in add]
        return tree

    shape = regular([width, width])
    steps = list(tree_speculative_sampling([0], draft, by_paths(counting_target_5), 9, shape, np.random.default_rng(0)))
    assert [token for step in steps for token in step.tokens] == [(i + 1) % 5 for i in range(9)]
    first = steps[0]
    path = trees[0].walk(first.tokens[: first.accepted])
    if right < width:
        assert first.accepted == 2 and len(first.tokens) == 3 and first.drafted == width + width**2
        assert path == [1 + right, 1 + width + right * width + right]
    else:
        assert first.accepted == 0 and len(first.tokens) == 1 and path == []
    assert steps[-1].drafted == 0 or len(steps[-1].tokens) > 1 or right >= width


def counting_target_5(x, n_last=1):
    return np.stack([one_hot((int(token) + 1) % 5, 5) for token in x[len(x) - n_last :]])


def decoder(target, model, shape, N, sampling=tree_speculative_sampling):
    return lambda rng: sampling([1], model_tree(by_paths(model), rng), by_paths(target), N, shape, rng)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_joint_law_is_the_targets_exactly(seed, shape):
    """Over every path: several draws, acceptances and residuals, siblings of probability 0 among them."""
    target, model = remembered(random_model(seed, 3)), remembered(random_model(seed + 1000, 3))
    assert distance_from_target(decoder(target, model, shape, 3), target, [1], 3) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_guesses_that_repeat_each_other_are_exact_too(seed):
    """Siblings may be drawn with replacement, if p says so: each from the same row, the same token maybe twice."""
    target, model = remembered(random_model(seed, 3)), remembered(random_model(seed + 1000, 3))

    def decode(rng):
        def draft(x, shape):
            tree = Tree([int(x[-1])])
            [row] = model(x)
            for _ in range(3 if shape else 0):
                tree.add(0, model_module.sample(row, rng), row)
            return tree

        return tree_speculative_sampling([1], draft, by_paths(target), 3, regular([3]), rng)

    assert distance_from_target(decode, target, [1], 3) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_one_hot_guesses_are_exact_too(seed):
    target, model = remembered(random_model(seed, 3)), remembered(random_model(seed + 1000, 3))
    draft = first_tree_of(lookup_tree(3), model_tree(by_paths(model), None, greedy=True))
    decode = lambda rng: tree_speculative_sampling([1], draft, by_paths(target), 4, regular([2, 2]), rng)  # noqa: E731
    assert distance_from_target(decode, target, [1], 4) < 1e-6


def test_a_walk_is_the_path_of_its_tokens():
    rng = np.random.default_rng(0)
    for _ in range(50):
        tree = model_tree(lambda x, tree, nodes: np.full((len(nodes), 9), 1 / 9, np.float32), rng)([0], regular([3, 2]))
        for node in range(len(tree.tokens)):
            path = tree.path(node)
            assert tree.walk([tree.tokens[i] for i in path]) == path


@pytest.mark.parametrize("lenience", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_the_acceptance_by_depth_is_the_share_that_is_accepted(seed, lenience):
    """At the root of a tree whose two children are not drawn, computed over all paths."""
    target, model = random_model(seed, 3), random_model(seed + 1000, 3)
    tree = model_tree(by_paths(model), None, greedy=True)([1], regular([2]))
    assert len(tree.children[0]) >= 1
    [chance] = acceptance_by_depth(tree, by_paths(target)(np.array([1]), tree), [], lenience)

    def accepted(rng):
        draft = lambda x, shape: tree  # noqa: E731
        return next(tree_speculative_sampling([1], draft, by_paths(target), 2, regular([2]), rng, lenience)).accepted

    assert output_distribution(accepted).get(1, 0) == pytest.approx(chance)


MUTANTS = {
    "with replacement, but p as if without": (
        model_module,
        "token = sample(p, rng)\n",
        "first = p if _ == 0 else first; token = sample(first, rng)\n",
    ),
    "the residual forgotten": (trees, "left = residual", "pass"),
    "p of the first sibling for all": (
        trees,
        "p = tree.p[child]  # [n_vocab]",
        "p = tree.p[tree.children[node][0]]",
    ),
    "siblings in the wrong order": (
        trees,
        "for child in tree.children[node]:",
        "for child in tree.children[node][::-1]:",
    ),
    "the bonus of the root": (trees, "tokens.append(sample(q[node], rng))", "tokens.append(sample(q[0], rng))"),
    "q itself resampled": (trees, "tokens.append(sample(left, rng))", "tokens.append(sample(q[node], rng))"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant):
    module, original, wrong = MUTANTS[mutant]
    distances = []
    with broken(module, original, wrong) as mutated:
        sampling = getattr(mutated, "tree_speculative_sampling", tree_speculative_sampling)
        drafting = getattr(mutated, "model_tree", model_tree)
        for seed in range(6):
            target, model = remembered(random_model(seed, 3)), remembered(random_model(seed + 1000, 3))

            def decode(rng, target=target, model=model):
                draft = drafting(by_paths(model), rng)
                return sampling([1], draft, by_paths(target), 3, regular([2, 1]), rng)

            distances.append(distance_from_target(decode, target, [1], 3))
    assert max(distances) > 1e-3
