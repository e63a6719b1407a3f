"""The sweep's bookkeeping: a measurement that is finished is kept, one that is not is made, none is made twice."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.measure.recorder import Recorder
from speculative.sampling import autoregressive_sampling, speculative_sampling

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import drafters
import sweep

PROMPTS = {"prose": ["a", "b"], "code": ["c"]}


class Interrupted(BaseException):
    pass


@pytest.fixture
def options(tmp_path):
    names = dict.fromkeys(("draft_model_size", "target_model_size", "dtype", "draft_dtype", "top_p"), "x")
    return SimpleNamespace(
        **names,
        n_tokens=12,
        prompts=[],
        repeats=2,
        K=[1, 3],
        drafter=["model"],
        temperature=[0.0],
        note="",
        out=tmp_path,
    )


@pytest.fixture
def pair(monkeypatch):
    """Stands in for the models: counts what is measured, and is interrupted when told so."""

    class Pair(sweep.Pair):
        measured, interrupt_at = 0, None
        encoder, hparams = SimpleNamespace(encode=lambda text: [0, 1]), {"n_ctx": 99}

        def __init__(self, options=None):
            pass

        def sample_with(self, **filters):
            pass

        def decode(self, x, N, K, drafter, seed):
            if self.measured == self.interrupt_at:
                raise Interrupted
            Pair.measured += 1
            recorder, rng = Recorder(), np.random.default_rng(0)
            target = recorder.target(lambda x, n_last=1: np.full((n_last, 5), 0.2, np.float32))
            draft = recorder.draft(lambda x, k: ([1] * k, np.eye(5, dtype=np.float32)[[1] * k]))
            steps = (
                speculative_sampling(x, draft, target, N, K, rng) if K else autoregressive_sampling(x, target, N, rng)
            )
            return [t for step in recorder.watch(steps) for t in step.tokens], recorder

    monkeypatch.setattr(sweep, "Pair", Pair)
    return Pair


def run(options):
    return sweep.measure(options, PROMPTS, options.out / "measurements.jsonl")


def test_an_interrupted_sweep_goes_on_where_it_stopped(options, pair):
    n_warm_up, n_all = 3, 3 * 3 * 2
    pair.interrupt_at = n_warm_up + 7
    with pytest.raises(Interrupted):
        run(options)
    path = options.out / "measurements.jsonl"
    kept = path.read_bytes()
    path.write_bytes(kept + b'{"setting": [0, "mod')  # killed while it wrote a line
    pair.measured, pair.interrupt_at = 0, None
    measured = run(options)
    assert pair.measured == n_warm_up + n_all - 7
    assert path.read_bytes().startswith(kept) and len(path.read_text().splitlines()) == 1 + n_all
    assert len(measured) == n_all

    pair.interrupt_at = pair.measured
    again = run(options)  # all is there: nothing is decoded
    assert [[*map(sweep.row, again[s])] for s in again] == [[*map(sweep.row, measured[s])] for s in measured]


def test_measurements_with_other_options_are_not_mixed(options, pair):
    run(options)
    options.n_tokens = 13
    with pytest.raises(UserError, match="other options"):
        run(options)


def test_each_repeat_is_measured_in_another_order(options):
    settings = sweep.all_settings(options, PROMPTS)
    first, second = ([s[1:] for s in settings if s.repeat == repeat] for repeat in (0, 1))
    assert sorted(map(str, first)) == sorted(map(str, second)) and first != second


def test_rows_table_and_pictures(options, pair):
    rows = sweep.summarise(run(options))
    assert [(r["drafter"], r["domain"], r["K"]) for r in rows[:3]] == [
        ("", "code", 0),
        ("", "prose", 0),
        ("model", "code", 1),
    ]
    assert all(row["p50"] <= row["p90"] <= row["p99"] for row in rows) and rows[0]["speedup"] == 1
    assert rows[3]["figures"]["alpha"] == pytest.approx(0.2)
    json.dumps(rows, allow_nan=False)
    lines = sweep.table(rows).splitlines()
    assert len(lines) == 1 + len(rows) and {len(line) for line in lines} == {len(lines[0])}
    names = sweep.pictures(rows, options.out, "measured on nothing")
    assert sorted(names) == ["figure1_model", "parts_model", "positions_model", "predicted_model"]
    assert all((options.out / f"{name}.{end}").stat().st_size > 10_000 for name in names for end in ("png", "svg"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": 1}'),
        ("a.jsonl", "[" * 10**5),
        ("a.jsonl", "not json"),
        ("a.txt", ""),
        ("a.jsonl", '{"prompt": ""}'),
    ],
)
def test_bad_prompt_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="should"):
        sweep.read_prompts(tmp_path / name, 4)
    with pytest.raises(UserError, match="cannot read"):
        sweep.read_prompts(tmp_path / "missing.txt", 4)


def test_even_costs_leave_out_what_was_interrupted():
    """All runs but one take 10 ms an iteration and 1 ms a draft; auto's one run for prompt 0 took twice as long."""

    def run(n_tokens, iterations, drafted, interrupted=1.0):
        seconds = interrupted * (0.01 * iterations + 0.001 * drafted)
        return {"iterations": iterations + 1, "timed_drafted": drafted, "timed_tokens": n_tokens, "seconds": seconds}

    runs = {K: {p: [run(100, 60 - 5 * K, K * (60 - 5 * K))] for p in (0, 1)} for K in (1, 2, 4, 8)}
    runs["auto"] = {0: [run(100, 30, 90, interrupted=2.0)], 1: [run(100, 30, 90)]}
    even = drafters.even_seconds(runs)
    assert even["auto"] == pytest.approx(0.0039, rel=1e-3)
    assert even[4] == pytest.approx((0.01 * 40 + 0.001 * 160) / 100, rel=1e-3)
