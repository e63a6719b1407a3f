"""The JAX engine on one device: against the NumPy engine, the Python loop, and the filters that it repeats."""

import itertools
import os
import re
from collections import Counter
from contextlib import contextmanager
from copy import copy

import numpy as np
import pytest
from tiny import convert, decoded, first_layer, logits_themselves, python, random_params, refusal

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from speculative.accept import choose

from speculative.drafters.model import model_drafter
from speculative.engines import packed, runtime
from speculative.engines.jax import model as jax_model
from speculative.engines.jax import sampling as jax_sampling
from speculative.engines.jax.loop import DeviceDecoder
from speculative.engines.jax.model import JaxModel
from speculative.engines.jax.sampling import lenient
from speculative.engines.jax.sharding import place
from speculative.engines.plain import CachedModel
from speculative.filters import GREEDY, Filters
from speculative.measure.analysis import acceptance_chance, matching_chance
from speculative.sampling import autoregressive_sampling, speculative_sampling

HPARAMS = {"n_vocab": 40, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 2}
slow = pytest.mark.slow


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
LENIENCE = 0.5


@pytest.fixture(scope="module")
def greedy(networks):
    return DeviceDecoder(*networks, block=3)


@pytest.fixture(scope="module")
def sampled(networks):
    return DeviceDecoder(*networks, FILTERS, rule=choose(lenience=LENIENCE), block=3)


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
    """Growing, cut back, unrelated, up to the last position of the context, with every n_last; and interrupted."""
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

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    twin, x = jax_model.with_probs(logits_themselves), random_prompt(6)
    twin(x)
    twin.step, step = interrupted, twin.step
    with pytest.raises(KeyboardInterrupt):
        twin(np.append(x, 1))
    twin.step = step
    np.testing.assert_allclose(twin(x), numpy_model(x), atol=2e-5)


def test_models_of_the_same_weights_keep_their_texts_apart(models):
    """Two of them take turns, each with a text of its own."""
    numpy_model, one = models
    one(random_prompt(5))
    both = [one, one.with_probs(logits_themselves)]
    texts = [random_prompt(9, seed) for seed in range(2)]
    for n in range(6, 10):
        for model, x in zip(both, texts, strict=True):
            np.testing.assert_allclose(model(x[:n]), numpy_model(x[:n]), atol=2e-5)


def test_nothing_is_compiled_while_the_python_loop_decodes(networks):
    target, draft = (JaxModel(network, GREEDY) for network in networks)
    with counting_compilations() as compiled:
        target.warm_up(9, K=4)
    assert compiled  # the counter counts
    draft.warm_up(9)
    with counting_compilations() as compiled:
        for seed in range(3):
            rng = np.random.default_rng(seed)
            steps = speculative_sampling(random_prompt(9, seed), model_drafter(draft, rng), target, 15, 4, rng)
            assert len(decoded(steps)) == 15
    assert compiled == []


N_SCALES = HPARAMS["n_vocab"] + HPARAMS["n_layer"] * 9 * HPARAMS["n_embd"]


@pytest.mark.parametrize(
    ("dtype", "share", "n_scales", "cache"), [("bfloat16", 2, 0, "bfloat16"), ("int8", 4, N_SCALES, "float32")]
)
def test_fewer_bytes_and_near(params, networks, models, dtype, share, n_scales, cache):
    network = place(params, HPARAMS, dtype)
    n_vectors = sum(a.nbytes for a in jax.tree.leaves(params) if a.ndim == 1)
    assert share * (network.weight_bytes - n_vectors - 4 * n_scales) == networks[0].weight_bytes - n_vectors
    assert network.new_cache(64)[0][0].dtype == jnp.dtype(cache)
    x = random_prompt(20)
    on_numpy = CachedModel(convert(params, packed.packer(dtype)), HPARAMS, logits_themselves, runtime.new_pass)
    logits, expected = JaxModel(network, logits_themselves)(x, 4), models[0](x, 4)
    assert logits.dtype == np.float32
    error, of_numpy = (np.abs(found - expected).max() for found in (logits, on_numpy(x, 4)))
    assert 1e-4 < error < 3 * of_numpy < 0.1 * np.abs(expected).max()


# ---- Distributions ---------------------------------------------------------------------------------------------------


# (temperature, top_k, top_p, min_p): each value of one with several of the others.
FILTERINGS = [
    *[(0, top_k, top_p) for top_k, top_p in [(None, None), (5, 0.5)]],
    *[(temperature, None, None) for temperature in (1e-3, 0.7, 1.0, 5.0)],
    *[(temperature, top_k, None) for temperature, top_k in [(0.7, 1), (1.0, 5), (5.0, 40), (1e-3, 99)]],
    *[(0.7, None, top_p) for top_p in (0.0, 0.1, 0.5, 0.95, 1.0)],
    *[(1.0, None, None, min_p) for min_p in (1e-6, 0.1, 0.5, 1.0)],
    *[(5.0, 30, 0.9, 0.3), (0.7, None, 0.5, 0.05)],
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


def first_tokens(p, q, u, lenience=1.0):
    """p and q of one draft, token 0, and random numbers that are all u -> {(accepted, token)} for some keys."""
    p, q = jnp.array([p], jnp.float32), jnp.array([q, [0, 0, 1]], jnp.float32)

    def one(key):
        accepted = lenient(lenience)(jnp.array([0]), p, q, 1, key, uniform=lambda key, shape: jnp.full(shape, u))
        return accepted.kept, accepted.token

    accepted, tokens = jax.vmap(one)(jax.random.split(jax.random.key(0), 20))
    return {*zip(accepted.tolist(), tokens.tolist(), strict=True)}


def test_the_edges_of_acceptance():
    assert first_tokens([0.5, 0.5, 0], [0, 0, 1.0], 0.0) == {(0, 2)}  # not what the target excludes
    assert first_tokens([1, 0, 0], [0.5, 0.5, 0], 0.9) == {(0, 1)}
    assert first_tokens([1, 0, 0], [0.5, 0.5, 0], 0.9, lenience=0.5) == {(1, 2)}
    p = np.nextafter(np.array([0.5, 0, 0.5], np.float32), np.float32(1))
    assert first_tokens(p, [0.5, 0, 0.5], 1.0) == {(0, 0), (0, 2)}  # an empty residual falls back to the target


# ---- The loop on the device ------------------------------------------------------------------------------------------


def python_steps(pair, x, N, K):
    """The tokens that the oracle chooses at temperature 0."""
    target, draft = (CachedModel(*model, GREEDY) for model in pair)
    rng = np.random.default_rng(0)
    if K == 0:
        return list(autoregressive_sampling(x, target, N, rng))
    return list(speculative_sampling(x, model_drafter(draft, rng), target, N, K, rng))


@pytest.mark.parametrize("K", [0, K, pytest.param(1, marks=slow)])
def test_greedy_steps_are_those_of_the_python_loop(pair, greedy, K):
    """To the end of the context too, from a single token, for a single token, and with nothing compiled on the way."""
    accepted = set()
    greedy.warm_up([8], 16, K)
    with counting_compilations() as compiled:
        for n, N in [(1, 16), (2, 16), (8, 16), (8, 1), (3, 2), (7, 12)]:
            x = random_prompt(n)
            steps = list(greedy.speculative(x, N, K, seed=0))
            assert outcomes(steps) == outcomes(python_steps(pair, x, N, K))
            accepted |= {step.accepted for step in steps}
    assert compiled == []
    assert len(accepted) > 1 or K == 0


@pytest.mark.parametrize("K", [0, pytest.param(2, marks=slow)])
def test_a_row_that_is_fed_with_padding_gives_the_same_steps(pair, networks, K):
    """An accelerator's way, up to the end of the context, where the padding stands behind the last position."""
    decoder = DeviceDecoder(*networks, block=3)
    decoder.fewest_rows = 2
    x = random_prompt(8)
    assert outcomes(decoder.speculative(x, 16, K, seed=0)) == outcomes(python_steps(pair, x, 16, K))


def by_prompt(calls, n):
    """The results that batch yields -> the Rows of each prompt."""
    rows = [[] for _ in range(n)]
    for row in itertools.chain(*calls):
        rows[row.number].append(row)
    return rows


def steps(rows):
    return [row.step for row in rows]


def outcomes(steps):
    """Of Steps at temperature 0 all but the random numbers, and the rows, which stay on the device."""
    return [(step.tokens, [*step.proposal.tokens], [test[1:] for test in step.tests]) for step in steps]


@pytest.mark.parametrize("n_batch", [1, 2, *[pytest.param(n, marks=slow) for n in (3, None)]])
def test_a_batch_is_its_rows(pair, greedy, n_batch):
    """However many are decoded at a time; and there are never more, and never fewer while prompts are waiting."""
    prompts = [random_prompt(n) for n in (1, 3, 9 if n_batch == 1 else 7, 5, 8, 2)]  # 9 are padded to another length
    calls = list(greedy.batch(prompts, 13, K, seed=0, n_batch=n_batch))
    rows = by_prompt(calls, len(prompts))
    assert [outcomes(steps(of_one)) for of_one in rows] == [outcomes(python_steps(pair, x, 13, K)) for x in prompts]
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
    assert [outcomes(steps(of_one)) for of_one in rows] == [outcomes(python_steps(pair, x, 80, K)) for x in prompts]
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
    assert [outcomes(steps(rows)) for rows in by_prompt(calls, 4)] == [*map(outcomes, expected)]
    assert len(expected[0]) < len(whole[0])
    assert len(calls) < sum(map(len, whole))


def test_the_chances_of_acceptance_are_those_that_the_recorder_finds(pair, sampled):
    x = random_prompt(6)
    target, draft = (CachedModel(*model, FILTERS) for model in pair)
    text, n_tested = list(x), set()
    for [row] in sampled.batch([x], 16, K, seed=3):
        step = row.step
        tested = len(step.tests)
        assert tested == min(len(step.tokens), step.drafted)
        assert [test.passed for test in step.tests] == [i < step.accepted for i in range(tested)]
        q = target(np.array([*text, *step.tokens[:-1]]), len(step.tokens))[:tested]  # [tested, n_vocab]
        p = draft(np.array([*text, *step.tokens[:-1]]), len(step.tokens))[:tested]  # [tested, n_vocab]
        np.testing.assert_allclose(row.alpha, acceptance_chance(p, q / LENIENCE), rtol=1e-4)
        np.testing.assert_allclose(row.matching, matching_chance(p, q), rtol=1e-4)
        text += step.tokens
        n_tested.add(tested)
    assert len(n_tested) > 1


def tokens_of(decoder, x, N, seed):
    return decoded(decoder.speculative(x, N, K, seed))


def test_the_prefill_is_shared_by_decodes_of_the_same_prompt(sampled):
    decoder, prefills, x = copy(sampled), [], random_prompt(7)
    decoder.prefill = lambda *args, **kwargs: prefills.append(1) or sampled.prefill(*args, **kwargs)
    alone = []
    for seed in range(3):
        decoder.forget()
        alone.append(tokens_of(decoder, x, 12, seed))
    assert len(prefills) == 3
    assert alone[0] != alone[1] != alone[2]
    decoder.forget()
    next(decoder.speculative(x, 12, K, 5))  # one that is not read to its end
    assert [tokens_of(decoder, x, 12, seed) for seed in range(3)] == alone
    assert len(prefills) == 4
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
    found = re.findall(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    bodies = {name: body.splitlines() for name, body in found}
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
    [(2, 1.0, 0.4), *[pytest.param(*case, marks=slow) for case in [(0, 1.0, 0.8), (2, 0.3, 0.8)]]],
)
def test_the_texts_are_distributed_as_the_targets_own(K, lenience, draft_temperature):
    """All texts of three tokens over a vocabulary of three, in 5,000 rows; with lenience they are not."""
    hparams = {"n_vocab": 3, "n_ctx": 8, "n_embd": 4, "n_head": 1, "n_layer": 1}
    params, draft_params = random_params(hparams, seed=5), random_params(hparams, seed=6)
    chosen = Filters(0.8, top_p=0.9)
    model = CachedModel(params, hparams, chosen)
    n, expected = 5_000, {}
    for text in itertools.product(range(3), repeat=3):
        q = model([1, *text[:2]], 3)
        expected[text] = n * float(np.prod([q[i, token] for i, token in enumerate(text)]))
    networks = place(params, hparams), place(draft_params, hparams)
    decoder = DeviceDecoder(
        *networks, chosen, chosen._replace(temperature=draft_temperature), choose(lenience=lenience), 3
    )
    rows = by_prompt(decoder.batch([[1]] * n, 3, K, seed=1), n)
    counts = Counter(tuple(decoded(steps(of_one))) for of_one in rows)
    possible = [text for text in expected if expected[text] > 0]
    assert {*counts} <= {*possible}
    assert len(possible) > 8
    chi_square = sum((counts[text] - expected[text]) ** 2 / expected[text] for text in possible)
    degrees = len(possible) - 1
    assert (chi_square < degrees + 5 * np.sqrt(2 * degrees)) == (lenience == 1)


@pytest.mark.parametrize("prompts", [[[]], [[1], []], [[0] * 20]])
def test_prompts_that_do_not_fit_are_refused(greedy, prompts):
    assert "the context holds 24" in refusal(list, greedy.batch(prompts, 5, 2, seed=0))


# ---- Around it -------------------------------------------------------------------------------------------------------


def test_compiled_programs_are_kept_on_disk(tmp_path):
    try:
        assert jax_model.keep_compiled(tmp_path) == tmp_path
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    finally:
        jax_model.keep_compiled()


@pytest.mark.parametrize("error", ["ImportError('no jaxlib')", "RuntimeError('jaxlib 0.1 is too old\\nmore')"])
def test_a_jax_that_cannot_be_imported_is_one_line(tmp_path, error):
    (tmp_path / "jax.py").write_text(f"raise {error}")
    done = python("main.py", "--demo", "--engine=jax", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: --engine jax cannot import jax \([^\n]*jaxlib[^\n]*\): pip install .*\n", done.stderr)


def test_a_platform_that_is_not_there_is_one_line():
    program = "from speculative.engines.jax.model import devices; from speculative.support.errors import UserError\n"
    program += "try: devices(1)\nexcept UserError as error: print(error)"
    line = python("-c", program, env=os.environ | {"JAX_PLATFORMS": "rocm"}).stdout
    assert "JAX_PLATFORMS=rocm" in line
    assert line.count("\n") == 1
