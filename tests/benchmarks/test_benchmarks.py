"""python -m benchmarks: every command on the bundled pair with the smallest numbers, and the sums behind the tables."""

import json
import re
import shlex
from contextlib import nullcontext
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from checkpoint_files import MODELS
from tiny import ROOT, refusal, with_values

from benchmarks import __main__ as index
from benchmarks import full_size, grid, pages, quiet, race, results, runs, theory
from gpt2 import gpt2
from speculative import load_pair
from speculative.checkpoints.folder import load_params
from speculative.checkpoints.weights import checkpoint_shapes, nested
from speculative.cli import command
from speculative.report.run import Run
from speculative.support.errors import UserError
from training.__main__ import new_parser

SMALL = f"--busy --n_tokens 6 --n_prompts 1 --repeats 1 --prompts {runs.PROMPTS['prose']}"
TINY = "--models_dir PAIR --target_model_size target --draft_model_size draft"
WORDS = {  # {command: the smallest numbers}
    "sweep": f"{SMALL} --K 2 2,1 --out OUT",
    "rules": f"{SMALL} --K 2",
    "figure1": f"{SMALL} --K 2 --out OUT",
    "table1": f"{SMALL} --K 2",
    "lenience": f"{SMALL} --K 2 --accept token lenient:0.5",
    "theory": "--run OUT/run.json --out OUT/theory.png",
    "race": "OUT/run.json OUT/race.svg",
    "experts": "--T 5 --draws 20",
    "walkthrough": "",
    "kernels": "tiny-draft --rounds 1 --memory 0.01 --dtypes NumPy int8",
    "blog": "--help",
    "public": "--help",
    "prices": "--n_prompts 1 --n_tokens 6 --costs zen4 --settings model:4 int8/model:auto",
    "start": "--repeats 1 --dtypes int8",
    "results": "--busy --target_model_size tiny-target --n_prompts 1 --n_tokens_to_generate 6",
    "full_size": "--help",
    "output": "--help",
    "pages": "--help",
    "batches": "--busy --texts 1 2 --K 2 --n_tokens 4 --rounds 1",
    "cores": "tiny-draft --rounds 1 --memory 0.01 --dtypes int8 --threads 1 2",
    "accelerator": f"{TINY} --rounds 1 --memory 0.01 --n_tokens 4 --rows 1 5",
}


def test_every_command_is_among_them():
    assert {*index.FILES, *grid.PRESETS} == WORDS.keys()
    assert "is not a benchmark" in refusal(index.main, ["nonsense"])
    assert refusal(index.main, ["kernel"]).endswith("; did you mean kernels?")


def description(picture):
    return pytest.importorskip("PIL.Image").open(picture).text["Description"]


@pytest.mark.parametrize("name", WORDS)
def test_every_command_runs(name, pair, tiny_pair, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    if "run.json" in WORDS[name]:
        pair.changed(temperature=1).compare("It was", 20).json(tmp_path / "run.json")
    monkeypatch.setattr(race, "trouble", lambda figures: None)  # other tests may run at the same time
    words = WORDS[name].replace("OUT", str(tmp_path)).replace("PAIR", str(tiny_pair)).split()
    with pytest.raises(SystemExit) if "--help" in words else nullcontext():
        index.main([name, *words])
    pictures = [*tmp_path.glob("*.png"), *tmp_path.glob("*.svg")]
    assert len(pictures) == ("OUT" in WORDS[name])
    for picture in tmp_path.glob("*.png"):
        kept = ROOT / "docs" / picture.name
        assert not kept.exists() or description(picture) == description(kept), f"python -m benchmarks pages {name}"
    shown = capfd.readouterr().out
    assert shown or pictures
    assert re.findall(r"(?i)texts that differ .*: (\d+)", shown) in ([], ["0"])


def numbers_of_race(svg):
    """Return K, and the calls of the target, the seconds and the speedup that a picture's title tells."""
    title = re.search(r"<title>(.*)</title>", svg)[1]
    K = int(re.search(r"K = (\d+)", title)[1])
    calls = [int(n) for n in re.findall(r"(\d+) calls of the target", title)]
    seconds = [float(n) / (1000 if unit else 1) for n, unit in re.findall(r"target, ([\d.]+) (m?)s", title)]
    return K, calls, seconds, float(re.search(r"([\d.]+) times as fast", title)[1])


def check_race(svg):
    K, (n_tokens, n_calls), (plain, speculative), speedup = numbers_of_race(svg)
    assert n_tokens <= (K + 1) * n_calls  # a call gives at most K + 1 tokens
    assert speedup == pytest.approx(plain / speculative, rel=0.01)
    assert speedup <= 1.05 * n_tokens / n_calls
    assert f"{speedup:.2f} times as fast</text>" in svg
    assert len(re.findall(r'fill="var\(--target\)"', svg)) == n_tokens + n_calls + 1  # and the key


def with_times(decoder, seconds):
    """Return a decoder's record as if each of its steps had been one call of the target, of this time."""
    [sample] = decoder.samples
    steps = [replace(step, seconds=seconds, calls=[("target", 0.0, seconds)]) for step in sample.iterations]
    return replace(decoder, samples=[replace(sample, iterations=steps)])


def with_clock(record, plain, speculative):
    """Return a run with these seconds for a call of each decoder."""
    decoders = with_times(record.autoregressive, plain), with_times(record.speculative, speculative)
    speedup = plain * len(decoders[0].steps) / (speculative * len(decoders[1].steps))
    figures = with_values(record.figures, speedup=speedup)
    return replace(record, autoregressive=decoders[0], speculative=decoders[1], figures=figures)


def test_the_numbers_of_a_race_agree(pair):
    record = pair.compare("It was", 20).record
    check_race(race.race(with_clock(record, 0.02, 0.021)))
    with pytest.raises(AssertionError):  # as a picture of docs once was
        check_race(race.race(with_clock(record, 0.03, 0.01)))


def test_the_numbers_of_the_picture_agree():
    svg = (ROOT / "docs" / "race.svg").read_text(encoding="utf-8")
    if "K = " not in svg:
        pytest.skip("the picture is older than its K: python -m benchmarks pages race.svg")
    check_race(svg)


def test_a_disturbed_run_is_decoded_again_and_then_refused(pair, tmp_path, capsys, monkeypatch):
    troubles = iter(["waited", "waited", None])
    assert quiet.undisturbed(lambda: next(troubles), lambda reason: reason) is None
    assert capsys.readouterr().err.count("disturbed, try") == 2
    assert "4 runs were disturbed, the last as waited" in refusal(quiet.undisturbed, lambda: 0, lambda _: "waited")
    assert quiet.undisturbed(lambda: 0, lambda _: "waited", busy=True) == 0
    for waited, reason in ((0.0, None), (9.0, "the threads waited 9 s for cores that other programs used")):
        monkeypatch.setattr(quiet, "seconds_waited", count(0.0, waited).__next__)
        assert quiet.with_waits(lambda: 5) == (5, reason)
    run = pair.compare("It was", 20)
    record = replace(run.record, figures=with_values(run.record.figures, doubt="too fast"))
    Run(record).json(tmp_path / "run.json")
    line = refusal(index.main, ["race", str(tmp_path / "run.json"), str(tmp_path / "race.svg")])
    assert "run.json is not drawn: too fast" in line
    assert not (tmp_path / "race.svg").exists()


def test_the_decodes_of_results_are_compared():
    plain, twice = results.Decode(4.0, [1] * 8, 8, 0.0), results.Decode(2.0, [1] * 8, 4, 0.0)
    assert results.trouble_of({"autoregressive": plain, "default": twice}) is None
    assert "do not allow" in results.trouble_of({"autoregressive": plain, "default": twice._replace(seconds=1.0)})
    assert "waited 1 s" in results.trouble_of({"autoregressive": plain, "default": twice._replace(waited=1.0)})


THEIRS = """
import sys
import fire
sys.path.append("picoGPT")
from gpt2 import GPT2
from utils import load_encoder_hparams_and_params

def main(prompt, n_tokens_to_generate, draft_model_size, target_model_size, models_dir):
    encoder, *_ = load_encoder_hparams_and_params(target_model_size, models_dir)
    for name in ("Autoregressive", "Speculative"):
        print(f"{name} Decode\\n---\\nTime = 3.00s\\nText = {prompt}{GPT2}\\n")

fire.Fire(main)
"""  # as the blog's, without a model


def test_the_blogs_code_runs_beside_ours(pair, tmp_path, capfd):
    (tmp_path / "picoGPT").mkdir()
    (tmp_path / "main.py").write_text(THEIRS, encoding="utf-8")
    first = next(pair.autoregressive("It was", 8)).text
    (tmp_path / "picoGPT" / "gpt2.py").write_text(f"GPT2 = {first!r} + '!'", encoding="utf-8")
    words = "--n_tokens_to_generate 8 --draft_model_size tiny-draft --target_model_size tiny-target --prompt"
    index.main(["blog", str(tmp_path), *words.split(), "It was", "--beside", "sleep 0.1"])
    table, lines = capfd.readouterr().out.split("\nours: ")
    assert re.search(r"the blog's +3.00 +3.00 +1.00 +\d+\.\d\d\n +ours .*\n.*\n +sleep +0\.[1-9]\d$", table)
    assert lines.count(f"is another one from token {len(pair.encode('It was')) + 2} on\n") == 2


def test_the_tables_of_a_page_are_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("a\n```sh\npython -c \\\n    'print(1 + 1)'\n```\n\n```text\nold\n```\nb\n```sh\npython\n```\n")
    pages.main(["page"])
    new = page.read_text()
    assert new == "a\n```sh\npython -c \\\n    'print(1 + 1)'\n```\n\n```text\n2\n```\nb\n```sh\npython\n```\n"
    page.write_text(new.replace("1 + 1", "1 / 0"))
    for name in ("page", "none"):
        with pytest.raises(UserError, match=r"status 1; the page is as it was|none is neither"):
            pages.main([name])
    assert page.read_text() == new.replace("1 + 1", "1 / 0")


def commands_of_the_pages():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8").replace("\\\n", " ") for page in pages)
    found = re.findall(r"python (main\.py|-m \w+) (\S[^`\n]*)", text)
    return sorted({(program, re.split(r' && | \|| > |  +(?![- ])| \.\.\.(?!")', words)[0]) for program, words in found})


@pytest.mark.parametrize(("program", "words"), commands_of_the_pages())
def test_the_commands_of_the_pages_are_understood(program, words, monkeypatch):
    """Flags are parsed; nothing is measured."""

    def measure(o):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "measure", measure)
    name, *flags = words = shlex.split(words)
    if program == "main.py":
        command.read_options(command.read_command("", words))
    elif program == "-m training":
        new_parser().parse_args(words)
    elif program == "-m benchmarks" and name in grid.PRESETS:
        with pytest.raises(KeyboardInterrupt):
            grid.main(name, flags)
    else:
        assert program != "-m benchmarks" or name in WORDS


def test_the_tables_of_the_walkthrough_are_those_of_the_page(capsys):
    """The last digit of a number may differ, as another processor rounds it."""
    index.main(["walkthrough"])
    page = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    kept = [line for line in page if line.startswith("| `")]
    assert len(lines) == len(kept) == 18
    number = r"\d+\.\d+"
    for line, its in zip(lines, kept, strict=True):
        assert re.split(number, line) == re.split(number, its)
        found = [[*map(float, re.findall(number, text))] for text in (line, its)]
        assert found[0] == pytest.approx(found[1], abs=0.0101)


# ---- The grid --------------------------------------------------------------------------------------------------------


def test_an_interrupted_grid_continues(tmp_path, monkeypatch):
    measured = []

    def run(session, prompt, N, setting):
        if len(measured) == stop:
            raise KeyboardInterrupt
        measured.append((setting.K, setting.seed))
        tokens = {"plain_tokens": [1, 2], "spec_tokens": [1, 2], "trouble": None}
        return tokens | dict.fromkeys((*runs.FIGURES, "plain_text_ms", "spec_text_ms", "speedup"), 1.0)

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr(runs, "load", lambda o, drafters: None)
    words = f"--prompts {runs.PROMPTS['prose']} --drafters model --K 2 4 --repeats 2 --n_prompts 1".split()
    words += ["--settings", "0", "--accept", "token", "--out", str(tmp_path)]
    stop = 5  # the first two are not counted
    with pytest.raises(KeyboardInterrupt):
        grid.main("rules", words)
    stop = None
    before, measured[:] = measured[2:], []
    grid.main("rules", words)
    assert sorted([*before, measured[-1]]) == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert len(measured) == 2  # one of which is not counted


def row(K, speedup, repeat=0, r=0.5, iterations=10, tokens=(1, 2)):
    kind = {"temperature": 0.0, "top_p": None, "domain": "prose", "drafter": "model", "accept": "token", "K": K}
    texts = {"plain_text_ms": 1.0, "spec_text_ms": 1.0, "plain_tokens": [1, 2], "spec_tokens": [*tokens], "prompt": "a"}
    return kind | texts | {"speedup": speedup, "repeat": repeat, "r": r, "iterations": iterations}


def test_a_line_is_the_median_speedup_and_counts_each_greedy_text_once():
    rows = [row(2, 1.0), row(2, 9.0, repeat=1), row(2, 2.0, r=0.7, iterations=20, tokens=(1, 3)), row(4, 3.0)]
    two, four = grid.summarise(rows)
    assert (two["speedup"], two["runs"], two["texts"], two["unlike"]) == (2.0, 3, 2, 1)
    assert two["r_error"] == pytest.approx(0.1)
    assert (four["speedup"], four["r_error"]) == (3.0, None)


@pytest.mark.parametrize(("alpha", "c", "K"), [(0.3, 0.5, 0), (0.99, 0.001, 16), (0.5, 0.499, 1), (0.8, 0.1, 6)])
def test_the_best_lookahead_is_that_of_the_formula(alpha, c, K):
    assert theory.best_lookahead(alpha, c) == K


# ---- Full size -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_embd", [40, 64, 72, 104])  # repeated once and 8 or 32 left over, twice and 8, thrice and 8
def test_a_grown_model_gives_the_same_logits(tiny_hparams, tiny_arrays, n_embd):
    new = {"n_vocab": 300, "n_ctx": 24, "n_embd": n_embd, "n_head": n_embd // 8, "n_layer": 4}
    padding = full_size.Grown(tiny_hparams, new)
    tensors = {name: padding.pad(name, tiny_arrays.get(name)) for name in checkpoint_shapes(new)}
    assert {name: array.shape for name, array in tensors.items()} == checkpoint_shapes(new)
    x = np.random.default_rng(0).integers(0, 260, 16)
    small = gpt2(x, **nested(tiny_arrays), n_head=4)  # [16, 260]
    grown = gpt2(x, **nested(tensors), n_head=new["n_head"])  # [16, 300]
    np.testing.assert_allclose(grown[:, :260], small, rtol=0, atol=1e-5 * np.abs(small).max())
    np.testing.assert_allclose(grown[:, 260:], -200, rtol=1e-5)


def test_a_grown_folder_decodes_the_same_text(tmp_path):
    shape = {"n_vocab": 2500, "n_ctx": 300, "n_embd": 448, "n_head": 7, "n_layer": 2}
    full_size.grow_model(MODELS / "tiny-draft", tmp_path / "large", shape)
    large, small = (
        load_pair(target_model_size=name, models_dir=str(folder), drafter="ngram")
        for name, folder in (("large", tmp_path), ("tiny-draft", MODELS))
    )
    assert load_params(str(tmp_path / "large"), shape)["wte"].shape == (2500, 448)
    for prompt in ('"From the first, two facts', "naïve café — 中文 🙂\n"):
        assert large.encode(prompt) == small.encode(prompt)
        assert large.compare(prompt, 20).text == small.compare(prompt, 20).text


WRONG_WORDS = [
    ("kernels --rounds 0", "argument --rounds: '0' should be a whole number of at least 1"),
    ("batches --texts 0", "argument --texts: '0' should be a whole number of at least 1"),
    ("results --n_prompts many", "argument --n_prompts: 'many' should be a whole number of at least 1"),
    ("prices --settings model", "'model' should be DRAFTER:K, such as model:4 or int8/model:auto"),
    ("prices --settings model:", "'model:' should be DRAFTER:K, such as model:4 or int8/model:auto"),
    ("race README.md race.svg", "README.md is not a run"),
    ("theory --run README.md", "README.md is not a run"),
    ("race EMPTY race.svg", "EMPTY is not a run"),
    ("kernels --dtypes int3", "invalid choice: 'int3'"),
]


@pytest.mark.parametrize(("words", "said"), WRONG_WORDS)
def test_wrong_words_are_one_line(words, said, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    demo = json.loads((ROOT / "docs" / "demo.json").read_text(encoding="utf-8"))
    (tmp_path / "EMPTY").write_text(json.dumps(demo | {"prompts": []}))
    words = words.replace("EMPTY", str(tmp_path / "EMPTY"))
    line = refusal(index.main, words.split())
    assert said in line
    assert "\n" not in line
