"""How runs end when they are told to, when the disk is full and when models write what a terminal would obey."""

import errno
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest

import main
from plumbing import exits
from plumbing.terminal import SHOWN
from speculative.cli import outcome, verifying
from speculative.engines import compiling, cpu, runtime
from speculative.measure.verify import Check

ROOT = Path(main.__file__).parent


# ---- Signals ---------------------------------------------------------------------------------------------------------

ENDINGS = [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]


def run_and_signal(code, number):
    """Runs code until it prints "ready" -> (exit status, standard output after that, standard error)."""
    code = "from plumbing import exits, signals\n" + code
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)  # until it has begun what comes after that
    process.send_signal(number)
    return (process.wait(), *process.communicate())


@pytest.mark.parametrize(("number", "word", "status"), ENDINGS)
def test_a_signal_ends_a_command_in_one_line(number, word, status, tmp_path):
    """And what is being written meanwhile is taken back."""
    code = f"""
import time
from plumbing import files

def slowly(*args):
    print("ready", flush=True)
    time.sleep(600)

files.os.replace = slowly
exits.guarded(lambda: files.write_text({str(tmp_path / "file")!r}, "text"), "interrupted: and how to go on")
"""
    assert run_and_signal(code, number) == (status, "", f"{word}: and how to go on\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "word", "status"), ENDINGS)
@pytest.mark.parametrize("closed", [True, False])
def test_a_signal_during_imports_where_nobody_can_be_told(number, word, status, closed):
    """Standard error is closed, or its disk is full."""
    close = "os.close(2)" if closed else 'os.dup2(os.open("/dev/full", os.O_WRONLY), 2)'
    code = f"""
import os, time
{close}
exits.begin()
print("ready", flush=True)
while True:
    try:
        time.sleep(600)
    except OSError:  # as an import that tries something else
        pass
"""
    assert run_and_signal(code, number) == (status, "", "")


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


def test_sigterm_while_decoding_shows_the_text_so_far(tiny_pair):
    words = f"--models_dir={tiny_pair} --target_model_size=target --draft_model_size=draft --threads=1 --quiet".split()
    words += ["--prompt=the", "--n_samples=100000", "--stream"]
    process = subprocess.Popen(
        [sys.executable, "main.py", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "Text = the" not in (line := process.stdout.readline()):
        pass
    process.terminate()
    out, err = process.communicate()
    assert process.returncode == 143 and err.endswith("terminated\n") and "Traceback" not in err
    assert (line + out).endswith("\n")


EVERY_LINE = """
import os, signal, sys
from plumbing import exits, signals

number, n_lines = int(sys.argv[1]), 0

def count(frame, event, arg):
    global n_lines
    if frame.f_globals.get("__name__") not in ("plumbing.exits", "plumbing.signals", "plumbing.terminal"):
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
    done = subprocess.run(
        [sys.executable, "-c", EVERY_LINE, str(int(number))], cwd=ROOT, capture_output=True, text=True
    )
    *statuses, last = map(int, done.stdout.split())
    assert last == 0 and len(statuses) > 20 and set(statuses) == {status}
    assert done.stderr == f"{word}\n" * len(statuses)


# ---- What the machine does not give ----------------------------------------------------------------------------------


def limited(name, value):
    """What `python main.py --demo` comes to, where a limit of its process is so low."""
    resource = pytest.importorskip("resource")
    limit = lambda: resource.setrlimit(getattr(resource, name), (value, value))  # noqa: E731
    command = [sys.executable, "main.py", "--demo"]
    done = subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("megabytes", [40, 590])
def test_too_few_addresses_to_start_with_are_one_line(megabytes):
    """With 40 MB, hardly more than Python itself takes; with 450, SciPy's BLAS would try again for ever."""
    assert limited("RLIMIT_AS", megabytes * 2**20).startswith("error: `ulimit -v` gives")


@pytest.mark.parametrize("kilobytes", [100_000, 150_000])
def test_too_little_data_to_start_with_is_one_line(kilobytes):
    """With 150,000, SciPy's BLAS would try again for ever."""
    assert limited("RLIMIT_DATA", kilobytes * 2**10).startswith("error: `ulimit -d` gives")


def test_too_few_files_are_one_line():
    assert "Too many open files" in limited("RLIMIT_NOFILE", 5)


def raises(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("can't start new thread"), "can't start new thread: `ulimit -a` shows"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "Resource temporarily unavailable: `ulimit",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files: `ulimit -a` shows"),
    ],
)
def test_too_few_processes_or_files_are_one_line(error, line, capsys):
    with pytest.raises(SystemExit) as end:
        exits.guarded(raises(error))
    assert end.value.code == 2 and capsys.readouterr().err.startswith(f"error: {line}")


# ---- The last resort -------------------------------------------------------------------------------------------------


def test_what_no_one_foresaw_is_one_line(capsys):
    """Its kind, its text, how to see more, and a status of its own."""
    with pytest.raises(SystemExit) as end:
        exits.guarded(raises(ZeroDivisionError("division by\nzero\033[2J")))
    line = "error: ZeroDivisionError: division by; python -X dev in place of python shows where\n"
    assert (end.value.code, *capsys.readouterr()) == (1, "", line)


def test_settings_of_libraries_are_named_beside_it(monkeypatch, capsys):
    monkeypatch.setenv("TQDM_MININTERVAL", "x")
    with pytest.raises(SystemExit):
        exits.guarded(raises(ValueError("could not convert string to float: 'x'")))
    assert "string to float: 'x' (TQDM_MININTERVAL may be the cause); python -X" in capsys.readouterr().err


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
    """What they cannot be used with is told in a line, and what would not be the model's numbers is not done."""
    pytest.importorskip(setting.partition("_")[0].lower())
    name, _, value = setting.partition("=")
    command = [sys.executable, "-c", f"from plumbing import exits; exits.begin(); {code}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {name: value}, capture_output=True, text=True)
    assert (done.stdout + done.stderr).startswith(result) and (done.stdout + done.stderr).count("\n") == 1
    assert done.returncode == (2 if result.startswith("error") else 0)


@pytest.mark.parametrize("when", ["exits.begin(); 1 / 0", "exits.guarded(lambda: 1 / 0)"])
def test_how_to_see_more_of_it(when):
    for words, shows in (([], False), (["-X", "dev"], True)):
        command = [sys.executable, *words, "-c", f"from plumbing import exits; {when}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "") and ("Traceback" in done.stderr) == shows
        assert done.stderr.splitlines()[-1].startswith("error: ZeroDivisionError: division by zero; ")


# ---- The compiler's cache --------------------------------------------------------------------------------------------


def test_a_disk_that_takes_no_cache(monkeypatch, capsys):
    """What was compiled is used, and one line says that it is not kept."""
    caching = pytest.importorskip("numba.core.caching")

    def save_overload(self, sig, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.Cache, "save_overload", save_overload)
    monkeypatch.setattr(caching.Cache, "load_overload", caching.Cache.load_overload)
    compiling.say_nothing_is_kept.cache_clear()
    compiling.forgive_the_cache.__wrapped__()
    for _ in range(3):
        caching.Cache.save_overload(None, None, None)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "No space left on device" in err and "NUMBA_CACHE_DIR" in err


DAMAGE = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_in_the_compilers_cache(kind, suffix, tmp_path, capsys):
    """As a power cut leaves it: what it held is compiled again, and kept again, and one line says so."""
    pytest.importorskip("numba")
    runtime.import_compiled_pass()
    source = tmp_path / "compiled.py"
    source.write_text("from numba import njit\n@njit('i8(i8)', cache=True)\ndef double(n): return 2 * n\n")
    assert runpy.run_path(str(source))["double"](4) == 8
    [kept] = tmp_path.glob(f"__pycache__/*.{suffix}")
    kept.write_bytes(DAMAGE[kind](kept.read_bytes()))
    compiling.say_it_is_damaged.cache_clear()
    capsys.readouterr()
    for lines in (1, 0):
        assert runpy.run_path(str(source))["double"](4) == 8
        err = capsys.readouterr().err
        assert err.count("\n") == lines and ("is damaged" in err) == lines


def test_verify_names_the_cause_without_numba(monkeypatch):
    failed = Check("rows", False, "2 rows differ")
    options = type("Options", (), {"engine": "numpy"})()
    monkeypatch.setattr(cpu, "has_numba", lambda: False)
    assert "numba is missing" in verifying.explained(options, failed).detail
    assert verifying.explained(options, passed := Check("rows", True, "")) is passed
    monkeypatch.setattr(cpu, "has_numba", lambda: True)
    assert verifying.explained(options, failed) is failed


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
        assert stream.count("\r") == 1 and stream.count("é東\n\t") == 4
        assert_none_is_obeyed(stream.replace("\r", ""), "")


def test_nothing_goes_round_the_streams():
    """What writes to a descriptor or to Python's own streams is for the last words of a process alone."""
    round_about = re.compile(r"os\.write\(|sys\.__std\w+__|\.buffer\.write|Console\([^)]*file=sys")
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("**/*.py")
        if not {"tests", "tools", ".venv"} & set(path.relative_to(ROOT).parts)
        and round_about.search(path.read_text("utf-8"))
    }
    assert found == {"plumbing/signals.py", "speculative/engines/jax/processes.py"}


@pytest.mark.parametrize("words", ["", "--quiet", "--stream", "--color", "--verbose", "--color --stream", "--verify"])
def test_no_control_character_is_printed_raw(words, tiny_pair, tmp_path, monkeypatch, capsys):
    """Random models over all bytes write many; the prompt and the names of files hold the others."""
    path = tmp_path / "prompt.txt"
    path.write_text("".join(OBEYED[::2]), encoding="utf-8")
    monkeypatch.setattr(outcome, "read_bandwidth", lambda **_: 1e10)
    monkeypatch.setattr(verifying.verify, "verify", lambda *args, **_: [Check("none", True, "")])
    flags = f"--models_dir={tiny_pair} --target_model_size=target --draft_model_size=draft --threads=1".split()
    flags += ["--prompt_file", str(path), "--n_tokens_to_generate=20", "--temperature=2"]
    monkeypatch.setattr(sys, "argv", ["main.py", *flags, *words.split()])
    main.run(main.main, "")
    assert_none_is_obeyed(*capsys.readouterr())


def assert_none_is_obeyed(out, err):
    err = "\n".join(line.rpartition("\r")[2] for line in err.split("\n"))  # the bar's own
    for text in (out, err):
        bad = {c for c in text if c not in "\n\t" and (unicodedata.category(c) == "Cc" or c in OBEYED)}
        assert not bad, sorted(map(hex, map(ord, bad)))


@pytest.mark.parametrize("char", OBEYED[1:])
def test_no_message_quotes_a_control_character(char, monkeypatch, capsys):
    name = f"a{char}b"
    for words in (
        [f"--prompt_file={name}"], [f"--{name}"], [name], [f"--drafter={name}"], [f"--models_dir={name}"],
        [f"--json={name}/x"], [f"--source={name}"], [f"--target_model_size={name}"], [f"--K={name}"],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["main.py", *words, "--target_model_size=x" if "size" not in words[0] else ""])
        if not sys.argv[-1]:
            sys.argv.pop()
        with pytest.raises(SystemExit) as end:
            main.run(main.main, "")
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "") and err.count("\n") == 1
        assert_none_is_obeyed(out, err)


def test_json_holds_no_control_character(tmp_path):
    """A file that may be looked at in a terminal."""
    from plumbing.files import write_json

    text = {"text": "".join(OBEYED) + "é東\n\t"}
    write_json(str(tmp_path / "run.json"), text)
    written = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert json.loads(written) == text and "é東" in written
    assert_none_is_obeyed(written, "")
