"""Every drafter: what it proposes, and that the loop's output is the target's, exactly, whoever drafts."""

import itertools
from functools import cache, partial

import numpy as np
import pytest
from enumeration import distance_from_target, output_distribution, random_model, remembered, total_variation
from hypothesis import given
from hypothesis import strategies as st
from tiny import HPARAMS, convert, one_hot, random_params

from plumbing.errors import UserError
from speculative.drafters import (
    DRAFTERS,
    Parts,
    drafter_names,
    first_of,
    make_drafter,
    model_drafter,
    needs_model,
    ngram_model,
    prompt_lookup,
    staged,
)
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel
from speculative.engines.runtime import new_pass
from speculative.filters import to_distribution
from speculative.lookahead import AutoK
from speculative.sampling import autoregressive_sampling, speculative_sampling

slow = pytest.mark.slow

NAMES = [*(name for name in DRAFTERS if name != "heads"), "prompt_lookup+model", "prompt_lookup+ngram"]


def log_identity(log_p):
    return np.exp(log_p)


# Prompt lookup


@pytest.mark.parametrize(
    ("x", "k", "expected"),
    [
        ([1, 2, 3, 4], 4, []),  # nothing stood before
        ([5], 4, []),
        ([1, 2, 9, 1, 2, 8, 1, 2], 1, [8]),  # the last of two places
        ([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 2, [7, 2]),  # three tokens, before the two that stood later
        ([4, 3, 9, 5, 3], 2, [9, 5]),  # one token will do
        ([1, 2, 3, 1, 2, 3], 7, [1, 2, 3, 1, 2, 3, 1]),  # as if x repeated for ever
        ([6, 6], 3, [6, 6, 6]),
        ([1, 2, 1], 0, []),
    ],
)
def test_prompt_lookup(x, k, expected):
    tokens, p = prompt_lookup(10)(x, k)
    assert tokens == expected
    assert p.dtype == np.float32 and p.tolist() == one_hot(*expected, n_vocab=10).tolist()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 3))
def test_prompt_lookup_finds_what_a_plain_search_finds(x, n_max):
    tokens, _ = prompt_lookup(3, n_max)(np.array(x), 1)
    for n in range(min(n_max, len(x) - 1), 0, -1):
        places = [i for i in range(len(x) - n) if x[i : i + n] == x[-n:]]
        if places:
            assert tokens == [x[places[-1] + n]]
            return
    assert tokens == []


# N-grams


def plain_ngram(text, x, n_vocab, n_max):
    """The definition, counted by hand: the text and x are two sequences, no n-gram spans both."""
    p = [(text.count(t) + x.count(t) + 1 / n_vocab) / (len(text) + len(x) + 1) for t in range(n_vocab)]
    for n in range(2, min(n_max, len(x) + 1) + 1):
        context = x[len(x) - n + 1 :]
        followed_by = [s[i + n - 1] for s in (text, x) for i in range(len(s) - n + 1) if s[i : i + n - 1] == context]
        types = len(set(followed_by))
        if followed_by:
            p = [(followed_by.count(t) + types * p[t]) / (len(followed_by) + types) for t in range(n_vocab)]
    return p


ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids, ids.filter(len), st.integers(1, 4))
def test_ngram_is_its_definition(text, x, n_max):
    [p] = ngram_model(4, log_identity, text, n_max)(x)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p, plain_ngram(text, x, 4, n_max), rtol=1e-5)


@given(ids, ids.filter(len), st.floats(0, 5))
def test_ngram_rows_sum_to_1_at_every_temperature(text, x, temperature):
    p = ngram_model(4, partial(to_distribution, temperature=temperature), text)(x, n_last=len(x))
    np.testing.assert_allclose(p.sum(axis=-1), 1, atol=1e-6)
    assert (p > 0).all() or temperature < 0.5  # so close to 0 a probability may be too small for a float32
    if temperature == 0:
        assert ((p == 0) | (p == 1)).all()


def test_ngram_remembers_no_x():
    """x grows, is cut back and is replaced: the rows are those of a model that has seen nothing else."""
    used = ngram_model(5, log_identity, [1, 2, 3])
    for x in ([1, 2, 1, 2], [1, 2, 1, 2, 3, 3], [1, 2, 1, 4], [4], [1, 2, 1, 2]):
        assert used(x).tolist() == ngram_model(5, log_identity, [1, 2, 3])(x).tolist()


def test_ngram_by_hand():
    # Nothing but one token: a uniform distribution that weighs 1, and one 0.
    np.testing.assert_allclose(ngram_model(4, log_identity)([0]), [[1.25 / 2, 0.25 / 2, 0.25 / 2, 0.25 / 2]])
    # After 0 1 0: singles (2.25, 1.25, .25, .25) / 4; once a 1 came after 0, so half of it is that.
    np.testing.assert_allclose(
        ngram_model(4, log_identity)([0, 1, 0]), [[2.25 / 8, 1.25 / 8 + 0.5, 0.25 / 8, 0.25 / 8]]
    )


def test_ngram_keys_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="5-grams over 50257"):
        ngram_model(50257, log_identity, [1, 2], n_max=5)


# Staged, first_of, names


def test_staged_gives_the_draft_models_own_rows_and_exactly_k():
    model = random_model(3, 4)
    rng = np.random.default_rng(0)
    x, inner_accepted = [1, 2, 1, 2], 0
    for k in [*range(6)] * 20:
        calls = []
        draft = staged(lambda x, n_last, calls=calls: calls.append(0) or model(x, n_last), prompt_lookup(4), 2, rng)
        tokens, p = draft(x, k)
        assert len(tokens) == len(p) == k == len(draft.proposers)
        assert draft.inner[0] >= draft.inner[1] == k - len(calls) == k - draft.proposers.count("model")
        inner_accepted += k - len(calls)
        if k:
            assert np.array(p).tolist() == model([*x, *tokens[:-1]], n_last=k).tolist()
    assert inner_accepted > 0


def test_staged_tokens_are_distributed_as_the_draft_models():
    model, x = random_model(5, 3), [1, 0, 1]
    expected = output_distribution(lambda rng: tuple(model_drafter(model, rng)(x, 4)[0]))
    actual = output_distribution(lambda rng: tuple(staged(model, prompt_lookup(3), 2, rng)(x, 4)[0]))
    assert len(expected) > 4
    assert total_variation(expected, actual) < 1e-6


def test_first_of():
    nothing = lambda x, k: ([], [])  # noqa: E731
    one = lambda x, k: ([1], [[0, 1]])  # noqa: E731
    two = lambda x, k: ([0], [[1, 0]])  # noqa: E731
    assert first_of(nothing, one, two)([0], 1) == ([1], [[0, 1]])
    assert first_of(two, one)([0], 1) == ([0], [[1, 0]])
    assert len(first_of(nothing, nothing)([0], 1)[0]) == 0


def test_names():
    assert drafter_names("prompt_lookup+model") == ["prompt_lookup", "model"]
    assert needs_model("prompt_lookup+model") and needs_model("model") and needs_model("staged")
    assert not needs_model("prompt_lookup") and not needs_model("prompt_lookup+ngram")


@pytest.mark.parametrize("name", ["", "Model", "model+", "ngram+nothing", "a b"])
def test_a_name_that_does_not_exist(name):
    with pytest.raises(UserError, match=r"unknown drafter .*there are model, prompt_lookup"):
        needs_model(name)


# The output distribution, computed and not sampled


@cache
def tempered(seed, temperature):
    def model(x, n_last):
        with np.errstate(divide="ignore"):
            return to_distribution(np.log(random_model(seed, 3)(x, n_last)), temperature)

    return remembered(model)


@cache
def small_ngram(temperature):
    return remembered(ngram_model(3, partial(to_distribution, temperature=temperature), [0, 1, 2, 0, 1, 1]))


def parts(rng, temperature):
    return Parts(3, rng, small_ngram(temperature), tempered(1007, temperature), K_inner=1)


# Every K with drafts that are one-hot and that may be any token, and with sharper and flatter ones where K is 2.
@pytest.mark.parametrize(("K", "temperature"), [*itertools.product([1, 2, 3], [0, 1]), (2, 0.5), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_output_is_the_targets_exactly(name, K, temperature):
    target, verdicts = random_model(7, 3), np.zeros(2, int)  # [accepted, rejected], over all paths
    N = min(K + 2, 4)

    def decode(rng):
        for step in speculative_sampling([0, 1, 0, 1], make_drafter(name, parts(rng, temperature)), target, N, K, rng):
            verdicts[:] += [step.accepted, step.accepted < step.drafted]
            yield step

    assert distance_from_target(decode, target, [0, 1, 0, 1], N) < 1e-6
    assert verdicts.min() > 0


def test_prompt_lookup_on_the_grid_that_sees_a_lax_comparison():
    """With p = 1 every acceptance has a probability on the grid, where u = 0 has its weight."""
    target, x = random_model(8, 3), [0, 1, 0]
    decode = lambda rng: speculative_sampling(x, prompt_lookup(3), target, 5, 3, rng)  # noqa: E731
    assert distance_from_target(decode, target, x, 5, exact=False) < 1e-6


@pytest.mark.parametrize("mistake", ["not one-hot", "without temperature", "inner rows"])
def test_a_made_up_p_is_seen(mistake):
    target, lookup = random_model(7, 3), prompt_lookup(3)
    raw, sharp = small_ngram(1), small_ngram(0.5)

    def decode(rng):
        def draft(x, k):
            if mistake == "not one-hot":
                tokens, p = lookup(x, k)
                return tokens, p * np.float32(0.5) + np.float32(0.5 / 3)
            drawn_from = staged(tempered(7, 0.5), model_drafter(raw, rng), 1, rng)
            tokens, _ = model_drafter(sharp, rng)(x, k) if mistake == "without temperature" else drawn_from(x, k)
            return tokens, raw(np.append(x, tokens).astype(int), k + 1)[:k] if k else []

        return speculative_sampling([0, 1, 0, 1], draft, target, 4, 2, rng)

    assert distance_from_target(decode, target, [0, 1, 0, 1], 4) > 1e-3


# Greedy equality on networks, and a chi-square on the bundled pair


def network(seed, temperature=0.0, **filters):
    params = random_params(seed=seed)
    return CachedModel(params, HPARAMS, partial(to_distribution, temperature=temperature, **filters))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_output_is_the_targets_for_every_drafter_and_k(name):
    to_probs = partial(to_distribution, temperature=0)
    target, draft_model = network(0), network(1)
    for prompt in ([3, 1, 4, 1, 5], [9, 9, 9], [2, 7, 2, 7, 2]):
        N = HPARAMS["n_ctx"] - len(prompt)
        run = lambda steps: [t for s in steps for t in s.tokens]  # noqa: E731
        expected = run(autoregressive_sampling(prompt, target, N, np.random.default_rng(0)))
        for K in [*range(1, 9), "auto"]:
            rng = np.random.default_rng(0)
            draft = make_drafter(name, Parts(50, rng, ngram_model(50, to_probs, [1, 2, 3]), draft_model))
            if K == "auto":
                assert run(AutoK().decode(prompt, draft, target, N, rng)) == expected
            else:
                assert run(speculative_sampling(prompt, draft, target, N, K, rng)) == expected


def chi_square(name, target, draft_model, n_vocab, to_probs, prompt, runs, rng):
    """(statistic, degrees of freedom) of the loop's 3 tokens against their exact probabilities under the target."""
    probability = {(): 1.0}
    for _ in range(3):
        rows = {head: target([*prompt, *head])[0] for head in probability}
        probability = {
            (*h, int(t)): w * float(rows[h][t]) for h, w in probability.items() for t in np.flatnonzero(rows[h])
        }
    draft = make_drafter(name, Parts(n_vocab, rng, ngram_model(n_vocab, to_probs), draft_model, K_inner=2))
    counts = dict.fromkeys(probability, 0)
    for _ in range(runs):
        steps = speculative_sampling(prompt, draft, target, 3, 2, rng)
        counts[tuple(t for s in steps for t in s.tokens)] += 1  # a KeyError is an output of probability 0
    frequent = [h for h, w in probability.items() if w * runs >= 5]
    rest = 1 - sum(probability[h] for h in frequent)
    cells = [(counts[h], probability[h]) for h in frequent]
    cells += [(runs - sum(n for n, _ in cells), rest)] if rest * runs >= 1 else []
    return sum((n - w * runs) ** 2 / (w * runs) for n, w in cells), len(cells) - 1


# For the others the distribution is computed above; here it is seen with a real vocabulary and its caches.
@pytest.mark.parametrize("name", [n if n in ("model", "staged") else pytest.param(n, marks=slow) for n in NAMES])
def test_chi_square_on_the_bundled_pair(bundled, name):
    to_probs = partial(to_distribution, temperature=1, top_k=3)
    target, draft_model = (
        CachedModel(convert(params, packer("float32")), hparams, to_probs, new_pass)
        for _, hparams, params in bundled.values()
    )
    encoder = bundled["tiny-target"][0]
    prompt = encoder.encode("It was upon a bitterly cold night in the winter of")
    rng = np.random.default_rng(0)
    statistic, n = chi_square(name, target, draft_model, encoder.n_vocab, to_probs, prompt, 300, rng)
    # Wilson and Hilferty 1931: (chi^2 / n)^(1/3) is about normal; 3.7 sigmas leave 1 in 10,000
    assert n >= 4
    assert (statistic / n) ** (1 / 3) < 1 - 2 / (9 * n) + 3.7 * (2 / (9 * n)) ** 0.5
