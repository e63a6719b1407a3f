"""The command line, end to end, on a pair of tiny models with random weights; every flag at work once."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import main
from encoder import StreamDecoder, get_encoder
from plumbing import exits
from plumbing.errors import UserError
from speculative import filters
from speculative.cli import checks, display, load, outcome, verifying
from speculative.cli.flags import DEMO
from speculative.engines import cpu, runtime
from speculative.measure import verify

ROOT = Path(main.__file__).parent
PROMPT = "the thing in"


@pytest.fixture
def run(tiny_pair, capsys):
    """flags -> what main() prints."""
    usual = {"prompt": PROMPT, "target_model_size": "target", "draft_model_size": "draft", "threads": 1}
    usual |= {"models_dir": tiny_pair, "n_tokens_to_generate": 12}

    def run(**flags):
        chosen = {flag: str(value) for flag, value in (usual | flags).items() if value is not None}
        main.main(**chosen)
        return capsys.readouterr().out

    return run


def texts(out):
    """The texts of both decoders, which may hold line breaks of their own."""
    text = r"Time = \d+\.\d\ds\nText = (.*?)"
    pattern = rf"\nAutoregressive Decode\n-{{21}}\n{text}\n\nSpeculative Decode\n-{{18}}\n{text}\n(\nSpeedup = .*)?"
    match = re.fullmatch(pattern, out, re.DOTALL)
    assert match, out
    return match[1], match[2]


def tokens_of(document, decoder="speculative"):
    return [sample["tokens"] for sample in document[decoder]["samples"]]


@pytest.fixture
def run_json(run, tmp_path):
    """flags -> (what main() prints, what it writes)."""

    def run_json(**flags):
        out = run(json=tmp_path / "run.json", **flags)
        return out, json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))

    return run_json


# The blog's run


def test_the_blogs_lines_in_the_blogs_order(run):
    out = run(quiet=True)
    plain, speculative = texts(out)
    assert plain == speculative and plain.startswith(PROMPT)
    assert re.sub(r"\d\.\d\d", "0.00", out) == (
        f"\nAutoregressive Decode\n{'-' * 21}\nTime = 0.00s\nText = {plain}\n"
        f"\nSpeculative Decode\n{'-' * 18}\nTime = 0.00s\nText = {plain}\n"
    )


def test_what_we_add_stands_after_them(run):
    out = run()
    assert texts(out)[0] == texts(out)[1]
    added = out.split("\n\nSpeedup = ")[1].splitlines()
    assert len(added) <= 7 and re.match(r"[\d.]+x  \(autoregressive time", added[0])


@pytest.mark.parametrize("N", [1, 2, 7, 116])  # the last fills the context of 128
@pytest.mark.parametrize("K", [1, 4, 200, 10**17])
def test_exactly_n_tokens(run_json, N, K):
    prompt = "x" * 12
    out, document = run_json(prompt=prompt, n_tokens_to_generate=N, K=K, quiet=True)
    [plain], [speculative] = tokens_of(document, "autoregressive"), tokens_of(document)
    assert len(plain) == len(speculative) == N and plain == speculative
    assert texts(out)[0] == texts(out)[1] == prompt + document["speculative"]["samples"][0]["text"]


def test_the_seed_decides(run):
    flags = {"temperature": 1, "quiet": True, "n_tokens_to_generate": 40}
    first, again, other = (texts(run(seed=seed, **flags)) for seed in (5, 5, 6))
    assert first == again and first[0] != other[0] and first[1] != other[1]


def test_the_defaults_are_the_blogs_run(tiny_pair, tmp_path, monkeypatch, capsys):
    """Without any flag, in a folder with models called as the official ones are."""
    (tmp_path / "models").mkdir()
    for size, folder in (("1558M", "target"), ("124M", "draft")):
        (tmp_path / "models" / size).symlink_to(tiny_pair / folder)
    monkeypatch.chdir(tmp_path)
    main.main(prompt="Alan Turing theorized that computers would one day become", n_tokens_to_generate="40", K="4")
    typed = capsys.readouterr().out
    main.main()
    assert texts(capsys.readouterr().out) == texts(typed)


def test_the_bundled_pair_is_the_demo(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py", "--demo", "--quiet", "--n_tokens_to_generate=3"])
    monkeypatch.setattr(exits.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    main.run(main.main, main.__doc__)
    assert texts(capsys.readouterr().out)[0].startswith('"From the first, two facts were very obvious to me,')


def test_the_demo_from_python(capsys):
    main.main(demo=True, quiet=True, n_tokens_to_generate=3)
    assert texts(capsys.readouterr().out)[0].startswith(DEMO["prompt"])


def test_main_as_a_module():
    """The blog's names, at once: nothing is imported that the forward pass in NumPy does not need."""
    heavy = ("tensorflow", "jax", "numba", "matplotlib", "tokenizers", "scipy", "requests")
    code = "import sys; from main import autoregressive_sampling, max_fn, sample, speculative_sampling\n"
    code += f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_as_a_command(tiny_pair):
    """With a prompt that fire would take for a list; test_options has other such texts."""
    flags = [f"--models_dir={tiny_pair}", "--target_model_size=target", "--draft-model-size", "draft", "--threads", "1"]
    flags += ["--n_tokens_to_generate", "5", "--quiet", "--prompt", "[1, 2]"]
    done = subprocess.run([sys.executable, "main.py", *flags], cwd=ROOT, capture_output=True, check=True)
    plain, speculative = texts(done.stdout.decode())
    assert plain == speculative and plain.startswith("[1, 2]")


# Where the text comes from and where it ends


def test_a_prompt_from_a_file(run, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes("in thé\n".encode())
    assert texts(run(prompt=None, prompt_file=path, quiet=True)) == texts(run(prompt="in thé\n", quiet=True))


def test_a_prompt_from_the_standard_input(tiny_pair):
    flags = [f"--models_dir={tiny_pair}", "--target_model_size=target", "--draft_model_size=draft", "--threads=1"]
    command = [sys.executable, "main.py", *flags, "--quiet", "--prompt_file", "-", "--n_tokens_to_generate=3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, input="thé".encode(), check=True)
    assert texts(done.stdout.decode())[0].startswith("thé")
    closed = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *command], cwd=ROOT, capture_output=True)
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert re.fullmatch(rb"error: cannot read the prompt from -: .*\n", closed.stderr)


def test_without_a_prompt(run_json):
    _, document = run_json(prompt=None, unconditional=True, quiet=True)
    assert document["prompt"] == {"text": "", "tokens": [259]}
    assert len(tokens_of(document)[0]) == 12


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("color", [False, True])
def test_the_text_ends_before_the_stop_text(run_json, monkeypatch, tiny_pair, stream, color):
    """At each place of a sampled text, with stop texts of several lengths, found in both decoders' texts."""
    encoder = get_encoder("target", tiny_pair)
    monkeypatch.setenv("FORCE_COLOR", "1" if color else "")
    # Most tokens of this vocabulary are bytes. So that a stop text can be the middle of one, some become longer.
    long = {encoder.byte_to_id[ord(char)]: f"<{char}{char}é>".encode() for char in "BhKZ"}
    monkeypatch.setattr(load, "load_encoder_and_hparams", patched(encoder, long, load.load_encoder_and_hparams))
    flags = {"temperature": 0.7, "quiet": not color, "n_tokens_to_generate": 30, "stream": stream, "color": color}
    for stop in ("BBé", "é><h", "<", "hé>", "B", ">", "no such text"):
        out, document = run_json(stop=stop, seed=2, **flags)
        out = re.sub("\033\\[[0-9;]*m", "", out)
        if stream:  # the text comes before the time then
            out = re.sub(r"(Text = .*?)\n(Time = \S+)\n", r"\2\n\1\n", out, flags=re.DOTALL)
        out = out.partition("\n\naccepted  resampled")[0] + ("\n" if color else "")
        for decoder, text in zip(("autoregressive", "speculative"), texts(out), strict=True):
            [sample] = document[decoder]["samples"]
            whole = b"".join(long.get(token, encoder.id_to_bytes[token]) for token in sample["tokens"])
            whole = whole.decode("utf-8", "replace")
            assert stop not in text[len(PROMPT) :] and text == PROMPT + sample["text"].translate(display.SHOWN)
            assert sample["text"] == whole.partition(stop)[0]
            assert stop in whole or len(sample["tokens"]) == 30


def patched(encoder, long, load):
    """load_encoder_and_hparams, with some tokens that stand for more bytes."""

    def load_patched(*args):
        encoder, hparams = load(*args)
        encoder.id_to_bytes = encoder.id_to_bytes | long
        return encoder, hparams

    return load_patched


def test_the_end_of_text_is_a_stop(run_json, tiny_pair):
    encoder = get_encoder("target", tiny_pair)
    flags = {"temperature": 3, "quiet": True, "n_tokens_to_generate": 100, "stop": "<|endoftext|>"}
    for seed in range(86, 186):  # seed 88 is the first one whose text ends
        out, document = run_json(seed=seed, **flags)
        for text, decoder in zip(texts(out), ("autoregressive", "speculative"), strict=True):
            [tokens] = tokens_of(document, decoder)
            assert encoder.eot not in tokens[:-1] and (len(tokens) == 100 or tokens[-1] == encoder.eot)
            decoder = StreamDecoder(encoder, "<|endoftext|>")
            assert text == PROMPT + (decoder.push(tokens) + decoder.flush()).translate(display.SHOWN)
        if tokens[-1] == encoder.eot:
            return
    pytest.fail("no text ended")


def test_several_samples(run_json):
    flags = {"temperature": 1, "quiet": True, "n_samples": 3}
    out, document = run_json(**flags)
    assert out.count("Text = ") == 6 and out.count("Time = ") == 2
    for decoder in ("autoregressive", "speculative"):
        samples = tokens_of(document, decoder)
        assert len(samples) == 3 and samples[0] != samples[1] != samples[2] and {len(s) for s in samples} == {12}
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


def test_lenience_is_noted(run):
    assert "Note: with lenience 0.5 the speculative text is not distributed" in run(lenience=0.5, temperature=1)
    assert "Note:" not in run(temperature=1)


def test_k_that_chooses_itself(run):
    out = run(K="auto", n_tokens_to_generate=60)
    assert texts(out)[0] == texts(out)[1] == texts(run(quiet=True, n_tokens_to_generate=60))[0]
    assert "Note: --K auto depends on measured times" in run(K="auto", temperature=1)


@pytest.mark.parametrize("drafter", ["prompt_lookup", "ngram", "prompt_lookup+ngram"])
def test_drafters_that_need_no_second_model_load_none(run, drafter):
    out = run(drafter=drafter, draft_model_size="not-there", quiet=True)
    assert texts(out)[0] == texts(out)[1] == texts(run(quiet=True))[0]


@pytest.mark.parametrize(
    "drafter", ["model/ngram", "model/prompt_lookup", "prompt_lookup+model", "model/ngram/prompt_lookup"]
)
def test_drafters_that_need_one(run, drafter):
    out = run(drafter=drafter, quiet=True)
    assert texts(out)[0] == texts(out)[1] == texts(run(quiet=True))[0]
    with pytest.raises(UserError, match="unknown model size 'not-there'"):
        run(drafter=drafter, draft_model_size="not-there")


def test_the_n_gram_drafter_reads_its_text(run_json, tmp_path):
    """A text that is the answer: what the target will say, so that most of it is accepted."""
    out, document = run_json(drafter="ngram", quiet=True, n_tokens_to_generate=40)
    text = tmp_path / "text"
    text.write_text((texts(out)[0] + "\n") * 50, encoding="utf-8")
    _, better = run_json(drafter="ngram", quiet=True, n_tokens_to_generate=40, ngram_text=text)
    assert tokens_of(better) == tokens_of(document)
    assert better["figures"]["accepted"] > document["figures"]["accepted"]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_stored_in_fewer_bytes(run, monkeypatch, dtype):
    seen = []

    def show_report(o, pair, prompts, runs):
        seen.append(pair.target.weight_bytes)

    monkeypatch.setattr(main, "show_report", show_report)
    run()
    out = run(dtype=dtype, draft_dtype=dtype)
    assert texts(out)[0] == texts(out)[1]
    assert seen[1] < seen[0]


def test_threads(run, monkeypatch):
    for n in (runtime.most_threads(), 1):
        run(threads=n, quiet=True)
        assert runtime.n_threads == n
    with pytest.raises(UserError, match=r"1000000000 threads: this machine has cores for 1 to \d+"):
        run(threads=10**9)


# What is shown


def test_verbose_has_a_row_for_every_iteration_and_every_figure(run_json, monkeypatch):
    monkeypatch.setattr(outcome, "read_bandwidth", lambda **_: 1e10)
    out, document = run_json(verbose=True)
    assert len(re.findall(r"^ \d+ +\d of \d +[\d.]+ ms", out, re.MULTILINE)) == document["figures"]["iterations"]
    for figure in ("r", "α", "c", "β", "predicted, Leviathan", "ceiling", "peak memory"):
        assert re.search(rf"^ {figure}  +\S", out, re.MULTILINE)


def test_color_on_a_terminal(run, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033" not in run(color=True)  # into a pipe
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = run(color=True)
    assert "\033[33m" in out and "\033[32maccepted" in out
    assert "\033" not in run()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in run(color=True)


def test_stream_shows_the_same_text(run):
    out = run(stream=True, quiet=True, n_tokens_to_generate=40)
    streamed = re.findall(r"^Text = (.*?)\nTime = ", out, re.DOTALL | re.MULTILINE)
    assert tuple(streamed) == texts(run(quiet=True, n_tokens_to_generate=40))


def test_json_says_what_was_asked_for(run_json):
    _, document = run_json(K=3, seed=9, quiet=True)
    assert (document["options"]["K"], document["options"]["seed"]) == (3, 9)


# --verify


@pytest.fixture(params=[40])  # draws, of which fewer do where nothing is to be found
def quick_verify(request, monkeypatch):
    monkeypatch.setattr(verifying.verify, "verify", partial(verify.verify, draws=request.param))
    monkeypatch.setattr(verify, "PROMPTS", verify.PROMPTS[:1])


@pytest.mark.parametrize("quick_verify", [10], indirect=True)
@pytest.mark.parametrize(
    "flags",
    [{}, {"temperature": 0.8, "K": "auto"}, {"drafter": "prompt_lookup", "top_k": 5}, {"prompt": "x" * 127, "K": 20}],
)
def test_verify_passes(run, quick_verify, flags):
    out = run(verify=True, n_tokens_to_generate=1, **flags)
    assert out.startswith("Verify\n------\npassed  greedy: ") and "Verdict: no loss found" in out


def test_verify_fails_where_something_is_lost(run, quick_verify, capsys, monkeypatch):
    with pytest.raises(SystemExit) as caught:
        run(verify=True, lenience=0.01)
    assert caught.value.code == 1
    out = capsys.readouterr().out
    assert "FAILED  speculative against the target" in out and out.endswith("for the reasons above.\n")

    def row_dependent(logits, *_):
        return np.eye(logits.shape[1], dtype=np.float32)[(np.argmax(logits, axis=1) + len(logits)) % logits.shape[1]]

    monkeypatch.setattr(filters, "to_distribution", row_dependent)
    with pytest.raises(SystemExit):
        run(verify=True)
    assert "FAILED  greedy" in capsys.readouterr().out


def test_verify_says_where_the_context_is_too_short(run):
    with pytest.raises(UserError, match="--verify with --K 64 decodes 130 tokens, too many for a context of 128"):
        run(verify=True, K=64)
    with pytest.raises(UserError, match="too many for a context of 128"):
        run(verify=True, K=10**17)
    with pytest.raises(UserError, match="--verify with --n_tokens_to_generate 127 decodes 127 tokens, too many"):
        run(verify=True, prompt=None, unconditional=True, n_tokens_to_generate=127)


# Refused before the weights are read


@pytest.fixture
def no_weights(monkeypatch):
    monkeypatch.setattr(load, "load_params", lambda *args, **_: pytest.fail("weights were read"))


@pytest.mark.parametrize(
    "flags", [{"n_tokens_to_generate": 117}, {"prompt": "x" * 117}, {"n_tokens_to_generate": 10**17}]
)
def test_more_than_the_context(run, no_weights, flags):
    with pytest.raises(UserError, match="exceed the context of 128 tokens: shorten the prompt or lower --n_tokens"):
        run(**{"prompt": "x" * 12} | flags)


def test_the_shorter_context_counts(run, no_weights, tiny_pair, tmp_path):
    copy_pair(tiny_pair, tmp_path, n_ctx=64)
    with pytest.raises(UserError, match="exceed the context of 64 tokens"):
        run(models_dir=tmp_path, n_tokens_to_generate=60)


def test_different_vocabularies(run, no_weights, tiny_pair, tmp_path):
    copy_pair(tiny_pair, tmp_path)
    vocab = (tmp_path / "draft" / "encoder.json").read_text()
    swapped = vocab.replace('"the": 257', '"the": 258').replace('"in": 258', '"in": 257')
    assert vocab != swapped
    (tmp_path / "draft" / "encoder.json").write_text(swapped)
    with pytest.raises(UserError, match="draft and target have different vocabularies, so one cannot draft"):
        run(models_dir=tmp_path)
    assert run_is_fine_without_a_draft_model(run, tmp_path)


def run_is_fine_without_a_draft_model(run, models_dir):
    with pytest.raises(pytest.fail.Exception, match="weights were read"):
        run(models_dir=models_dir, drafter="ngram")
    return True


def test_more_than_the_memory(run, no_weights, monkeypatch):
    monkeypatch.setattr(checks.memory, "available", lambda: 400_000)
    with pytest.raises(UserError, match=r"the models need 0\.0 GB of memory, and 0\.0 GB are free"):
        run()


def test_memory_that_runs_out(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(exits.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        main.run(lambda: np.empty(2**60, np.int8), "")
    assert caught.value.code == 2
    assert (
        capsys.readouterr().err
        == "error: the memory is full: a smaller model needs less, and so does --dtype int8 where there is one\n"
    )


def copy_pair(tiny_pair, folder, **hparams):
    for model in ("target", "draft"):
        (folder / model).mkdir()
        for path in (tiny_pair / model).iterdir():
            (folder / model / path.name).write_bytes(path.read_bytes())
    path = folder / "draft" / "hparams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | hparams))


def test_without_numba_numpy_multiplies(run, monkeypatch):
    with_kernels = texts(run(quiet=True))
    monkeypatch.setattr(cpu, "has_numba", lambda: False)
    assert texts(run(quiet=True)) == with_kernels
