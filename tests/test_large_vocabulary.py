"""The law where it is used: over the 50,257 tokens of GPT-2, most of which are rare and together are not."""

import numpy as np
import pytest
from drafting import Network, drafter_of, prepared

from gpt2 import softmax
from speculative.drafters import KINDS
from speculative.drafters.base import Proposal
from speculative.filters import Filters
from speculative.sampling import sample, speculative_sampling
from speculative.trees import Tree, by_paths, regular, tree_speculative_sampling

N_VOCAB = 50257
RARE = 1e-4
LAST = 1 - 2**-53  # the largest number that a generator gives
US = [0.0, LAST, *np.random.default_rng(8).random(40)]
FLAT = Filters(temperature=3.0)


def with_a_tail(seed):  # -> [n_vocab]
    """A few tokens that are likely, and a tail of rare ones, which have more than a fifth together."""
    p = softmax(2.5 * np.random.default_rng(seed).standard_normal(N_VOCAB).astype(np.float32))
    assert 0.2 < p[p < RARE].sum() < 0.8
    return p


def drawn(p, u):  # [n_vocab]
    """The definition: the first token whose cumulative probability exceeds u."""
    cumulative = np.cumsum(p.astype(np.float64))
    return int(np.flatnonzero(cumulative > u * cumulative[-1])[0])


class Script:
    """A generator that gives these numbers and no more."""

    def __init__(self, us):
        self.us = list(us)

    def random(self):
        return self.us.pop(0)


def test_sample_draws_every_token_as_often_as_it_should():
    """A number from the middle of each token's part gives that token."""
    p = with_a_tail(0)
    cumulative = np.cumsum(p.astype(np.float64))
    parts = np.diff(cumulative, prepend=0)
    middles = (cumulative - parts / 2) / cumulative[-1]
    tokens = np.random.default_rng(1).integers(N_VOCAB, size=500)
    assert [sample(p, Script([middles[token]])) for token in tokens] == tokens.tolist()
    assert sample(p, Script([0.0])) == 0
    assert sample(p, Script([LAST])) == N_VOCAB - 1


def test_softmax_leaves_the_tail_as_it_is():
    logits = 3 * np.random.default_rng(0).standard_normal((1, N_VOCAB)).astype(np.float32)
    for temperature, filters in ((0.7, Filters(0.7)), (1.0, Filters()), (3.0, Filters(3.0))):
        expected = softmax(logits.astype(np.float64) / temperature)
        np.testing.assert_allclose(filters(logits), expected, rtol=1e-4)


class Model:
    """It gives the same row after every token."""

    def __init__(self, seed):
        self.row = with_a_tail(seed)

    def __call__(self, x, n_last=1):
        return np.tile(self.row, (n_last, 1))

    def tree(self, x, tree, nodes=None):
        return by_paths(self)(x, tree, nodes)


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


@pytest.fixture
def make(name, tmp_path):
    """make(rng) -> the drafter of that name."""
    network = Network(N_VOCAB)
    tokens = np.random.default_rng(4).integers(N_VOCAB, size=3000)
    of_kinds = prepared(name, tmp_path, network, tokens)
    models = {"target": network, "draft": Model(5), "copy": Model(6)}
    trees = KINDS[name].tree is not None
    return lambda rng: drafter_of(name, rng, N_VOCAB, trees, models=models, prepared=of_kinds, filters=FLAT)


TEXT = [7, 8, 7, 8, 7]


def test_each_token_of_a_chain_was_drawn_from_the_p_that_it_comes_with(name, make):
    probabilities = []
    for us in zip(US, reversed(US), strict=True):
        tokens, p, _ = make(Script(us)).chain(TEXT, 2)
        assert [*tokens] == [drawn(np.asarray(p_i), u) for p_i, u in zip(p, us, strict=True)]
        probabilities.append(p[0][tokens[0]])
    if KINDS[name].draws:
        assert min(probabilities) < RARE


def test_each_node_of_a_tree_was_drawn_from_the_p_that_it_comes_with(name, make):
    if KINDS[name].tree is None:
        pytest.skip("it drafts chains only")
    for i in range(10):
        us = US[i : i + 3]
        tree = make(Script(us)).tree(TEXT, regular([len(us)]))
        assert tree.tokens[1:] == [drawn(np.asarray(p_i), u) for p_i, u in zip(tree.p[1:], us, strict=False)]


def chain(j, p, target, rng):
    return speculative_sampling([0], lambda x, k: Proposal([j], [p]), target, 2, 1, rng)


def tree(j, p, target, rng):
    return tree_speculative_sampling(
        [0], lambda x, shape: Tree([0, j], [-1, 0], [None, p], [[1], []]), by_paths(target), 2, regular([1]), rng
    )


@pytest.mark.parametrize("window", [chain, tree])
def test_a_window_is_what_algorithm_2_says(window):
    """The first number tests the draft, the second draws the token that follows or replaces it."""
    p, q = with_a_tail(2), with_a_tail(3)
    left = np.maximum(q.astype(np.float64) - p, 0)
    drafts = np.random.default_rng(5).integers(N_VOCAB, size=len(US))
    for j, u, then in zip(drafts.tolist(), US, reversed(US), strict=True):
        step = next(window(j, p, lambda x, n_last: np.tile(q, (n_last, 1)), Script([u, then])))
        accepted = u * float(p[j]) < q[j]
        assert step.tokens == ([j, drawn(q, then)] if accepted else [drawn(left, then)])
