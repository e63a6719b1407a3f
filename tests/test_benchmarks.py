"""The benchmarks: what is measured is kept and never made twice, what is printed and drawn is what was measured, and
bad flags are said before anything is measured."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from tiny import refusal

from benchmarks import (
    common,
    drafters,
    grid,
    kernels,
    levels,
    peers,
    pictures,
    predictions,
    start,
    sweep,
    tables,
    trees,
)
from encoder import get_encoder
from speculative.drafters.base import Proposal
from speculative.engines.runtime import compiled_pass as compiled_kernels
from speculative.measure.record import Counted, Iteration
from speculative.measure.recorder import Recorder
from speculative.sampling import autoregressive_sampling, speculative_sampling
from speculative.support.texts import read_prompts


class Interrupted(BaseException):
    pass


@pytest.fixture
def options(tmp_path):
    names = ("models_dir", "draft_model_size", "target_model_size", "dtype", "draft_dtype")
    return SimpleNamespace(
        **dict.fromkeys(names, "x"),
        n_tokens=12,
        prompts={"prose": ["a", "b"], "code": ["c"]},
        repeats=2,
        K=[1, 3],
        drafters=["model"],
        settings=[(0.0, None)],
        lenience=[None],
        accept=["token"],
        out=str(tmp_path / "out"),
    )


class Run:
    """Stands in for grid.decode: counts what is measured, and is interrupted when told so."""

    measured, interrupt_at = 0, None

    def __call__(self, s, N):
        if self.measured == self.interrupt_at:
            raise Interrupted
        self.measured += 1
        recorder, rng = Recorder(), np.random.default_rng(0)
        target = recorder.target(lambda x, n_last=1: np.full((n_last, 5), 0.2, np.float32))
        draft = recorder.draft(lambda x, k: Proposal([1] * k, np.eye(5, dtype=np.float32)[[1] * k], ["model"] * k))
        if s.K == 0:
            list(recorder.watch(autoregressive_sampling([0], target, N, rng)))
        else:
            list(recorder.watch(speculative_sampling([0], draft, target, N, s.K, rng)))
        return recorder.iterations


@pytest.fixture
def run():
    return Run()


def test_what_was_interrupted_goes_on_where_it_stopped(options, run, tmp_path):
    n_warm_up, n_all = 3, 3 * 3 * 2
    run.interrupt_at = n_warm_up + 7
    with pytest.raises(Interrupted):
        grid.measure(options, run)
    path = tmp_path / "out" / "measurements.jsonl"
    kept = path.read_bytes()
    path.write_bytes(kept + b'\n["x", 0, "mod')  # killed while it wrote a line
    run.measured, run.interrupt_at = 0, None
    measured = grid.measure(options, run)
    assert run.measured == n_warm_up + n_all - 7
    assert path.read_bytes().startswith(kept)
    assert len(measured) == n_all
    assert grid.read_measurements(path) == measured

    run.interrupt_at = run.measured
    assert grid.measure(options, run) == measured  # all is there: nothing is decoded
    options.n_tokens, run.interrupt_at = 13, None
    others = grid.measure(options, run)  # with other options, all anew
    assert not measured.keys() & others.keys()
    assert {len(tables.tokens(run)) for run in others.values()} == {13}
    options.out = None  # nothing is kept
    kept = path.read_bytes()
    assert grid.measure(options, run).keys() == others.keys()
    assert path.read_bytes() == kept


def test_each_repeat_is_measured_in_another_order(options):
    settings = [*grid.all_settings(options)]
    first, second = ([s[2:] for s in settings if s.repeat == repeat] for repeat in (0, 1))
    assert sorted(map(str, first)) == sorted(map(str, second))
    assert first != second


def test_a_row_sums_up_the_runs_of_a_drafter_and_a_K(options, run):
    rows = tables.summarise(grid.measure(options, run))
    assert [row["domain"] for row in rows] == ["code"] * 3 + ["prose"] * 3
    assert [(row["drafter"], row["K"]) for row in rows[:3]] == [("autoregressive", 0), ("model", 1), ("model", 3)]
    assert (rows[0]["speedup"], rows[2]["alpha"]) == (1, pytest.approx(0.2))
    assert [row["runs"] for row in rows] == [2, 2, 2, 4, 4, 4]
    json.dumps(rows, allow_nan=False)


def iterations(*seconds, drafted=0, n_tokens=1):
    """A run of equal iterations, after a first that took 9 seconds."""
    return [Iteration(Counted([0] * n_tokens, drafted, n_tokens - 1), seconds=s) for s in (9.0, *seconds)]


def test_the_speedup_is_the_median_over_prompts_of_medians_over_repeats():
    milliseconds = {  # {prompt: those of each repeat}
        "autoregressive": {"a": [8, 8, 800], "b": [6, 6, 6], "c": [9, 9, 9]},
        "model": {"a": [4, 4, 4], "b": [2, 200, 2], "c": [9, 9, 9]},
    }
    measured = {
        grid.Setting("", repeat, prompt, drafter, 0.0, None, "prose", K): iterations(ms / 1e3, ms / 1e3)
        for (drafter, by_prompt), K in zip(milliseconds.items(), (0, 4), strict=True)
        for prompt, repeats in by_prompt.items()
        for repeat, ms in enumerate(repeats)
    }
    plain, row = tables.summarise(measured)
    assert row["speedup"] == pytest.approx(2.0)  # of 2, 3 and 1
    assert row["ms_per_token"] == pytest.approx((4 * 3 + 2 + 200 + 2 + 27) / 9)
    assert plain["speedup"] == 1


def test_each_run_is_predicted_beside_its_own_baseline():
    """Of two texts the second took ten times as long, with both decoders."""

    def run(seconds, n, drafted):
        step = Counted([0] * (drafted + 1), drafted, drafted)
        first = Iteration(step, 40.0 * drafted, 50.0, 40.0 * drafted + 50, prefill=True, draft_prefill=True)
        later = Iteration(step, 0.2 * seconds * drafted, seconds, (1 + 0.2 * drafted) * seconds, alpha=[1.0] * drafted)
        return [first, *[later] * n]

    measured = {}
    for prompt, seconds in (("a", 1.0), ("b", 10.0)):
        measured[grid.Setting("", 0, prompt, "autoregressive", 0.0, None, "prose", 0)] = run(seconds, 12, 0)
        measured[grid.Setting("", 0, prompt, "model", 0.0, None, "prose", 4)] = run(seconds, 9, 4)
    runs = [*predictions.predicted(measured)]
    assert [run["predicted"] for run in runs] == pytest.approx([5 / 1.8] * 2)
    [row] = predictions.of_kinds(runs)
    assert (row["drafter"], row["K"], row["runs"]) == ("model", 4, 2)
    assert row["most_off"] < 0.01


def test_an_iteration_that_was_held_up_does_not_count_in_the_usual_speedup():
    runs = [iterations(2, 2, 90, drafted=4, n_tokens=3), iterations(2, 2, 2, drafted=4)]
    found = tables.at_usual_times(runs, [iterations(1, 1, 1, 70), iterations(1, 1, 1, 1)])
    assert (found["usual_speedup"], found["usual_loop_ms"]) == (pytest.approx((1.5 + 0.5) / 2), 2000)


def test_even_costs_leave_out_what_was_interrupted():
    """All runs but one take 10 ms an iteration and 1 ms a draft; auto's one run for prompt 0 took twice as long."""

    def run(n_tokens, n_iterations, drafted, interrupted=1.0):
        total = interrupted * (0.01 * n_iterations + 0.001 * drafted)
        step = Counted([0] * (n_tokens - n_iterations + 1), drafted, 0)
        return [*iterations(), Iteration(step, seconds=total), *iterations(*[0] * (n_iterations - 1))[1:]]

    runs = {K: [run(100, 60 - 5 * K, K * (60 - 5 * K))] * 2 for K in (1, 2, 4, 8)}
    runs["auto"] = [run(100, 30, 90, interrupted=2.0), run(100, 30, 90)]
    even = drafters.even_seconds(runs)
    assert even["auto"] == pytest.approx(0.0039, rel=1e-3)
    assert even[4] == pytest.approx((0.01 * 40 + 0.001 * 160) / 100, rel=1e-3)


def test_a_formula_is_said_to_be_too_low_or_too_high():
    assert pictures.how_far_off([-0.19, -0.02]) == "too low, by up to 19%"
    assert pictures.how_far_off([0.1, 0.034]) == "too high, by up to 10%"
    assert pictures.how_far_off([-0.05, 0.1]) == "from 5% too low to 10% too high"


def test_a_table_is_as_wide_as_what_stands_in_it():
    rows = [{"K": 4, "mean_beta": 1.254}, {"K": "auto", "mean_beta": None}, {}]
    lines = ["   K  β of all", "   4      1.25", "auto          ", "              "]
    assert tables.table(rows, "K β_of_all=mean_beta:.2f").split("\n") == lines


def test_tasks_take_turns():
    calls, clock = [], iter([9, 9, 1, 5, 3, 7, 2, 6])  # the first round is not counted
    tasks = {name: lambda name=name: calls.append(name) for name in "ab"}
    assert tables.take_turns(tasks, 3, seconds=lambda task: (task(), next(clock))[1]) == {"a": 2, "b": 6}
    assert "".join(calls) == "abababab"


def test_pictures_show_what_was_measured(options, run):
    rows = tables.summarise(grid.measure(options, run))
    lines = {domain: [r for r in rows if r["K"] and r["domain"] == domain] for domain in ("prose", "code")}

    axes = Figure().subplots(1, 3)
    pictures.plot_figure1(lines, axes)
    for panel, key in zip(axes[1:], ("r", "usual_loop_ms"), strict=True):
        assert [[*line.get_ydata()] for line in panel.lines] == [[r[key] for r in of_one] for of_one in lines.values()]

    panel = Figure().subplots()
    pictures.plot_predicted(lines, [panel])
    first = panel.collections[0].get_offsets().tolist()
    known = [r for r in lines["prose"] if r["predicted_blog"]]  # on a busy machine nothing is predicted
    assert first == [[r["predicted_blog"], r["usual_speedup"]] for r in known]


@pytest.mark.parametrize("text", ['{"text": 1}', "[" * 10**5, "not json", "", '{"prompt": ""}'])
def test_a_bad_file_of_prompts_is_refused(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    assert "should" in refusal(read_prompts, tmp_path / "a.jsonl", 4)


def test_default_prompts_fit_the_bundled_pair():
    encoder = get_encoder("tiny-target", common.MODELS)
    for path in common.PROMPTS.values():
        prompts = read_prompts(path, 100)
        assert len(set(prompts)) == 20
        assert max(len(encoder.encode(prompt)) for prompt in prompts) + 128 <= 256


# ---- The commands ----------------------------------------------------------------------------------------------------


GRID = ["--n_tokens", "10", "--K", "1", "3", "auto", "--settings", "0", "1:0.9", "--repeats", "1"]


def test_sweep_drafters_and_trees_print_what_they_measured(benchmark, tmp_path):
    words = ["--prompts", str(tmp_path / "prose.txt"), *GRID]
    lines = benchmark(sweep, *words, "--out", str(tmp_path / "sweep"))
    assert (len(lines), lines[1].split()[:4]) == (1 + 2 * 4 + 2, ["autoregressive", "0", "prose", "0"])
    rows = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["rows"]
    assert [row["unlike"] for row in rows if row["temperature"] == 0] == [0] * 4
    for name in ("figure1", "predicted"):
        assert (tmp_path / "sweep" / f"{name}_model.png").read_bytes().startswith(b"\x89PNG")

    lines = benchmark(drafters, *words, "--drafters", "model", "prompt_lookup")
    assert lines[1].startswith("prose, temperature 0: autoregressive decoding takes")
    assert lines[2].split()[:5] == ["drafter", "1", "3", "auto", "best"]
    assert [lines[i].split()[0] for i in (3, 4, 8, 9)] == ["model", "prompt_lookup"] * 2
    assert lines[-1] == "At temperature 0, texts that differ from autoregressive decoding's: 0"

    lines = benchmark(trees, *words, "--drafters", "model", "--K", "2", "2,1")
    assert lines[1].startswith("prose, temperature 0: autoregressive")
    assert lines[4].split()[:3] == ["model", "2,1", "2"]


def test_levels_prints_what_it_measured_and_predicted(benchmark, tmp_path):
    words = ["--prompts", str(tmp_path / "prose.txt"), "--n_tokens", "24", "--settings", "0", "--K", "2", "4/2"]
    lines = benchmark(levels, *words, "--out", str(tmp_path / "levels"))
    rows = json.loads((tmp_path / "levels" / "levels.json").read_text())["rows"]
    kinds = [("autoregressive", 0), ("model", 2), ("self", 2), ("self/model", 2), ("self/model", "4/2")]
    assert [(row["drafter"], row["K"]) for row in rows] == kinds
    assert [row["unlike"] for row in rows] == [0] * 5
    assert 0 < rows[-1]["copy_r"] <= 1
    if off := [abs(row["off"]) for row in rows[1:] if "off" in row]:  # none where the machine was too busy to tell
        assert lines.pop() == f"predicted within {np.median(off):.1%} (median)"
    assert len(lines) == 2 + 1 + len(rows)
    assert (tmp_path / "levels" / "levels.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not compiled_kernels(), reason="numba is not installed")
@pytest.mark.parametrize("weights", ["NumPy", "int8"])
def test_kernels_times_every_part(tiny_pair, weights):
    row = kernels.measure("target", tiny_pair, weights, np.ones(2**20, np.int64), rounds=2)
    line = tables.table([row], kernels.COLUMNS).splitlines()[1].split()
    assert (line[:2], row["prompt_tokens"]) == (["target", weights], 128)
    assert all(row[key] > 0 for key in row.keys() - {"model", "weights"})


def ends_by_a_signal(folder, dtype, threads, rounds):
    os.kill(os.getpid(), signal.SIGSEGV)


def finds_no_memory(folder, dtype, threads, rounds):
    raise MemoryError("none for\nthis model")


@pytest.mark.parametrize(
    ("peer", "words"),
    [(ends_by_a_signal, "its process died with status -11"), (finds_no_memory, "MemoryError: none for")],
)
def test_a_peer_that_dies_gets_a_line_and_a_dash(peer, words, capfd):
    times = peers.measure("the peer", "folder", 1, 1, {"the peer": (peer, "float32", "torch")})
    assert times is None
    assert words in capfd.readouterr().err
    lines = tables.table([kernels.row_of("target", "the peer", times)], kernels.COLUMNS).splitlines()
    assert lines[1].split() == ["target", "the", "peer", "–"]


def test_what_a_peer_gives_comes_back():
    assert peers.in_its_own_process(max, 3, 5) == 5


@pytest.mark.slow  # compiles four loops
def test_accelerator_measures_every_K_and_B(benchmark, tmp_path):
    accelerator = pytest.importorskip("benchmarks.accelerator")
    words = ["--K", "1", "--B", "2", "--n_tokens", "6", "--rounds", "1", "--n_prompts", "3"]
    lines = benchmark(accelerator, *words, "--json", str(tmp_path / "results.json"))
    assert len(lines) == 1 + 1 + 2
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["B"], row["K"]) for row in rows] == [(2, 0), (2, 1)]
    assert rows[0]["speedup"] == rows[0]["r"] == 1
    assert 0.5 <= rows[1]["r"] <= 1
    assert 0 <= rows[1]["alpha"] <= 1
    assert rows[0]["useful"] == 9 / 12  # three prompts, two at a time: the third is alone


BAD = [
    ("sweep", "--n_tokens 9", "--n_tokens must be at least 10"),
    ("sweep", "--K x", "argument --K: must be a whole number of at least 1, or auto"),
    ("sweep", "--out file/folder", "cannot write to file/folder"),
    ("kernels", "--json=", "argument --json: must be the name of a file or folder, not ''"),
    ("drafters", "--drafters modl", "unknown drafter 'modl'"),
    ("levels", "--prompts nowhere.txt", "cannot read the file of prompts from nowhere.txt"),
    ("trees", "--out=", "must be the name of a file or folder, not ''"),
    ("full_size", "file", "cannot write to file"),
    ("full_size", "out --format pickle", "argument --format: invalid choice: 'pickle'"),
    ("kernels", "--json no/such/folder.json", "cannot write to no/such/folder.json"),
    ("kernels", "nowhere --peers", "there is no"),
    ("accelerator", "--B 3 --data_parallel 2", "--B: each must be a multiple of --data_parallel, 2"),
    ("assumption", "batches", "NAME: must be one of batch, context (did you mean batch?)"),
    ("assumption", "batch --out file/folder", "cannot write to file/folder"),
    ("paper", "figure1 --out no/such/folder.png", "cannot write to no/such/folder.png"),
    ("paper", "figure1 --out figure1.txt", "--out must be a .png, .svg or .pdf, not figure1.txt"),
    ("paper", "figure1 --K auto", "--K: the papers have whole numbers"),
    ("paper", "table1 --out table1.png", "table1 is a table, without a picture for --out"),
    ("paper", "lenience --settings 0", "lenience is measured with --settings 1 and --drafters model"),
    ("theory", "", "the following arguments are required: --run"),
    ("theory", "--run none.json", "cannot read none.json"),
    ("theory", "--run file", "file is not what main.py --json writes"),
    ("picture", "--color", "the picture's file comes first, and then main.py's flags: --color is none"),
]


@pytest.mark.parametrize(("name", "words", "message"), BAD)
def test_bad_flags_are_said_before_anything_is_measured(monkeypatch, tmp_path, capsys, name, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("[1]")
    module = pytest.importorskip(f"benchmarks.{name}")
    assert message in refusal(module.main, words.split())
    assert not capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


FOLDER = Path(common.__file__).parent
COMMANDS = [path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_how_it_is_called_and_refuses_what_it_does_not_know(monkeypatch, tmp_path, capsys, name):
    monkeypatch.chdir(tmp_path)
    module = pytest.importorskip(f"benchmarks.{name}")
    with contextlib.suppress(SystemExit):
        module.main(["--help"])
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out
    assert refusal(module.main, ["name", "--nonsense=1"])
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_steps_from_enter_to_the_first_token_are_all_the_time_there_was(tiny_pair):
    began = time.time()
    options = {"models_dir": str(tiny_pair), "draft_model_size": "draft", "target_model_size": "target"}
    seconds = start.steps(options, began)
    assert len(seconds) == 5
    assert min(seconds.values()) >= 0
    assert sum(seconds.values()) <= time.time() - began + 1e-6


def test_a_bar_for_each_drafter_at_its_best_K():
    seconds = {"drafting": 1.0, "speculative": 4.0}
    rows = []
    for drafter, K, speedup in (("autoregressive", 0, 1.0), ("model", 4, 2.0), ("model", 8, 3.0)):
        row = {"temperature": 0.0, "domain": "prose", "drafter": drafter, "K": K, "speedup": speedup}
        rows.append(row | {"ms_per_token": 60 / speedup, "seconds": seconds})
    axes = Figure().subplots()
    levels.plot_bars(axes, rows)
    assert [text.get_text() for text in axes.texts] == [" 1.00×", " 3.00×, K = 8"]
    assert [bar.get_width() for bar in axes.patches] == [45, 15, 15, 5]
