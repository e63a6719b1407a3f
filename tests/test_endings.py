"""The ends of runs that are told to end, that get too little of the machine, or whose text a terminal would obey."""

import errno
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from tiny import ROOT, largest_file, python

from speculative.cli import verifying
from speculative.engines import runtime
from speculative.measure.verify import Check
from speculative.support import compiling, exits
from speculative.support.errors import UserError
from speculative.support.files import write_json
from speculative.support.terminal import SHOWN

# ---- Signals ---------------------------------------------------------------------------------------------------------

ENDINGS = [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]
PHASES = ["imports", "loading", "autoregressive", "speculative", "report", "writing"]


def start(*words, **options):
    """A process that ignores Ctrl-C until the code says what to do with it: before, it would be Python that answers.

    So it does not matter either whether these tests run in the foreground of a shell or in its background.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT} | options
    try:
        return subprocess.Popen([sys.executable, "-u", *words], **pipes)
    finally:
        signal.signal(signal.SIGINT, handler)


def run_and_signal(code, number):
    """Runs code until it prints "ready" -> (exit status, standard output after that, standard error)."""
    process = start("-c", f"from speculative.support import exits, signals\n{code}")
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)  # until it has begun what comes after that
    process.send_signal(number)
    return (process.wait(), *process.communicate())


@pytest.mark.parametrize(("number", "word", "status"), ENDINGS)
def test_a_signal_ends_a_command_in_one_line(number, word, status, tmp_path):
    """And what is being written meanwhile is taken back."""
    code = f"""
import time
from speculative.support import files

def write():
    with files.replacing({str(tmp_path / "file")!r}) as part:
        open(part, "w").write("half")
        print("ready", flush=True)
        time.sleep(600)

exits.guarded(write, "interrupted: and how to go on")
"""
    assert run_and_signal(code, number) == (status, "", f"{word}: and how to go on\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "word", "status"), ENDINGS)
def test_a_signal_ends_code_in_c(number, word, status):
    """Which would go on for hours before Python hears of it; what is to be said is said all the same."""
    code = """
import hashlib
signals.LAST_WORDS.append(lambda: print("so far"))
exits.guarded(lambda: print("ready", flush=True) or hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1))
"""
    assert run_and_signal(code, number) == (status, "so far\n", f"{word}\n")


IMPORTS = [("main.py --demo", "numpy"), ("utils.py check x", "numpy"), ("-m benchmarks.sweep", "numpy")]
IMPORTS += [("-m training pair", "numpy"), ("-m benchmarks.accelerator", "jax")]


@pytest.mark.parametrize(("words", "module"), IMPORTS)
def test_ctrl_c_while_modules_are_imported(words, module, tmp_path):
    """The signal comes as early as Python allows: the slow imports of a command have only begun."""
    slow = "import os, sys, signal\nclass Slow:\n def find_spec(self, name, *args):\n"
    slow += f"  if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\nsys.meta_path.insert(0, Slow())\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    done = python(*words.split(), env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


EVERY_LINE = """
import os, signal, sys
from speculative.support import exits, signals

number, n_lines = int(sys.argv[1]), 0

def count(frame, event, arg):
    global n_lines
    rooms = [f"speculative.support.{name}" for name in ("exits", "signals", "terminal")]
    if frame.f_globals.get("__name__") not in rooms:
        return None
    if event == "line" and signal.getsignal(number) is signals.hear:
        n_lines += 1
        if n_lines == at:
            signal.raise_signal(number)
    return count

for at in range(1, 1000):
    n_lines = 0
    sys.stdout.flush()
    if not (child := os.fork()):
        sys.settrace(count)
        exits.guarded(lambda: None)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status)
    if status == 0:  # all lines were passed
        break
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("number", "word", "status"), ENDINGS)
def test_a_signal_at_any_line_of_our_own_is_one_line(number, word, status):
    """From the first moment at which it raises an exception, until it is ignored."""
    done = python("-c", EVERY_LINE, str(int(number)))
    *statuses, last = map(int, done.stdout.split())
    assert last == 0
    assert len(statuses) > 20
    assert set(statuses) == {status}
    assert done.stderr == f"{word}\n" * len(statuses)


@pytest.mark.slow
def test_ctrl_c_in_each_phase_of_a_run():
    """The time until it ends is told too, and is a matter of the machine."""
    done = python("tools/ctrl_c.py", "6", "--phases", *PHASES)
    faults = [line for line in done.stderr.splitlines() if not re.fullmatch(r"\w+: [\d.]+ s", line)]
    assert (done.returncode, faults) == (0, [])
    assert [line.split()[1] for line in done.stdout.splitlines()[2:]] == PHASES


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("--verify", signal.SIGINT),
        ("--stream", signal.SIGTERM),
        pytest.param("--stream", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_shows_the_text_so_far(words, number, pair_words):
    """Thousands of samples would follow; those that are there are shown, and so is what there is of the next."""
    many = [] if words == "--verify" else ["--n_samples=100000", "--quiet"]
    process = start("main.py", *pair_words, "--prompt=the", *many, *words.split())
    first = process.stdout.readline() + process.stdout.readline()
    assert first == ("Verify\n------\n" if words == "--verify" else "\nAutoregressive Decode\n")
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate()
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert re.search(rf"(^|[\r\n]){word}\n$", err)
    assert "Error" not in err
    assert "Traceback" not in err
    whole = re.findall(r"^Text = the(.*)$", out, re.MULTILINE)
    assert process.returncode == 128 + number
    assert (first + out).endswith("\n")
    assert words == "--verify" or (len(set(whole[:-1])) <= 1 and whole[0].startswith(whole[-1]))


TWICE = """import contextlib, signal, time
from speculative.support import exits
with contextlib.suppress(SystemExit):
    exits.guarded(lambda: signal.raise_signal(signal.SIGINT))
exits.guarded(lambda: time.sleep(1))
print("done")
"""


def test_a_signal_ends_one_command_and_not_the_next_in_the_same_process():
    done = python("-c", TWICE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "interrupted\n")


# ---- What ends a command ---------------------------------------------------------------------------------------------


def behind(error, cause=None):
    """An ImportError over an error over a KeyboardInterrupt, as code in C raises them; cause: whether it is named."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        try:
            raise error from (interrupt if cause else None)
        except Exception as error:
            other = ImportError("no such module")
            other.__cause__ = error
            return other


UNFORESEEN = "error: ZeroDivisionError: division by; python -X dev in place of python shows where\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("a\x9b2J\nb"), 2, "error: a\\x9b2J\\nb\n"),
        (ModuleNotFoundError("No 'jax'", name="jax"), 2, "error: No 'jax': pip install jax, or in the repository pip"),
        (MemoryError(), 2, "error: the memory is full: a smaller model needs less, and so does --dtype int8"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 2, "error: the memory is full: a smaller model needs less"),
        (RuntimeError("can't start new thread"), 2, "error: can't start new thread: `ulimit -a` shows"),
        (BlockingIOError(errno.EAGAIN, "Unavailable"), 2, "error: Unavailable: `ulimit -a` shows"),
        (OSError(errno.EMFILE, "Too many open files"), 2, "error: Too many open files: `ulimit -a` shows"),
        (ZeroDivisionError("division by\nzero\033[2J"), 1, UNFORESEEN),
        (ValueError("to float: 'x'"), 1, "error: ValueError: to float: 'x' (TQDM_MININTERVAL may be the cause); py"),
        (behind(SystemError("fspath returned a result with an exception set")), 130, "interrupted\n"),
        (behind(UserError("cannot"), cause=True), 130, "interrupted\n"),
    ],
    ids=repr,
)
def test_each_ending_is_one_line(error, status, line, monkeypatch, capsys):
    monkeypatch.setenv("TQDM_MININTERVAL", "x")
    monkeypatch.delitem(sys.modules, "jax", raising=False)  # with it, a process ends without a word to its caller

    def action():
        raise error

    with pytest.raises(SystemExit) as end:
        exits.guarded(action)
    out, err = capsys.readouterr()
    assert (end.value.code, out, err.count("\n")) == (status, "", 1)
    assert err.startswith(line)


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("-v 40000", "`ulimit -v` gives"),  # hardly more than Python itself takes
        ("-v 500000", "`ulimit -v` gives"),  # here SciPy's BLAS would try again for ever
        ("-d 150000", "`ulimit -d` gives"),  # here too
        ("-n 5", "Too many open files"),
        ("-v 2000000; ulimit -s 1500000", "can't start new thread"),  # where NumPy's BLAS would say that it was Ctrl-C
    ],
)
def test_what_the_machine_does_not_give_is_told_in_one_line(limit, why):
    done = python("main.py", "--demo", shell=f'ulimit {limit}; exec "$@"')
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert why in done.stderr


NUMBA = "from speculative.engines import cpu; print(cpu.has_numba())"
JAX = "from speculative.engines.jax.model import jnp; print(jnp.arange(2.0).dtype)"


@pytest.mark.parametrize(
    ("setting", "code", "result"),
    [
        ("NUMBA_NUM_THREADS=0", NUMBA, "error: numba cannot be used (Number of threads specified must be > 0.)"),
        ("NUMBA_DISABLE_JIT=1", NUMBA, "False"),
        pytest.param("JAX_NUM_CPU_DEVICES=x", JAX, "error: --engine jax cannot import", marks=pytest.mark.slow),
        pytest.param("JAX_ENABLE_X64=1", JAX, "float32", marks=pytest.mark.slow),
    ],
)
def test_settings_of_libraries_in_the_environment(setting, code, result):
    """A line names what cannot be used, and nothing goes on with numbers that are not the model's."""
    pytest.importorskip(setting.partition("_")[0].lower())
    name, _, value = setting.partition("=")
    done = python("-c", f"from speculative.support import exits; exits.begin(); {code}", env=os.environ | {name: value})
    assert (done.stdout + done.stderr).startswith(result)
    assert (done.stdout + done.stderr).count("\n") == 1
    assert done.returncode == (2 if result.startswith("error") else 0)


@pytest.mark.parametrize("when", ["exits.begin(); 1 / 0", "exits.guarded(lambda: 1 / 0)"])
def test_how_to_see_more_of_it(when):
    for words, shows in (([], False), (["-X", "dev"], True)):
        done = python(*words, "-c", f"from speculative.support import exits; {when}")
        assert (done.returncode, done.stdout) == (1, "")
        assert ("Traceback" in done.stderr) == shows
        assert done.stderr.splitlines()[-1].startswith("error: ZeroDivisionError: division by zero; ")


# ---- The compiler's cache --------------------------------------------------------------------------------------------


def test_a_compilers_cache_that_cannot_be_kept_or_is_damaged(tmp_path, capsys):
    """The disk is full, or the power was cut: it is compiled again, and one line says so."""
    pytest.importorskip("numba")
    runtime.import_compiled_pass()
    source = tmp_path / "compiled.py"
    source.write_text("from numba import njit\n@njit('i8(i8)', cache=True)\ndef double(n): return 2 * n\n")

    def lines():
        compiling.say_nothing_is_kept.cache_clear()
        compiling.say_it_is_damaged.cache_clear()
        capsys.readouterr()
        assert runpy.run_path(str(source))["double"](4) == 8
        return capsys.readouterr().err

    with largest_file(10):
        err = lines()
    assert err.count("\n") == 1
    assert "File too large" in err
    assert "NUMBA_CACHE_DIR" in err
    assert lines() == ""
    for suffix in ("nbi", "nbc"):
        for damage in (lambda content: b"", lambda content: content[: len(content) // 2], lambda content: bytes(9000)):
            [kept] = tmp_path.glob(f"__pycache__/*.{suffix}")
            kept.write_bytes(damage(kept.read_bytes()))
            err = lines()
            assert err.count("\n") == 1
            assert "is damaged" in err
            assert lines() == ""


PACKS = "from speculative.engines import packed; packed.compile_for(['float32'])"


def copy_of_sources(folder, cache):
    """-> the settings of a process that keeps what it compiles in this cache."""
    pytest.importorskip("numba")
    for package in ("speculative",):
        shutil.copytree(ROOT / package, folder / package)
    for name in ("gpt2.py", "encoder.py"):
        shutil.copy(ROOT / name, folder)
    usual = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return usual | {"XDG_CACHE_HOME": str(cache)}


@pytest.mark.slow
def test_another_copy_of_the_repository_finds_what_is_compiled(tmp_path):
    """One with other sources does not, and what it compiles is another version's."""
    environment = copy_of_sources(tmp_path / "copy", tmp_path / "cache")
    old = tmp_path / "cache/speculative-sampling/kernels-old"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))
    compiling = "compiling what packs float32, once on this machine ...\n"
    for folder, change, err in ((ROOT, "", compiling), ("copy", "", ""), ("copy", "# changed\n", compiling)):
        with open(tmp_path / "copy/speculative/engines/packed.py", "a") as f:
            f.write(change)
        done = python("-c", PACKS, cwd=tmp_path / folder, env=environment)
        assert (done.returncode, done.stderr) == (0, err)
    assert not old.exists()
    assert len([*old.parent.iterdir()]) == 2


@pytest.mark.slow
def test_what_changes_under_a_running_program_is_not_kept(tmp_path):
    """It may have imported some modules before an update and some after it: its kernels are of no version."""
    environment = copy_of_sources(tmp_path, tmp_path / "cache")
    source = tmp_path / "speculative/engines/packed.py"
    before = source.read_text(encoding="utf-8")
    update = f"from speculative.support import compiling; open({str(source)!r}, 'a').write('# newer'); "
    for code, compiles in ((update + PACKS, True), (PACKS, True), (PACKS, False)):
        source.write_text(before, encoding="utf-8")
        done = python("-c", code, cwd=tmp_path, env=environment)
        assert done.returncode == 0
        assert ("compiling what packs" in done.stderr) == compiles


def test_verify_names_the_cause_without_numba():
    failed = Check("rows", False, "2 rows differ")
    passed = Check("rows", True, "")
    options = type("Options", (), {"engine": "numpy"})()
    assert "numba is missing" in verifying.explained(options, failed, lambda: False).detail
    assert verifying.explained(options, passed, lambda: False) is passed
    assert verifying.explained(options, failed, lambda: True) is failed


# ---- Control characters ----------------------------------------------------------------------------------------------

OBEYED = [chr(code) for code in SHOWN]


def test_no_print_can_forget_it(capsys):
    """Whatever a command prints, on either stream and by whichever method; but a bar's return to its line's beginning
    stays, and so do the colours of rich."""
    from rich.console import Console

    text = "".join(OBEYED) + "é東\n\t"

    def action():
        for stream in (sys.stdout, sys.stderr):
            print(text, file=stream)
            stream.writelines([text, text])
            stream.write(f"\r{text}")
        Console(force_terminal=True, color_system="standard").print("[red]red[/red]")

    exits.guarded(action)
    out, err = capsys.readouterr()
    assert "\033[31mred\033[0m" in out
    for stream in (out.partition("\033")[0], err):
        assert stream.count("\r") == 1
        assert stream.count("é東\n\t") == 4
        assert_none_is_obeyed(stream.replace("\r", ""))


def test_nothing_goes_round_the_streams():
    """Only the last words of a process write to a descriptor or to Python's own streams."""
    round_about = re.compile(r"os\.write\(|sys\.__std\w+__|\.buffer\.write|Console\([^)]*file=sys")
    paths = [path.relative_to(ROOT) for path in ROOT.glob("**/*.py")]
    ours = [path for path in paths if not {"tests", "tools", ".venv"} & {*path.parts}]
    found = {path.as_posix() for path in ours if round_about.search((ROOT / path).read_text("utf-8"))}
    assert found == {"speculative/support/signals.py", "speculative/engines/jax/processes.py"}


@pytest.mark.parametrize("words", ["", "--quiet", "--stream", "--color", "--verbose", "--color --stream"])
def test_no_control_character_is_printed_raw(words, command, pair_words, tmp_path):
    """Random models over all bytes write many; the prompt and the names of files hold the others."""
    path = tmp_path / "prompt.txt"
    path.write_text("".join(OBEYED[::2]), encoding="utf-8")
    flags = ["--prompt_file", str(path), "--n_tokens_to_generate=20", "--temperature=2"]
    status, out, err = command(*pair_words, *flags, *words.split())
    assert status == 0
    assert_none_is_obeyed(out)
    assert_none_is_obeyed("\n".join(line.rpartition("\r")[2] for line in err.split("\n")))  # the bar's own


def assert_none_is_obeyed(text):
    bad = {char for char in text if char not in "\n\t" and (unicodedata.category(char) == "Cc" or char in OBEYED)}
    assert not bad, sorted(map(hex, map(ord, bad)))


def test_no_message_quotes_a_control_character(command):
    for char in OBEYED[1:]:
        status, out, err = command(f"--prompt_file=a{char}b")
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert_none_is_obeyed(err)


def test_json_holds_no_control_character(tmp_path):
    """A file that may be looked at in a terminal."""
    text = {"text": "".join(OBEYED) + "é東\n\t"}
    path = Path(tmp_path, "run.json")
    write_json(str(path), text)
    written = path.read_text(encoding="utf-8")
    assert json.loads(written) == text
    assert "é東" in written
    assert_none_is_obeyed(written)
