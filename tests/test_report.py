"""The block, the colours and the JSON, for runs whose acceptance and times are known beforehand."""

import io
import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from speculative.errors import UserError
from speculative.measure import files, report
from speculative.measure.recorder import Recorder, figures
from speculative.sampling import Step, autoregressive_sampling, speculative_sampling
from speculative.stop import cut

N_VOCAB = 7
PROMPT = [0, 1, 2]


class Clock:
    """A clock that stands still but for what the scripted models say that they take."""

    now = 0.0

    def __call__(self):
        return self.now


def one_hot(*ids):
    return np.eye(N_VOCAB, dtype=np.float32)[list(ids)]


def scripted(clock, hits, t_draft=0.1, t_target=1.0, t_more_rows=0.05, t_prefill=7.0, N=60, K=4):
    """(plain, speculative) Recorders. The target counts; each window's draft is right for the next of `hits` tokens.

    A target's call takes t_target + t_more_rows * (rows - 1), a draft's t_draft a token, the first of each t_prefill
    more; the loop itself takes 0.02 a step.
    """
    windows, first = itertools.cycle(hits), set()

    def takes(who, seconds):
        clock.now += seconds + (t_prefill if who not in first else 0.0)
        first.add(who)

    def target_for(who):
        def target(x, n_last=1):
            takes(who, t_target + t_more_rows * (n_last - 1))
            return one_hot(*[(int(t) + 1) % N_VOCAB for t in x[len(x) - n_last :]])

        return target

    def draft(x, k):
        right = next(windows)
        tokens = [(int(x[-1]) + 1 + i + (i >= right)) % N_VOCAB for i in range(k)]
        takes("draft", t_draft * k)
        return tokens, one_hot(*tokens)

    def slow(steps):
        for step in steps:
            clock.now += 0.02
            yield step

    plain, speculative = Recorder(clock=clock), Recorder(clock=clock)
    rng = np.random.default_rng(0)
    for _ in plain.watch(slow(autoregressive_sampling(PROMPT, plain.target(target_for("plain")), N, rng))):
        clock.now += 50  # what is done with a step is not the decoder's time
    steps = speculative_sampling(PROMPT, speculative.draft(draft), speculative.target(target_for("target")), N, K, rng)
    for _ in speculative.watch(slow(steps)):
        clock.now += 50
    return plain, speculative


def test_the_figures_of_a_script():
    """Windows of 4 of which 4, 2, 0 and 1 are right in turn: 5 + 3 + 1 + 2 = 11 tokens in 4 iterations.

    At the end there is no room for more than 2 drafts, then 1: 75 in all.
    """
    plain, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    f = figures(plain, speculative)
    assert (f["tokens"], f["iterations"], f["drafted"], f["accepted"]) == (55, 20, 75, 35)
    assert f["r"] == 55 / 95
    assert f["tokens_per_iteration_histogram"] == {1: 5, 2: 5, 3: 5, 5: 5}
    assert f["met_by_position"] == [20, 14, 10, 5]
    assert f["accepted_by_position"] == [15, 10, 5, 5]
    assert f["alpha_by_position"] == [15 / 20, 10 / 14, 5 / 10, 5 / 5]
    assert f["alpha"] == f["matching"] == 35 / 49  # one-hot: each draft that met the rule has Σ min(p, q) 0 or 1


def test_the_times_of_a_script():
    plain, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    f = figures(plain, speculative)
    assert f["t_target"] == pytest.approx(1.0) and f["t_draft"] == pytest.approx(0.1)
    assert f["c"] == pytest.approx(0.1) and f["beta"] == {5: pytest.approx(1.2)}
    assert f["seconds"]["autoregressive"] == pytest.approx(55 * 1.02 + 7)
    assert f["seconds"]["drafting"] == pytest.approx(7.5 + 7)
    assert f["seconds"]["scoring"] == pytest.approx(20 + 0.05 * 75 + 7)
    assert f["seconds"]["rest"] == pytest.approx(20 * 0.02)
    assert f["seconds"]["prefill"] == pytest.approx(14)
    assert f["speedup"] == pytest.approx((55 * 1.02 + 7) / (14 + 7.5 + 20 + 3.75 + 0.4))
    assert f["speedup_without_prefill"] == pytest.approx(55 * 1.02 / (7.5 + 20 + 3.75 + 0.4))


def test_chens_prediction_is_the_measured_speedup_where_the_loop_takes_no_time():
    plain, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    f = figures(plain, speculative)
    assert f["predicted_chen"] == pytest.approx(55 / (7.5 + 20 + 3.75), rel=1e-3)
    assert f["predicted_chen"] == pytest.approx(f["speedup_without_prefill"], rel=0.02)


def test_the_figures_where_k_changes():
    plain, _ = scripted(Clock(), [9])
    clock, choices = Clock(), itertools.cycle([0, 2, 5])
    _, speculative = scripted(clock, [9], K=lambda: next(choices))
    f = figures(plain, speculative)
    iterations = f["iterations"]
    assert f["r"] == 1.0 == f["tokens"] / (f["drafted"] + iterations)
    assert f["mean_beta"] == pytest.approx(1 + 0.05 * f["drafted"] / iterations)
    assert f["predicted_chen"] == pytest.approx(f["tokens"] / (iterations + 0.15 * f["drafted"]))


def block(*args, **kwargs):
    text = report.summary(*scripted(Clock(), *args, **kwargs), weight_bytes=6e9, bandwidth=60e9)
    assert max(map(len, text.splitlines())) <= report.COLUMNS
    return text


def test_the_block():
    text = block([4, 2, 0, 1], N=55)
    for line in (
        "r = 0.579  (tokens / Σ over iterations of drafted + 1)",
        "Tokens per iteration = 2.75  (1:25%  2:25%  3:25%  5:25%)",
        "Acceptance by position = 0.75 0.71 0.50 1.00  (accepted / met, first to last of the window)",
        "α = 0.714  (mean Σ min(p, q) = 1 - TVD(p, q); naive matching, Σ p q, would accept 0.714)",
        "c = 0.100  (t_draft / t_target = 100.0 ms / 1000.0 ms a token)",
        "Predicted speedup = 1.76x Chen, r(K + 1) / (Kc + β)",
        "Ceiling of plain decoding = 10.0 tokens/s  (60.0 GB/s read / 6 GB of weights)",
    ):
        assert line in text
    assert "plain decoding reached 9% of it, speculation 12%" in " ".join(text.split())


def test_the_words_where_all_is_well():
    text = block([99], N=300, K=16)
    assert "No other K would be much faster here. The most would be gained if drafting were free" in " ".join(
        text.split()
    )


def test_the_words_do_not_advise_the_k_that_was_used():
    """The last windows are cut short, so the run as a whole did worse than its K does."""
    assert "No other K would be much faster here." in block([99], N=25, K=16)


def test_the_words_where_another_k_is_better():
    assert "K = 16 would be faster" in block([99], N=300, K=2)


def test_the_words_where_something_else_took_the_time():
    plain, speculative = scripted(Clock(), [4, 2, 0, 1])
    assert "run it again" not in report.summary(plain, speculative)
    for iteration in speculative.iterations[-4:]:
        for run, name in [(iteration, "scoring"), (iteration, "seconds"), (speculative, "seconds")]:
            setattr(run, name, getattr(run, name) + 20)
    assert "probably took time, so run it again" in " ".join(report.summary(plain, speculative).split())


def test_the_words_where_speculation_cannot_pay():
    text = " ".join(block([0], t_draft=0.5).split())
    assert "Speculation cannot pay here: an iteration gives 1.00 tokens" in text
    assert "The most would be gained if every draft were accepted" in text
    text = " ".join(block([0], t_draft=2.0, t_more_rows=1.0).split())
    assert "Nor would a perfect draft, a free one or a window at the price of a row do." in text


def test_the_words_where_nothing_was_drafted_or_nothing_is_known():
    assert "Nothing was drafted, so this was plain decoding." in block([9], K=lambda: 0)
    assert "Too short a run" in block([9], N=5, K=4)
    assert "No token was decoded." in report.summary(Recorder(), Recorder())


def test_figures_hold_after_a_stop():
    """Of a window of 4 that was accepted, a stop text leaves 2."""
    clock = Clock()
    plain, _ = scripted(clock, [9])
    recorder = Recorder(clock=clock)
    p = one_hot(3, 4, 5, 6)
    draft = recorder.draft(lambda x, k: ([3, 4, 5, 6], p))
    target = recorder.target(lambda x, n_last: one_hot(3, 4, 5, 6, 0))
    steps = speculative_sampling(PROMPT, draft, target, 5, 4, np.random.default_rng(0))
    list(recorder.watch(cut(step, 2) for step in steps))
    f = figures(plain, recorder)
    assert (f["tokens"], f["drafted"], f["accepted"], f["met_by_position"]) == (2, 2, 2, [1, 1])
    assert f["r"] == 2 / 3


def test_alpha_under_lenience_is_the_chance_that_a_draft_passes():
    p, q = np.array([[0.5, 0.5]], np.float32), np.array([[0.1, 0.9], [0.5, 0.5]], np.float32)
    alphas = []
    for lenience in (1.0, 0.5):
        recorder = Recorder(lenience=lenience)
        draft, target = recorder.draft(lambda x, k: ([1], p)), recorder.target(lambda x, n_last: q)
        steps = speculative_sampling([0], draft, target, 2, 1, np.random.default_rng(0), lenience)
        next(recorder.watch(steps))
        alphas.append(recorder.iterations[0].alpha[0])
    assert alphas == pytest.approx([0.6, 0.7])


def test_the_recorder_keeps_no_distributions():
    _, speculative = scripted(Clock(), [4, 2])
    assert not any(isinstance(value, np.ndarray) for i in speculative.iterations for value in vars(i).values())
    assert len(speculative.p) == len(speculative.q) == 0


# Where each token came from


@pytest.fixture
def encoder():
    return Encoder({token: i for i, token in enumerate([*BYTE_TO_CHAR.values(), END_OF_TEXT])}, [])


def test_origins():
    assert report.origins(Step([1, 2, 3], 4, 2)) == ["accepted draft", "accepted draft", "resampled"]
    assert report.origins(Step([1, 2], 1, 1)) == ["accepted draft", "bonus"]
    assert report.origins(Step([1], 0, 0)) == ["plain"]
    assert report.origins(Step([1, 2], 2, 2)) == ["accepted draft", "accepted draft"]  # cut by a stop text


def test_a_character_in_several_tokens_is_shown_once_it_is_whole(encoder):
    first, second = encoder.encode("é")
    writer = report.TextWriter(encoder, color=True)
    assert writer.push(Step([first], 1, 0)) == ""
    assert writer.push(Step([second], 0, 0)) == f"{report.STYLES['plain']}é{report.RESET}"
    assert writer.push(Step([first], 0, 0)) + writer.end() == "\N{REPLACEMENT CHARACTER}"


def test_colored_text_without_color_is_the_text(encoder):
    steps = [Step(encoder.encode("a – b"), 9, 6), Step(encoder.encode("\N{WHITE HEART SUIT}!"), 0, 3)]
    assert report.colored_text(encoder, steps[:1], color=False) == "a – b"
    colored = report.colored_text(encoder, steps[:1])
    for code in (*report.STYLES.values(), report.RESET):
        colored = colored.replace(code, "")
    assert colored == "a – b"


def test_the_models_own_escape_sequences_are_not_obeyed(encoder):
    assert report.colored_text(encoder, [Step(encoder.encode("\033[2J"), 4, 3)], color=False) == "␛[2J"


def test_color_only_on_a_terminal_and_without_no_color(monkeypatch):
    terminal, pipe = SimpleNamespace(isatty=lambda: True), io.StringIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert report.use_color(True, terminal) and not report.use_color(False, terminal)
    assert not report.use_color(True, pipe)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not report.use_color(True, terminal)


def test_the_legend_names_every_origin():
    assert all(origin in report.legend() for origin in report.STYLES)


# JSON


def test_the_document_is_whole_and_valid(encoder, tmp_path):
    plain, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    path = str(tmp_path / "run.json")
    files.write_json(path, report.document({"K": 4}, encoder, ["abc"], [PROMPT], plain, speculative))
    with open(path, encoding="utf-8") as f:
        content = json.load(f)
    assert os.listdir(tmp_path) == ["run.json"]
    assert content["schema"] == 1 and content["prompt"] == {"text": "abc", "tokens": PROMPT}
    [sample] = content["speculative"]["samples"]
    assert sample["tokens"] == [(3 + i) % N_VOCAB for i in range(55)]
    assert len(sample["origins"]) == 55 and sample["origins"].count("accepted draft") == 35
    assert sum(i["accepted"] for i in sample["iterations"]) == content["figures"]["accepted"] == 35
    assert sum(i["seconds"] for i in sample["iterations"]) == pytest.approx(content["speculative"]["seconds"])
    documented = Path(__file__).parents[1].joinpath("docs", "json.md").read_text(encoding="utf-8")
    keys = [*content, *content["figures"], *content["figures"]["seconds"], *content["machine"], *content["prompt"]]
    keys += [*content["speculative"], *sample, *sample["iterations"][0], *sample["origins"]]
    assert [key for key in keys if f"`{key}`" not in documented and f'`"{key}"`' not in documented] == []


def test_the_document_of_a_run_too_short_to_measure(encoder):
    json.dumps(report.document({}, encoder, [""], [PROMPT], *scripted(Clock(), [9], N=1)), allow_nan=False)


@pytest.mark.parametrize("path", ["missing/run.json", "."])
def test_an_unwritable_file_is_noticed_before_the_run(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for write in (files.check_writable, lambda path: files.write_json(path, {})):
        with pytest.raises(UserError, match="cannot write to"):
            write(path)
    assert os.listdir(tmp_path) == []


def test_checking_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    files.check_writable(str(path))
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["run.json"]
    files.write_json(str(path), {"new": 1})
    assert json.loads(path.read_text()) == {"new": 1}
    files.write_json(str(path), {"prompt": "é \udc80"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"prompt": "é \udc80"}


def test_a_device_is_written_to_and_not_replaced():
    files.check_writable(os.devnull)
    files.write_json(os.devnull, {})
    assert not os.path.isfile(os.devnull) and os.path.exists(os.devnull)


def test_the_line_of_an_iteration(encoder):
    _, speculative = scripted(Clock(), [2])
    line = report.iteration_line(3, speculative.iterations[3], encoder)
    assert line.startswith("   3  2 of 4 accepted  draft 400.0 ms, score 1200.0 ms, all 1620.0 ms  α 1.00 1.00 0.00")
