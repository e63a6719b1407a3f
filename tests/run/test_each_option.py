"""Each option changes the run of main.py: what is printed and written with it, beside the same run without it."""

import re
from itertools import count
from typing import NamedTuple

import pytest

from speculative.checkpoints import folder
from speculative.cli import display, modes
from speculative.report import turns
from speculative.run import load
from speculative.run.options import DEMO, FIELDS


class Row(NamedTuple):
    """An option, as it is typed."""

    words: str
    shows: str  # stands in the output with it, and not in that without it; "" if the output is another one
    beside: str = ""  # other words, in both runs

    @property
    def option(self) -> str:
        return self.words.removeprefix("--").partition("=")[0]


QUIET = "--quiet"  # so that nothing but the texts can differ
WARM = "--quiet --temperature=1"
ON_JAX = "--engine=jax --quiet --only=autoregressive --n_tokens_to_generate=1"
ROWS = [
    Row("--draft_model_size=target", "draft target in int8"),
    Row("--target_model_size=draft", "Target draft in float32"),
    Row("--models_dir=nowhere", "nowhere/target"),
    Row("--n_tokens_to_generate=4", "", QUIET),
    Row("--K=9", " 0 of 9 ", "--verbose"),
    Row("--temperature=1", "", QUIET),
    Row("--seed=5", "", WARM),
    Row("--demo", 'Text = "From the first, two facts', QUIET),
    Row("--stop=h", "", QUIET),
    Row("--special", "Speculative Decode", f"--quiet --n_tokens_to_generate=2 --prompt={'a<|endoftext|>' * 12}"),
    Row("--top_k=1", "", WARM),
    Row("--top_p=0.01", "", WARM),
    Row("--min_p=1", "", WARM),
    Row("--eta=0.9", "", WARM),
    Row("--accept=lenient:0.01", "--accept lenient:0.01 does not keep the target's distribution", "--temperature=1"),
    Row("--drafter=ngram", "Target target in float32.\n"),
    Row("--fast", "--fast is short for --drafter"),
    Row("--draft_temperature=9", "", WARM),
    Row("--tree=3,2", " 0 of 9 ", "--verbose"),
    Row("--ngram_text=nowhere.txt", "from nowhere.txt", "--drafter=ngram"),
    Row("--dtype=int8", "Target target in int8"),
    Row("--draft_dtype=float32", "draft draft in float32"),
    Row("--threads=1", ", 1 thread."),
    Row("--source=nowhere:1", "nowhere:1", "--target_model_size=124M"),
    Row("--refresh", "refreshed", "--quiet --draft_model_size=of_hub/draft"),
    Row("--engine=numpy", "NumPy (gpt2.py)"),
    Row("--mesh=99", "99 devices", ON_JAX),
    Row(
        "--data_parallel=2",
        "--batch must be a multiple of it",
        ON_JAX,
    ),
    Row("--batch=2", "", QUIET),
    Row("--prompt=another", "Text = another", QUIET),
    Row("--prompt_file=nowhere.txt", "from nowhere.txt", QUIET),
    Row("--n_samples=2", "", WARM),
    Row("--only=speculative", "A tested draft is accepted"),
    Row("--quiet", ""),
    Row("--text", ""),
    Row("--verbose", "peak memory"),
    Row("--stream", "---\nText = ", QUIET),
    Row("--json=run.json", "Wrote run.json"),
    Row("--html=run.html", "Wrote run.html"),
    Row("--verify", "calls verify"),
    Row("--score=text.txt", "calls score"),
    Row("--interactive", "calls interact"),
    Row("--serve=9000", "calls serve 9000"),
    Row("--pack", "calls pack"),
]


WITHOUT: dict[str, str] = {}  # {words: the output of the run with these alone}, which many rows share


@pytest.fixture
def output(command, pair_words, monkeypatch, tmp_path):
    """words -> all that main.py prints, without its times."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(display, "MOST_COLUMNS", 10_000)  # no line wraps, however long the engine's name is
    monkeypatch.setenv("COLUMNS", "10000")
    (tmp_path / "text.txt").write_text("the thing in")
    for name in ("verify", "interact", "pack", "score", "show_score"):
        monkeypatch.setattr(modes, name, lambda *given, name=name, **more: print("calls", name))
    monkeypatch.setattr(load, "find_files", find_files)

    def output(words):
        given = {word.partition("=")[0] for word in words}
        usual = [word for word in pair_words if word.partition("=")[0] not in {*given, "--threads"}]
        if "--n_tokens_to_generate" not in given:
            usual.append("--n_tokens_to_generate=12")
        _, out, err = command(*usual, *words)
        return re.sub(r"\d+\.\d+ m?s", "# s", out + err)

    return output


def find_files(size, *given, refresh=False, **how):
    """The same, which prints whether a newer model is asked for. of_hub/draft is the draft."""
    if refresh:
        print("refreshed")
    return folder.find_files(size.removeprefix("of_hub/"), *given, **how)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words)
def test_an_option_changes_the_run(row, output, monkeypatch):
    if row.beside == ON_JAX:
        pytest.importorskip("jax")
    if row.option == "serve":
        workbench = pytest.importorskip("speculative.cli.workbench")
        monkeypatch.setattr(workbench, "serve", lambda session, port: print("calls serve", port))
    if row.beside not in WITHOUT:
        WITHOUT[row.beside] = output(row.beside.split())
    without = WITHOUT[row.beside]
    with_it = output([*row.beside.split(), row.words])
    if row.shows:
        assert row.shows in with_it
        assert row.shows not in without
    assert with_it != without


def test_every_option_has_such_a_row():
    assert {*FIELDS} == {row.option for row in ROWS}


@pytest.mark.parametrize("waited", [0.0, 9.0])  # seconds of each decode, on a machine at rest and on a busy one
def test_the_ending_of_a_few_tokens_has_five_lines_at_most(waited, command, monkeypatch):
    monkeypatch.setattr(turns, "seconds_waited", count(0.0, waited).__next__)
    monkeypatch.setitem(DEMO, "target_model_size", "padded-target")  # which has a note of its own
    monkeypatch.setattr(display, "MOST_COLUMNS", 10_000)  # no line wraps
    monkeypatch.setenv("COLUMNS", "10000")
    status, out, _ = command("--demo", "-n", "5")
    assert status == 0
    assert ("threads together waited" in out) == (waited > 0)  # also if it is why the speedup is doubtful
    ending = out.split("Speculative Decode")[1].split("\n\n", 1)[1]
    assert 3 <= len([line for line in ending.splitlines() if line]) <= 5
