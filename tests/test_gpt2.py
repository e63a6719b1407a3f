"""The forward pass: its dtype, causality, and its cache, of texts and of trees, against no cache."""

import numpy as np
import pytest
from tiny import HPARAMS, convert, logits_themselves, random_params, watched

from gpt2 import attention, gelu, gpt2, layer_norm, softmax
from speculative.drafters.model import model_tree
from speculative.engines import packed, runtime
from speculative.engines.plain import ACTIVATIONS, CachedModel, KVCache, PlainPass, lineage
from speculative.filters import Filters
from speculative.trees import Tree, by_paths, regular


@pytest.fixture
def params():
    return random_params()


class Float32(np.ndarray):
    """An array that gives float32 and nothing else, whatever is done with it."""

    def __array_finalize__(self, made_from):
        assert self.dtype.kind != "f" or self.dtype == np.float32


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
@pytest.mark.parametrize("cache", [None, KVCache(3, 3, 24, 4)])
def test_every_intermediate_is_float32(params, cache, activation):
    params = convert(params, lambda name, array: array.view(Float32))
    assert type(gpt2([1, 2, 3], **params, n_head=3, cache=cache, activation=activation)) is Float32


def test_small_functions_by_hand():
    np.testing.assert_allclose(gelu(np.array([[-1.0, 0, 1]], np.float32)), [[-0.158808, 0, 0.841192]], atol=1e-6)
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000 + np.log(3)], np.float32)), [0.25, 0.75], atol=1e-4)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    np.testing.assert_allclose(layer_norm(np.array([[1.0, 3]], np.float32), one, zero), [[-1, 1]], atol=1e-5)
    v = np.array([[[1.0], [2], [6]]], np.float32)
    np.testing.assert_allclose(attention(np.zeros_like(v), np.zeros_like(v), v), [[[1], [1.5], [3]]], rtol=1e-6)


def random_tree(rng, n_nodes, root):
    tree = Tree([int(root)])
    for _ in range(n_nodes):
        tree.add(int(rng.integers(len(tree.tokens))), int(rng.integers(4)), None)  # few tokens: siblings may be equal
    return tree


def after_a_walk(rng, x, tree):
    """The text after a step of a decoder: a path of the tree follows it, and a token."""
    walked = [tree.tokens[i] for i in tree.path(int(rng.integers(len(tree.tokens))))]
    return np.append(x, [*walked, rng.integers(4)]).astype(int)


def test_the_cached_model_equals_the_uncached_whatever_was_asked_before(params):
    """Texts grow, are cut back, are replaced and repeat; trees are scored over them, and a path of a tree is walked."""
    rng, fed = np.random.default_rng(0), []
    uncached = lambda x, n_last=1: gpt2(x, **params, n_head=3)[-n_last:]  # noqa: E731
    model = CachedModel(params, HPARAMS, logits_themselves, watched(PlainPass, fed))
    x, tree = np.array([1]), Tree([1])
    for _ in range(300):
        longer = after_a_walk(rng, x, tree)
        chance = rng.random()
        goes_on = chance < 0.8 and len(longer) <= 15
        if goes_on:
            x = longer
        elif chance < 0.9:
            x = x[: rng.integers(1, len(x) + 1)]
        else:
            x = rng.integers(4, size=rng.integers(1, 16))
        if rng.random() < 0.5:
            tree = random_tree(rng, int(rng.integers(8)), x[-1])
            nodes = None if rng.random() < 0.5 else [*range(int(rng.integers(len(tree.tokens))), len(tree.tokens))]
            np.testing.assert_allclose(model.tree(x, tree, nodes), by_paths(uncached)(x, tree, nodes), 1e-4, 1e-4)
        else:
            tree = Tree([x[-1]])
            n_last = int(rng.integers(1, min(len(x), 5) + 1))
            np.testing.assert_allclose(model(x, n_last), uncached(x, n_last), 1e-4, 1e-4)
            assert not goes_on or len(fed[-1]) == n_last, "what was walked is held already"


def test_the_cached_model_feeds_only_what_is_new(params):
    fed = []
    model = CachedModel(params, HPARAMS, logits_themselves, watched(PlainPass, fed))
    for x, n_last in [([1, 2, 3], 1), ([1, 2, 3, 4, 5, 6], 4), ([1, 2, 3, 4, 9], 1), ([1, 2, 3, 4, 9], 1), ([8], 1)]:
        model(x, n_last)
    assert fed == [[1, 2, 3], [3, 4, 5, 6], [9], [9], [8]]


@pytest.mark.parametrize("new_pass", [PlainPass, runtime.new_pass])
def test_models_of_the_same_weights_keep_their_texts_apart(params, new_pass):
    """Two of them take turns, each with a text of its own."""
    stored = convert(params, packed.packer("float32")) if new_pass is runtime.new_pass else params
    one = CachedModel(stored, HPARAMS, logits_themselves, new_pass)
    models = [one, one.with_probs(logits_themselves)]
    texts = np.random.default_rng(0).integers(HPARAMS["n_vocab"], size=(2, 12))
    for n in range(3, 13):
        for model, x in zip(models, texts, strict=True):
            expected = gpt2(x[:n], **params, n_head=3)[-1:]
            np.testing.assert_allclose(model(x[:n]), expected, rtol=1e-4, atol=1e-4)


def test_a_level_of_a_tree_feeds_only_its_own_nodes(params):
    fed = []
    model = CachedModel(params, HPARAMS, Filters(temperature=1), watched(PlainPass, fed))
    draft = model_tree(model.tree, np.random.default_rng(0))
    tree = draft(np.arange(5), regular([3, 2, 1]))
    walked = tree.path(len(tree.tokens) - 1)[:2]
    draft(np.append(np.arange(5), [*(tree.tokens[i] for i in walked), 7]), regular([2, 1]))
    assert [*map(len, fed)] == [5, 3, 6, 1, 2], "of the path that was walked nothing is computed again"


def test_lineage_is_a_token_and_all_that_it_descends_from():
    rng = np.random.default_rng(0)
    for _ in range(100):
        parents = np.array([i - 1 if rng.random() < 0.6 else rng.integers(-1, i) for i in range(rng.integers(1, 12))])
        whole = np.eye(len(parents), dtype=bool)
        for i, parent in enumerate(parents):
            if parent >= 0:
                whole[i] |= whole[parent]
        for n in range(len(parents) + 1):
            assert np.array_equal(lineage(parents, n), whole[n:])


def test_the_context_ends_where_it_ends(params):
    model = CachedModel(params, HPARAMS, logits_themselves)
    assert model(np.zeros(24, int)).shape == (1, 50)
    with pytest.raises(ValueError, match="25 tokens: the context holds 24"):
        model(np.zeros(25, int))
    with pytest.raises(ValueError, match="25 tokens: the context holds 24"):
        model.tree(np.zeros(20, int), random_tree(np.random.default_rng(0), 5, 0))
    with pytest.raises(ValueError, match="rows"):
        model([1, 2], n_last=3)
