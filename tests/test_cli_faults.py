"""The command line under bad input, Ctrl-C and broken streams: it succeeds, or says in one line what was wrong."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import main
import utils
from plumbing import exits, files, patience, signals, texts
from plumbing.errors import UserError
from plumbing.terminal import SHOWN
from speculative.cli import load, outcome, verifying
from speculative.cli.flags import all_flags
from speculative.engines import memory
from speculative.measure import verify

ROOT = Path(main.__file__).parent
COMMAND = [sys.executable, str(Path(main.__file__))]


@pytest.fixture
def flags(tiny_pair):
    """Those of a run that succeeds, as words."""
    return f"--models_dir={tiny_pair} --target_model_size=target --draft_model_size=draft --threads=1".split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with files of each bad kind."""
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("the thing in", encoding="utf-8")
    Path("empty.txt").touch()
    Path("blank.txt").write_text(" \n\t\n")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("utf16.txt").write_bytes("the".encode("utf-16"))
    Path("binary.txt").write_bytes(bytes(range(256)))
    Path("long.txt").write_text("a word " * 150_000)
    os.link("prompt.txt", "hard.txt")
    Path("link.txt").symlink_to("prompt.txt")
    Path("dir").mkdir()
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    """words -> (exit status, what stands on standard output, what on standard error), in this process."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["main.py", *words])
        try:
            main.run(main.main, main.__doc__)
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return command


@pytest.fixture(autouse=True)
def as_before():
    """What a command sets for its process is undone."""
    handlers, hook = {number: signal.getsignal(number) for number in signals.ENDINGS}, sys.unraisablehook
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


NOTICES = ("compiling the forward pass", "numba is not installed", "loading ")


def is_one_line(line):
    return line.startswith("error: ") and line.endswith("\n") and line[:-1].isprintable()


# ---- Bad input -------------------------------------------------------------------------------------------------------

LONG = "a" * 300
NO_TEXTS = ("missing", "/dev/null", "latin1.txt", "utf16.txt", "binary.txt", "dir", "pipe")

BAD = {
    "unknown flag": ["--bogus", "--promt x", "--k 4", "--__class__ 1", "--n 4", "--help2", "--self x", "--nodemo"],
    "value missing": ["--K", "--prompt", "--K --demo", "--seed --K 4"],
    "value of the wrong kind": [
        *("--K 4.5", "--K four", "--K 0", "--K -1", "--K ٤", "--K=", "--seed -1", "--temperature nan"),
        *("--temperature inf", "--temperature -1", "--temperature 1e999", "--top_p 0", "--top_p 1.5", "--top_k 0"),
        *(
            "--lenience 0",
            "--lenience 2",
            "--typical 0",
            "--typical 1",
            "--typical .3 --lenience .5",
            "--n_samples 0",
            "--n_tokens_to_generate 0",
            "--dtype float16",
        ),
        *("--draft_dtype int3", "--drafter modle", "--source ftp://a.example", "--demo false", "--quiet=1"),
        *("--threads 0", "--threads 1000000000", f"--seed {'9' * 19}"),
    ],
    "words out of place": [
        "x",
        "-",
        "--",
        "-- --trace",
        "-- --interactive",
        "-K 4",
        "--=3",
        "--K 4 --K 5",
        "--demo - x",
    ],
    "flags that exclude each other": ["--prompt a --prompt_file b", "--quiet --verbose", "--unconditional --prompt a"],
    "prompt that is no text": ["--prompt=", "--prompt \udcff", "--prompt a\ud800", "--stop="],
    "prompt file": [
        f"--prompt_file {name}" for name in (*NO_TEXTS, "empty.txt", "blank.txt", "loop", LONG, "/dev/zero")
    ],
    "too long a prompt": ["--prompt_file long.txt", f"--prompt {'x' * 127}"],
    "n-gram text": [f"--drafter ngram --ngram_text {name}" for name in NO_TEXTS],
    "model": [
        *(
            "--target_model_size 125M",
            "--target_model_size ../124M",
            "--target_model_size /",
            "--draft_model_size a\nb",
        ),
        *(f"--models_dir {name} --target_model_size x" for name in ("missing", "prompt.txt", "loop", LONG, "\udcff")),
    ],
    "JSON": [
        f"--json {name}"
        for name in ("dir", "missing/a", "prompt.txt/a", "loop", "loop/a", LONG, "pipe", "/proc/a", "-")
    ],
    "a page": [f"--html {name}" for name in ("dir", "pipe", "loop", "-")],
    "what is read or written twice": [
        *("--prompt_file prompt.txt --json prompt.txt", "--drafter ngram --ngram_text prompt.txt --html ./prompt.txt"),
        *("--json a --html a", "--json a --html dir/../a", "--prompt_file prompt.txt --json hard.txt"),
        "--prompt_file prompt.txt --json link.txt",
    ],
    "more than the context": ["--n_tokens_to_generate 117", f"--n_tokens_to_generate {10**17}", "--verify --K 99"],
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line(kind, command, flags, folder, monkeypatch):
    monkeypatch.setattr(texts, "MAX_TEXT_BYTES", 2**20)
    weights, before = [], sorted(os.listdir(folder))
    monkeypatch.setattr(
        load, "load_params", lambda *args, **more: weights.append(args) or utils.load_params(*args, **more)
    )
    for words in BAD[kind]:
        words = words.split(" ")
        names = {re.match(r"--(\w+)|", word)[1] for word in words}
        status, out, err = command(*words, *(word for word in flags if word[2:].partition("=")[0] not in names))
        assert (status, out) == (2, "") and is_one_line(err), (words, status, out, err)
        assert not weights or "--verify" in words
    assert sorted(os.listdir(folder)) == before


def test_lines_say_what_would_be_right(command):
    for words, right in (
        ("--seed 1234567890123456789", "must be a whole number of at least 0 and at most 18 digits, not"),
        ("--json -", "cannot write to -: standard output has the texts, and a file of that name is written ./-"),
    ):
        status, out, err = command(*words.split())
        assert (status, out) == (2, "") and is_one_line(err) and right in err


@pytest.mark.parametrize("words", [["--prompt_file", "prompt.txt"], ["--unconditional"], ["--prompt=the"]])
def test_json_has_the_prompt_option_where_it_was_continued(words, command, flags, folder):
    status, *_ = command(*flags, *words, "--n_tokens_to_generate=2", "--quiet", "--json=run.json")
    run = json.loads(Path("run.json").read_text(encoding="utf-8"))
    assert status == 0 and run["options"]["prompt"] == ("the" if words == ["--prompt=the"] else None)
    assert run["prompt"]["text"] == {"--prompt_file": "the thing in", "--unconditional": ""}.get(words[0], "the")


def test_a_model_is_not_overwritten(command, flags, tiny_pair):
    for size in ("target", "draft"):
        path = tiny_pair / size / "hparams.json"
        status, out, err = command(*flags, "--json", str(path))
        assert (status, out) == (2, "") and is_one_line(err) and "would be overwritten" in err


def test_bytes_that_are_not_utf8(flags):
    """As they come from a shell."""
    for words in ([b"--prompt", b"caf\xe9"], [b"--prompt_file", b"no\xff\nsuch file"]):
        done = subprocess.run([*COMMAND, *flags, *words], capture_output=True)
        assert (done.returncode, done.stdout) == (2, b"") and is_one_line(done.stderr.decode())


def test_a_pipe_that_nobody_writes_to_is_said_to_be_waited_for(tmp_path, monkeypatch, capsys):
    reader, writer = os.pipe()
    pipe = f"/dev/fd/{reader}"
    if not os.path.exists(pipe):
        pytest.skip("this system has no names for what is open")
    said = threading.Event()
    monkeypatch.setattr(
        patience, "print", lambda *args, **options: said.set() or print(*args, **options), raising=False
    )
    monkeypatch.setattr(patience, "SECONDS", 0.05)

    def write():
        said.wait()
        os.write(writer, b"the end")
        os.close(writer)

    writing = threading.Thread(target=write)
    writing.start()
    assert texts.read_text(pipe, "prompt") == "the end"
    writing.join()
    os.close(reader)
    assert f"waiting for the end of the prompt, which comes from {pipe}\n" == capsys.readouterr().err


def test_no_network(command, folder, monkeypatch):
    """The line says that --demo works without one."""

    def refuse(*args, **kwargs):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    status, out, err = command()
    assert (status, out) == (2, "") and is_one_line(err.splitlines(keepends=True)[-1])
    assert "--demo works without" in err and "Traceback" not in err


# ---- Wild command lines ---------------------------------------------------------------------------------------------

WILD = [
    "",
    " ",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "4",
    "1e3",
    "nan",
    "True",
    "\0",
    "\n",
    "é",
    "\udcff",
    "∞",
    "'",
    '"',
    "{}",
    "x" * 10**4,
]
WILD += [
    "a,b",
    "[1,2]",
    "../x",
    "/",
    "%s",
    "{0}",
    "\033[2J",
    "\u2028",
    "-h-",
    "=",
    "--K",
    "𝔸",
    "1" * 30,
    "prompt.txt",
    "dir",
]
LIKELY = {
    "prompt": ["the", "in the", "é", "x" * 126, "\ud83d\ude00"],
    "prompt_file": ["prompt.txt", "empty.txt", "latin1.txt", "wild.txt", "dir", "missing"],
    "ngram_text": ["prompt.txt", "blank.txt", "wild.txt"],
    "n_tokens_to_generate": ["1", "3", "9"],
    "draft_model_size": ["draft", "target"],
    "target_model_size": ["target", "draft"],
    "K": ["1", "4", "auto", str(10**17)],
    "temperature": ["0", "1", "1e-300", "1e300"],
    "seed": ["0", "7", str(10**17)],
    "stop": ["B", "the", "<|endoftext|>"],
    "n_samples": ["1", "2"],
    "top_k": ["1", "9", str(10**17)],
    "top_p": ["1e-300", "0.9", "1"],
    "draft_temperature": ["0", "1e-300", "2"],
    "lenience": ["1e-6", "0.5", "1"],
    "typical": ["1e-6", "0.3", "0.999999"],
    "drafter": [
        "model",
        "prompt_lookup",
        "ngram",
        "model/ngram",
        "model/prompt_lookup",
        "model/ngram/prompt_lookup",
        "prompt_lookup+ngram",
        "heads",
        "ngram+model",
    ],
    "dtype": ["float32", "bfloat16", "int8"],
    "draft_dtype": ["float32", "bfloat16", "int8", "auto"],
    "threads": ["1"],
    "engine": ["numpy"],
    "mesh": ["1"],
    "source": ["openai", "huggingface", "https://a.example"],
    "json": ["out.json", "dir", "missing/out.json"],
}
SWITCHES = [flag for flag, option in all_flags().items() if option.default is False]


def wild_text(rng, longest=40):
    """Any Unicode, with surrogates and control characters."""
    ranges = [(0, 32), (32, 127), (127, 0x300), (0xD7F0, 0xE010), (0x2000, 0x2070), (0, 0x110000)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, longest)))


def wild_value(rng, flag, wildness):
    if rng.random() < wildness:
        return rng.choice([rng.choice(WILD), wild_text(rng), rng.choice(rng.choice(list(LIKELY.values())))])
    return rng.choice(LIKELY.get(flag, ["True"]))


def wild_words(rng):
    """A command line: most flags right, so that some come far."""
    words, wildness = [], rng.choice([0, 0, 0.05, 0.5])
    for flag in rng.sample([*LIKELY, *SWITCHES], rng.randrange(8)):
        if flag in ("prompt", "unconditional", "verbose", "verify") and rng.random() < 0.5:
            continue  # which exclude others
        name = wild_text(rng, 8) if rng.random() < wildness / 5 else flag.replace("_", rng.choice("_-"))
        if flag in SWITCHES and rng.random() >= wildness:
            words.append(f"--{name}")
        elif rng.random() < 0.5:
            words.append(f"--{name}={wild_value(rng, flag, wildness)}")
        else:
            words += [f"--{name}", wild_value(rng, flag, wildness)]
    if rng.random() < wildness / 5:
        words.insert(rng.randrange(len(words) + 1), rng.choice([*WILD, wild_text(rng)]))
    return [word for word in words if word not in ("-h", "--help")]


@pytest.mark.parametrize(("seed", "n"), [(0, 120), pytest.param(1, 3000, marks=pytest.mark.slow)])
def test_wild_command_lines(seed, n, command, flags, folder, monkeypatch):
    """Success, or one line and status 2: for many command lines, of which a good part is decoded."""
    rng = random.Random(seed)
    monkeypatch.setattr(outcome, "read_bandwidth", lambda **_: 1e10)
    monkeypatch.setattr(verifying.verify, "verify", lambda *args, **_: [verify.Check("none", True, "")])
    monkeypatch.setattr(utils, "download_gpt2_files", offline)
    monkeypatch.setattr(memory, "available", lambda: rng.choice([10**5, 10**9, 10**9, 10**9, None]))
    statuses = {0: 0, 2: 0}
    for _ in range(n):
        words = wild_words(rng)
        typed = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in words}
        words += [word for word in [*flags, "--n_tokens_to_generate=4"] if word[2:].partition("=")[0] not in typed]
        Path("wild.txt").write_bytes(rng.choice([wild_text(rng).encode("utf-8", "replace"), rng.randbytes(20)]))
        try:
            status, out, err = command(*words)
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__}: {words}") from error
        last = err.rpartition("\r")[2].lstrip()
        if status == 0:
            assert "Text = " in out or "Verify" in out, (words, out, err)
        else:
            assert (status, out) == (2, "") and is_one_line(last), (words, out, err)
        statuses[status] += 1
        if Path("out.json").exists():
            json.loads(Path("out.json").read_text(encoding="utf-8"))
            Path("out.json").unlink()
    assert statuses[0] > n / 7 and statuses[2] > n / 7, statuses


def offline(model_size, *args):
    raise UserError(f"cannot download {model_size} in a test")


def test_wild_prompts(command, flags, folder):
    """Any Unicode, control characters, and 1 MB of it: from the command line and from files."""
    rng = random.Random(1)
    prompts = [wild_text(rng, 12) for _ in range(40)] + ["\n" * 10**6, "\ud7ff" * 350_000, "x" * 10**6, "\0" * 10**6]
    decoded = 0
    for prompt in prompts:
        Path("wild.txt").write_bytes(data := prompt.encode("utf-8", "surrogatepass"))
        for words in ([f"--prompt={prompt}"], ["--prompt_file", "wild.txt"]):
            status, out, err = command(*words, *flags, "--quiet", "--n_tokens_to_generate=2")
            if status == 0:
                decoded += 1
                assert out.count(f"Text = {data.decode().translate(SHOWN)}") == 2
            else:
                assert out == "" and is_one_line(err), (prompt[:80], out, err)
    assert decoded > 26


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


def started(flags, *words):
    """A process that ignores Ctrl-C until main.py says what to do with it: before, it would be Python that answers.

    So it does not matter either whether these tests run in the foreground of a shell or in its background.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        return subprocess.Popen(
            [*COMMAND, *flags, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, handler)


def interrupt(process, times=1):
    """-> (standard output, standard error) of a process that was interrupted, or had ended just before."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    out, err = (stream.decode() for stream in process.communicate())
    lines = [line for line in err.replace("\r", "\n").split("\n") if line.strip() and "token/s" not in line]
    lines = [line for line in lines if not line.startswith(NOTICES) and "/100" not in line]
    if process.returncode == 0:
        assert lines == []
    else:
        assert (process.returncode, lines) == (130, ["interrupted"]), (process.returncode, out, err)
    return out, err


@pytest.mark.slow
def test_ctrl_c_at_any_moment(flags, folder):
    """From the first import to the report."""
    process = started(flags, "--json", "run.json", "--quiet")
    start = time.perf_counter()
    assert process.wait() == 0
    whole = time.perf_counter() - start
    n = 40
    rng = random.Random(n)
    interrupted = 0
    for i in range(n):
        Path("run.json").unlink(missing_ok=True)
        process = started(flags, "--json", "run.json", *(["--n_samples=2"] if i % 2 else []))
        time.sleep((i + rng.random()) / n * whole)
        interrupt(process, times=rng.choice([1, 1, 3]))
        interrupted += process.returncode == 130
        assert [name for name in os.listdir(folder) if name.startswith("run.json")] in ([], ["run.json"])
        if Path("run.json").exists():
            json.loads(Path("run.json").read_text(encoding="utf-8"))
    assert interrupted > 0


@pytest.mark.slow
def test_ctrl_c_while_decoding_shows_the_text_so_far(flags):
    """Thousands of samples would follow; those that are there are shown, and so is what there is of the next."""
    for words in (["--n_samples=100000"], ["--n_samples=100000", "--stream"]):
        process = started(flags, "--prompt=the", "--quiet", *words)
        first = process.stdout.readline() + process.stdout.readline() + process.stdout.readline()
        assert first == b"\nAutoregressive Decode\n---------------------\n"
        time.sleep(0.3)
        out, _ = interrupt(process)
        assert process.returncode == 130 and out.endswith("\n")
        whole = re.findall(r"^Text = the(.*)$", out, re.MULTILINE)
        assert whole and len(set(whole[:-1])) <= 1 and whole[0].startswith(whole[-1])


@pytest.mark.slow
def test_ctrl_c_in_verify(flags):
    process = started(flags, "--verify", "--n_tokens_to_generate=10")
    assert process.stdout.readline() == b"Verify\n"
    interrupt(process)
    assert process.returncode == 130


@pytest.mark.parametrize("behind", [SystemError("fspath returned a result with an exception set"), UserError("cannot")])
@pytest.mark.parametrize("named", [True, False])
def test_ctrl_c_that_became_another_error(behind, named, monkeypatch, capsys):
    """As in code in C, or where what was interrupted is told as what failed."""

    def action():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            try:
                raise behind from (error if named else None)
            except Exception as error:
                raise ImportError("no such module") from error

    monkeypatch.delitem(sys.modules, "jax", raising=False)  # with it, a process ends without a word to its caller
    with pytest.raises(SystemExit) as caught:
        exits.guarded(action)
    assert (caught.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_an_error_of_its_own_is_no_ctrl_c(capsys):
    def action():
        try:
            raise UserError("cannot")
        except UserError as error:
            raise SystemError from error

    with pytest.raises(SystemExit) as caught:
        exits.guarded(action)
    assert caught.value.code == 1 and "interrupted" not in capsys.readouterr().err


def test_ctrl_c_while_json_is_written(folder, monkeypatch):
    """The old file stays, and nothing else does."""
    Path("run.json").write_text("old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_json("run.json", {"new": 1})
    assert Path("run.json").read_text() == "old" and not Path("run.json.part").exists()


def interrupted(*args):
    raise KeyboardInterrupt


COMMANDS = ["main.py --demo", "utils.py check x", "-m benchmarks.sweep", "-m training pair"]
PAGE = "-m speculative.measure.page run.json -o run.html"


@pytest.mark.parametrize(
    ("words", "module"),
    [*((words, "numpy") for words in COMMANDS), (PAGE, "base64"), ("-m benchmarks.aspect", "jax")],
)
def test_ctrl_c_while_modules_are_imported(words, module, tmp_path):
    """As early as Python lets us: the slow imports of a command have only begun."""
    slow = "import os, sys, signal\nclass Slow:\n def find_spec(self, name, *args):\n"
    slow += f"  if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\nsys.meta_path.insert(0, Slow())\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *words.split()], cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_package_that_is_missing_is_one_line(tmp_path):
    """Where a command cannot even be imported without it."""
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')")
    command = [sys.executable, "-m", "benchmarks.ahead_of_time"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: No module named 'jax': pip install -r requirements.txt\n"


@pytest.mark.slow  # a process, which imports JAX
def test_flags_that_xla_does_not_know():
    """XLA would end the process itself, with status 1."""
    pytest.importorskip("jax")
    done = subprocess.run(
        [*COMMAND, "--demo", "--engine=jax"], env=os.environ | {"XLA_FLAGS": "--bogus"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "") and is_one_line(done.stderr)
    assert "XLA_FLAGS=--bogus cannot be used" in done.stderr


# ---- Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["--verbose"], ["--help"], *[pytest.param([word], marks=pytest.mark.slow) for word in ("--stream", "--verify")]],
)
def test_a_reader_that_has_gone(flags, words):
    """As `| head -1` does: no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run([*COMMAND, *flags, *words], stdout=writer, stderr=subprocess.PIPE, env=env)
    os.close(writer)
    err = done.stderr.decode()
    assert done.returncode == 2 and "Error" not in err and "Exception" not in err, err


@pytest.mark.parametrize(
    "words",
    ["", *(pytest.param(f"{words} --help", marks=pytest.mark.slow) for words in [*COMMANDS, PAGE])],
)
def test_a_full_disk_behind_standard_output(words, flags):
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is Linux's")
    command = [sys.executable, *words.split()] if words else [*COMMAND, *flags, "--quiet"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == "error: cannot write the output: No space left on device"


def test_a_full_disk_behind_standard_error(flags):
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is Linux's")
    with open("/dev/full", "wb") as full:
        for words in (["--K=0"], ["--models_dir=missing", "--target_model_size=x"]):
            done = subprocess.run([*COMMAND, *words], stdout=subprocess.PIPE, stderr=full)
            assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    "closed", [">&- 2>&-", *[pytest.param(closed, marks=pytest.mark.slow) for closed in (">&-", "2>&-")]]
)
def test_streams_that_are_closed_from_the_start(flags, closed):
    command = ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, *flags, "--n_tokens_to_generate=3"]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0 and b"Error" not in done.stderr, done.stderr
    assert b"Text = " in done.stdout or ">&-" in closed.split()
    bad = subprocess.run([*command, "--bogus"], capture_output=True)
    assert bad.returncode == 2 and bad.stdout == b""


ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("env", [ASCII, pytest.param(C_LOCALE, marks=pytest.mark.slow)])
def test_a_terminal_that_knows_ascii_alone(env, flags):
    command = [*COMMAND, *flags, "--prompt", "thé".encode(), "--verbose", "--n_tokens_to_generate=9"]
    done = subprocess.run(command, capture_output=True, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    assert b"Text = th\\xe9" in done.stdout and b"\\u03b1 " in done.stdout


def test_color_on_a_real_terminal(flags):
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    words = ["--color", "--n_tokens_to_generate=4", "--prompt=the"]
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with subprocess.Popen([*COMMAND, *flags, *words], stdout=follower, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(follower)
        out = b""
        try:
            while part := os.read(leader, 10_000):
                out += part
        except OSError as error:  # how Linux says that the other end is closed
            assert error.errno == errno.EIO
    os.close(leader)
    assert process.returncode == 0
    assert b"\033[33m" in out and b"\033[32maccepted" in out
