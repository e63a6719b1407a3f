"""JAX on one device: its models and its loop against the NumPy engine and the Python loop."""

import itertools
import os
import re
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from tiny import decoded, first_layer, logits_themselves, python, random_params, refusal

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from speculative.drafters.model import model_drafter
from speculative.engines import packed, runtime
from speculative.engines.jax.loop import DeviceDecoder, fault
from speculative.engines.jax.model import JaxModel
from speculative.engines.jax.pair import DeviceLoop, greedy_differences, shape_of
from speculative.engines.jax.sharding import place
from speculative.engines.model import CachedNetwork, Model
from speculative.filters import GREEDY, Filters
from speculative.rules import parse_rule
from speculative.sampling import autoregressive_sampling, speculative_sampling

HPARAMS = {"n_vocab": 40, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 2}
LONG = HPARAMS | {"n_vocab": 200, "n_ctx": 264, "n_embd": 24}
K = 3
slow = pytest.mark.slow


def lively(hparams, seed=0):
    """Random parameters, so large that greedy texts do not repeat a token."""
    return jax.tree.map(lambda a: 2 * a, random_params(hparams, seed))


@pytest.fixture(scope="module")
def params():
    return lively(HPARAMS)


@pytest.fixture(scope="module")
def pair(params):
    """(target, draft), each as (params, hparams)."""
    return (params, HPARAMS), first_layer(params, HPARAMS)


def loop_of(pair, *options):
    return DeviceLoop(DeviceDecoder(*[place(*model) for model in pair], *options), K)


@pytest.fixture(scope="module")
def greedy(pair):
    return loop_of(pair)


@pytest.fixture(scope="module")
def sampled(pair):
    return loop_of(pair, Filters(0.9, top_p=0.95))


def on_numpy(model, to_probs):
    return Model(CachedNetwork(*model), to_probs)


@contextmanager
def counting_compilations():
    """A list that grows by one for each program that XLA is asked to compile within the block."""
    compiled = []
    active = True

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


def rng(seed=0):
    return np.random.default_rng(seed)


# ---- model(x, n_last) ------------------------------------------------------------------------------------------------


def test_the_logits_are_those_of_numpy_whatever_was_asked_before(pair):
    """Growing, cut back, unrelated, up to the last position, with every n_last; by two models in turns; interrupted."""
    numpy_model = on_numpy(pair[0], logits_themselves)
    first = JaxModel(place(*pair[0]), logits_themselves)
    models = [first, first.with_probs(logits_themselves)]
    numbers = rng()
    base = random_prompt(24)
    for i in range(60):
        x = base[: numbers.integers(1, 25)].copy()
        if numbers.random() < 0.3:
            x[numbers.integers(len(x)) :] = numbers.integers(HPARAMS["n_vocab"])
        n_last = int(numbers.integers(1, len(x) + 1))
        held = len(models[i % 2].tokens)
        actual = models[i % 2](x, n_last)
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, numpy_model(x, n_last), atol=2e-5)
        call = first.log[-1]
        assert call.n_rows == n_last <= call.n_read <= len(x)
        assert call.n_read >= len(x) - held

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    step = first.step
    first.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        first(np.append(x, 1)[:20])
    first.step = step
    np.testing.assert_allclose(first(x), numpy_model(x), atol=2e-5)


def test_nothing_is_compiled_while_the_python_loop_decodes(pair):
    target, draft = (JaxModel(place(*model), GREEDY) for model in pair)
    with counting_compilations() as compiled:
        target.warm_up(9, K=4)
    assert compiled  # the counter counts
    draft.warm_up(9)
    with counting_compilations() as compiled:
        for seed in range(3):
            steps = speculative_sampling(random_prompt(9, seed), model_drafter(draft, rng()), target, 15, 4, rng())
            assert len(decoded(steps)) == 15
    assert compiled == []


N_SCALES = HPARAMS["n_vocab"] + HPARAMS["n_layer"] * 9 * HPARAMS["n_embd"]


@pytest.mark.parametrize(
    ("dtype", "share", "n_scales", "cache"), [("bfloat16", 2, 0, "bfloat16"), ("int8", 4, N_SCALES, "float32")]
)
def test_small_formats_take_fewer_bytes_and_are_near(params, dtype, share, n_scales, cache):
    network = place(params, HPARAMS, dtype)
    n_vectors = sum(a.nbytes for a in jax.tree.leaves(params) if a.ndim == 1)
    whole = place(params, HPARAMS).weight_bytes - n_vectors
    assert share * (network.weight_bytes - n_vectors - 4 * n_scales) == whole
    assert network.new_cache(64)[0][0].dtype == jnp.dtype(cache)
    x = random_prompt(20)
    expected = on_numpy((params, HPARAMS), logits_themselves)(x, 4)
    on_cpu = CachedNetwork(packed.pack(params, packed.packer(dtype)), HPARAMS, runtime.new_pass)
    logits = JaxModel(network, logits_themselves)(x, 4)
    assert logits.dtype == np.float32
    error, of_numpy = (np.abs(found - expected).max() for found in (logits, on_cpu.logits(x, 4)))
    assert 1e-4 < error < 3 * of_numpy < 0.1 * np.abs(expected).max()


# ---- The loop on the device ------------------------------------------------------------------------------------------


def python_steps(pair, x, N, K):
    """The steps of the Python loop at temperature 0."""
    target, draft = (on_numpy(model, GREEDY) for model in pair)
    if K == 0:
        return list(autoregressive_sampling(x, target, N, rng()))
    return list(speculative_sampling(x, model_drafter(draft, rng()), target, N, K, rng()))


def outcomes(steps):
    return [(step.tokens, [*map(int, step.proposal.tokens)], step.accepted) for step in steps]


@pytest.mark.parametrize("K", [0, K, pytest.param(1, marks=slow)])
def test_greedy_steps_are_those_of_the_python_loop(pair, greedy, K, monkeypatch):
    """To the end of the context too, from a single token, for a single token, and nothing is compiled on the way."""
    monkeypatch.setattr(greedy, "K", K or 1)
    greedy.ready([[0] * 8], 16, 1, timed=False)
    accepted = set()
    with counting_compilations() as compiled:
        for n, N in [(5, 16), (8, 16), (8, 1), (7, 2), (6, 12)]:
            steps = list(greedy.steps(random_prompt(n), N, K, rng()))
            assert outcomes(steps) == outcomes(python_steps(pair, random_prompt(n), N, K))
            accepted |= {step.accepted for step in steps}
    assert compiled == []
    assert len(accepted) > 1 or K == 0
    x = random_prompt(1)
    assert outcomes(greedy.steps(x, 16, K, rng())) == outcomes(python_steps(pair, x, 16, K))


def test_greedy_texts_around_every_power_of_two_are_those_of_numpy():
    """The text and the caches have room for the last window, wherever the text ends. Only rounding may part two texts:
    greedy_differences looks at the margin."""
    params = lively(LONG)
    pair = (params, LONG), first_layer(params, LONG)
    loop = loop_of(pair)
    model = JaxModel(loop.decoder.networks["target"], GREEDY)
    equal = 0
    lengths = [*range(61, 67), *range(126, 131), 256]
    for T, n in [*((T, T - 24) for T in lengths), (63, 6), (64, 6)]:
        x = random_prompt(n)
        texts = [decoded(steps) for steps in (python_steps(pair, x, T - n, 0), loop.steps(x, T - n, 8, rng()))]
        assert [*map(len, texts)] == [T - n] * 2
        for line in greedy_differences([x], model, *[[text] for text in texts], tolerance=1e-3):
            assert "rounding" in line
            assert "defect" not in line
        equal += texts[0] == texts[1]
        assert len({*texts[0]}) > 5
    assert equal >= len(lengths)


def by_prompt(calls, n):
    """The Rows of each prompt."""
    rows = [[] for _ in range(n)]
    for row in itertools.chain(*calls):
        rows[row.number].append(row)
    return rows


@pytest.mark.parametrize("batch", [1, 2, pytest.param(4, marks=slow)])
def test_a_batch_is_its_prompts(pair, greedy, batch):
    """Those of a group begin together and end one by one; the last group is not full."""
    prompts = [random_prompt(n) for n in (1, 3, 9, 5, 8, 2, 7)]
    calls = list(greedy.rows(prompts, 13, K, rng(), batch))
    rows = by_prompt(calls, len(prompts))
    expected = [python_steps(pair, x, 13, K) for x in prompts]
    assert [*map(outcomes, rows)] == [*map(outcomes, expected)]
    assert len({*map(len, rows)}) > 1  # ragged, or nothing was tested
    groups = [expected[i : i + batch] for i in range(0, len(prompts), batch)]
    assert len(calls) == sum(max(map(len, group)) for group in groups)
    assert [call[0].prefill > 0 for call in calls].count(True) == len(groups)
    assert all(row.prefill == 0 for call in calls for row in call[1:])


def test_a_token_ends_a_text_and_so_does_the_caller(pair):
    prompts = [random_prompt(n) for n in (5, 8, 3, 6)]
    whole = [python_steps(pair, x, 13, K) for x in prompts]
    end = whole[0][1].tokens[0]
    found = [[] for _ in prompts]
    loop = loop_of(pair, GREEDY, None, parse_rule("token"), end)
    for row in itertools.chain.from_iterable(loop.rows(prompts, 13, K, rng(), 2, lambda i: i == 1 and found[1])):
        found[row.number].append(row)
    expected = [[step for i, step in enumerate(x) if not any(end in s.tokens for s in x[:i])] for x in whole]
    expected[1] = expected[1][:1]
    assert [*map(outcomes, found)] == [*map(outcomes, expected)]
    assert len(expected[0]) < len(whole[0])


def test_the_numbers_depend_on_the_seed_the_prompt_and_the_position(sampled):
    """And not on earlier decodes: a text that begins with another one's first tokens goes on as that one did."""
    x = random_prompt(3)

    def tokens(x, N, seed):
        return decoded(sampled.steps(x, N, K, rng(seed)))

    whole = tokens(x, 12, 1)
    first, second, *_ = sampled.steps(x, 12, K, rng(1))
    for begun in (first.tokens, first.tokens + second.tokens):
        assert begun + tokens([*x, *begun], 12 - len(begun), 1) == whole
    assert tokens(x, 12, 2) != whole
    together = by_prompt(sampled.rows([x] * 3, 12, K, rng(1)), 3)
    assert len({str(decoded(rows)) for rows in together}) == 3
    assert decoded(together[0]) == whole


@pytest.mark.parametrize("K", [0, K])
def test_the_loop_does_not_copy_the_cache(greedy, K):
    """No computation that the loop's body reaches has a result of a cache's size, except a write in place, or a fusion
    of one."""
    state = greedy.start([random_prompt(6)], 0, 12, K, shape_of([[0] * 6], 12, K, 1))
    program = greedy.decoder.run.lower(greedy.decoder.params, state, np.uint32(0), K=K).compile().as_text()
    found = re.findall(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    bodies = {name: body.splitlines() for name, body in found}
    todo = re.findall(r"body=%?([\w.-]+)", program)
    reached = set()
    while todo:
        name = todo.pop()
        reached.add(name)
        called = re.findall(r"(?:calls|body|condition|to_apply)=%?([\w.-]+)", "\n".join(bodies[name]))
        todo += set(called) - reached
    shape = ",".join(map(str, state.target_cache[0][0].shape[1:]))
    lines = [line for name in reached for line in bodies[name] if re.search(rf"= f32\[(1,)?{shape}\]", line)]
    assert any("dynamic-update-slice" in line for line in lines)
    assert [line for line in lines if re.search(r"\b(copy|transpose|scatter)[\w-]*\(|copy[\w.-]* = ", line)] == []


BY_LAW = [("block", True), *(pytest.param(*case, marks=slow) for case in [("token", True), ("lenient:0.3", False)])]


@pytest.mark.parametrize(("accept", "same"), BY_LAW)
def test_the_texts_are_distributed_as_the_targets_own(accept, same):
    """All texts of three tokens over a vocabulary of three, in 5,000 rows."""
    hparams = {"n_vocab": 3, "n_ctx": 8, "n_embd": 4, "n_head": 1, "n_layer": 1}
    target = random_params(hparams, seed=5), hparams
    filters = Filters(0.8, top_p=0.9)
    loop = loop_of(
        (target, (random_params(hparams, seed=6), hparams)), filters, Filters(0.4, top_p=0.9), parse_rule(accept)
    )
    model = on_numpy(target, filters)
    n = 5_000
    expected = {}
    for text in itertools.product(range(3), repeat=3):
        q = model([1, *text[:2]], 3)
        expected[text] = n * float(np.prod([q[i, token] for i, token in enumerate(text)]))
    rows = by_prompt(loop.rows([[1]] * n, 3, 2, rng(1), n), n)
    counts = Counter(tuple(decoded(of_one)) for of_one in rows)
    possible = [text for text in expected if expected[text] > 0]
    assert {*counts} <= {*possible}
    assert len(possible) > 8
    chi_square = sum((counts[text] - expected[text]) ** 2 / expected[text] for text in possible)
    degrees = len(possible) - 1
    assert (chi_square < degrees + 5 * np.sqrt(2 * degrees)) == same


# ---- Logits that are not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("wrong", range(4))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_first_row_that_is_not_finite_is_found_among_those_that_count(k, wrong, value):
    peaks = np.zeros(4, np.float32)
    peaks[wrong:] = value
    assert fault(jnp.array(peaks), 7, k) == (7 + wrong if wrong < k else -1)


@pytest.mark.parametrize(
    ("model", "K", "N", "position"),
    [
        ("target", 0, 1, 6),  # its only row
        ("target", K, 1, 6),  # the only row that counts
        ("draft model", K, 2, 6),  # the only draft that counts
        ("draft model", K, 1, None),
    ],
)
def test_logits_that_are_not_finite_are_refused(pair, model, K, N, position):
    damaged = [*pair]
    i = ["target", "draft model"].index(model)
    damaged[i] = damaged[i][0] | {"ln_f": {"g": np.full(12, np.nan, np.float32), "b": np.zeros(12)}}, damaged[i][1]
    prompts = [random_prompt(6), random_prompt(6)]
    steps = loop_of(damaged).rows(prompts, N, K, rng(), 2)
    if position is None:
        assert len(list(steps)) == 1
        return
    line = f"the {model} gives logits that are not finite, at position {position}:"
    assert refusal(list, steps).startswith(line)
    alone = JaxModel(place(*damaged[i]), GREEDY, f"the {model}")
    assert refusal(alone, prompts[0]).startswith(line)


# ---- Around it -------------------------------------------------------------------------------------------------------


def test_a_platform_that_is_not_there_is_one_line():
    done = python("main.py", "--demo", "--engine=jax", env=os.environ | {"JAX_PLATFORMS": "rocm"})
    assert done.returncode == 2
    assert re.fullmatch(r"error: jax finds no device of JAX_PLATFORMS=rocm .*: unset it\n", done.stderr)
