"""engine.c against gpt2.py, and to the bit against itself: other row counts, other threads, other pasts."""

import ctypes
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest
from mistakes import Mistakes, make
from plain_c import bfloat16_product, rows_that_differ
from tiny import MAIN, ROOT, OneText, convert, flatten, python, random_params

from speculative.engines.c import library
from speculative.engines.c.packing import pack
from speculative.engines.formats import BLOCK, FORMATS, matrix_of, to_bfloat16
from speculative.engines.network import CachedNetwork, TextRows
from speculative.engines.plain import ACTIVATIONS, PlainPass

if not library.compiles():
    pytest.skip("there is no C compiler", allow_module_level=True)

from speculative.engines.c import forward, threads
from speculative.engines.c.cache import Cache
from speculative.engines.c.engine import CEngine
from speculative.engines.c.forward import CompiledPass

N_CTX = 250  # three chunks, of which each is several groups of rows
LANES = library.library().lanes()
TOKENS = np.random.default_rng(5).integers(0, 261, N_CTX)
# Of the largest logit. In the other formats a last bit may decide how a number of a row is rounded.
EXACT = {"float32": 3e-5, "float16": 3e-5, "bfloat16": 3e-2, "int8": 3e-2, "int4": 3e-2}


def hparams_of(n_layer, n_embd, n_head, **more):
    shape = {"n_layer": n_layer, "n_embd": n_embd, "n_head": n_head}
    return {"n_vocab": 261, "n_ctx": N_CTX, **shape, **more}


def new_pass(dtype="float32", hparams=None, n_threads=2):
    hparams = hparams or hparams_of(2, 96, 3)
    params = convert(random_params(hparams), partial(pack, dtype))
    return OneText(CompiledPass(params, hparams, n_threads)), params


def logits(run, n_rows, n=N_CTX):
    """The logits of the first n tokens, in calls of so many rows."""
    parts = [(TOKENS[i : min(i + n_rows, n)], i) for i in range(0, n, n_rows)]
    return np.concatenate([run(part, len(part), i) for part, i in parts])


def round_rows(x):  # [n_rows, n_in] -> [n_rows, n_in]
    """Rows as the integer formats multiply by them: whole numbers up to 127 times a scale for each block of inputs."""
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK))).reshape(len(x), -1, BLOCK)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / 127
    numbers = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return (numbers * scale).reshape(len(x), -1)[:, : x.shape[1]]


class Rounded:
    """A matrix as engine.c multiplies by it, in NumPy: of rounded weights, by rounded rows."""

    __array_ufunc__ = None  # makes NumPy leave x @ self to __rmatmul__

    def __init__(self, w, rows):
        self.w, self.rows = w, rows

    def __rmatmul__(self, x):
        return self.rows(x) @ self.w

    def __getitem__(self, ids):
        return self.w[ids]

    @property
    def T(self):
        return Rounded(self.w.T, self.rows)


def rounded(params, dtype):
    """Parameters for gpt2.py, of the numbers that engine.c stores."""
    rows = {"float32": lambda x: x, "float16": lambda x: x, "bfloat16": to_bfloat16}.get(dtype, round_rows)

    def convert_one(name, array):
        matrix = matrix_of(name, array.shape, dtype)
        if not matrix:
            return array
        w = matrix[1].round(array.T).T if name == "wte" else matrix[1].round(array)
        return Rounded(w, rows)

    return convert(params, convert_one)


# Rows that fill no block and no tile, heads of 1 to 80 numbers, an inner width that is no multiple of anything.
SHAPES = [
    hparams_of(0, 96, 3),
    hparams_of(1, 3, 3),
    hparams_of(1, 8, 1, activation_function="relu"),
    hparams_of(1, 33, 3, n_inner=70, activation_function="gelu"),
    hparams_of(2, 80, 1, n_inner=7),
    hparams_of(3, 96, 3),
    hparams_of(1, 192, 3),
]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("hparams", SHAPES, ids=lambda h: f"{h['n_layer']}-{h['n_embd']}-{h['n_head']}")
def test_the_pass_gives_what_gpt2_gives(hparams, dtype):
    run, _ = new_pass(dtype, hparams)
    expected = OneText(PlainPass(rounded(random_params(hparams), dtype), hparams))
    for first, end, n_last in ((0, 40, 40), (40, 41, 1), (41, 96, 30)):
        pair = (run(TOKENS[first:end], n_last, first), expected(TOKENS[first:end], n_last, first))
        hidden = (run.hidden[-1], expected.last_block(TOKENS[:end]))
        for a, b in (pair, hidden, (run.output(run.hidden), expected.output(run.hidden))):
            error = np.abs(a - b) / np.max(np.abs(b))
            assert a.dtype == np.float32
            assert np.max(error) < EXACT[dtype]
            assert np.median(error) < max(EXACT[dtype] / 5, 1e-5)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("hparams", SHAPES[1:], ids=lambda h: f"{h['n_layer']}-{h['n_embd']}-{h['n_head']}")
def test_a_row_has_the_same_bits_in_every_window_and_chunk_and_with_any_threads(hparams, dtype):
    alone, params = new_pass(dtype, hparams, 1)
    expected = logits(alone, 1)
    for n_threads in (1, 2, 3, 5):
        run = OneText(CompiledPass(params, hparams, n_threads))
        windows = range(2, 41) if dtype == "bfloat16" else (*range(2, 18), 31)  # by AMX, 33 rows are two groups
        for n_rows in windows if n_threads == 1 else (1, 5, 17):
            assert np.array_equal(logits(run, n_rows, 96), expected[:96])
        assert np.array_equal(logits(run, N_CTX), expected)
        hidden = run.hidden
        for n_last in (1, 2, 29, 130, 249):
            assert np.array_equal(run(TOKENS, n_last), expected[-n_last:])
            assert np.array_equal(run.hidden, hidden[-n_last:])
        for i in range(3):  # memory that is asked for ahead changes nothing
            run.prefetch_bytes[:] = forward.PREFETCH_BYTES * np.eye(4, dtype=int)[i]
            assert np.array_equal(logits(run, (1, 5, 17)[i], 96), expected[:96])


@pytest.mark.parametrize("hparams", SHAPES[1:], ids=lambda h: f"{h['n_layer']}-{h['n_embd']}-{h['n_head']}")
def test_a_matrix_that_is_used_in_its_file_gives_the_bits_of_its_tiles(hparams):
    params = random_params(hparams)
    in_place = convert(params, partial(pack, "float32", in_place=True))
    expected = logits(OneText(CompiledPass(convert(params, partial(pack, "float32")), hparams, 1)), 1)
    for n_threads in (1, 3):
        run = OneText(CompiledPass(in_place, hparams, n_threads))
        for n_rows in (1, 5, 6, 17, N_CTX):
            assert np.array_equal(logits(run, n_rows), expected)
    for name, w in flatten(params).items():
        if name.endswith("/w"):
            assert (pack("float32", name, w, in_place=True) is w) == (w.shape[1] % LANES == 0)


def differ_beside_other_texts(dtype, hparams):
    """Compute prompts of many chunks, windows and trees in calls of any mixture -> whether a row differs from gpt2.py's
    or, to the bit, from what it is alone."""
    run, _ = new_pass(dtype, hparams)
    plain = OneText(PlainPass(rounded(random_params(hparams), dtype), hparams))
    texts = [OneText(run.forward) for _ in range(5)]
    held = [np.empty(0, int) for _ in texts]
    rng = np.random.default_rng(0)
    for _ in range(8):
        rows = []
        for number in rng.permutation(len(texts))[: rng.integers(1, 6)]:
            n_past = len(held[number])
            n = min(int(rng.choice([1, 2, 5, 70])), N_CTX - n_past)
            sees = np.tri(n, n_past + n, n_past, dtype=np.uint8)  # [n, n_past + n]
            if n > 2:
                sees[-1, -2] = 0  # the last two are siblings
            tokens = rng.integers(0, 261, n)
            n_last = int(rng.integers(1, n + 1))
            rows.append(TextRows(tokens, n_last, n_past, texts[number].cache, sees if n > 2 else None))
            held[number] = np.append(held[number], tokens[: n - (n > 2)])
        for text, (logits, hidden, *_) in zip(rows, run.together(rows), strict=True):
            [(alone, hidden_alone, *_)] = run.together([text])
            if not np.array_equal(logits, alone) or not np.array_equal(hidden, hidden_alone):
                return True
    for text, tokens in zip(texts, held, strict=True):
        x = np.append(tokens[: N_CTX - 1], 7)
        expected = plain(x, 1)
        beside_others = text(x[-1:], 1, len(x) - 1)
        if np.abs(beside_others - expected).max() > EXACT[dtype] * np.abs(expected).max():
            return True
        as_a_tree = run(x, len(x), 0, np.tri(len(x), dtype=bool))
        if not np.array_equal(as_a_tree, run(x, len(x))) or not np.array_equal(as_a_tree[-1:], beside_others):
            return True
    return False


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("hparams", [SHAPES[3], SHAPES[5]], ids=lambda h: f"{h['n_layer']}-{h['n_embd']}-{h['n_head']}")
def test_a_row_has_the_same_bits_beside_rows_of_other_texts(hparams, dtype):
    assert not differ_beside_other_texts(dtype, hparams)


mistakes = Mistakes()
# The right ones, which wrong twins call.
calls_of, linear, together = forward.calls_of, forward.linear, CompiledPass.together
new_cache = Cache.__init__
ONE_CACHE = {}


@mistakes.plant(differ_beside_other_texts, forward, "calls_of")
def begins_each_part_at_the_first_place(texts):
    n_past = {id(rows.cache): rows.n_past for rows in texts}
    for call in calls_of(texts):
        yield [part._replace(n_past=n_past[id(part.cache)]) for part in call]


@mistakes.plant(differ_beside_other_texts, forward, "calls_of")
def gives_each_part_the_first_mask(texts):
    sees = {id(rows.cache): rows.sees for rows in texts}
    for call in calls_of(texts):
        yield [part._replace(sees=sees[id(part.cache)]) for part in call]


@mistakes.plant(differ_beside_other_texts, CompiledPass, "together")
def gives_all_texts_the_first_last_block(self, texts):
    results = together(self, texts)
    hidden = np.concatenate([result.hidden for result in results])
    return [result._replace(hidden=hidden[: len(result.hidden)]) for result in results]


@mistakes.plant(differ_beside_other_texts, forward, "calls_of")
def turns_the_rows_of_a_call_round(texts):
    for call in calls_of(texts):
        yield call[::-1]


@mistakes.plant(differ_beside_other_texts, forward, "linear")
def has_no_biases(w, b=None):
    return linear(w)


@mistakes.plant(differ_beside_other_texts, Cache, "__init__")
def has_one_cache_for_all_texts(self, hparams):
    if not ONE_CACHE:
        new_cache(self, hparams)
        ONE_CACHE.update(vars(self))
    vars(self).update(ONE_CACHE)


@pytest.mark.parametrize("mistake", mistakes, ids=str)
def test_a_planted_mistake_shows(mistake, monkeypatch):
    make(monkeypatch, mistake)
    assert mistake.seen_by("float32", SHAPES[3])


def test_float32_is_multiplied_as_in_plain_c(tmp_path):
    assert rows_that_differ(library.SOURCES[0].parent, tmp_path) == 0


def numbers_of_a_product(n_in):  # -> [40, n_in], [n_in, lanes]
    rng = np.random.default_rng(n_in)
    return rng.standard_normal((40, n_in), np.float32), rng.standard_normal((n_in, LANES), np.float32)


@pytest.fixture
def product(tmp_path):
    """flags -> the product of bfloat16 rows, compiled with them."""

    def product(*flags):
        folder = tmp_path / "".join(flags)
        folder.mkdir(exist_ok=True)
        return bfloat16_product(library.SOURCES[0].parent, folder, *flags)

    return product


def test_by_amx_a_row_has_the_same_bits_beside_any_others(product):
    """By its instructions in C. One group is multiplied by a whole tile, several by parts of it."""
    by_amx = product("-DAMX_IN_C=1")
    for n_in in (1, 31, 32, 33, 700):
        x, w = numbers_of_a_product(n_in)
        alone = np.concatenate([by_amx(x[i : i + 1], w) for i in range(40)])  # [40, lanes]
        for n_rows in range(1, 41):
            assert np.array_equal(by_amx(x[40 - n_rows :], w), alone[40 - n_rows :])
        expected = to_bfloat16(x).astype(float) @ to_bfloat16(w)  # [40, lanes]
        assert np.allclose(alone, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_where_the_system_refuses_amx_products_have_the_bits_of_a_cpu_without(product):
    if "amx_bf16" in library.CPU:
        pytest.skip("this CPU has it")
    x, w = numbers_of_a_product(700)
    expected = product()(x, w)
    assert np.array_equal(product("-DAMX_IN_C=0")(x, w), expected)
    assert not np.array_equal(product("-DAMX_IN_C=1")(x, w), expected)


def test_a_struct_has_words_only():
    fields = library.fields_of("const float *b, *g; number n;", {})
    assert fields == [(name, ctypes.c_ssize_t) for name in ("b", "g", "n")]
    with pytest.raises(KeyError, match="int"):
        library.fields_of("int n;", {})


@pytest.mark.parametrize("n_rows", [1, 119, 120, 121, N_CTX])
def test_no_call_has_more_rows_than_there_is_room_for(n_rows, monkeypatch):
    """Whoever calls: a text, several, the output layer alone, a part that is timed. And the C side refuses."""
    run, _ = new_pass()
    rows = []
    monkeypatch.setattr(forward.pool, "run", lambda call, n_threads: rows.append(max(call.n_rows, call.n_wanted)))
    run(TOKENS[:n_rows], n_rows)
    run.output(np.zeros((n_rows, 96), np.float32))
    run.layer_seconds(n_rows, run.cache)
    run.together([TextRows(TOKENS[: min(n_rows, forward.CHUNK)], 1, 0, run.cache)] * 3)
    assert max(rows) <= forward.CHUNK
    monkeypatch.undo()
    if n_rows > forward.CHUNK:
        monkeypatch.setattr(forward, "CHUNK", 1000)
        with pytest.raises(ValueError, match="no room for so many rows"):
            run(TOKENS[:n_rows], n_rows)


@pytest.mark.parametrize("tokens", [[-1], [261], [0] * (N_CTX + 1)])
def test_what_is_not_there_is_not_looked_up(tokens):
    with pytest.raises(ValueError, match=r"no room for so many rows|token was asked for that does not exist"):
        new_pass()[0](tokens, 1)


@pytest.mark.parametrize("name", library.library().structs)
def test_python_fills_the_structs_that_c_reads(name):
    size = library.library()[f"size_of_{name}"]()
    assert ctypes.sizeof(library.library().structs[name]) == size


def test_sizes_of_64_bits_come_whole():
    number = library.library().numbers["format"]["float32"]
    assert library.library().tile_bytes(number, 2**30) == 2**30 * LANES * 4


def test_every_format_and_activation_has_a_number_in_c():
    assert {*library.library().numbers["format"]} == {*FORMATS}
    assert {*library.library().numbers["activation"]} == {*ACTIVATIONS}


def test_checksums_are_those_of_google_crc32c():
    content = np.random.default_rng(0).integers(0, 256, 300, dtype=np.uint8)
    for first, n in ((0, 0), (0, 1), (0, 7), (1, 8), (3, 9), (5, 255)):
        part = content[first : first + n]
        assert library.c_crc32c(part) == google_crc32c.value(part.tobytes())


# ---- Threads ---------------------------------------------------------------------------------------------------------


def test_two_models_in_two_threads_at_once():
    """They share the workers, which sleep in between; and models come and go."""
    wrong = []
    expected = logits(new_pass()[0], 17)
    hparams = hparams_of(2, 96, 3)

    def decode(seed):
        for turn in range(30):
            _, params = new_pass()
            network = CachedNetwork(params, hparams, CompiledPass(params, hparams, 2))
            ends = [*range(0, N_CTX, (1, 5, 17, N_CTX)[turn % 4]), N_CTX]
            found = [network.logits(TOKENS[:end], end - first) for first, end in itertools.pairwise(ends)]
            if not np.array_equal(np.concatenate(found), expected):
                wrong.append(turn)
            time.sleep(0.005 * (turn % 5 == seed))

    running = [threading.Thread(target=decode, args=(seed,)) for seed in (1, 2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_decodes(monkeypatch):
    """Without its parent's threads, which were just at work. SIGALRM ends a child that hangs."""
    monkeypatch.setattr(threads, "CONTENTION_NANOSECONDS", 10**18)
    monkeypatch.setattr(forward, "pool", threads.ThreadPool())
    run, _ = new_pass()
    expected = run(TOKENS[:40], 40)

    def child():
        status = 1
        try:
            signal.alarm(20)
            assert np.array_equal(run(TOKENS[:40], 40), expected)
            assert forward.pool.workers[0].is_alive()
            status = 0
        finally:
            os._exit(status)

    children = []
    for _ in range(20):
        run(TOKENS[:9], 1)
        children.append(os.fork() or child())
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 20


def test_on_a_busy_machine_one_thread_works_alone_for_a_while(monkeypatch):
    run, _ = new_pass()
    monkeypatch.setattr(forward, "pool", pool := threads.ThreadPool())
    pool.waited_ns, pool.call_ns = 10**9, 15 * 10**8
    run(TOKENS[:3], 1)
    assert pool.single_until > time.perf_counter()
    run(TOKENS[:3], 1)
    assert run.arguments.n_threads == 1


def test_without_workers_a_pass_goes_on_alone(monkeypatch):
    """The system has no more threads, or none came in time."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    run, params = new_pass(n_threads=9)
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(forward, "pool", threads.ThreadPool())
    logits = run(TOKENS[:9], 9)
    assert run.arguments.n_threads < 9
    assert np.array_equal(logits, OneText(CompiledPass(params, hparams_of(2, 96, 3), 1))(TOKENS[:9], 9))


def test_memory_is_asked_for_ahead_unless_that_is_slower(monkeypatch):
    run, _ = new_pass()
    group = run.forward.group
    rows = [1, group // 2, group, 2 * group]
    faster = [True, True, False, True]  # with memory asked for ahead

    def seconds(n_rows, cache):
        kind = rows.index(n_rows)
        return 1.0 - (faster[kind] == (run.prefetch_bytes[kind] > 0)) / 9

    monkeypatch.setattr(run.forward, "layer_seconds", seconds)
    run.tune(run.cache)
    assert run.prefetch_bytes.tolist() == [8192, 8192, 0, 8192]


# ---- The library -----------------------------------------------------------------------------------------------------

USE = "from speculative.engines.c.library import library; print(library().lanes())"


def start(code=USE, **environment):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": os.environ | environment}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True, **streams)


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A compiler that takes its time and then copies what this process has compiled, in two parts."""
    quick = tmp_path / "quick"
    ours = library.library()._name
    quick.write_text(f"""#!/bin/sh
while [ "$1" != -o ]; do shift; done
sleep 0.3; head -c 9999 {ours} > "$2"; sleep 0.3; cp {ours} "$2"
""")
    quick.chmod(0o755)
    monkeypatch.setenv("CC", str(quick))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return str(quick)


def test_two_first_starts_at_once_and_one_that_is_killed_leave_a_library_that_works(tmp_path, quick):
    killed = start()
    assert killed.stderr.readline().startswith("compiling")
    time.sleep(0.45)  # half of the library is written
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    for running in [start(), start()]:
        out, err = running.communicate()
        assert (running.returncode, out) == (0, f"{LANES}\n"), err
    assert len([*tmp_path.glob("speculative-sampling/engine-*.so")]) == 1
    assert start().communicate() == (f"{LANES}\n", "")


def test_another_compiler_or_source_is_another_library_and_an_empty_one_is_compiled_again(tmp_path, quick, monkeypatch):
    paths = [library.build(tmp_path)]
    whole = paths[0].read_bytes()
    paths[0].write_bytes(b"")  # as a loss of power may leave it
    assert library.build(tmp_path).read_bytes() == whole
    monkeypatch.setenv("CC", f"{quick} -O1")
    paths.append(library.build(tmp_path))
    monkeypatch.setattr(library, "SOURCES", [*library.SOURCES, ROOT / "gpt2.py"])
    paths.append(library.build(tmp_path))
    assert len({*paths}) == 3


def refuse_to_load(cache, monkeypatch):
    """As from a file system that is mounted without the right to execute."""

    def refuse(path, load=library.Library):
        if path.is_relative_to(cache):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(library, "Library", refuse)


FAULTS = {
    "File exists": lambda cache, monkeypatch: cache.write_text("a file"),
    "failed to map segment": refuse_to_load,
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_cache_that_cannot_be_used(reason, tmp_path, quick, monkeypatch, capsys):
    monkeypatch.setattr(library, "compilers", lambda: [[quick]])
    FAULTS[reason](tmp_path / "speculative-sampling", monkeypatch)
    assert library.library.__wrapped__().lanes() == LANES
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("the compiled forward pass cannot be kept")
    assert reason in line


@pytest.mark.parametrize(
    ("compilers", "reason"),
    [
        ([["no-such-compiler"]], "No such file or directory: 'no-such-compiler'"),
        ([["sh", "-c", "echo 'a.c: warning' >&2; echo 'a.c: fatal error: math.h' >&2; exit 1"]], "fatal error: math.h"),
        ([["sh", "-c", "kill -9 $$"]], "sh ends with status -9"),
        ([["sh", "-c", 'while [ "$1" != -o ]; do shift; done; echo > "$2"', "sh"]], "file too short"),
    ],
)
def test_without_a_library_gpt2_itself_computes_and_one_line_says_why(compilers, reason, tmp_path):
    code = f"""if True:
        from speculative.engines.c import library
        library.compilers = lambda: {compilers}
        from speculative.engines.choice import choose
        print(choose("c"))"""
    running = start(code, XDG_CACHE_HOME=str(tmp_path))
    out, err = running.communicate()
    assert (running.returncode, out) == (0, "numpy\n"), err
    _, line = err.splitlines()
    assert reason in line
    assert "pip install ziglang" in line


ZIG = [sys.executable, "-m", "ziglang", "cc"]
ARM = [(machine, "-mcpu=native") for machine in ("aarch64", "arm64", "ARM64")]
CLANG = r"C:\Program Files\clang.exe"
COMPILERS = [
    # the system, os.name, CC, whether a Mac has command line tools; then the commands
    ("linux", "posix", "", True, [["cc"], ZIG]),
    ("linux", "posix", "gcc-14 '-O 2'", True, [["gcc-14", "-O 2"], ZIG]),
    ("darwin", "posix", "", True, [["cc"], ZIG]),
    ("darwin", "posix", "", False, [ZIG]),
    ("darwin", "posix", "clang", False, [["clang"], ZIG]),
    ("win32", "nt", "", True, [ZIG, ["cc"]]),
    ("win32", "nt", f'"{CLANG}" -O2', True, [[CLANG, "-O2"], ZIG]),
]


@pytest.mark.parametrize(("system", "name", "cc", "tools", "commands"), COMPILERS)
def test_the_compilers_of_each_system(system, name, cc, tools, commands, monkeypatch):
    monkeypatch.setenv("CC", cc)
    monkeypatch.setattr(library, "os", SimpleNamespace(name=name, environ=os.environ))
    monkeypatch.setattr(library, "sys", SimpleNamespace(platform=system, executable=sys.executable))
    monkeypatch.setattr(library.shutil, "which", lambda command: f"/usr/bin/{command}")
    monkeypatch.setattr(library.subprocess, "run", lambda *words, **how: SimpleNamespace(returncode=0 if tools else 2))
    assert library.compilers() == commands


@pytest.mark.parametrize(("machine", "flag"), [("x86_64", "-march=native"), ("AMD64", "-march=native"), *ARM])
def test_the_flag_for_all_instructions_of_a_cpu(machine, flag):
    code = f"import platform; platform.machine = lambda: '{machine}'; from speculative.engines.c import library"
    done = python("-c", f"{code}; print(library.NATIVE)")
    assert (done.returncode, done.stdout) == (0, f"{flag}\n"), done.stderr


def test_a_compiler_that_does_not_know_the_cpu_compiles_for_any(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(library, "compilers", lambda: [[quick]])
    script = Path(quick)
    script.write_text(script.read_text().replace("sh\n", 'sh\ncase "$*" in *native*) exit 1; esac\n', 1))
    assert library.Library(library.build(tmp_path)).lanes() == LANES


# ---- Other compilers and CPUs ----------------------------------------------------------------------------------------


IN_A_PROCESS = """if True:
    import sys
    from speculative.engines.c import library
    tests = sys.argv.pop(1)
    library.NATIVE = sys.argv[1]
    library.FLAGS += sys.argv[2:]
    import main, pytest
    main.main(demo="True", target_model_size="tiny-target", quiet="True")
    files = [f"tests/engines/test_{name}.py" for name in ("engine", "packed", "cache")]
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *files, "-k", tests]))"""


SHAPE = "(1-33-3 or 2-80-1)"  # that fill nothing
NUMBERS_OF_ROWS = f"(what_gpt2 or every_window) and {SHAPE}"
NUMBERS = f"({NUMBERS_OF_ROWS}) or (their_paths and int8) or stands_for or checksums"
MEMORY = f"(what_gpt2 and {SHAPE}) or (their_paths and int8) or stands_for or two_models"


def run_with(flags, cache, tests=NUMBERS, command=python, **environment):
    """The demo and these tests of numbers, with a library that was compiled with these flags."""
    given = os.environ | {"XDG_CACHE_HOME": str(cache)} | environment
    return command("-c", IN_A_PROCESS, tests, *flags.split(), env=given)


def check(done):
    """All passed, and the demo's texts, of a target in float32, are one text, the same as with the engine of this
    machine."""
    assert done.returncode == 0, done.stdout + done.stderr
    ours = python(*MAIN, "--demo", "--target_model_size=tiny-target", "--quiet")
    found, expected = (re.findall(r"^Text = .*?(?=\n\w|\n\.|\Z)", one.stdout, re.S | re.M) for one in (done, ours))
    assert len({text.strip() for text in found + expected}) == 1, (found, expected)


def test_a_copy_pays_in_long_texts_and_where_an_instruction_multiplies_bytes():
    """The library says so itself; the name of its instructions is for people."""
    name = library.library().instructions().decode()
    multiplies_bytes = "VNNI" in name or "NEON" in name
    copy_is_quick = CEngine(1).copy_is_quick
    assert [copy_is_quick(N, 0) for N in (40, 120, math.inf)] == [False, multiplies_bytes, True]
    assert [copy_is_quick(N, 0.5) for N in (20, 40, 120)] == [False, multiplies_bytes, True]


X86 = {  # the flag, and the instructions that it needs
    "-march=x86-64": "",
    "-march=x86-64-v2": "",
    "-march=x86-64-v3": "avx2",
    "-march=native -mno-avx512f": "avx_vnni",
    "-march=skylake-avx512": "avx512bw",
    "-march=icelake-server": "avx512_vnni",
    "-march=native -DAMX_IN_C=1 -DSLOW_DOT2": "",
    "-march=x86-64 -DAMX_IN_C=1": "",
}


def test_by_amx_gives_what_gpt2_gives(tmp_path):
    """By its instructions in C, which are on every CPU."""
    check(run_with(f"{library.NATIVE} -DAMX_IN_C=1", tmp_path, f"bfloat16 and {NUMBERS_OF_ROWS}"))


@pytest.mark.slow
@pytest.mark.parametrize("flags", X86)
def test_other_instructions_give_what_gpt2_gives(flags, tmp_path):
    if library.NATIVE != "-march=native":
        pytest.skip("this is no x86")
    if X86[flags] not in library.CPU:
        pytest.skip("this CPU lacks them")
    check(run_with(flags, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("qemu_cpu", ["cortex-a72", "max"])
def test_arm_gives_what_gpt2_gives(qemu_cpu):
    """Emulated, with the Python, NumPy and qemu that .ci/arm64 has brought to the folder ARM64_ROOT."""
    if "ARM64_ROOT" not in os.environ:
        pytest.skip("ARM64_ROOT is not set")
    root = Path(os.environ["ARM64_ROOT"])
    paths = [root / "wheels", *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PYTHONPATH": ":".join(map(str, paths)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["OPENBLAS_CORETYPE"] = "ARMV8"  # NumPy's loops for SVE give wrong products in qemu 7
    environment["CC"] = f"{sys.executable} -m ziglang cc -target aarch64-linux-gnu.2.28"  # not emulated
    qemu = [root / "usr/bin/qemu-aarch64-static", "-cpu", qemu_cpu, "-L", root, root / "usr/bin/python3"]

    def emulated(*words, **options):
        return subprocess.run([*qemu, *words], cwd=ROOT, capture_output=True, text=True, **options)

    flags = "-mcpu=" + {"max": "neoverse_v1"}.get(qemu_cpu, qemu_cpu.replace("-", "_"))
    check(run_with(flags, root / "cache", command=emulated, **environment))


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path):
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(found):
            pytest.skip("this compiler has no sanitizers")
        libraries.append(found)
    flags = f"{library.NATIVE} -fsanitize=address,undefined -fno-sanitize-recover=undefined -g"
    environment = {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    done = run_with(flags, tmp_path, MEMORY, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


# zig's names of a system and of a CPU there. For Windows it would link a C library, which it compiles in minutes.
TARGETS = ["aarch64-linux-gnu generic", "aarch64-linux-gnu neoverse_v2", "arm-linux-gnueabihf cortex_a7"]
TARGETS += ["aarch64-macos apple_m1", "x86_64-macos haswell", "x86_64-linux-gnu sapphirerapids"]
TARGETS += ["x86_64-windows-gnu haswell -c", "aarch64-windows-gnu generic -c"]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_clang_compiles_it_for_other_systems_without_a_warning(target, tmp_path):
    pytest.importorskip("ziglang")
    system, cpu, *linking = target.split()
    flags = [f"-mcpu={cpu}", "-Werror", "-Wno-unused-command-line-argument", *linking]
    (tmp_path / system).mkdir()
    assert library.compile_with([*ZIG, "-target", system], flags, f"{tmp_path}/{system}/engine.so") == ""
