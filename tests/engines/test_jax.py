"""JAX on one device: its models and its loop against the NumPy engine and the Python loop."""

import itertools
import os
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import convert, decoded, first_layer, logits_themselves, on_jax, python, random_params, refusal

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from speculative.drafters.model import model_drafter
from speculative.engines.c import packing
from speculative.engines.c.forward import CompiledPass
from speculative.engines.jax import compilation
from speculative.engines.jax.device_decoder import DeviceDecoder
from speculative.engines.jax.device_loops import DeviceLoops, Group, lengths_of
from speculative.engines.jax.forward import cached
from speculative.engines.jax.model import SMALL
from speculative.engines.model import Model
from speculative.engines.network import CachedNetwork
from speculative.engines.plain import NumpyEngine, PlainPass
from speculative.filters import GREEDY, Filters
from speculative.rules import TOKEN, parse_rule
from speculative.run.greedy import greedy_difference
from speculative.sampling import autoregressive_sampling, speculative_sampling

HPARAMS = {"n_vocab": 200, "n_ctx": 264, "n_embd": 24, "n_head": 3, "n_layer": 2}
K = 3
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def pair():
    """(target, draft), each as (params, hparams): so large that greedy texts do not repeat a token."""
    params = jax.tree.map(lambda a: 1.5 * a, random_params(HPARAMS, seed=1))
    return (params, HPARAMS), first_layer(params, HPARAMS)


def loop_of(pair, filters=GREEDY, draft_filters=GREEDY, rule=TOKEN, least=1):
    """least: the rows that a call computes at least, which is 1 on the CPU."""
    decoder = DeviceDecoder(*[replace(on_jax(*model), least=least) for model in pair], filters, draft_filters, rule)
    return DeviceLoops(decoder, K, "draft")


def rounds_of(loop, prompts, N, K, numbers, batch=1, stopped=lambda place: False):
    loop.K, loop.batch = K, batch
    return loop.rounds("speculative" if K else "autoregressive", prompts, N, [numbers], stopped)


def steps_of(loop, x, N, K, numbers):
    return [step for [(_, step, _)] in rounds_of(loop, [x], N, K, numbers)]


@pytest.fixture(scope="module")
def greedy(pair):
    return loop_of(pair)


def on_numpy(model, to_probs):
    return Model(CachedNetwork(*model, PlainPass(*model)), to_probs)


@pytest.fixture(scope="module")
def compiled():
    """A list that grows by one for each program that XLA is asked to compile."""
    programs = []

    def listen(event, seconds, **details):
        if event.endswith("backend_compile_duration"):
            programs.append(str(details.get("fun_name", event)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return programs


def random_prompt(n, seed=0):
    return np.random.default_rng([seed, n]).integers(HPARAMS["n_vocab"], size=n)


def rng(seed=0):
    return np.random.default_rng(seed)


# ---- The pass --------------------------------------------------------------------------------------------------------


def test_nothing_is_compiled_while_the_python_loop_decodes(pair, compiled):
    target, draft = (Model(cached(on_jax(*model)), GREEDY) for model in pair)
    compiled.clear()
    target.network.forward.warm_up(9, K=4)
    assert compiled  # the counter counts
    draft.network.forward.warm_up(9)
    compiled.clear()
    for seed in range(3):
        steps = speculative_sampling(random_prompt(9, seed), model_drafter(draft, rng()), target, 15, 4, rng())
        assert len(decoded(steps)) == 15
    assert compiled == []


def test_a_second_run_of_one_shape_compiles_nothing(pair, tmp_path, monkeypatch, capsys):
    """Its programs are on the disk. The line says so where they are compiled, and only there."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    runs = []
    for _ in range(2):
        jax.clear_caches()
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        compilation.keep_compiled()
        compilation.events.clear()
        loop = loop_of(pair)
        loop.ready([[0] * 8], 16)
        texts = [decoded(steps_of(loop, random_prompt(8), 16, k, rng())) for k in (K, 0)]
        runs.append(
            (compilation.events[compilation.COMPILED] > 0, capsys.readouterr().err.count("compiled both loops"), texts)
        )
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
    compilation_cache.reset_cache()
    assert runs == [(True, 1, texts), (False, 0, texts)]


N_SCALES = HPARAMS["n_vocab"] + HPARAMS["n_layer"] * 9 * HPARAMS["n_embd"]


@pytest.mark.parametrize(
    ("dtype", "share", "n_scales", "cache"), [("bfloat16", 2, 0, "bfloat16"), ("int8", 4, N_SCALES, "float32")]
)
def test_small_formats_take_fewer_bytes_and_are_near(dtype, share, n_scales, cache):
    params = random_params(HPARAMS)
    network = on_jax(params, HPARAMS, dtype)
    n_vectors = sum(a.nbytes for a in jax.tree.leaves(params) if a.ndim == 1)
    unrounded = n_vectors + params["wpe"].nbytes
    whole = cached(on_jax(params, HPARAMS)).weight_bytes - unrounded
    assert share * (cached(network).weight_bytes - unrounded - 4 * n_scales) == whole
    assert network.new_cache(64)[0][0].dtype == jnp.dtype(cache)
    x = random_prompt(20)
    expected = on_numpy((params, HPARAMS), logits_themselves)(x, 4)
    packed = convert(params, partial(packing.pack, dtype))
    on_cpu = CachedNetwork(packed, HPARAMS, CompiledPass(packed, HPARAMS, 1))
    logits = cached(network).logits(x, 4)
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
    return [(step.tokens, [*map(int, step.proposal.tokens)], step.n_accepted) for step in steps]


@pytest.mark.parametrize("K", [0, K, pytest.param(1, marks=slow)])
def test_greedy_steps_are_those_of_the_python_loop(pair, greedy, compiled, K, monkeypatch):
    """From a single token, for a single token; and once a decode is prepared, nothing is compiled on the way."""
    monkeypatch.setattr(greedy, "K", K or 1)
    greedy.ready([[0] * 8], 16)
    compiled.clear()
    accepted = set()
    for n, N in [(5, 16), (8, 16), (6, 12), (1, 16), (8, 1), (7, 2)]:
        steps = steps_of(greedy, random_prompt(n), N, K, rng())
        assert outcomes(steps) == outcomes(python_steps(pair, random_prompt(n), N, K))
        accepted |= {step.n_accepted for step in steps}
        assert compiled == [] or N <= K
    assert len(accepted) > 1 or K == 0


def test_greedy_texts_around_every_power_of_two_are_those_of_numpy(pair):
    """And to the end of the context: the text and the caches have room for the last window and for rows of padding.
    Only rounding may part two texts: greedy_difference looks at the margin."""
    n_ctx = 136
    pair = [(params | {"wpe": params["wpe"][:n_ctx]}, hparams | {"n_ctx": n_ctx}) for params, hparams in pair]
    greedy = loop_of(pair, least=SMALL)
    model = cached(greedy.decoder.networks["target"])
    options = SimpleNamespace(dtype="float32")
    session = SimpleNamespace(engine=NumpyEngine(), models={"target": model}, options=options, exact=False)
    equal = 0
    lengths = [power + i for power in (64, 128) for i in range(-7, 3)] + [n_ctx]
    for T in lengths:
        n = T - 24
        x = random_prompt(n)
        both = python_steps(pair, x, T - n, 0), steps_of(greedy, x, T - n, 8, rng())
        texts = [decoded(steps) for steps in both]
        assert [*map(len, texts)] == [T - n] * 2
        difference = greedy_difference(session, [x], [[text] for text in texts])
        assert bool(difference) == (texts[0] != texts[1])
        assert not difference or "rounding can" in difference.text
        equal += texts[0] == texts[1]
        assert len({*texts[0]}) > 4
    assert equal >= len(lengths) - 2


@pytest.mark.parametrize("K", [0, K])
def test_the_loop_does_not_copy_the_cache(greedy, K):
    """No computation but the outermost has a result of a cache's size, except a write in place, or a fusion of one."""
    state, _ = greedy.start(Group([random_prompt(6)], 0, 12, K, *lengths_of([[0] * 6], 12, K)))
    run = greedy.decoder.run.lower(greedy.decoder.params, state, np.uint32(0), np.int32(8), K=K)
    program = run.compile().as_text()
    computations = re.findall(r"^(ENTRY )?%?[\w.-]+ [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    shape = ",".join(map(str, state.target_cache[0][0].shape[1:]))
    inner = [line for entry, body in computations if not entry for line in body.splitlines()]
    lines = [line for line in inner if re.search(rf"= f32\[(1,)?{shape}\]", line)]
    assert any("dynamic-update-slice" in line for line in lines)
    assert [line for line in lines if re.search(r"\b(copy|transpose|scatter)[\w-]*\(|copy[\w.-]* = ", line)] == []


# ---- Above temperature 0 ---------------------------------------------------------------------------------------------

OF_THREE = {"n_vocab": 3, "n_ctx": 24, "n_embd": 4, "n_head": 1, "n_layer": 1}
FILTERS = Filters(0.8, top_p=0.9)
N_ROWS = 2_000


def by_prompt(rounds, n):
    """The Steps of each prompt."""
    steps = [[] for _ in range(n)]
    for place, step, _ in itertools.chain(*rounds):
        steps[place].append(step)
    return steps


@pytest.fixture(scope="module")
def over_three_tokens():  # -> the target, the loop
    target, draft = ((random_params(OF_THREE, seed), OF_THREE) for seed in (5, 6))
    return target, loop_of((target, draft), FILTERS, Filters(0.4, top_p=0.9), parse_rule("block"))


def test_the_texts_are_distributed_as_the_targets_own(over_three_tokens):
    """All texts of three tokens, in 2,000 rows. The loop is the same for every rule: see test_jax_sampling.py."""
    target, loop = over_three_tokens
    model = on_numpy(target, FILTERS)
    expected = {}
    for text in itertools.product(range(3), repeat=3):
        q = model([1, *text[:2]], 3)
        expected[text] = N_ROWS * float(np.prod([q[i, token] for i, token in enumerate(text)]))
    steps = by_prompt(rounds_of(loop, [[1]] * N_ROWS, 3, 2, rng(1), N_ROWS), N_ROWS)
    counts = Counter(tuple(decoded(of_one)) for of_one in steps)
    possible = [text for text in expected if expected[text] > 0]
    assert {*counts} <= {*possible}
    assert len(possible) > 8
    chi_square = sum((counts[text] - expected[text]) ** 2 / expected[text] for text in possible)
    degrees = len(possible) - 1
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_the_numbers_depend_on_the_seed_the_prompt_and_the_position(over_three_tokens):
    """And not on earlier decodes: a text that begins with another one's first tokens goes on as that one did."""
    _, loop = over_three_tokens
    x = [2, 0, 1]

    def tokens(x, N, seed):
        return decoded(steps_of(loop, x, N, 2, rng(seed)))

    whole = tokens(x, 16, 1)
    first, second, *_ = steps_of(loop, x, 16, 2, rng(1))
    for begun in (first.tokens, first.tokens + second.tokens):
        assert begun + tokens([*x, *begun], 16 - len(begun), 1) == whole
    assert tokens(x, 16, 2) != whole
    together = by_prompt(rounds_of(loop, [x] * 3, 16, 2, rng(1), N_ROWS), 3)
    assert len({str(decoded(steps)) for steps in together}) == 3
    assert decoded(together[0]) == whole


# ---- Logits that are not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "model", "K", "N", "position"),
    [
        ("target", "target", 0, 1, 6),  # its only row
        ("target", "target", K, 1, 6),  # the only row that counts
        ("draft", "draft model", K, 2, 6),  # the only draft that counts
        ("draft", "draft model", K, 1, None),
    ],
)
def test_logits_that_are_not_finite_are_refused(greedy, monkeypatch, role, model, K, N, position):
    params = greedy.decoder.params[role]
    damaged = params | {"ln_f": jax.tree.map(lambda a: a * np.float32(np.nan), params["ln_f"])}
    monkeypatch.setitem(greedy.decoder.params, role, damaged)
    arguments = greedy, random_prompt(6), N, K, rng()
    if position is None:
        assert len(steps_of(*arguments)) == 1
    else:
        line = f"the {model} gives logits that are not finite, at position {position}:"
        assert refusal(steps_of, *arguments).startswith(line)


@slow  # a process of its own
def test_a_platform_that_is_not_there_is_one_line():
    done = python(
        "main.py",
        "--demo",
        "--target_model_size=tiny-target",
        "--engine=jax",
        env=os.environ | {"JAX_PLATFORMS": "rocm"},
    )
    assert done.returncode == 2
    assert re.fullmatch(r"error: jax finds no device of JAX_PLATFORMS=rocm .*: unset it\n", done.stderr)
