"""The command line, end to end, on a pair of tiny models with random weights; every flag at work once."""

import contextlib
import os
import re
import shutil
import struct
import sys
import textwrap

import pytest
from conftest import PROMPT
from tiny import python, refusal, texts, tokens_of

import main
from speculative.cli import display
from speculative.engines import runtime
from speculative.measure import verify
from speculative.options import DEMO

# The blog's run


def test_the_blogs_lines_in_the_blogs_order_and_then_ours(run):
    out = run(quiet=True)
    plain, speculative = texts(out)
    assert plain == speculative
    assert plain.startswith(PROMPT)
    assert re.sub(r"\d\.\d\d", "0.00", out) == (
        f"\nAutoregressive Decode\n{'-' * 21}\nTime = 0.00s\nText = {plain}\n"
        f"\nSpeculative Decode\n{'-' * 18}\nTime = 0.00s\nText = {plain}\n"
    )
    out = run()
    assert texts(out) == (plain, plain)
    added = out.split("\n\nSpeedup = ")[1].splitlines()
    assert len(added) <= 7
    assert re.match(r"[\d.]+x  \(autoregressive time", added[0])


@pytest.mark.parametrize(("N", "K"), [(1, 4), (2, 10**17), (7, 4), (116, 1), (116, 200)])  # 116 fill the context
def test_exactly_n_tokens(run_json, N, K):
    prompt = "x" * 12
    out, document = run_json(prompt=prompt, n_tokens_to_generate=N, K=K, quiet=True)
    [plain], [speculative] = tokens_of(document, "autoregressive"), tokens_of(document)
    assert len(plain) == len(speculative) == N
    assert plain == speculative
    assert texts(out)[0] == texts(out)[1] == prompt + document["speculative"]["samples"][0]["text"]
    assert document["options"]["K"] == K


def test_the_seed_decides(run):
    flags = {"temperature": 1, "quiet": True, "n_tokens_to_generate": 40}
    first, again, other = (texts(run(seed=seed, **flags)) for seed in (5, 5, 6))
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_the_bundled_pair_is_the_demo(command, capsys):
    status, out, _ = command("--demo", "--quiet", "--n_tokens_to_generate=3")
    main.main(demo=True, quiet=True, n_tokens_to_generate=3)
    assert status == 0
    assert texts(out) == texts(capsys.readouterr().out)
    assert texts(out)[0].startswith(DEMO["prompt"])


def test_main_as_a_module():
    """The blog's names, at once: nothing is imported that the forward pass in NumPy does not need."""
    heavy = ("tensorflow", "jax", "numba", "matplotlib", "tokenizers", "scipy", "requests")
    code = "import sys; from main import autoregressive_sampling, max_fn, sample, speculative_sampling\n"
    code += f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    assert python("-c", code).returncode == 0


# Where the text comes from and where it ends


def test_a_prompt_from_a_file(run_json, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes("in thé\n".encode())
    (out, document), (typed, other) = run_json(prompt=None, prompt_file=path), run_json(prompt="in thé\n")
    assert texts(out) == texts(typed)
    assert document["prompt"] == other["prompt"]
    assert (document["options"]["prompt"], other["options"]["prompt"]) == (None, "in thé\n")


def test_a_prompt_from_the_standard_input(pair_words):
    words = ["main.py", *pair_words, "--quiet", "--prompt_file", "-", "--n_tokens_to_generate=3"]
    assert texts(python(*words, input="[1, thé]", encoding="utf-8").stdout)[0].startswith("[1, thé]")
    closed = python(*words, shell='"$@" <&-')
    assert (closed.returncode, closed.stdout) == (2, "")
    assert re.fullmatch(r"error: cannot read the prompt from -: .*\n", closed.stderr)


def test_without_a_prompt(run_json):
    _, document = run_json(prompt=None, unconditional=True, quiet=True)
    assert document["prompt"] == {"text": "", "tokens": [259]}
    assert len(tokens_of(document)[0]) == 12
    _, empty = run_json(prompt="", quiet=True)
    assert empty["prompt"] == document["prompt"]
    assert tokens_of(empty) == tokens_of(document)


@pytest.mark.parametrize("flags", [{}, {"stream": True}, {"color": True}, {"color": True, "stream": True}], ids=str)
def test_the_text_ends_before_the_stop_text(run_json, monkeypatch, flags):
    """At each place of a sampled text."""
    monkeypatch.setenv("FORCE_COLOR", "1" if "color" in flags else "")
    flags = {"temperature": 0.7, "seed": 2, "n_tokens_to_generate": 30, "quiet": "color" not in flags} | flags
    whole = {name: run_json(**flags)[1][name]["samples"][0] for name in ("autoregressive", "speculative")}
    for stop in (whole["autoregressive"]["text"][9:12], whole["speculative"]["text"][3], "no such text"):
        out, document = run_json(stop=stop, **flags)
        out = re.sub("\033\\[[0-9;]*m", "", out)
        if "stream" in flags:  # the text comes before the time then
            out = re.sub(r"(Text = .*?)\n(Time = \S+)\n", r"\2\n\1\n", out, flags=re.DOTALL)
        out = out.partition("\n\naccepted  resampled")[0] + ("\n" if "color" in flags else "")
        for decoder, text in zip(whole, texts(out), strict=True):
            [sample] = document[decoder]["samples"]
            assert sample["text"] == whole[decoder]["text"].partition(stop)[0]
            assert text == PROMPT + sample["text"].translate(display.SHOWN)
            n = len(sample["tokens"])
            assert sample["tokens"] == whole[decoder]["tokens"][:n]
            assert n < 30 or stop not in whole[decoder]["text"][:-1]


@pytest.mark.parametrize("flags", [{}, {"temperature": 1, "lenience": 0.5}, {"temperature": 1, "K": "auto"}])
def test_the_file_says_what_the_screen_says(run_json, flags):
    out, document = run_json(**flags)
    lines = "\n".join(textwrap.fill(line, display.COLUMNS) for line in document["summary"])
    assert f"\n\n{lines}\nWrote " in out
    assert lines.startswith("Speedup = ")


def test_several_samples(run_json):
    flags = {"temperature": 1, "quiet": True, "n_samples": 3}
    out, document = run_json(**flags)
    assert out.count("Text = ") == 6
    assert out.count("Time = ") == 2
    for decoder in ("autoregressive", "speculative"):
        samples = tokens_of(document, decoder)
        assert len(samples) == 3
        assert samples[0] != samples[1] != samples[2]
        assert {len(s) for s in samples} == {12}
    assert tokens_of(run_json(**flags | {"n_samples": 1})[1])[0] == samples[0]
    assert tokens_of(run_json(**flags)[1]) == samples


# The distribution, the drafters, the numbers


@pytest.mark.parametrize("flags", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-12}])
def test_filters_that_leave_one_token_are_greedy(run, flags):
    assert texts(run(**{"temperature": 2, "quiet": True} | flags)) == texts(run(quiet=True))


def test_other_temperatures_for_the_draft_and_large_limits(run):
    plain, _ = texts(run(temperature=1, quiet=True))
    flags = {"top_k": 10**17, "top_p": 1, "draft_temperature": 0.3, "seed": 123}
    assert texts(run(temperature=1, quiet=True, **flags))[0] == plain
    assert texts(run(temperature=1e300, quiet=True))[0] != plain


def test_what_is_noted(run):
    assert "Note: with lenience 0.5 the speculative text is not distributed" in run(lenience=0.5, temperature=1)
    assert "Note: --K auto depends on measured times" in run(K="auto", temperature=1)
    assert "Note:" not in run(temperature=1)


ALONE = ["prompt_lookup", "ngram", "prompt_lookup+ngram"]
WITH_A_MODEL = ["model/ngram", "model/prompt_lookup", "prompt_lookup+model", "model/ngram/prompt_lookup"]


@pytest.mark.parametrize("drafter", ALONE + WITH_A_MODEL)
def test_drafters_that_need_no_second_model_load_none(run, drafter):
    alone = {"draft_model_size": "not-there"}
    out = run(drafter=drafter, quiet=True, **alone if drafter in ALONE else {})
    assert texts(out)[0] == texts(out)[1] == texts(run(quiet=True))[0]
    if drafter in WITH_A_MODEL:
        assert "unknown model size 'not-there'" in refusal(run, drafter=drafter, **alone)


def test_the_n_gram_drafter_reads_its_text(run_json, tmp_path):
    """A text that is the answer: what the target will say, so that most of it is accepted."""
    out, document = run_json(drafter="ngram", quiet=True, n_tokens_to_generate=40)
    text = tmp_path / "text"
    text.write_text((texts(out)[0] + "\n") * 50, encoding="utf-8")
    _, better = run_json(drafter="ngram", quiet=True, n_tokens_to_generate=40, ngram_text=text)
    assert tokens_of(better) == tokens_of(document)
    assert better["figures"]["accepted"] > document["figures"]["accepted"]


def test_threads(run):
    for n in (runtime.most_threads(), 1):
        run(threads=n, quiet=True)
        assert runtime.n_threads == n
    assert re.search(r"1000000000 threads: this machine has cores for 1 to \d+", refusal(run, threads=10**9))


# What is shown


def test_verbose_has_a_row_for_every_iteration_and_every_figure(run_json):
    out, document = run_json(verbose=True)
    assert len(re.findall(r"^ \d+ +\d of \d +[\d.]+ ms", out, re.MULTILINE)) == document["figures"]["iterations"]
    # Where other work took the machine, nothing is said of costs.
    of_costs = () if document["figures"]["busy"] else ("c", "β", "predicted, Leviathan")
    for figure in ("r", "α", *of_costs, "ceiling", "peak memory", "kernels, draft"):
        assert re.search(rf"^ {figure}  +\S", out, re.MULTILINE)


def test_color_on_a_terminal(run, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033" not in run(color=True)  # into a pipe
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = run(color=True)
    assert "\033[33m" in out
    assert "\033[32maccepted" in out
    assert "\033" not in run()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in run(color=True)


def test_no_bar_is_left_on_a_terminal(pair_words):
    """After a run, the screen of a terminal shows what a pipe gets."""
    pyte = pytest.importorskip("pyte")
    pty, fcntl, termios = map(pytest.importorskip, ("pty", "fcntl", "termios"))
    words = ["main.py", *pair_words, "--n_tokens_to_generate=40", "--n_samples=2"]
    screen = pyte.Screen(120, 60)
    stream = pyte.ByteStream(screen)
    process, terminal = pty.fork()
    if not process:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 120, 0, 0))  # a bar has no room without a width
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, *words])
    with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as output:  # the end is an error there
        while received := output.read(2**16):
            stream.feed(received)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    shown = "\n".join(line.rstrip() for line in screen.display)
    assert "Autoregressive Decode\n---------------------\nTime = " in shown
    assert "Speculative Decode\n------------------\nTime = " in shown
    assert "token/s" not in shown
    assert "%|" not in shown


# --verify


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"temperature": 0.8, "K": "auto"},
        {"drafter": "prompt_lookup", "top_k": 5, "temperature": 1},
        {"prompt": "x" * 127, "K": 20},
    ],
)
def test_verify_passes(run_verify, flags):
    status, out = run_verify(**flags | {"n_tokens_to_generate": 1})
    assert status == 0
    assert "Verdict: no loss found" in out
    n_tokens = 8 if flags.get("K", 4) == 4 else 10  # one for each of two prompts and of four or five K
    assert out.startswith(f"Verify\n------\n{verify.ABOUT}\npassed  greedy: {n_tokens} speculative tokens equal")


def test_verify_fails_where_something_is_lost(run_verify, run):
    status, out = run_verify(draws=40, lenience=0.01)
    assert status == 1
    assert "FAILED  speculative against the target" in out
    assert "for the reasons above.\n" in out
    assert "--verify with --K 64 decodes" in refusal(run, verify=True, K=64)
    assert "too many for a context of 128" in refusal(run, verify=True, K=10**17)
    too_long = {"verify": True, "prompt": None, "unconditional": True, "n_tokens_to_generate": 127}
    assert "--verify with --n_tokens_to_generate 127 decodes 127 tokens, too many" in refusal(run, **too_long)


# Refused before the weights are read


@pytest.fixture
def damaged_pair(tiny_pair, tmp_path):
    """The same pair with weights that cannot be read: who reads them is told so."""
    for size in ("target", "draft"):
        shutil.copytree(tiny_pair / size, tmp_path / size)
        (tmp_path / size / "model.safetensors").write_text("rubbish")
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_does_not_fit_is_told_before_weights_are_read(run, damaged_pair):
    def line(**flags):
        return refusal(run, models_dir=damaged_pair, **flags)

    assert "not a safetensors file" in line()
    for flags in ({"n_tokens_to_generate": 117}, {"prompt": "x" * 117}, {"n_tokens_to_generate": 10**17}):
        why = "exceed the context of 128 tokens: shorten the prompt or lower --n_tokens"
        assert why in line(**{"prompt": "x" * 12} | flags)
    hparams = damaged_pair / "draft" / "hparams.json"
    change(hparams, '"n_ctx": 128', '"n_ctx": 64')
    assert "exceed the context of 64 tokens" in line(n_tokens_to_generate=60)
    change(hparams, '"n_layer": 1', '"n_layer": 1024')
    change(hparams, '"n_embd": 32', '"n_embd": 32768')
    assert re.search(r"the models need \d{5,}\.\d GB of memory, and \d+\.\d GB are free", line())
    change(damaged_pair / "draft" / "encoder.json", '"the": 257, "in": 258', '"the": 258, "in": 257')
    assert "draft and target have different vocabularies, so one cannot draft" in line()
    assert "not a safetensors file" in line(drafter="ngram")  # which needs no draft model
