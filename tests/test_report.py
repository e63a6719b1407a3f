"""The figures, the lines, the colours and the JSON of runs whose acceptance and times are known beforehand.

No advice is given that the run contradicts, and no word is said where nothing can be told.
"""

import contextlib
import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from test_flags import parse
from tiny import N_VOCAB, counting_target, encoder_of, largest_file, one_hot, refusal

import main
from encoder import StreamDecoder
from speculative.accept import TOKEN, choose
from speculative.cli import display, outcome
from speculative.costs import best_k
from speculative.measure import better, report
from speculative.measure.figures import figures
from speculative.measure.record import Counted, Iteration, origins
from speculative.measure.recorder import Recorder
from speculative.sampling import Proposal, autoregressive_sampling, speculative_sampling
from speculative.session import last_step, text_step
from speculative.stop import cut
from speculative.support import files

PROMPT = [0, 1, 2]
ENCODER = encoder_of()


class Clock:
    """A clock that stands still but for what the scripted models say that they take."""

    now = 0.0

    def __call__(self):
        return self.now


def scripted(hits, t_draft=0.1, t_target=1.0, t_more_rows=0.05, t_prefill=7.0, N=60, K=4, noise=0.0, seed=0):
    """(plain, speculative) Recorders. The target counts; each window's draft is right for the next of `hits` tokens.

    A target's call takes t_target + t_more_rows * (rows - 1), a draft's t_draft a token, each by chance a bit more or
    less; the first of each t_prefill more; the loop itself takes 0.02 a step.
    """
    clock, windows, first = Clock(), itertools.cycle(hits), set()
    rng, chance = np.random.default_rng(0), np.random.default_rng(seed)

    def takes(who, seconds):
        clock.now += seconds * np.exp(noise * chance.standard_normal()) + (t_prefill if who not in first else 0.0)
        first.add(who)

    def target_for(who):
        def target(x, n_last=1):
            takes(who, t_target + t_more_rows * (n_last - 1))
            return counting_target(x, n_last)

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
    for _ in plain.watch(slow(autoregressive_sampling(PROMPT, plain.target(target_for("plain")), N, rng))):
        clock.now += 50  # what is done with a step is not the decoder's time
    steps = speculative_sampling(PROMPT, speculative.draft(draft), speculative.target(target_for("target")), N, K, rng)
    for _ in speculative.watch(slow(steps)):
        clock.now += 50
    return plain, speculative


def scripted_figures(*args, **kwargs):
    return figures(*scripted(*args, **kwargs))


def by_chance(alpha, K, n_iterations, seed=0, noise=0.05, **kwargs):
    """The figures of a run whose drafts are accepted with chance alpha."""
    rng = np.random.default_rng(seed)
    hits = [int(np.argmin(np.append(rng.random(K) < alpha, False))) for _ in range(n_iterations)]
    return scripted_figures(hits, N=sum(hits) + n_iterations, K=K, noise=noise, seed=seed, **kwargs)


# Figures


def test_the_figures_of_a_script():
    """Windows of 4 of which 4, 2, 0 and 1 are right in turn: 5 + 3 + 1 + 2 = 11 tokens in 4 iterations.

    At the end there is no room for more than 2 drafts, then 1: 75 in all.
    """
    f = scripted_figures([4, 2, 0, 1], N=55)
    assert (f["tokens"], f["iterations"], f["drafted"], f["accepted"]) == (55, 20, 75, 35)
    assert f["r"] == 55 / 95
    assert f["tokens_per_iteration_histogram"] == {"1": 5, "2": 5, "3": 5, "5": 5}
    assert f["met_by_position"] == [20, 14, 10, 5]
    assert f["accepted_by_position"] == [15, 10, 5, 5]
    assert f["alpha_by_position"] == [15 / 20, 10 / 14, 5 / 10, 5 / 5]
    assert f["alpha"] == f["matching"] == 35 / 49  # one-hot: each draft that met the rule has Σ min(p, q) 0 or 1
    # The loop's 0.02 s are in the time of the target's call.
    assert [f["t_target"], f["t_draft"], f["c"]] == pytest.approx([1.02, 0.1, 0.1 / 1.02])
    assert f["beta"]["5"] == pytest.approx(1.22 / 1.02)
    drafting, scoring, rest = 7.5, 20 + 0.05 * 75, 20 * 0.02
    seconds = {"autoregressive": 55 * 1.02 + 7, "speculative": drafting + scoring + rest + 14, "prefill": 14}
    seconds |= {"drafting": drafting + 7, "scoring": scoring + 7, "rest": rest}
    assert f["seconds"] == pytest.approx(seconds)
    assert f["speedup"] == pytest.approx(seconds["autoregressive"] / seconds["speculative"])
    assert f["speedup_without_prefill"] == pytest.approx(55 * 1.02 / (drafting + scoring + rest))
    assert f["predicted_blog"] == pytest.approx(f["speedup_without_prefill"])


def test_the_figures_where_k_changes():
    choices = itertools.cycle([0, 2, 5])
    f = scripted_figures([9], K=lambda: next(choices))
    iterations = f["iterations"]
    assert f["r"] == 1.0 == f["tokens"] / (f["drafted"] + iterations)
    assert f["mean_beta"] == pytest.approx(1 + 0.05 / 1.02 * f["drafted"] / iterations)
    assert f["predicted_blog"] == pytest.approx(1.02 * f["tokens"] / (1.02 * iterations + 0.15 * f["drafted"]))


def test_figures_hold_after_a_stop():
    """Of a window of 4 that was accepted, a stop text leaves 2."""
    recorder = Recorder(clock=Clock())
    draft = recorder.draft(lambda x, k: Proposal([3, 4, 5, 6], one_hot(3, 4, 5, 6)))
    steps = speculative_sampling(PROMPT, draft, recorder.target(counting_target), 5, 4, np.random.default_rng(0))
    list(recorder.watch(cut(step, 2) for step in steps))
    f = figures(scripted([9])[0], recorder)
    assert (f["tokens"], f["drafted"], f["accepted"], f["met_by_position"]) == (2, 2, 2, [1, 1])
    assert f["r"] == 2 / 3
    assert not any(isinstance(value, np.ndarray) for i in recorder.iterations for value in vars(i).values())
    assert recorder.held == []  # no distribution is kept


def test_speedups_are_those_of_the_formula():
    def beta(rows):
        return 1 + 0.1 * (rows - 1)

    a = [0.9, 0.8, 0.7, 0.6]
    found = better.speedups(np.array(a), 1.0, 0.05, [beta(k + 1) for k in range(5)])
    K, speedup = best_k(a, 0.05, beta)
    assert int(np.argmax(found)) == K
    assert found.max() == pytest.approx(speedup)
    assert better.speedups(np.array(a), 0.0, 0.05, [1, 2, 3, 4, 5]) == pytest.approx(np.ones(5))


def of_calls(*calls, n_tokens=3):
    """A Recorder of iterations of (who drafted, drafts, seconds of drafting, seconds in all), and a prefill before."""
    recorder = Recorder()
    first = Iteration(Counted([0], 0, 0), 0.0, 9.0, 9.0, prefill=True)
    later = [
        Iteration(Counted([0] * n_tokens, n, n_tokens - 1), drafting, seconds - drafting, seconds, by=[who] * n)
        for who, n, drafting, seconds in calls
    ]
    recorder.samples = [[first, *later]]
    recorder.seconds = sum(i.seconds for i in recorder.iterations)
    return recorder


PLAIN = [("", 0, 0.0, 1.0)] * 20


@pytest.mark.parametrize(("n", "counts_as"), [(9, 4 * 1.2), (6, 100)])
def test_an_interruption_counts_for_little_where_there_are_enough_calls(n, counts_as):
    """It counts for four usual calls; below eight iterations for what it took, as nothing is usual there."""
    run = of_calls(*[("model", 4, 0.4, 1.6)] * (n - 1), ("model", 4, 0.4, 100.4))
    f = figures(of_calls(*PLAIN, n_tokens=1), run)
    assert f["t_target"] == 1
    assert f["t_draft"] == pytest.approx(0.1)
    assert f["beta"]["5"] == pytest.approx((1.2 * (n - 1) + counts_as) / n)


def test_proposals_are_costed_by_who_made_them():
    """A lookup costs nothing, and a model much: the cost of a draft is that of both as they were."""
    run = of_calls(*[("prompt_lookup", 4, 0.001, 1.2)] * 15, *[("model", 4, 2.0, 3.2)] * 5)
    f = figures(of_calls(*PLAIN, n_tokens=1), run)
    assert f["t_draft"] == pytest.approx((15 * 0.001 + 5 * 2.0) / 80)
    assert f["predicted_blog"] == pytest.approx(f["speedup_without_prefill"], rel=0.01)


def test_where_measured_and_predicted_disagree_the_figures_say_so():
    run = of_calls(*[("model", 4, 0.4, 1.6)] * 10, ("model", 4, 0.4, 300))
    assert figures(of_calls(*PLAIN, n_tokens=1), run)["disagree"]
    assert not figures(of_calls(*PLAIN, n_tokens=1), of_calls(*[("model", 4, 0.4, 1.6)] * 10))["disagree"]


# In words


def test_the_six_lines():
    assert report.summary(scripted_figures([4, 2, 0, 1], N=55)) == [
        "Speedup = 1.38x  (autoregressive time / speculative time, per token)",
        "Tokens per second = 0.9 autoregressive, 1.2 speculative",
        "Acceptance rate r = 0.579  (2.75 tokens per iteration)",
        "Time = 32% drafting, 67% scoring, 1% rest",
        "Predicted = 1.77x  (r(K + 1) / (Kc + β), c = 0.098, β = 1.18; measured 1.77x without the prefill)",
        "No other K is sure to be faster; the largest gain would come if every draft were accepted: 73%.",
    ]
    nothing = figures(Recorder(), Recorder())
    assert (report.summary(nothing), report.table(nothing)) == (["No token was decoded."], [])


def test_every_figure_has_its_formula():
    f = scripted_figures([4, 2, 0, 1], N=55)
    rows = {name: (value, formula) for name, value, formula in report.table(f, TOKEN, 6e9, 60e9)}
    assert rows["r"] == ("0.579", "tokens / Σ over iterations of (drafted + 1)")
    assert rows["tokens per iteration"] == ("2.75", "1: 25%  2: 25%  3: 25%  5: 25%")
    assert rows["by position"][0] == "15/20 10/14 5/10 5/5"
    assert rows["α"] == ("0.714", "mean of Σ min(p, q) = 1 - TVD(p, q)")
    assert rows["naive matching"][0] == "0.714"
    assert rows["c"] == ("0.098", "t_draft / t_target = 100.0 ms / 1020.0 ms")
    assert rows["predicted, blog"] == ("1.77x", "r(K + 1) / (Kc + β)")
    assert rows["ceiling"][0] == "10.0 tokens/s"
    assert rows["of the ceiling"][0] == "9% autoregressive, 12% speculative"
    assert "by proposer" not in rows
    assert not any(name.startswith("level") for name in rows)
    lenient = {name: formula for name, _, formula in report.table(f, choose(lenience=0.5))}
    assert lenient["α"] == "mean of Σ min(p, q / 0.5)"
    assert "ceiling" not in lenient
    of_typical = {name: formula for name, _, formula in report.table(f, choose(typical=0.3))}
    assert of_typical["α"] == "mean of Σ p of the tokens that are typical"


def test_by_block_the_prediction_goes_by_position():
    """Leviathan's formula has one chance for all of them."""
    autoregressive, speculative = scripted([4, 2, 0, 1], N=55)
    f = figures(autoregressive, speculative)
    assert f["predicted_by_position"] == pytest.approx(f["predicted_blog"], rel=0.02)
    speculative.rule = choose(accept="block")
    by_block = figures(autoregressive, speculative)
    assert by_block["predicted_leviathan"] is None
    assert by_block["predicted_by_position"] == f["predicted_by_position"]
    rows = {name: value for name, value, _ in report.table(by_block, speculative.rule)}
    assert "predicted, Leviathan" not in rows
    assert rows["predicted, by position"] == f"{f['predicted_by_position']:.2f}x"


FREE = "No other K is sure to be faster; the largest gain would come if drafting were free: "


@pytest.mark.parametrize(
    ("expected", "hits", "how"),
    [
        (f"{FREE}3", [99], {"N": 300, "K": 16, "t_draft": 0.4}),
        ("K = 21 to 32 would be faster: by about 13%", [99], {"N": 300, "K": 16}),
        # The last windows are cut short, so the run as a whole did worse than its K does.
        ("No other K is sure to be faster", [99], {"N": 25, "K": 16}),
        ("K = 3 to 4 would be faster: by about 36%", [99], {"N": 300, "K": 2}),
        ("Speculative decoding did not pay: 1.00 tokens per iteration, for the time of 3.", [0], {"t_draft": 0.5}),
        ("Nothing was drafted, so this was autoregressive decoding.", [9], {"K": lambda: 0}),
        ("Too little was drafted to tell more", [9], {"N": 5, "K": 4}),
        ("Too little was drafted to tell more", [9], {"N": 9, "K": iter([1, *[0] * 8]).__next__}),
    ],
)
def test_the_advice(expected, hits, how):
    assert report.summary(scripted_figures(hits, **how))[-1].startswith(expected)


def test_the_advice_where_something_else_took_the_time():
    autoregressive, speculative = scripted([4, 2, 0, 1])
    assert "Try again" not in report.advice(figures(autoregressive, speculative))
    for iteration in speculative.iterations[-4:]:
        iteration.scoring += 20
        iteration.seconds += 20
        speculative.seconds += 20
    assert "is something else running? Try again" in report.advice(figures(autoregressive, speculative))
    speculative.seconds += 1000
    assert "outside of both models" in report.advice(figures(autoregressive, speculative))


def true_gain(alpha, K, other):
    def speedup(K):
        return sum(alpha**i for i in range(K + 1)) / (K * 0.1 + 1 + 0.05 * K)

    return speedup(other) / speedup(K) - 1


def test_a_run_that_is_too_short_to_tell_advises_no_k():
    """54 tokens: the best K of such runs is anything from 3 to 8, and no run knows."""
    found = [by_chance(0.85, 4, 14, noise=0.1, seed=seed) for seed in range(20)]
    assert len({f["best_K"] for f in found}) > 2
    for f in found:
        assert f["better_K"] is None
        assert f["predicted_best"] >= f["speedup_without_prefill"]
        assert "No other K is sure to be faster" in report.summary(f)[-1]


@pytest.mark.parametrize(("alpha", "K", "better_K"), [(0.95, 2, range(3, 5)), (0.4, 8, range(1, 8))])
def test_a_long_run_knows_which_k_are_better(alpha, K, better_K):
    f = by_chance(alpha, K, 300)
    found = f["better_K"]
    assert found["from"] == better_K[0]
    assert found["to"] in better_K
    assert found["sure"] == 0.95
    most = max(true_gain(alpha, K, other) for other in better_K)
    assert found["at_least"] < most < found["gain"] + 0.05
    assert true_gain(alpha, K, f["best_K"]) > most - 0.05
    pattern = rf"K = {found['from']} to {found['to']} would be faster: by about \d+%, at least \d+% \(95% sure\)\."
    assert re.fullmatch(pattern, report.summary(f, K)[-1])
    for chosen in ("auto", (4, "auto"), K + 3):  # it chose itself, or the drafter gives fewer
        assert "K" not in report.summary(f, chosen)[-1]


def test_what_is_said_with_so_much_certainty_is_true_that_often():
    """Few runs say that another K gains where it gains exactly nothing."""
    found = [by_chance(0.8, 5, 40, seed=seed)["better_K"] for seed in range(40)]
    assert sum(one is not None and true_gain(0.8, 5, one["from"]) < 0 for one in found) <= 4


def test_where_windows_seem_cheaper_than_rows_nothing_is_predicted():
    f = by_chance(0.8, 4, 30, t_more_rows=-0.17)
    assert f["busy"]
    assert [f[name] for name in ("c", "beta", "mean_beta", "predicted_blog", "predicted_best", "best_K")] == [None] * 6
    *rest, advice = report.summary(f)
    assert "too busy to tell" in advice
    assert not any("Predicted" in line for line in rest)
    assert not any("x" in value for _, value, _ in report.table(f))
    as_a_row = [by_chance(0.8, 4, 30, t_more_rows=0.0, noise=0.02, seed=seed) for seed in range(5)]
    assert not any(f["busy"] for f in as_a_row)  # chance is no failure


# Where each token came from


@pytest.mark.parametrize(
    ("step", "known", "expected"),
    [
        (([1, 2, 3], 4, 2), {}, "accepted, accepted, resampled"),
        (([1, 2], 1, 1), {}, "accepted, bonus"),
        (([1], 0, 0), {}, "autoregressive"),
        (([1, 2], 2, 2), {}, "accepted, accepted"),  # cut by a stop text
        (([1, 2, 3], 3, 2), {"by": ["ngram", "model", "self"]}, "accepted: ngram, accepted, resampled"),
        (([1, 2, 3], 3, 3), {"by": ["ngram", "model", "self"]}, "accepted: ngram, accepted, accepted: self"),
        # A bonus comes where the path ends in a leaf, however many nodes there are beside it.
        (([1, 3, 9], 3, 2), {"path": [1, 3], "by": ["ngram"] * 3}, "accepted: ngram, accepted: ngram, bonus"),
        (([2, 9], 3, 1), {"path": [2]}, "accepted, bonus"),
        (([1, 9], 3, 1), {"path": [1]}, "accepted, resampled"),
        (([9], 3, 0), {"path": []}, "resampled"),
    ],
)
def test_origins(step, known, expected):
    tree = {"tokens": [1, 2, 3], "parents": [0, 0, 1], "path": known["path"]} if "path" in known else None
    assert ", ".join(origins(Iteration(Counted(*step), tree=tree, by=known.get("by", [])))) == expected


def test_who_proposed_what_passed():
    """The target accepts 2 of the 3 drafts, whose proposers differ; the third is tested, the fourth never."""
    recorder = Recorder()
    proposal = Proposal([3, 4, 5, 6], one_hot(3, 4, 5, 6), ["ngram", "model", "model", "ngram"])
    draft = recorder.draft(lambda x, k: proposal)
    target = recorder.target(lambda x, n_last: one_hot(3, 4, 1, 1, 1))
    next(recorder.watch(speculative_sampling(PROMPT, draft, target, 5, 4, np.random.default_rng(0))))
    f = figures(Recorder(), recorder)
    assert f["by_proposer"] == {"model": [1, 2], "ngram": [1, 1]}
    assert f["levels"] == []
    rows = {name: value for name, value, _ in report.table(f | {"tokens": 0})}
    assert rows["by proposer"] == "draft model 1/2, n-gram 1/1"


# What is shown


@pytest.fixture
def shown(monkeypatch, capsys):
    """steps -> what is printed of a text of these steps, where colours are wanted."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def shown(*steps, by=(), **flags):
        text = StreamDecoder(ENCODER)
        sample = []
        with display.Display("Title", parse(**flags), [""]) as d:
            for step in steps:
                sample.append(Iteration(step, by=[*by], pieces=[text.push([token]) for token in step.tokens]))
                d.push(text_step(sample[-1], 0))
            for step in last_step(text, sample, 0):
                d.push(step)
        d.print_time(1.5)
        return capsys.readouterr().out

    return shown


def test_the_colour_says_who_wrote_a_token(shown):
    step = Counted(ENCODER.encode("ab"), 2, 1)
    assert "\033[32ma" in shown(step, by=["model", "model"], color=True)
    assert "\033[3;35ma" in shown(step, by=["ngram", "model"], color=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_character_in_several_tokens_has_the_colour_of_the_last(shown, stream):
    first, second = ENCODER.encode("é")
    out = shown(Counted([first], 1, 0), Counted([second], 0, 0), color=True, stream=stream)
    assert "\033[33mé\033[0m" in out  # yellow, that of autoregressive
    out = shown(Counted([first], 0, 0), color=True, stream=stream)
    assert "\033[33m\N{REPLACEMENT CHARACTER}\033[0m" in out


def test_without_color_it_is_the_text_but_for_what_a_terminal_would_obey(shown):
    text = "\033[2J\r\a\b\x7f\x9b2J\u202e\u2066"
    for color, written in ((False, "a – b"), (False, f"a{text}\tb"), (True, f"a{text}\tb")):
        tokens = ENCODER.encode(written)
        out = shown(Counted(tokens, 99, len(tokens) - 1), color=color)
        assert not set(text) & set(out) - ({*"[2J\033"} if color else {*"[2J"})
        assert color or out == f"\nTitle\n-----\nTime = 1.50s\nText = {written.translate(display.SHOWN)}\n"


def test_the_row_of_an_iteration():
    row = outcome.iteration_row(scripted([2])[1].iterations[3], ENCODER)
    assert row[:4] == ("2 of 4", "400.0 ms", "1200.0 ms", "1.00 1.00 0.00")


# What is written


@pytest.mark.parametrize("flag", ["json", "html"])
@pytest.mark.parametrize("path", ["missing/run", "folder", "file/run", "a" * 300, "printed", "link"])
def test_a_path_that_cannot_be_written_is_one_line_before_the_models_are_read(flag, path, tmp_path, monkeypatch):
    """A file that the run prints to is refused too: the page would take its place."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("")
    Path("link").symlink_to("printed")
    with open("printed", "w") as printed, contextlib.redirect_stdout(printed):
        line = refusal(main.main, **{flag: path}, target_model_size="none-of-this-name")
    assert line.startswith(f"cannot write to {path:.200}: ")
    assert ("this run prints to it" in line) == (path in ("printed", "link"))
    assert sorted(os.listdir()) == ["file", "folder", "link", "printed"]
    assert Path("printed").read_text() == ""


def test_a_full_disk_is_told_before_the_run_and_after_it_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    files.write_json(str(path), {"prompt": "é \udc80"})
    with largest_file(2**10):
        lines = [refusal(files.check_outputs, [str(path)]), refusal(files.write_text, str(path), "x" * 2**11)]
    assert lines == [f"cannot write to {path}: File too large"] * 2
    assert os.listdir(tmp_path) == ["run.json"]
    assert json.loads(path.read_text(encoding="utf-8")) == {"prompt": "é \udc80"}
