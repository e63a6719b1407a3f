"""The engine's tree: each row is that of the same text as a chain, whatever the cache held."""

from functools import partial

import numpy as np
import pytest
from tiny import HPARAMS, convert, first_layer, logits_themselves, random_params, watched

from speculative.drafters.model import model_drafter, model_tree
from speculative.engines import packed, runtime
from speculative.engines.plain import CachedModel, PlainPass, lineage
from speculative.filters import Filters
from speculative.sampling import autoregressive_sampling, speculative_sampling
from speculative.trees import Tree, by_paths, regular, tree_speculative_sampling


def random_tree(rng, n_nodes, root):
    tree = Tree([root])
    for _ in range(n_nodes):
        tree.add(int(rng.integers(len(tree.tokens))), int(rng.integers(4)), None)  # few tokens: siblings may be equal
    return tree


def test_lineage():
    assert lineage(np.array([-1, 0, 1, 1, 0])).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]


def test_lineage_of_the_last_tokens_is_the_end_of_that_of_all():
    rng = np.random.default_rng(0)
    for _ in range(100):
        parents = np.array([i - 1 if rng.random() < 0.6 else rng.integers(-1, i) for i in range(rng.integers(1, 12))])
        whole = np.eye(len(parents), dtype=bool)
        for i, parent in enumerate(parents):
            if parent >= 0:
                whole[i] |= whole[parent]
        for n in range(len(parents) + 1):
            assert np.array_equal(lineage(parents, n), whole[n:])


def test_rows_are_those_of_the_paths():
    """Over a series of calls, most of which follow a path of the tree before, as a decoder does."""
    rng, params = np.random.default_rng(0), random_params()
    fed = []
    model = CachedModel(params, HPARAMS, logits_themselves, watched(PlainPass, fed))
    oracle = by_paths(CachedModel(params, HPARAMS, logits_themselves))
    x = rng.integers(4, size=3)
    for _ in range(60):
        tree = random_tree(rng, int(rng.integers(8)), int(x[-1]))
        nodes = None if rng.random() < 0.5 else [*range(int(rng.integers(len(tree.tokens))), len(tree.tokens))]
        np.testing.assert_allclose(model.tree(x, tree, nodes), oracle(x, tree, nodes), rtol=1e-4, atol=1e-5)
        walked = [tree.tokens[i] for i in tree.path(int(rng.integers(len(tree.tokens))))]
        x = np.append(x, [*walked, rng.integers(4)]).astype(int)
        if len(x) > 15 or rng.random() < 0.1:
            x = rng.integers(4, size=3)
        elif rng.random() < 0.2:  # a chain may follow a tree
            np.testing.assert_allclose(model(x), oracle(x, Tree([int(x[-1])])), rtol=1e-4, atol=1e-5)
            assert len(fed[-1]) == 1, "the path was walked already"


def test_a_level_feeds_only_its_own_nodes():
    params, fed = random_params(), []
    to_probs = Filters(temperature=1)
    model = CachedModel(params, HPARAMS, to_probs, watched(PlainPass, fed))
    draft = model_tree(model.tree, np.random.default_rng(0))
    tree = draft(np.arange(5), regular([3, 2, 1]))
    assert [*map(len, fed)] == [5, 3, 6]
    fed.clear()
    walked = tree.path(len(tree.tokens) - 1)[:2]
    draft(np.append(np.arange(5), [*(tree.tokens[i] for i in walked), 7]), regular([2, 1]))
    assert [*map(len, fed)] == [1, 2], "of the path that was walked nothing is computed again"


@pytest.mark.parametrize("widths", [[1, 1, 1], [2, 2], [4], [3, 1, 1]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding(widths, temperature):
    """At temperature 0 the autoregressive text; and a chain draws what speculative_sampling draws."""
    to_probs = Filters(temperature=temperature)
    params = random_params()
    target, draft = CachedModel(params, HPARAMS, to_probs), CachedModel(*first_layer(params, HPARAMS), to_probs)
    rng, again = np.random.default_rng(1), np.random.default_rng(1)
    guess = model_tree(draft.tree, rng, greedy=temperature == 0)
    steps = [*tree_speculative_sampling([1, 2], guess, target.tree, 12, regular(widths), rng)]
    tokens = [token for step in steps for token in step.tokens]
    assert len(tokens) == 12 and any(step.accepted for step in steps)
    if temperature == 0:
        alone = autoregressive_sampling([1, 2], target, 12, again)
        assert tokens == [token for step in alone for token in step.tokens]
    elif set(widths) == {1}:
        chain = speculative_sampling([1, 2], model_drafter(draft, again), target, 12, len(widths), again)
        assert tokens == [token for step in chain for token in step.tokens]


def test_a_tree_that_does_not_fit():
    model = CachedModel(random_params(), HPARAMS, logits_themselves)
    with pytest.raises(ValueError, match="25 tokens: the context holds 24"):
        model.tree(np.zeros(20, int), random_tree(np.random.default_rng(0), 5, 0))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_compiled_rows_are_those_of_the_chain_to_the_bit(dtype, n_threads):
    """With texts longer than a tile of keys, trees wider than a block of rows, and paths that were walked."""
    if not runtime.compiled_pass():
        pytest.skip("numba is not installed")
    compiled = runtime.compiled_pass()
    new_pass = partial(compiled.CompiledPass, team=partial(compiled.make_team, n_threads))
    hparams = {"n_vocab": 300, "n_ctx": 200, "n_embd": 96, "n_head": 3, "n_layer": 2}
    params = convert(random_params(hparams), packed.packer(dtype))
    model, alone = (CachedModel(params, hparams, logits_themselves, new_pass) for _ in range(2))
    oracle, plain = by_paths(alone), CachedModel(random_params(hparams), hparams, logits_themselves)
    rng = np.random.default_rng(0)
    x = rng.integers(4, size=50)
    for round_ in range(12):
        tree = random_tree(rng, int(rng.integers(40)), int(x[-1]))
        rows = model.tree(x, tree)
        np.testing.assert_array_equal(rows, oracle(x, tree))
        if dtype == "float32" and round_ == 0:
            np.testing.assert_allclose(rows, plain.tree(x, tree), rtol=1e-3, atol=1e-3)
        walked = [tree.tokens[i] for i in tree.path(int(rng.integers(len(tree.tokens))))]
        x = np.append(x, [*walked, rng.integers(4)]).astype(int)
        np.testing.assert_array_equal(model(x), alone(x))
