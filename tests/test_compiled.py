"""The compiled pass against gpt2.py, and to the bit against itself: other row counts, other threads, other pasts."""

import math
import os
import threading
import time
from functools import partial

import numpy as np
import pytest
from tiny import HPARAMS as TINY
from tiny import convert, logits_themselves, random_params

pytest.importorskip("numba")

from numba import njit

import gpt2 as plain
from plumbing.errors import UserError
from speculative.engines import compiled, compiled_pass, elementwise, runtime
from speculative.engines.cpu import BLOCK
from speculative.engines.formats import FORMATS
from speculative.engines.formats.int8 import round_rows
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel
from speculative.engines.team import Team

HPARAMS = {"n_vocab": 261, "n_ctx": 96, "n_embd": 96, "n_head": 3, "n_layer": 3}
TOKENS = np.random.default_rng(5).integers(0, HPARAMS["n_vocab"], HPARAMS["n_ctx"])


CHUNK = 30  # fewer rows than a call may have, so that these few tokens are several


def in_parts(params, hparams, n_threads=1):
    return compiled_pass.CompiledPass(params, hparams, partial(compiled_pass.make_team, n_threads), CHUNK)


def new_pass(dtype="float32", n_threads=1, hparams=HPARAMS):
    params = convert(random_params(hparams), packer(dtype))
    return in_parts(params, hparams, n_threads), params


def logits(run, splits):
    """Of all tokens, after calls of so many tokens each."""
    run.length = 0
    return np.concatenate([run(part, len(part)) for part in np.split(TOKENS, np.cumsum(splits)[:-1])])


def close(a, b, relative=1e-5):
    """Relative to the largest number of all, as what is rounded may be a difference of large ones."""
    return np.max(np.abs(a - b)) <= relative * np.max(np.abs(b))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_layer", [0, 1, 2, 3])
def test_each_block_gives_what_gpt2_gives(dtype, n_layer):
    run, params = new_pass(dtype, hparams=HPARAMS | {"n_layer": n_layer})
    n_head = HPARAMS["n_head"]
    x = params["wte"][TOKENS] + params["wpe"][: len(TOKENS)]
    for block in params["blocks"]:
        x = plain.transformer_block(x, **block, n_head=n_head)
    assert close(run(TOKENS, len(TOKENS)), plain.gpt2(TOKENS, **params, n_head=n_head))
    assert close(run.hidden, x)


@pytest.mark.parametrize(("n_embd", "n_head"), [(3, 3), (8, 1), (33, 3), (64, 1), (80, 1), (70, 2)])
@pytest.mark.parametrize("dtype", FORMATS)
def test_odd_widths(n_embd, n_head, dtype):
    """Heads of 1 to 80 numbers, rows that fill no block and no tile."""
    run, params = new_pass(dtype, 2, HPARAMS | {"n_embd": n_embd, "n_head": n_head, "n_layer": 1})
    expected = plain.gpt2(TOKENS, **params, n_head=n_head)
    assert close(run(TOKENS, len(TOKENS)), expected, 0.1 if FORMATS[dtype].rounds_rows else 1e-5)


def test_int8_is_gpt2_with_rows_rounded_before_each_product(monkeypatch):
    """The one difference from gpt2.py with the same weights; NumPy does the rounding here."""

    def rounds(x, w, b):
        n_more = -x.shape[1] % BLOCK
        whole, scale = round_rows(np.pad(x, ((0, 0), (0, n_more))))
        x = (whole.reshape(*scale.shape, -1) * scale[..., None]).reshape(len(x), -1)[:, : x.shape[1]]
        return x.astype(np.float32) @ w.dequantize() + b

    run, params = new_pass("int8", hparams=HPARAMS | {"n_layer": 1})
    monkeypatch.setattr(plain, "linear", rounds)
    x = params["wte"][TOKENS] + params["wpe"][: len(TOKENS)]
    x = plain.transformer_block(x, **params["blocks"][0], n_head=HPARAMS["n_head"])
    run(TOKENS, len(TOKENS))
    # Most are equal but for the last bits; where one decides how an input is rounded, a whole step lies between.
    error = np.abs(run.hidden - x) / np.max(np.abs(x))
    assert np.median(error) < 1e-5 and np.max(error) < 1e-2


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_parts_of_a_prompt_change_no_bit(dtype):
    params = convert(random_params(HPARAMS), packer(dtype))
    whole = compiled_pass.CompiledPass(params, HPARAMS, partial(compiled_pass.make_team, 2))
    assert np.array_equal(whole(TOKENS, len(TOKENS)), in_parts(params, HPARAMS)(TOKENS, len(TOKENS)))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_the_logits_of_a_token_have_the_same_bits_in_every_split_and_with_any_threads(dtype, n_threads):
    n = len(TOKENS)
    alone = logits(new_pass(dtype)[0], [1] * n)
    assert alone.dtype == np.float32
    run, _ = new_pass(dtype, n_threads)
    windows = [[rows] * (n // rows) + [n % rows] * (n % rows > 0) for rows in range(1, 18, 1 if n_threads == 1 else 4)]
    for splits in ([n], *windows, [31, 1, 16, 48]):
        assert np.array_equal(logits(run, splits), alone)


def test_the_last_rows_of_a_long_prefill():
    run, _ = new_pass()
    whole = run(TOKENS, len(TOKENS))
    hidden = run.hidden
    for n_last in (1, 2, CHUNK - 1, CHUNK + 1, 90):
        run.length = 0
        assert np.array_equal(run(TOKENS, n_last), whole[-n_last:])
        assert np.array_equal(run.hidden, hidden[-n_last:])
        assert run.length == len(TOKENS)


def test_what_was_forgotten_leaves_no_trace():
    """A cache whose length is moved back gives what a cache gives that never saw the rest."""
    used, fresh = (CachedModel(new_pass()[1], HPARAMS, logits_themselves, runtime.new_pass) for _ in range(2))
    used(TOKENS, 1)
    x = np.append(TOKENS[:20], TOKENS[60:75])
    assert np.array_equal(used(x, 5), fresh(x, 5))


@pytest.mark.parametrize("tokens", [[-1], [HPARAMS["n_vocab"]], [0] * (HPARAMS["n_ctx"] + 1)])
def test_what_is_not_there_is_not_looked_up(tokens):
    with pytest.raises(ValueError, match="one was asked for that is not there"):
        new_pass()[0](tokens, 1)


def test_exp():
    xs = np.linspace(-86.9, 0, 10_001).astype(np.float32)
    exp = njit(lambda x: elementwise.exp(x))
    ours = np.array([exp(x) for x in xs], np.float64)
    assert np.max(np.abs(ours / np.exp(xs.astype(np.float64)) - 1)) < 3e-7
    assert exp(np.float32(0)) == 1
    assert exp(np.float32(-88)) == exp(np.float32(-math.inf)) == 0


def test_gelu():
    xs = np.concatenate([np.linspace(-12, 12, 4001), [0, -1e-20, 1e4, -1e4]]).astype(np.float32)
    gelu = njit(lambda x: elementwise.gelu(x))
    ours = np.array([gelu(x) for x in xs])
    np.testing.assert_allclose(ours, plain.gelu(xs.astype(np.float64)), rtol=2e-6, atol=2e-6)


def test_gelu_by_erf():
    xs = np.concatenate([np.linspace(-12, 12, 4001), [0, -1e-20, 1e4, -1e4]]).astype(np.float32)
    gelu = njit(lambda x: elementwise.gelu_by_erf(x))
    expected = [0.5 * x * (1 + math.erf(x * math.sqrt(0.5))) for x in xs.astype(float)]
    np.testing.assert_allclose([gelu(x) for x in xs], expected, rtol=1e-6, atol=1e-6)


# The threads


def test_a_thread_that_dies_ends_all_with_one_line():
    def work(thread, state, job, done):
        if thread == 1:
            raise MemoryError("no memory for this thread")
        while not team.error:
            time.sleep(0.001)
        return done + 1

    team = Team(3, work, compiled.JOB)
    with pytest.raises(
        UserError, match=r"a thread of the NumPy engine has died \(no memory for this thread\)"
    ) as error:
        team.run(np.zeros(1, compiled.JOB))
    assert "\n" not in str(error.value)
    team.close()


def test_a_dead_partner_is_not_waited_for():
    run, _ = new_pass(n_threads=2)
    team = Team(2, compiled.work, compiled.JOB)
    run.team = lambda: team
    run(TOKENS[:3], 1)
    team.counters[compiled.DEAD * 8] = 1
    team.error = RuntimeError("dead")
    with pytest.raises(UserError, match="has died"):
        run(TOKENS[:3], 1)
    team.close()


def test_threads_that_the_system_does_not_have(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start")))
    with pytest.raises(UserError, match="cannot start 4 threads"):
        Team(4, compiled.work, compiled.JOB).run(np.zeros(1, compiled.JOB))


def test_a_forked_process_has_threads_of_its_own():
    run, _ = new_pass(n_threads=2)
    expected = run(TOKENS[:9], 9)
    if not (child := os.fork()):
        run.length = 0
        os._exit(not np.array_equal(run(TOKENS[:9], 9), expected))
    assert os.waitpid(child, 0)[1] == 0


def test_threads_are_as_many_as_there_is_to_read_for(monkeypatch):
    runtime.set_threads(most := runtime.most_threads())
    params = convert(random_params(), packer("float32"))
    assert runtime.new_pass(params, TINY).team().n_threads == 1
    monkeypatch.setattr(runtime, "THREAD_BYTES", 1)
    monkeypatch.setattr(Team, "has_cores", lambda self: True)
    assert runtime.new_pass(params, TINY).team().n_threads == most


def test_on_a_busy_machine_one_thread_works_alone_for_a_while(monkeypatch):
    teams = {n: Team(n, compiled.work, compiled.JOB) for n in (1, 2)}
    monkeypatch.setattr(compiled_pass, "make_team", teams.get)
    for _ in range(10):
        teams[2].judge(0.01, 0.009)
    assert compiled_pass.choose_team(2) is teams[2]
    teams[2].judge(0.01, 0)  # once is little
    assert compiled_pass.choose_team(2) is teams[2]
    teams[2].judge(0.03, 0.01)
    assert compiled_pass.choose_team(2) is teams[1]
    teams[2].alone_until = 0
    assert compiled_pass.choose_team(2) is teams[2]


def test_an_interrupted_prefill_leaves_nothing_behind(monkeypatch):
    params = convert(random_params(HPARAMS), packer("float32"))
    model, fresh = (CachedModel(params, HPARAMS, logits_themselves, in_parts) for _ in range(2))
    run, calls = Team.run, []

    def interrupted(team, job):
        run(team, job)
        calls.append(job)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Team, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model(TOKENS)
    assert np.array_equal(model(TOKENS[:20], 3), fresh(TOKENS[:20], 3))


def test_what_is_called_from_python_is_not_compiled():
    """It would be in every run, which would say so, as nothing keeps it."""
    for function in (compiled_pass.padded, compiled_pass.padded_to_tiles):
        assert not hasattr(function, "py_func") and function(5) >= 5
