"""The two algorithms: every path by script, and the output distribution computed exactly."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from enumeration import distance_from_target, random_model, text_distribution
from tiny import N_VOCAB, counting_target, counts, decoded, one_hot

from speculative.accept import by_ratio, one_by_one
from speculative.drafters.model import model_drafter
from speculative.sampling import (
    NOTHING,
    Proposal,
    autoregressive_sampling,
    max_fn,
    residual,
    sample,
    speculative_sampling,
    token_by_token,
)


def scripted(*numbers):
    """A generator that gives these numbers, and no more."""
    return SimpleNamespace(random=iter(numbers).__next__)


def proposes(*tokens):
    return lambda x, k: Proposal(list(tokens[:k]), one_hot(*tokens[:k]))


@pytest.mark.parametrize(
    ("p", "us", "expected"),
    [
        ([0, 0.25, 0, 0.5, 0.25, 0], (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53), [1, 1, 3, 3, 4, 4]),
        ([0, 0.3, 0.3, 0.3, 0], (0.0, 0.5, 1 - 2**-53), [1, 2, 3]),  # where the sum is not 1
    ],
)
def test_sample_is_the_inverse_of_the_cumulative_distribution(p, us, expected):
    assert [sample(np.array(p, np.float32), scripted(u)) for u in us] == expected


def test_max_fn():
    np.testing.assert_allclose(max_fn(np.array([0.5, -0.2, 0.0, 1.5], np.float32)), [0.25, 0, 0, 0.75])
    assert max_fn(np.array([-0.5, 0.0], np.float32)).tolist() == [0, 0]
    assert max_fn(np.ones(3, np.float32)).dtype == np.float32


@pytest.mark.parametrize("K", range(1, 6))
@pytest.mark.parametrize("wrong", range(6))
def test_a_rejection_at_each_position(K, wrong):
    """The draft is right but for position `wrong`: all before it are accepted, it is resampled, the rest forgotten."""
    right = [1, 2, 3, 4, 5]
    guesses = [*right[:wrong], 0, *right[wrong + 1 :]] if wrong < K else right
    accepted = min(wrong, K)
    numbers = [0.5] * (accepted + (wrong < K) + 1)  # an acceptance test for each draft up to the rejected, one sample
    rng = scripted(*numbers)
    step = next(speculative_sampling([0], proposes(*guesses), counting_target, N_VOCAB, K, rng))
    assert counts(step) == (list(range(1, accepted + 2)), K, accepted)
    with pytest.raises(StopIteration):
        rng.random()


@pytest.mark.parametrize("K", range(1, 9))
@pytest.mark.parametrize("N", range(1, 12))
def test_exactly_n_tokens_and_no_window_beyond_the_end(K, N):
    seen = []

    def target(x, n_last=1):
        seen.append(len(x))
        return counting_target(x, n_last)

    counts = [i % N_VOCAB for i in range(1, 12)]
    steps = speculative_sampling([0], proposes(*counts), target, N, K, scripted(*[0.5] * 99))
    assert decoded(steps) == counts[:N]
    assert max(seen) <= N  # the last token is sampled, never fed: a prompt of 1 and N tokens need a context of N


@pytest.mark.parametrize("decode", [autoregressive_sampling, speculative_sampling])
def test_a_plain_step_takes_one_number_and_gives_one_token(decode):
    drafts = [] if decode is autoregressive_sampling else [lambda x, k: NOTHING]
    K = [4] * len(drafts)
    steps = list(decode([0], *drafts, counting_target, 3, *K, scripted(0.5, 0.5, 0.5)))
    assert [*map(counts, steps)] == [([1], 0, 0), ([2], 0, 0), ([3], 0, 0)]


def test_u_of_zero_does_not_accept_what_the_target_excludes():
    step = next(speculative_sampling([0], proposes(5), counting_target, 2, 1, scripted(0.0, 0.5)))
    assert counts(step) == ([1], 1, 0)


def test_an_empty_residual_falls_back_to_the_target():
    """p exceeds q by rounding everywhere: nothing is left of max(0, q - p), so q itself is sampled."""
    q = np.array([[0.5, 0.5, 0]], np.float32)
    p = np.nextafter(q, 1, dtype=np.float32)
    target = lambda x, n_last: np.repeat(q, n_last, axis=0)  # noqa: E731
    rng = scripted(1 - 2**-53, 0.9)
    step = next(speculative_sampling([0], lambda x, k: Proposal([0], p), target, 2, 1, rng))
    assert counts(step) == ([1], 1, 0)


# The output distribution, computed and not sampled


def distance(speculative, n_vocab, K, seed):
    target, model = random_model(seed, n_vocab), random_model(seed + 1000, n_vocab)
    N = min(K + 2, 4)
    decode = lambda rng: speculative([1], model_drafter(model, rng), target, N, K, rng)  # noqa: E731
    return distance_from_target(decode, target, [1], N)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n_vocab", "K"), [(3, 1), (3, 2), (4, 2), (3, 3)])
def test_the_output_is_the_targets_exactly(n_vocab, K, seed):
    texts = text_distribution(lambda rng: autoregressive_sampling([1], random_model(seed, n_vocab), K + 2, rng))
    assert len(texts) > 4
    assert distance(speculative_sampling, n_vocab, K, seed) < 1e-6


def wrong_rest(rest):
    return partial(one_by_one, test=by_ratio, rest=rest)


def stale_bonus(proposal, q, rng):
    """The bonus is drawn from the row before the last."""
    return token_by_token(proposal, np.concatenate([q[:-1], q[-2:-1]]) if len(q) > 1 else q, rng)


@pytest.mark.parametrize(
    "accept",
    [
        wrong_rest(lambda q, p: q),
        wrong_rest(lambda q, p: residual(q, p.max())),
        stale_bonus,
    ],
)
def test_each_mistake_is_seen(accept):
    mutant = partial(speculative_sampling, accept=accept)
    assert max(distance(mutant, 3, 2, seed) for seed in range(4)) > 1e-4
