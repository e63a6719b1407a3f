"""The figures, the lines, the colours and the JSON of runs whose acceptance and times are known beforehand."""

import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from test_flags import parse

from encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from plumbing import files
from plumbing.errors import UserError
from speculative.cli import display, outcome
from speculative.drafters import Drafter
from speculative.drafters.base import Proposal
from speculative.drafters.level import level
from speculative.measure import report
from speculative.measure.document import document
from speculative.measure.figures import figures
from speculative.measure.recorder import Iteration, Recorder, origins
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
        return Proposal(tokens, one_hot(*tokens))

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
    autoregressive, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    f = figures(autoregressive, speculative)
    assert (f["tokens"], f["iterations"], f["drafted"], f["accepted"]) == (55, 20, 75, 35)
    assert f["r"] == 55 / 95
    assert f["tokens_per_iteration_histogram"] == {1: 5, 2: 5, 3: 5, 5: 5}
    assert f["met_by_position"] == [20, 14, 10, 5]
    assert f["accepted_by_position"] == [15, 10, 5, 5]
    assert f["alpha_by_position"] == [15 / 20, 10 / 14, 5 / 10, 5 / 5]
    assert f["alpha"] == f["matching"] == 35 / 49  # one-hot: each draft that met the rule has Σ min(p, q) 0 or 1


def test_the_times_of_a_script():
    autoregressive, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    f = figures(autoregressive, speculative)
    assert f["t_target"] == pytest.approx(1.0) and f["t_draft"] == pytest.approx(0.1)
    assert f["c"] == pytest.approx(0.1) and f["beta"] == {5: pytest.approx(1.2)}
    assert f["seconds"]["autoregressive"] == pytest.approx(55 * 1.02 + 7)
    assert f["seconds"]["drafting"] == pytest.approx(7.5 + 7)
    assert f["seconds"]["scoring"] == pytest.approx(20 + 0.05 * 75 + 7)
    assert f["seconds"]["rest"] == pytest.approx(20 * 0.02)
    assert f["seconds"]["prefill"] == pytest.approx(14)
    assert f["speedup"] == pytest.approx((55 * 1.02 + 7) / (14 + 7.5 + 20 + 3.75 + 0.4))
    assert f["speedup_without_prefill"] == pytest.approx(55 * 1.02 / (7.5 + 20 + 3.75 + 0.4))


def test_the_blogs_prediction_is_the_measured_speedup_where_the_loop_takes_no_time():
    autoregressive, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    f = figures(autoregressive, speculative)
    assert f["predicted_blog"] == pytest.approx(55 / (7.5 + 20 + 3.75), rel=1e-3)
    assert f["predicted_blog"] == pytest.approx(f["speedup_without_prefill"], rel=0.02)


def test_the_figures_where_k_changes():
    autoregressive, _ = scripted(Clock(), [9])
    clock, choices = Clock(), itertools.cycle([0, 2, 5])
    _, speculative = scripted(clock, [9], K=lambda: next(choices))
    f = figures(autoregressive, speculative)
    iterations = f["iterations"]
    assert f["r"] == 1.0 == f["tokens"] / (f["drafted"] + iterations)
    assert f["mean_beta"] == pytest.approx(1 + 0.05 * f["drafted"] / iterations)
    assert f["predicted_blog"] == pytest.approx(f["tokens"] / (iterations + 0.15 * f["drafted"]))


def lines(*args, **kwargs):
    return report.summary(figures(*scripted(Clock(), *args, **kwargs)))


def test_the_six_lines():
    *rest, predicted, advice = lines([4, 2, 0, 1], N=55)
    assert rest == [
        "Speedup = 1.38x  (autoregressive time / speculative time, per token)",
        "Tokens per second = 0.9 autoregressive, 1.2 speculative",
        "Acceptance rate r = 0.579  (2.75 tokens per iteration)",
        "Time = 32% drafting, 67% scoring, 1% rest",
    ]
    assert predicted == (
        "Predicted = 1.76x  (r(K + 1) / (Kc + β), c = 0.100, β = 1.19; measured 1.77x without the prefill)"
    )
    assert advice == ("No other K is sure to be faster; the largest gain would come if every draft were accepted: 73%.")


def test_every_figure_has_its_formula():
    f = figures(*scripted(Clock(), [4, 2, 0, 1], N=55))
    rows = {name: (value, formula) for name, value, formula in report.details(f, 1.0, 6e9, 60e9)}
    assert rows["r"] == ("0.579", "tokens / Σ over iterations of (drafted + 1)")
    assert rows["tokens per iteration"] == ("2.75", "1: 25%  2: 25%  3: 25%  5: 25%")
    assert rows["by position"][0] == "15/20 10/14 5/10 5/5"
    assert rows["α"] == ("0.714", "mean of Σ min(p, q) = 1 - TVD(p, q)")
    assert rows["naive matching"][0] == "0.714"
    assert rows["c"] == ("0.100", "t_draft / t_target = 100.0 ms / 1000.0 ms")
    assert rows["predicted, blog"] == ("1.76x", "r(K + 1) / (Kc + β)")
    assert rows["ceiling"][0] == "10.0 tokens/s" and rows["of the ceiling"][0] == "9% autoregressive, 12% speculative"
    lenient = {name: formula for name, _, formula in report.details(f, 0.5)}
    assert lenient["α"] == "mean of Σ min(p, q / 0.5)" and "ceiling" not in lenient


@pytest.mark.parametrize(
    ("expected", "hits", "how"),
    [
        (
            "No other K is sure to be faster; the largest gain would come if drafting were free: 3",
            [99],
            {"N": 300, "K": 16, "t_draft": 0.4},
        ),
        ("K = 21 to 32 would be faster: by about 13%", [99], {"N": 300, "K": 16}),
        # The last windows are cut short, so the run as a whole did worse than its K does.
        ("No other K is sure to be faster", [99], {"N": 25, "K": 16}),
        ("K = 3 to 4 would be faster: by about 35%", [99], {"N": 300, "K": 2}),
        ("Speculative decoding did not pay: 1.00 tokens per iteration, for the time of 3.", [0], {"t_draft": 0.5}),
        ("Nothing was drafted, so this was autoregressive decoding.", [9], {"K": lambda: 0}),
        ("The run is too short to tell more", [9], {"N": 5, "K": 4}),
    ],
)
def test_the_advice(expected, hits, how):
    assert lines(hits, **how)[-1].startswith(expected)


def test_the_advice_where_something_else_took_the_time():
    autoregressive, speculative = scripted(Clock(), [4, 2, 0, 1])
    assert "Try again" not in report.advice(figures(autoregressive, speculative))
    for iteration in speculative.iterations[-4:]:
        for run, name in [(iteration, "scoring"), (iteration, "seconds"), (speculative, "seconds")]:
            setattr(run, name, getattr(run, name) + 20)
    assert "is something else running? Try again" in report.advice(figures(autoregressive, speculative))
    speculative.seconds += 1000
    assert "outside of both models" in report.advice(figures(autoregressive, speculative))


def test_nothing_to_report():
    assert report.summary(figures(Recorder(), Recorder())) == ["No token was decoded."]
    assert report.details(figures(Recorder(), Recorder())) == []


def test_figures_hold_after_a_stop():
    """Of a window of 4 that was accepted, a stop text leaves 2."""
    clock = Clock()
    plain, _ = scripted(clock, [9])
    recorder = Recorder(clock=clock)
    p = one_hot(3, 4, 5, 6)
    draft = recorder.draft(lambda x, k: Proposal([3, 4, 5, 6], p))
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
        draft, target = recorder.draft(lambda x, k: Proposal([1], p)), recorder.target(lambda x, n_last: q)
        steps = speculative_sampling([0], draft, target, 2, 1, np.random.default_rng(0), lenience)
        next(recorder.watch(steps))
        alphas.append(recorder.iterations[0].alpha[0])
    assert alphas == pytest.approx([0.6, 0.7])


def test_the_recorder_keeps_no_distributions():
    _, speculative = scripted(Clock(), [4, 2])
    assert not any(isinstance(value, np.ndarray) for i in speculative.iterations for value in vars(i).values())
    assert len(speculative.proposal.p) == len(speculative.q) == 0


# Where each token came from


@pytest.fixture
def encoder():
    return Encoder({token: i for i, token in enumerate([*BYTE_TO_CHAR.values(), END_OF_TEXT])}, [])


def origins_of(tokens, drafted, accepted, **known):
    return origins(Iteration(Step(tokens, drafted, accepted), **known))


def test_origins():
    assert origins_of([1, 2, 3], 4, 2) == ["accepted", "accepted", "resampled"]
    assert origins_of([1, 2], 1, 1) == ["accepted", "bonus"]
    assert origins_of([1], 0, 0) == ["autoregressive"]
    assert origins_of([1, 2], 2, 2) == ["accepted", "accepted"]  # cut by a stop text
    by = ["ngram", "model", "prompt_lookup"]
    assert origins_of([1, 2, 3], 3, 2, by=by) == ["accepted: ngram", "accepted", "resampled"]
    assert origins_of([1, 2, 3], 3, 3, by=by) == ["accepted: ngram", "accepted", "accepted: prompt_lookup"]


def test_origins_in_a_tree():
    """A bonus comes where the path ends in a leaf, however many nodes there are beside it."""
    tree = {"tokens": [1, 2, 3], "parents": [0, 0, 1]}
    by = ["ngram"] * 3
    assert origins_of([1, 3, 9], 3, 2, tree=tree | {"path": [1, 3]}, by=by) == [*["accepted: ngram"] * 2, "bonus"]
    assert origins_of([2, 9], 3, 1, tree=tree | {"path": [2]}) == ["accepted", "bonus"]
    assert origins_of([1, 9], 3, 1, tree=tree | {"path": [1]}) == ["accepted", "resampled"]
    assert origins_of([9], 3, 0, tree=tree | {"path": []}) == ["resampled"]


def test_who_proposed_what_passed():
    """The target accepts 2 of the 3 drafts, whose proposers differ; the third is tested, the fourth never."""
    recorder, p = Recorder(), one_hot(3, 4, 5, 6)

    def draft(x, k):
        return Proposal([3, 4, 5, 6], p, ["ngram", "model", "model", "ngram"])

    target = recorder.target(lambda x, n_last: one_hot(3, 4, 1, 1, 1)[:n_last])
    steps = speculative_sampling(PROMPT, recorder.draft(draft), target, 5, 4, np.random.default_rng(0))
    next(recorder.watch(steps))
    f = figures(Recorder(), recorder)
    assert f["by_proposer"] == {"model": [1, 2], "ngram": [1, 1]} and f["levels"] == []
    rows = {name: value for name, value, _ in report.details(f | {"tokens": 0})}
    assert rows["by proposer"] == "draft model 1/2, n-gram 1/1"
    one_alone = figures(*scripted(Clock(), [4, 2, 0, 1]))
    assert not [name for name, *_ in report.details(one_alone) if name == "by proposer" or name.startswith("level")]


def test_what_each_level_did():
    """The target counts, as does the level but for one token in 7; the drafter inside is right twice, then wrong."""
    clock = Clock()
    recorder, rng = Recorder(clock=clock), np.random.default_rng(0)

    def counts(seconds, but=None):
        def model(x, n_last=1):
            clock.now += seconds
            return one_hot(*[(int(t) + 1 + (t == but)) % N_VOCAB for t in x[len(x) - n_last :]])

        return model

    def inside(x, k):
        clock.now += 0.01 * k
        tokens = [(int(x[-1]) + 1 + i + (i >= 2)) % N_VOCAB for i in range(k)]
        return Proposal(tokens, one_hot(*tokens), ["inside"] * k)

    draft = level("middle", counts(0.1, but=5), inside, 3, rng, recorder.level)
    drafter = recorder.drafter(Drafter(draft))
    steps = speculative_sampling([0], drafter.chain, recorder.target(counts(1.0)), 14, 4, rng)
    assert [t for step in recorder.watch(steps) for t in step.tokens] == [i % N_VOCAB for i in range(1, 15)]

    first = recorder.iterations[0]
    assert first.by == ["inside", "inside", "middle", "middle"]
    assert [*first.levels] == ["middle"]
    assert [i.step for i in first.levels["middle"]] == [Step([1, 2, 3], 3, 2), Step([4], 0, 0)]
    assert [i.alpha for i in first.levels["middle"]] == [[1.0, 1.0, 0.0], []]
    assert [i.scoring for i in first.levels["middle"]] == pytest.approx([0.1, 0.1])
    assert [i.drafting for i in first.levels["middle"]] == pytest.approx([0.03, 0.0])
    assert first.drafting == pytest.approx(0.23) and first.scoring == pytest.approx(1.0)

    f = figures(Recorder(), recorder)
    [middle] = f["levels"]
    calls = [i for iteration in recorder.iterations for i in iteration.levels["middle"]]
    assert middle["name"] == "middle" and middle["calls"] == len(calls)
    assert middle["tokens"] == f["drafted"] == sum(len(i.step.tokens) for i in calls)
    assert middle["accepted"] == sum(i.step.accepted for i in calls)
    assert middle["scoring"] == pytest.approx(0.1 * len(calls))
    assert sum(n for _, n in f["by_proposer"].values()) == sum(f["met_by_position"])
    rows = {name: value for name, value, _ in report.details(f | {"tokens": 0})}
    assert rows["level: middle"].startswith(f"r {middle['r']:.2f}, {middle['tokens'] / len(calls):.1f} tokens a call")
    assert (middle["t_row"], middle["c"], middle["beta"]) == pytest.approx((0.1, 0.1, 1.0))
    expected = (middle["drafted"] * 0.01 + len(calls) * 0.1) / middle["tokens"]  # the time of its parts, a token
    assert middle["predicted_seconds"] == pytest.approx(expected)

    encoder = Encoder({token: i for i, token in enumerate([*BYTE_TO_CHAR.values(), END_OF_TEXT])}, [])
    content = document({}, encoder, ["a"], [[0]], Recorder(), recorder)
    json.dumps(content, allow_nan=False)
    [levels] = content["speculative"]["samples"][0]["iterations"][0]["levels"]
    assert levels["name"] == "middle" and [i["tokens"] for i in levels["iterations"]] == [3, 1]
    assert levels["iterations"][0]["by"] == ["inside"] * 3


@pytest.mark.parametrize("prefix", ["model", "ngram"])
def test_the_colour_says_who_wrote_a_token(prefix, encoder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    o = parse(color=True)
    with display.Display("Title", o, encoder, 1) as d:
        d.begin("a")
        d.push(Step([65, 66], 2, 1), origins_of([65, 66], 2, 1, by=[prefix, "model"]))
        d.end()
    d.print_time(1.0)
    first = {"model": "\033[32m", "ngram": "\033[3;35m"}[prefix] + encoder.decode([65])
    assert first in capsys.readouterr().out


def shown(encoder, *steps, color=False, stream=False):
    """Shows a text of these steps, and closes it."""
    o = parse(color=color, stream=stream)
    with display.Display("Title", o, encoder, 1) as d:
        d.begin("")
        for step in steps:
            d.push(step, origins(Iteration(step)))
        d.end()
    d.print_time(1.5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_character_in_several_tokens_has_the_colour_of_the_last(encoder, capsys, monkeypatch, stream):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    first, second = encoder.encode("é")
    shown(encoder, Step([first], 1, 0), Step([second], 0, 0), color=True, stream=stream)
    assert "\033[33mé\033[0m" in capsys.readouterr().out  # yellow, that of autoregressive
    shown(encoder, Step([first], 0, 0), color=True, stream=stream)
    assert "\033[33m\N{REPLACEMENT CHARACTER}\033[0m" in capsys.readouterr().out


def test_without_color_it_is_the_text(encoder, capsys):
    tokens = encoder.encode("a – b")
    shown(encoder, Step(tokens, 9, len(tokens) - 1))
    assert capsys.readouterr().out == "\nTitle\n-----\nTime = 1.50s\nText = a – b\n"


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("text", ["\033[2J", "\r\a\b\x7f", "\x9b2J", "\u202e\u2066"])
def test_the_models_own_control_characters_are_not_obeyed(encoder, capsys, color, text):
    tokens = encoder.encode(f"a{text}\tb")
    shown(encoder, Step(tokens, 99, len(tokens) - 1), color=color)
    out = capsys.readouterr().out
    assert not set(text) & set(out) - set("[2J") and re.search(r"Text = a\S+\tb\n", out)


def test_color_only_on_a_terminal_and_without_no_color(encoder, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    step = Step(encoder.encode("ab"), 9, 1)
    shown(encoder, step, color=True)  # into a pipe
    assert "\033" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    shown(encoder, step, color=True)
    assert "\033" not in capsys.readouterr().out


# JSON


def test_the_document_is_whole_and_valid(encoder, tmp_path):
    autoregressive, speculative = scripted(Clock(), [4, 2, 0, 1], N=55)
    path = str(tmp_path / "run.json")
    files.write_json(path, document({"K": 4}, encoder, ["abc"], [PROMPT], autoregressive, speculative))
    with open(path, encoding="utf-8") as f:
        content = json.load(f)
    assert os.listdir(tmp_path) == ["run.json"]
    assert content["schema"] == 3 and content["prompt"] == {"text": "abc", "tokens": PROMPT}
    [sample] = content["speculative"]["samples"]
    assert sample["tokens"] == [(3 + i) % N_VOCAB for i in range(55)]
    assert len(sample["origins"]) == 55 and sample["origins"].count("accepted") == 35
    assert sum(i["accepted"] for i in sample["iterations"]) == content["figures"]["accepted"] == 35
    assert sum(i["seconds"] for i in sample["iterations"]) == pytest.approx(content["speculative"]["seconds"])
    documented = Path(__file__).parents[1].joinpath("docs", "output.md").read_text(encoding="utf-8")
    keys = [*content, *content["figures"], *content["figures"]["seconds"], *content["machine"], *content["prompt"]]
    keys += [*content["speculative"], *sample, *sample["iterations"][0], *sample["origins"]]
    assert [key for key in keys if f"`{key}`" not in documented and f'`"{key}"`' not in documented] == []


def test_the_document_of_a_run_too_short_to_measure(encoder):
    json.dumps(document({}, encoder, [""], [PROMPT], *scripted(Clock(), [9], N=1)), allow_nan=False)


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


@pytest.mark.parametrize("old", ["old", None])
def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path, old):
    (tmp_path / "link").symlink_to("run.json")
    if old:
        (tmp_path / "run.json").write_text(old)
    files.check_writable(str(tmp_path / "link"))
    files.write_json(str(tmp_path / "link"), {"new": 1})
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "run.json").read_text()) == {"new": 1}
    assert sorted(os.listdir(tmp_path)) == ["link", "run.json"]


def test_a_device_is_written_to_and_not_replaced():
    files.check_writable(os.devnull)
    files.write_json(os.devnull, {})
    assert not os.path.isfile(os.devnull) and os.path.exists(os.devnull)


def test_the_row_of_an_iteration(encoder):
    _, speculative = scripted(Clock(), [2])
    row = outcome.iteration_row(speculative.iterations[3], encoder)
    assert row[:4] == ("2 of 4", "400.0 ms", "1200.0 ms", "1.00 1.00 0.00")
