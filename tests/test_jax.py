"""The JAX engine on one device: against the NumPy engine, the Python loop, and the filters that it repeats."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import convert, first_layer, logits_themselves, random_params

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from benchmarks.ahead_of_time import computations
from plumbing.errors import UserError
from speculative.drafters.model import model_drafter
from speculative.engines import packed, runtime
from speculative.engines.jax import model as jax_model
from speculative.engines.jax import sampling as jax_sampling
from speculative.engines.jax.loop import DeviceDecoder, Difference, first_difference
from speculative.engines.jax.model import JaxModel, map_params
from speculative.engines.jax.sampling import accept
from speculative.engines.jax.sharding import place
from speculative.engines.plain import CachedModel
from speculative.filters import GREEDY, Filters
from speculative.measure.analysis import acceptance_chance, matching_chance
from speculative.sampling import autoregressive_sampling, speculative_sampling

HPARAMS = {"n_vocab": 40, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 2}


@pytest.fixture(scope="module")
def params():
    return random_params(HPARAMS)


@pytest.fixture(scope="module")
def pair(params):
    """(target, draft), each as (params, hparams)."""
    return (params, HPARAMS), first_layer(params, HPARAMS)


@pytest.fixture(scope="module")
def networks(pair):
    return [place(*model) for model in pair]


# Compiling is what takes long here. So one greedy decoder and one that samples do for most tests, with one K, and with
# prompts of up to SMALL tokens, which are padded to one length.
K = 3
FILTERS = Filters(0.9, top_p=0.95)


@pytest.fixture(scope="module")
def greedy(networks):
    return DeviceDecoder(*networks, block=3)


@pytest.fixture(scope="module")
def sampled(networks):
    return DeviceDecoder(*networks, FILTERS, lenience=0.5, block=3)


@contextmanager
def counting_compilations():
    """A list that grows by one for each program that XLA is asked to compile within the block."""
    compiled, active = [], True

    def listen(event, seconds, **details):
        if active and event.endswith("backend_compile_duration"):
            compiled.append(str(details.get("fun_name", event)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        active = False  # listeners cannot be removed


def random_prompt(n, seed=0):
    return np.random.default_rng([seed, n]).integers(HPARAMS["n_vocab"], size=n)


# ---- model(x, n_last) ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(params, networks):
    return CachedModel(params, HPARAMS, logits_themselves), JaxModel(networks[0], logits_themselves)


def test_the_logits_are_those_of_numpy_whatever_was_asked_before(models):
    """Growing, cut back, unrelated, up to the last position of the context, and with every n_last."""
    numpy_model, jax_model = models
    rng = np.random.default_rng(0)
    base = random_prompt(24)
    for _ in range(60):
        x = base[: rng.integers(1, 25)].copy()
        if rng.random() < 0.3:
            x[rng.integers(len(x)) :] = rng.integers(HPARAMS["n_vocab"])
        n_last = int(rng.integers(1, len(x) + 1))
        expected, actual = numpy_model(x, n_last), jax_model(x, n_last)
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize(("n", "n_last", "why"), [(0, 1, "no token"), (3, 4, "holds 24"), (25, 1, "holds 24")])
def test_what_does_not_fit_is_refused(models, n, n_last, why):
    with pytest.raises(ValueError, match=why):
        models[1](np.zeros(n, int), n_last)


def test_an_interrupted_pass_leaves_an_empty_cache(models, monkeypatch):
    numpy_model, jax_model = models
    x = random_prompt(6)
    jax_model(x)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jax_model, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            jax_model(np.append(x, 1))
    np.testing.assert_allclose(jax_model(x), numpy_model(x), atol=2e-5)


def test_nothing_is_compiled_while_the_python_loop_decodes(networks):
    to_probs = GREEDY
    target, draft = (JaxModel(network, to_probs) for network in networks)
    with counting_compilations() as compiled:
        target.warm_up(9, K=4)
    assert compiled  # the counter counts
    draft.warm_up(9)
    with counting_compilations() as compiled:
        for seed in range(3):
            rng = np.random.default_rng(seed)
            tokens = [*speculative_sampling(random_prompt(9, seed), model_drafter(draft, rng), target, 15, 4, rng)]
            assert sum(len(step.tokens) for step in tokens) == 15
    assert compiled == []


def test_bfloat16_is_half_the_bytes_and_near(params, networks, models):
    network = place(params, HPARAMS, "bfloat16")
    n_vectors = sum(a.nbytes for a in jax.tree.leaves(params) if a.ndim == 1)
    assert 2 * (network.weight_bytes - n_vectors) == networks[0].weight_bytes - n_vectors
    assert network.new_cache(64)[0][0].dtype == jnp.bfloat16
    x = random_prompt(20)
    logits, expected = JaxModel(network, logits_themselves)(x, 4), models[0](x, 4)
    assert logits.dtype == np.float32
    error = np.abs(logits - expected).max()
    assert 1e-4 < error < 0.03 * np.abs(expected).max()


def test_int8_is_a_quarter_of_the_bytes_and_as_near_as_on_numpy(params, networks, models):
    network = place(params, HPARAMS, "int8")
    n_scales = HPARAMS["n_vocab"] + HPARAMS["n_layer"] * 9 * HPARAMS["n_embd"]
    n_vectors = sum(a.nbytes for a in jax.tree.leaves(params) if a.ndim == 1)
    assert 4 * (network.weight_bytes - n_vectors - 4 * n_scales) == networks[0].weight_bytes - n_vectors
    x = random_prompt(20)
    expected = models[0](x, 4)
    on_numpy = CachedModel(convert(params, packed.packer("int8")), HPARAMS, logits_themselves, runtime.new_pass)
    error, of_numpy = (
        np.abs(logits - expected).max() for logits in (JaxModel(network, logits_themselves)(x, 4), on_numpy(x, 4))
    )
    assert 1e-4 < error < 1.5 * of_numpy < 0.1 * np.abs(expected).max()


@pytest.mark.slow
def test_a_batch_of_int8_is_its_rows(params):
    network = place(params, HPARAMS, "int8")
    model = JaxModel(network, GREEDY)
    prompts = [random_prompt(5), random_prompt(9)]
    together = by_prompt(DeviceDecoder(network, network).batch(prompts, 4, 2, seed=0), 2)
    for x, rows in zip(prompts, together, strict=True):
        alone = autoregressive_sampling(x, model, 4, np.random.default_rng(0))
        assert [token for row in rows for token in row.step.tokens] == [
            token for step in alone for token in step.tokens
        ]


def test_a_model_can_be_placed_as_it_is_read(params, networks):
    """By a loader that gives each tensor to convert, under OpenAI's name."""

    def load(convert):
        blocks = [
            map_params(lambda name, a, i=i: convert(f"h{i}/{name}", a), block)
            for i, block in enumerate(params["blocks"])
        ]
        return {**map_params(convert, {**params, "blocks": []}), "blocks": blocks}

    network = place(load, HPARAMS)
    assert jax.tree.structure(network.params) == jax.tree.structure(networks[0].params)
    assert jax.tree.all(jax.tree.map(np.array_equal, network.params, networks[0].params))


# ---- Distributions ---------------------------------------------------------------------------------------------------


# (temperature, top_k, top_p): each value of one with several of the others.
FILTERINGS = [
    *[(0, top_k, top_p) for top_k, top_p in [(None, None), (5, 0.5)]],
    *[(temperature, None, None) for temperature in (1e-3, 0.7, 1.0, 5.0)],
    *[(temperature, top_k, None) for temperature, top_k in [(0.7, 1), (1.0, 5), (5.0, 40), (1e-3, 99)]],
    *[(0.7, None, top_p) for top_p in (0.0, 0.1, 0.5, 0.95, 1.0)],
    *[(1e-3, None, 0.5), (5.0, 5, 0.5), (5.0, 5, 0.95), (1.0, 1, 0.1), (5.0, 99, 0.95), (1.0, 40, 0.0)],
]


def test_the_filters_are_those_of_numpy():
    logits = np.random.default_rng(1).normal(size=(6, 40)).astype(np.float32) * 3
    logits[1] = 0  # all tied
    logits[2, 3:] = -np.inf
    logits[3] = np.round(logits[3])  # some tied
    together = jax.jit(lambda logits: [jax_sampling.to_distribution(logits, *chosen) for chosen in FILTERINGS])
    for chosen, actual in zip(FILTERINGS, map(np.asarray, together(logits)), strict=True):
        expected = Filters(*chosen)(logits)
        np.testing.assert_array_equal(actual > 0, expected > 0, err_msg=str(chosen))
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-30, err_msg=str(chosen))


@pytest.fixture(scope="module")
def p_and_q():
    """p [3, 5] and q [4, 5], in which some ids are impossible."""
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(5), 3).astype(np.float32), rng.dirichlet(np.ones(5), 4).astype(np.float32)
    q[0, 1] = p[0, 4] = 0
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


def test_what_is_accepted_or_resampled_is_distributed_as_the_target(p_and_q):
    """The first token, whether p's or resampled, is q[0]'s; after i acceptances the next one is q[i]'s, as is the bonus
    token after all of them."""
    p, q = p_and_q
    n = 60_000

    def one(key):
        draft_key, key = jax.random.split(key)
        x_draft = jax.random.categorical(draft_key, jnp.log(p))  # [3]
        accepted, token = accept(x_draft, jnp.asarray(p), jnp.asarray(q), 3, key)
        return accepted, jnp.append(x_draft, 0).at[accepted].set(token)

    accepted, tokens = map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), n)))
    for i in range(4):
        reached = tokens[accepted >= i, i]
        frequency = np.bincount(reached, minlength=5) / len(reached)
        assert np.all(frequency[q[i] == 0] == 0)
        assert np.abs(frequency - q[i]).max() < 4 * np.sqrt(0.25 / len(reached))
    alpha = np.minimum(p, q[:3]).sum(-1)
    assert np.mean(accepted) == pytest.approx(np.cumprod(alpha).sum(), abs=0.02)


def test_no_more_than_k_drafts_are_accepted(p_and_q):
    """With p = q all of them pass, and the token after the k-th is q[k]'s and no residual."""
    q = jnp.asarray(p_and_q[1])
    x_draft = jnp.argmax(q[:3], axis=-1)
    of_keys = jax.vmap(partial(accept, x_draft, q[:3], q), in_axes=(None, 0))
    keys = jax.random.split(jax.random.key(0), 4000)
    accepted, token = jax.jit(jax.vmap(of_keys, in_axes=(0, None)))(jnp.arange(4), keys)  # [4, 4000] each
    for k in range(4):
        assert set(np.asarray(accepted[k]).tolist()) == {k}
        assert np.abs(np.bincount(token[k], minlength=5) / 4000 - q[k]).max() < 0.04


def always(u):
    """Random numbers that are all u."""
    return lambda key, shape: jnp.full(shape, u, jnp.float32)


def test_u_of_zero_does_not_accept_what_the_target_excludes():
    p, q = jnp.array([[0.5, 0.5, 0]]), jnp.array([[0, 0, 1.0], [1, 0, 0]])
    one = jax.jit(partial(accept, jnp.array([0]), p, q, 1, uniform=always(0.0)))
    accepted, token = one(jax.random.key(0))
    assert (int(accepted), int(token)) == (0, 2)


def test_lenience_accepts_more():
    p, q = jnp.array([[1.0, 0]]), jnp.array([[0.5, 0.5], [0, 1.0]])
    one = jax.jit(partial(accept, jnp.array([0]), p, q, 1, uniform=always(0.9)))
    assert [int(one(jax.random.key(0), lenience=lenience)[0]) for lenience in (1.0, 0.5)] == [0, 1]


def test_an_empty_residual_falls_back_to_the_target():
    q = np.array([[0.5, 0, 0.5], [0, 1, 0]], np.float32)
    p = np.nextafter(q[:1], np.float32(1))
    one = jax.jit(partial(accept, jnp.array([0]), jnp.asarray(p), jnp.asarray(q), 1, uniform=always(1.0)))
    tokens = {int(one(jax.random.key(i))[1]) for i in range(20)}
    assert tokens == {0, 2}


# ---- The loop on the device ------------------------------------------------------------------------------------------


def python_steps(pair, x, N, K):
    """What the oracle does at temperature 0."""
    target, draft = (CachedModel(*model, GREEDY) for model in pair)
    rng = np.random.default_rng(0)
    if K == 0:
        return list(autoregressive_sampling(x, target, N, rng))
    return list(speculative_sampling(x, model_drafter(draft, rng), target, N, K, rng))


@pytest.mark.parametrize("K", [0, K, pytest.param(1, marks=pytest.mark.slow)])
def test_greedy_steps_are_those_of_the_python_loop(pair, greedy, K):
    """To the end of the context too, from a single token, for a single token, and with nothing compiled on the way."""
    accepted = set()
    greedy.warm_up([8], 16, K)
    with counting_compilations() as compiled:
        for n, N in [(1, 16), (2, 16), (8, 16), (8, 1), (3, 2), (7, 12)]:
            x = random_prompt(n)
            steps = list(greedy.speculative(x, N, K, seed=0) if K else greedy.autoregressive(x, N, seed=0))
            assert steps == python_steps(pair, x, N, K)
            accepted |= {step.accepted for step in steps}
    assert compiled == []
    assert len(accepted) > 1 or K == 0


@pytest.mark.parametrize("K", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_row_that_is_fed_with_padding_gives_the_same_steps(pair, networks, K):
    """As an accelerator does; to the end of the context, where the padding stands behind the last position."""
    decoder = DeviceDecoder(*networks, block=3)
    decoder.fewest_rows = 2
    x = random_prompt(8)
    assert list(decoder.speculative(x, 16, K, seed=0)) == python_steps(pair, x, 16, K)


def by_prompt(calls, n):
    """What batch yields -> the Rows of each prompt."""
    rows = [[] for _ in range(n)]
    for row in itertools.chain(*calls):
        rows[row.number].append(row)
    return rows


def steps(rows):
    return [row.step for row in rows]


@pytest.mark.parametrize("n_batch", [1, 2, *[pytest.param(n, marks=pytest.mark.slow) for n in (3, None)]])
def test_a_batch_is_its_rows(pair, greedy, n_batch):
    """However many are decoded at a time; and there are never more, and never fewer while prompts are waiting."""
    prompts = [random_prompt(n) for n in (1, 3, 9 if n_batch == 1 else 7, 5, 8, 2)]  # 9 are padded to another length
    calls = list(greedy.batch(prompts, 13, K, seed=0, n_batch=n_batch))
    rows = by_prompt(calls, len(prompts))
    assert [steps(of_one) for of_one in rows] == [python_steps(pair, x, 13, K) for x in prompts]
    assert len({len(of_one) for of_one in rows}) > 1  # ragged, or nothing was tested
    last_begins = next(i for i, call in enumerate(calls) if any(row.number == len(prompts) - 1 for row in call))
    assert {len(call) for call in calls[:last_begins]} <= {n_batch}


def test_a_cache_that_is_full_doubles():
    """For one prompt and for those that take its place; and nothing is compiled on the way."""
    hparams = HPARAMS | {"n_ctx": 100}
    params = random_params(hparams, seed=3)
    pair = (params, hparams), first_layer(params, hparams)
    decoder, grown = DeviceDecoder(*[place(*model) for model in pair], block=3), []
    prompts = [random_prompt(n) for n in (5, 7)]
    decoder.warm_up([5, 7], 80, K, n_batch=1)
    grow = decoder.grow
    decoder.grow = lambda state, capacity: grown.append(capacity) or grow(state, capacity=capacity)
    with counting_compilations() as compiled:
        rows = by_prompt(decoder.batch(prompts, 80, K, seed=0, n_batch=1), 2)
    assert [steps(of_one) for of_one in rows] == [python_steps(pair, x, 80, K) for x in prompts]
    assert (grown, compiled) == ([128], [])


@pytest.mark.parametrize("n_batch", [1, 2])
def test_a_stop_ends_a_row_and_the_next_prompt_takes_its_place(pair, greedy, n_batch):
    """By a token that the device knows, and by what the host says of a step."""
    prompts = [random_prompt(n) for n in (5, 8, 3, 6)]
    whole = [python_steps(pair, x, 13, K) for x in prompts]
    decoder = copy(greedy)
    decoder.end = end = whole[0][1].tokens[0]

    def stop(number, step):
        return step._replace(tokens=step.tokens[:1]) if number == 1 else None

    calls = list(decoder.batch(prompts, 13, K, seed=0, n_batch=n_batch, stop=stop))
    expected = [[step for i, step in enumerate(x) if not any(end in s.tokens for s in x[:i])] for x in whole]
    expected[1] = [whole[1][0]._replace(tokens=whole[1][0].tokens[:1])]
    assert [steps(rows) for rows in by_prompt(calls, 4)] == expected and len(expected[0]) < len(whole[0])
    assert len(calls) < sum(map(len, whole))


def test_the_chances_of_acceptance_are_those_that_the_recorder_finds(pair, sampled):
    x = random_prompt(6)
    target, draft = (CachedModel(*model, FILTERS) for model in pair)
    text, n_tested = list(x), set()
    for [row] in sampled.batch([x], 16, K, seed=3):
        step = row.step
        tested = min(len(step.tokens), step.drafted)
        q = target(np.array([*text, *step.tokens[:-1]]), len(step.tokens))[:tested]  # [tested, n_vocab]
        p = draft(np.array([*text, *step.tokens[:-1]]), len(step.tokens))[:tested]  # [tested, n_vocab]
        np.testing.assert_allclose(row.alpha, acceptance_chance(p, q / sampled.lenience), rtol=1e-4)
        np.testing.assert_allclose(row.matching, matching_chance(p, q), rtol=1e-4)
        text += step.tokens
        n_tested.add(tested)
    assert len(n_tested) > 1


def tokens_of(decoder, x, N, seed):
    return [token for step in decoder.speculative(x, N, K, seed) for token in step.tokens]


def test_the_prefill_is_shared_by_decodes_of_the_same_prompt(sampled):
    decoder, prefills, x = copy(sampled), [], random_prompt(7)
    decoder.prefill = lambda *args, **kwargs: prefills.append(1) or sampled.prefill(*args, **kwargs)
    alone = []
    for seed in range(3):
        decoder.forget()
        alone.append(tokens_of(decoder, x, 12, seed))
    assert len(prefills) == 3 and alone[0] != alone[1] != alone[2]
    decoder.forget()
    next(decoder.speculative(x, 12, K, 5))  # one that is not read to its end
    assert [tokens_of(decoder, x, 12, seed) for seed in range(3)] == alone and len(prefills) == 4
    tokens_of(decoder, x[:6], 12, 0)
    assert len(prefills) == 5


def test_the_numbers_depend_on_the_seed_the_prompt_and_the_place(sampled):
    """And not on what was decoded before: where another decode begins with the tokens of some calls, it goes on as the
    first one did."""
    x = random_prompt(3)
    whole = tokens_of(sampled, x, 12, 1)
    first, second, *_ = sampled.speculative(x, 12, K, 1)
    for begun in (first.tokens, first.tokens + second.tokens):
        assert begun + tokens_of(sampled, [*x, *begun], 12 - len(begun), 1) == whole
    assert tokens_of(sampled, x, 12, 2) != whole
    together = by_prompt(sampled.batch([x] * 3, 12, K, seed=1, n_batch=1), 3)
    assert len({str(steps(rows)) for rows in together}) == 3


@pytest.mark.parametrize("K", [0, K])
def test_the_loop_does_not_copy_the_cache(greedy, K):
    """In no computation that the loop's body comes to. What may be of a cache's size is a write in place, or a fusion
    of one."""
    state = greedy.start([random_prompt(6)], 12, K, seed=0)
    program = greedy.run.lower(greedy.params, state, np.bool_(False), np.int32(-1), K=K).compile().as_text()
    bodies = computations(program)
    todo, reached = re.findall(r"body=%?([\w.-]+)", program), set()
    assert todo
    while todo:
        name = todo.pop()
        reached.add(name)
        called = re.findall(r"(?:calls|body|condition|to_apply)=%?([\w.-]+)", "\n".join(bodies[name]))
        todo += set(called) - reached
    shape = ",".join(map(str, state.target_cache[0][0].shape[1:]))
    lines = [line for name in reached for line in bodies[name] if re.search(rf"= f32\[(1,)?{shape}\]", line)]
    assert any("dynamic-update-slice" in line for line in lines)
    assert [line for line in lines if re.search(r"\b(copy|transpose|scatter)[\w-]*\(|copy[\w.-]* = ", line)] == []


@pytest.mark.parametrize(
    ("K", "lenience", "draft_temperature"),
    [(2, 1.0, 0.4), *[pytest.param(*case, marks=pytest.mark.slow) for case in [(0, 1.0, 0.8), (2, 0.3, 0.8)]]],
)
def test_the_texts_are_distributed_as_the_targets_own(K, lenience, draft_temperature):
    """All texts of three tokens over a vocabulary of three, in 10,000 rows; with lenience they are not."""
    hparams = {"n_vocab": 3, "n_ctx": 8, "n_embd": 4, "n_head": 1, "n_layer": 1}
    params, draft_params = random_params(hparams, seed=5), random_params(hparams, seed=6)
    chosen = Filters(0.8, top_p=0.9)
    model = CachedModel(params, hparams, chosen)
    expected = {}
    for text in itertools.product(range(3), repeat=3):
        q = model([1, *text[:2]], 3)
        expected[text] = float(np.prod([q[i, token] for i, token in enumerate(text)]))
    n = 10_000
    networks = place(params, hparams), place(draft_params, hparams)
    decoder = DeviceDecoder(*networks, chosen, chosen._replace(temperature=draft_temperature), lenience, block=3)
    texts = [[] for _ in range(n)]
    for row in itertools.chain(*decoder.batch([[1]] * n, 3, K, seed=7)):
        texts[row.number] += row.step.tokens
    counts = dict.fromkeys(expected, 0)
    for text in texts:
        counts[tuple(text)] += 1
    assert all(counts[text] == 0 for text in expected if expected[text] == 0)
    possible = [text for text in expected if expected[text] > 0]
    assert len(possible) > 8
    chi_square = sum((counts[text] - n * expected[text]) ** 2 / (n * expected[text]) for text in possible)
    degrees = len(possible) - 1
    assert (chi_square < degrees + 5 * np.sqrt(2 * degrees)) == (lenience == 1)


@pytest.mark.parametrize("prompts", [[[]], [[1], []], [[0] * 20]])
def test_prompts_that_do_not_fit_are_refused(greedy, prompts):
    with pytest.raises(UserError, match="the context holds 24"):
        list(greedy.batch(prompts, 5, 2, seed=0))


def test_the_first_difference_is_stated_with_its_margin():
    logits = np.zeros((1, 9), np.float32)
    logits[0, [3, 4]] = 7.5, 7.25
    seen = []

    def model(x):
        seen.append(list(x))
        return logits

    assert first_difference([1, 2], [5, 6, 3], [5, 6, 3], model) is None
    difference = first_difference([1, 2], [5, 3, 3], [5, 4, 3], model)
    assert difference == Difference(3, (3, 4), 0.25) and seen == [[1, 2, 5]]
    assert "position 3: token 3 or 4" in str(difference) and "0.25 apart" in str(difference)


# ---- Around it -------------------------------------------------------------------------------------------------------


def test_compiled_programs_are_kept_on_disk(tmp_path):
    program = """if True:
        import sys, jax, numpy
        from speculative.engines.jax.model import keep_compiled
        keep_compiled(sys.argv[1])
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("/cache_hits")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        print(jax.jit(lambda x: x * 2 + 1)(numpy.float32(3)), sum(hits))
    """
    root = Path(jax_model.__file__).parents[3]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs == [["7.0", "0"], ["7.0", "1"]]


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'jax'"), RuntimeError("jaxlib version 0.1 is older than needed\nmore")]
)
def test_a_jax_that_cannot_be_imported_is_one_line(monkeypatch, error):
    class Refuses:
        def find_spec(self, name, path=None, target=None):
            if name == "jax":
                raise error

    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(sys, "meta_path", [Refuses(), *sys.meta_path])
    spec = importlib.util.spec_from_file_location(
        "speculative.engines.again", Path(jax_model.__file__).with_name("__init__.py")
    )
    with pytest.raises(UserError, match="pip install") as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "\n" not in str(caught.value) and str(error).split("\n")[0] in str(caught.value)


def test_too_few_devices_are_one_line():
    with pytest.raises(UserError, match="--mesh 999 needs 999 devices"):
        jax_model.devices(999, "--mesh 999")


def test_a_platform_that_is_not_there_is_one_line():
    program = "from speculative.engines.jax.model import devices; from utils import UserError\n"
    program += "try: devices(1)\nexcept UserError as error: print(error)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(jax_model.__file__).parents[3],
        env={**os.environ, "JAX_PLATFORMS": "rocm"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "JAX_PLATFORMS=rocm" in result.stdout and result.stdout.count("\n") == 1


def test_the_numpy_path_does_not_import_jax():
    program = "import sys, main, speculative.engines.plain; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(jax_model.__file__).parents[3]).returncode == 0
