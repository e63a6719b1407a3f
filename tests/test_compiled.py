"""The compiled pass against gpt2.py, and to the bit against itself: other row counts, other threads, other pasts."""

import math
import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import HPARAMS as TINY
from tiny import convert, logits_themselves, random_params, refusal

pytest.importorskip("numba")

from numba import njit

import gpt2 as plain
from speculative.engines import compiled, compiled_pass, elementwise, runtime
from speculative.engines.formats import FORMATS
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel
from speculative.engines.team import Team
from speculative.engines.threads import choose_team, make_team
from speculative.support import compiling

HPARAMS = {"n_vocab": 261, "n_ctx": 96, "n_embd": 96, "n_head": 3, "n_layer": 3}
TOKENS = np.random.default_rng(5).integers(0, HPARAMS["n_vocab"], HPARAMS["n_ctx"])


CHUNK = 30  # fewer rows than a call may have, so that these few tokens are several


def in_parts(params, hparams, n_threads=1):
    return compiled_pass.CompiledPass(params, hparams, partial(make_team, n_threads), CHUNK)


def new_pass(dtype="float32", n_threads=1, hparams=HPARAMS):
    params = convert(random_params(hparams), packer(dtype))
    return in_parts(params, hparams, n_threads), params


def logits(run, splits):
    """The logits of all tokens, after calls of so many tokens each."""
    run.length = 0
    return np.concatenate([run(part, len(part)) for part in np.split(TOKENS, np.cumsum(splits)[:-1])])


# n_layer, n_embd, n_head: heads of 1 to 80 numbers, rows that fill no block and no tile
SIZES = [(0, 96, 3), (1, 96, 3), (3, 96, 3), (1, 3, 3), (1, 8, 1), (1, 33, 3), (1, 80, 1), (1, 70, 2)]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("n_layer", "n_embd", "n_head"), SIZES)
def test_the_pass_gives_what_gpt2_gives(n_layer, n_embd, n_head, dtype):
    """A last bit may decide how a row is rounded; in the first layer this changes few numbers."""
    run, params = new_pass(dtype, 2, HPARAMS | {"n_layer": n_layer, "n_embd": n_embd, "n_head": n_head})
    typical = most = 1e-5
    if FORMATS[dtype].rows.build:
        typical, most = (1e-5, 2e-2) if n_layer < 2 else (5e-3, 4e-2)
    x = params["wte"][TOKENS] + params["wpe"][: len(TOKENS)]
    for block in params["blocks"]:
        x = plain.transformer_block(x, **block, n_head=n_head)
    expected = plain.gpt2(TOKENS, **params, n_head=n_head)
    for a, b in ((run(TOKENS, len(TOKENS)), expected), (run.hidden, x)):
        error = np.abs(a - b) / np.max(np.abs(b))
        assert np.median(error) < typical
        assert np.max(error) < most


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_the_logits_of_a_token_have_the_same_bits_in_every_split_and_with_any_threads(dtype, n_threads):
    n = len(TOKENS)
    alone = logits(new_pass(dtype)[0], [1] * n)
    assert alone.dtype == np.float32
    run, params = new_pass(dtype, n_threads)
    windows = [[rows] * (n // rows) + [n % rows] * (n % rows > 0) for rows in range(1, 18, 1 if n_threads == 1 else 4)]
    for splits in (*windows, [31, 1, 16, 48], [n]):
        assert np.array_equal(logits(run, splits), alone)
    hidden = run.hidden
    for n_last in (1, 2, CHUNK - 1, CHUNK + 1, 90):
        run.length = 0
        assert np.array_equal(run(TOKENS, n_last), alone[-n_last:])
        assert np.array_equal(run.hidden, hidden[-n_last:])
        assert run.length == n
    in_one = compiled_pass.CompiledPass(params, HPARAMS, partial(make_team, n_threads))
    assert np.array_equal(in_one(TOKENS, n), alone)


class Interrupted:
    """A team of one, which Ctrl-C ends after its second job."""

    n_threads, n_jobs = 1, 0

    def run(self, job):
        make_team(1).run(job)
        self.n_jobs += 1
        if self.n_jobs == 2:
            raise KeyboardInterrupt


def test_what_was_forgotten_or_interrupted_leaves_no_trace():
    used, fresh = (CachedModel(new_pass()[1], HPARAMS, logits_themselves, in_parts) for _ in range(2))
    used(TOKENS)
    x = np.append(TOKENS[:20], TOKENS[60:75])
    assert np.array_equal(used(x, 5), fresh(x, 5))
    team = Interrupted()
    used.forward.team = lambda: team
    with pytest.raises(KeyboardInterrupt):
        used(TOKENS[::-1])
    assert np.array_equal(used(x[:20], 3), fresh(x[:20], 3))


def test_moved_keys_and_values_are_those_of_the_token_that_was_moved():
    """Two tokens follow the same text. Another one goes on from the second, which is moved to the first one's place."""
    run, _ = new_pass()
    text, first, second, after = TOKENS[:40], 7, 9, 11
    run([*text, second, after], 1)
    expected = run.hidden.copy()
    run.length = 0
    run(text, 1)
    sees = np.ones((2, 42), np.uint8)
    sees[:, 40:] = np.eye(2)
    run([first, second], 2, np.array([40, 40]), sees)
    run.move(np.array([41]), 40)
    run.length = 41
    run([after], 1)
    assert np.array_equal(run.hidden, expected)


@pytest.mark.parametrize("tokens", [[-1], [HPARAMS["n_vocab"]], [0] * (HPARAMS["n_ctx"] + 1)])
def test_what_is_not_there_is_not_looked_up(tokens):
    with pytest.raises(ValueError, match="one was asked for that is not there"):
        new_pass()[0](tokens, 1)


NEGATIVE = [*np.linspace(-86.9, 0, 10_001), -88, -math.inf]
ALL = [*np.linspace(-12, 12, 4001), 0, -1e-20, 1e4, -1e4]


@pytest.mark.parametrize(
    ("function", "exact", "xs", "rtol", "atol"),
    [
        (elementwise.exp, math.exp, NEGATIVE, 3e-7, 1e-38),
        (elementwise.gelu, plain.gelu, ALL, 2e-6, 2e-6),
        (elementwise.gelu_by_erf, lambda x: 0.5 * x * (1 + math.erf(x * math.sqrt(0.5))), ALL, 1e-6, 1e-6),
    ],
)
def test_functions_of_one_number(function, exact, xs, rtol, atol):
    xs = np.array(xs, np.float32)
    compiled = njit(lambda x: function(x))
    np.testing.assert_allclose([compiled(x) for x in xs], [exact(x) for x in xs.astype(float)], rtol, atol)


# The threads


def test_a_thread_that_dies_ends_all_with_one_line():
    def work(thread, state, job, done):
        if thread == 1:
            raise MemoryError("no memory for this thread")
        while not team.error:
            time.sleep(0.001)
        return done + 1

    team = Team(3, work, compiled.JOB)
    line = refusal(team.run, np.zeros(1, compiled.JOB))
    assert line.startswith("a thread of the NumPy engine has died (no memory for this thread)")
    team.close()


def test_a_dead_partner_is_not_waited_for():
    run, _ = new_pass(n_threads=2)
    team = Team(2, compiled.work, compiled.JOB)
    run.team = lambda: team
    run(TOKENS[:3], 1)
    team.counters[compiled.DEAD * 8] = 1
    run(TOKENS[:3], 1)  # ends, though its partner no longer comes to the barriers
    team.error = RuntimeError("dead")
    assert "has died" in refusal(run, TOKENS[:3], 1)
    team.close()


def test_threads_that_the_system_does_not_have():
    class Unstartable(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    team = Team(4, compiled.work, compiled.JOB, Unstartable)
    assert "cannot start 4 threads" in refusal(team.run, np.zeros(1, compiled.JOB))
    assert "has died" in refusal(team.run, np.zeros(1, compiled.JOB))


def test_after_an_interrupted_call_the_next_is_whole():
    run, _ = new_pass()
    expected = run(TOKENS[:9], 9)
    hidden = run.hidden.copy()
    team = run.team()

    class Interrupting(Team):
        def run(self, job):
            super().run(job)
            raise KeyboardInterrupt

    run.team = lambda: Interrupting(1, compiled.work, compiled.JOB)
    with pytest.raises(KeyboardInterrupt):
        run.output(hidden)
    run.team = lambda: team
    run.length = 0
    assert np.array_equal(run(TOKENS[:9], 9), expected)
    assert np.array_equal(run.output(hidden), expected)


def test_a_forked_process_has_threads_of_its_own():
    run, _ = new_pass(n_threads=2)
    expected = run(TOKENS[:9], 9)
    if not (child := os.fork()):
        run.length = 0
        os._exit(not np.array_equal(run(TOKENS[:9], 9), expected))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("n_vocab", "n_threads"), [(50, 1), (1_000_000, min(6, runtime.most_threads()))])
def test_threads_are_as_many_as_there_is_to_read_for(n_vocab, n_threads):
    runtime.set_threads(runtime.most_threads())
    make_team(n_threads).alone_until = 0.0  # whatever was seen of this machine before
    hparams = TINY | {"n_vocab": n_vocab}  # 48 MB of embedding, or next to nothing
    params = convert(random_params(hparams), packer("float32"))
    assert runtime.new_pass(params, hparams).team().n_threads == n_threads


def test_on_a_busy_machine_one_thread_works_alone_for_a_while():
    team = make_team(7)
    for _ in range(10):
        team.judge(0.01, 0.009)
    assert choose_team(7) is team
    team.judge(0.01, 0)  # once is little
    assert choose_team(7) is team
    team.judge(0.03, 0.01)
    assert choose_team(7) is make_team(1)
    team.alone_until = 0
    assert choose_team(7) is team


def test_a_relative_cache_does_not_count(monkeypatch, tmp_path):
    for home, kept in (("/there", "/there"), ("there", tmp_path / ".cache"), ("", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert compiling.cache_home() == Path(kept, "speculative-sampling")
