"""The way in from Python: load_pair, what its pair decodes, and what a run shows of itself."""

import html
import json
import re
import sys
from dataclasses import dataclass
from itertools import zip_longest
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import ROOT, decoded, python, refusal

import speculative
from speculative import load_pair
from speculative.measure.page import page
from speculative.measure.record import Counted, Iteration
from speculative.measure.recorder import Recorder
from speculative.sampling import autoregressive_sampling
from speculative.session import Session

PROMPT = "the thing in"


@pytest.fixture
def load(tiny_pair):
    return lambda **flags: load_pair("draft", "target", models_dir=tiny_pair, **{"threads": 1} | flags)


def greedy_text(pair, prompt, n):
    """The text that the target alone goes on with."""
    x = pair.encode(prompt)
    steps = autoregressive_sampling(x, pair.pair.target, n, np.random.default_rng(0))
    return pair.encoder.decode(decoded(steps))


def text_of(steps):
    return "".join(step.text for step in steps)


# ---- What is decoded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"K": "auto"}, {"tree": (2, 2, 1)}, {"drafter": "prompt_lookup+model"}])
def test_both_give_the_targets_text_and_may_be_given_up(load, flags):
    pair = load(**flags)
    next(pair.speculative("something else", 20))
    speculative, plain = list(pair.speculative(PROMPT, 30)), list(pair.autoregressive(PROMPT, 30))
    assert len(decoded(speculative)) == 30 == len([step for step in plain if step.tokens])
    assert text_of(speculative) == text_of(plain) == greedy_text(pair, PROMPT, 30)
    for step in speculative:
        assert len(step.tokens) == len(step.pieces) == len(step.origins)
        assert step.text == "".join(step.pieces) or not step.tokens


# ---- Flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"k": 4}, "unknown flag --k: did you mean --K?"),
        ({"K": (8, 0), "drafter": "model/ngram"}, "--K must be a whole number of at least 1, or auto; with levels one"),
        ({"tree": [2, 2], "K": 5}, "--K and --tree cannot be combined: give one of them"),
        ({"stop": ["a", "b"]}, "--stop must be one value, not \"['a', 'b']\""),
        ({"html": "a.html"}, "unknown flag --html: see --help"),
    ],
)
def test_flags_are_checked_as_the_command_lines_are(load, flags, line):
    assert refusal(load, **flags).startswith(line)


def test_texts_are_checked_and_numbers_may_be_typed(load):
    pair = load()
    too_long = "the prompt's 200 tokens and 40 more exceed the context of 128 tokens"
    for decode in (pair.compare, pair.speculative):  # at the call, and not at the first step
        assert refusal(decode, "x" * 200, 40).startswith(too_long)
        assert refusal(decode, PROMPT, 0).startswith("--n_tokens_to_generate must be a whole number")
        assert refusal(decode, PROMPT, "many").startswith("--n_tokens_to_generate must be a whole number")
        assert refusal(decode, 5, 4) == "the prompt must be a text, not 5"
    for sample in (-1, "x", 1.5, None):
        assert refusal(pair.speculative, PROMPT, 4, sample=sample).startswith("sample must be a whole")
    assert "a tree of 14 nodes" in refusal(load(tree="2,2,2").compare, "x" * 100, 20)  # its nodes do not fit
    tokens = decoded(pair.speculative(PROMPT, 4))
    assert decoded(pair.speculative(PROMPT, "4", sample="0")) == tokens
    assert pair.compare(PROMPT, "4").document["speculative"]["samples"][0]["tokens"] == tokens


def test_flags_change_and_the_models_stay(load):
    pair = load(K=2)
    other = pair.changed(K="8/2", temperature="0.7", drafter="model/ngram")
    assert (other.options.K, other.options.temperature, other.options.drafter) == ((8, 2), 0.7, "model/ngram")
    assert other.pair.target.params is pair.pair.target.params
    fresh = load(K=(8, 2), temperature=0.7, drafter="model/ngram")  # as Python writes 8/2
    for decoder in ("speculative", "autoregressive"):
        assert list(getattr(other, decoder)(PROMPT, 30)) == list(getattr(fresh, decoder)(PROMPT, 30))
    back = other.changed(K=None, temperature=None, drafter=None)
    defaults = (4, 0.0, "model")  # and not what was given
    assert (back.options.K, back.options.temperature, back.options.drafter) == defaults
    assert pair.options.K == 2
    assert list(pair.speculative(PROMPT, 30)) == list(load(K=2).speculative(PROMPT, 30))


def test_two_that_share_their_models_decode_by_turns(load):
    pair = load(K=2)
    prompts = (PROMPT, "inn or tin")
    expected = [text_of(pair.speculative(prompt, 20)) for prompt in prompts]
    by_turns = zip_longest(pair.speculative(prompts[0], 20), pair.changed(K=3).speculative(prompts[1], 20))
    pieces = [[step.text if step else "" for step in steps] for steps in zip(*by_turns, strict=True)]
    assert ["".join(text) for text in pieces] == expected


def test_what_cannot_change_and_a_drafter_that_needs_a_model_more_loads_it(load):
    pair = load(drafter="ngram")
    for name in ("dtype", "target_model_size", "models_dir", "engine", "threads"):
        assert refusal(pair.changed, **{name: "int8"}).startswith(f"--{name} cannot change while models are loaded")
    assert refusal(pair.changed, top_k=0).startswith("--top_k must be")
    for first, then in (({"accept": "block"}, {"tree": "2,1"}), ({"tree": "2,1"}, {"accept": "block"})):
        assert "block" in refusal(pair.changed(**first).changed, **then)
    assert refusal(pair.changed, tok_k=0) == "unknown flag --tok_k: did you mean --top_k?"
    assert "draft" not in pair.pair.models
    other = pair.changed(drafter="model")
    assert other.pair.target.params is pair.pair.target.params
    assert list(other.speculative(PROMPT, 20)) == list(load().speculative(PROMPT, 20))
    again = pair.changed(drafter="ngram").changed(drafter="model")  # and it stays
    assert again.pair.models["draft"].params is other.pair.models["draft"].params


def test_a_function_drafts(load):
    def echo(x, k):
        return [x[-1]] * k, np.eye(260)[[x[-1]] * k]

    run = load(drafter=echo).compare(PROMPT, 30)
    assert run.text == run.autoregressive == load().compare(PROMPT, 30).text
    iterations = run.document["speculative"]["samples"][0]["iterations"]
    assert {name for i in iterations for name in i["by"]} == {"echo"}
    assert load().changed(drafter=echo).options.drafter == "echo"  # it has one name


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (lambda x, k: ([1] * (k + 1), np.eye(260)[[1] * (k + 1)]), "proposes 5 tokens, and 4 were asked for"),
        (lambda x, k: ([1], np.ones((1, 5))), "gives p of shape (1, 5) for 1 tokens: it should be (1, 260)"),
        (lambda x, k: ([1], []), "gives p of shape (0,) for 1 tokens"),
        (lambda x, k: None, "should give (tokens, p): cannot unpack"),
        (lambda x, k: ([1.5], np.eye(260)[[1]]), "[1.5] are no ids of tokens"),
        (lambda x, k: (["1"], np.eye(260)[[1]]), "['1'] are no ids of tokens"),
        (lambda x, k: ([260], np.eye(260)[[1]]), "proposes the token 260: ids go from 0 to 259"),
        (lambda x, k: ([-1], np.eye(260)[[1]]), "proposes the token -1"),
        (lambda x, k: ([1], np.full((1, 260), np.nan)), "p that is no distribution"),
        (lambda x, k: ([1], -np.eye(260)[[1]]), "p that is no distribution"),
        (lambda x, k: ([1], np.eye(260)[[1]] / 2), "p that is no distribution"),
        (lambda x, k: ([1], np.eye(260)[[1]].astype(str)), "should give (tokens, p): Cannot cast"),
        (lambda x, k: ([1], np.eye(260)[[2]]), "proposes a token whose p is 0"),
    ],
)
def test_what_a_function_proposes_is_checked(load, given, line):
    assert line in refusal(list, load(drafter=given).speculative(PROMPT, 20))


def test_a_function_may_write_to_its_x_and_give_lists_or_whole_numbers(load):
    def careless(x, k):
        token = float(x[-1])
        x[:] = 0
        return [token] * k, np.eye(260, dtype=int)[[int(token)] * k].tolist()

    for accept in ("token", "block"):
        pair = load(drafter=careless, accept=accept)
        assert text_of(pair.speculative(PROMPT, 20)) == greedy_text(pair, PROMPT, 20)


def test_a_function_may_decode_with_a_session_itself():
    program = """
from speculative import load_pair

pair = load_pair(demo=True, threads=1)


def draft(x, k):
    next(pair.autoregressive("It", 1))
    return [], []


print("".join(step.text for step in pair.changed(drafter=draft).speculative("It was", 3)))
print("".join(step.text for step in pair.autoregressive("It was", 3)))
"""
    speculative, plain = python("-c", program, timeout=100).stdout.splitlines()  # else it waits for ever
    assert speculative == plain


def test_a_dataclass_that_can_be_called_drafts(load):
    @dataclass
    class Echo:  # equal ones are equal, so it has no hash
        n_vocab: int

        def __call__(self, x, k):
            return [x[-1]] * k, np.eye(self.n_vocab)[[x[-1]] * k]

    pair = load(drafter=Echo(260))
    assert text_of(pair.speculative(PROMPT, 20)) == greedy_text(pair, PROMPT, 20)


# ---- A run -----------------------------------------------------------------------------------------------------------


def test_a_run(load, tmp_path):
    run = load(K=3).compare(PROMPT, 30)
    assert run.text == greedy_text(load(), PROMPT, 30)
    sample = run.document["speculative"]["samples"][0]
    assert run.r == pytest.approx(30 / sum(i["drafted"] + 1 for i in sample["iterations"]))
    seconds = [run.document[name]["seconds"] for name in ("autoregressive", "speculative")]
    assert run.speedup == pytest.approx(seconds[0] / seconds[1])
    assert str(run).startswith(f"Speedup = {run.speedup:.2f}x")
    assert run.document["prompt"]["text"] == PROMPT
    assert run.document["options"]["n_tokens_to_generate"] == 30
    run.page(tmp_path / "run.html")
    run.json(tmp_path / "run.json")
    assert page(run.document) == (tmp_path / "run.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == run.document
    assert "is a folder" in refusal(run.page, tmp_path)


def test_of_several_decodes_the_one_of_the_middle_time_is_kept():
    """The demo decodes as often as makes half a second; a text that measured times have changed does not count."""
    decodes = iter([(0.3, 5), (0.01, 6), (0.05, 5), (0.15, 5), (9.0, 5)])

    def texts(decode_fn, prompts, N, n_samples, recorder):
        recorder.seconds, token = next(decodes)
        recorder.samples = [[Iteration(Counted([token], 0, 0))]]
        return iter([])

    options = SimpleNamespace(demo=True, n_tokens_to_generate=1, n_samples=1)
    session = SimpleNamespace(options=options, recorder=lambda details: Recorder(), texts=texts)
    first = Recorder()
    texts(None, ["a"], 1, 1, first)
    middle = Session.middle_decode(session, None, ["a"], first)
    assert (middle.seconds, middle.decodes) == (0.15, 3)
    options.demo = False
    assert Session.middle_decode(session, None, ["a"], first) is first


def test_a_run_shows_itself_in_a_frame(load):
    run = load().compare("</iframe>\"'<script>alert(1)</script>", 9)
    frame = run._repr_html_()
    assert re.fullmatch(r"<iframe [^<>]*></iframe>", frame)  # whatever is in it is quoted
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == run.html()
    assert 'sandbox="allow-scripts allow-popups"' in frame


def test_what_watches_a_run_sees_each_step(load):
    seen = []
    run = load().compare(PROMPT, 20, lambda name, step, recorder: seen.append((name, step, recorder)))
    for name in ("autoregressive", "speculative"):
        tokens = [token for seen_name, step, _ in seen if seen_name == name for token in step.tokens]
        assert tokens == run.document[name]["samples"][0]["tokens"]
    assert all(isinstance(recorder, Recorder) for _, _, recorder in seen)

    def enough(name, step, recorder):
        raise StopIteration

    pair = load()
    with pytest.raises(StopIteration):
        pair.compare(PROMPT, 20, enough)
    assert pair.compare(PROMPT, 20).text == run.text


# ---- The package -----------------------------------------------------------------------------------------------------


def test_the_package_is_light_and_gives_load_pair_alone():
    out = python("-c", "import sys, speculative.sampling; print(*sys.modules)").stdout
    ours = [name for name in out.split() if name.startswith(("speculative", "encoder", "gpt2", "tqdm"))]
    assert ours == ["speculative.version", "speculative", "speculative.sampling"]
    assert speculative.__all__ == ["__version__", "load_pair"]
    with pytest.raises(AttributeError, match="has no attribute 'load_pears'"):
        _ = speculative.load_pears


@pytest.mark.slow
def test_in_a_notebook(tiny_pair):
    """A real kernel: a run shows its page, and bad input its one line."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import AsyncKernelManager

    flags = f"models_dir={str(tiny_pair)!r}, threads=1"
    cells = [
        f"from speculative import load_pair\npair = load_pair('draft', 'target', {flags})",
        "pair.compare('the thing in', 9)",
        "pair.changed(K=0)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    kernel = AsyncKernelManager()
    kernel.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    where = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(notebook, km=kernel, allow_errors=True, resources=where).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    [shown] = [output for output in outputs[1] if output.output_type == "execute_result"]
    assert "<iframe " in shown.data["text/html"]
    assert shown.data["text/plain"].startswith("Speedup = ")
    assert not [output for output in outputs[1] if output.output_type == "stream" and output.text.strip()]
    assert "IProgress" not in str(outputs)
    [failed] = outputs[2]
    assert failed.ename == "UserError"
    assert failed.evalue.startswith("--K must be a whole number of at least 1, or auto")
