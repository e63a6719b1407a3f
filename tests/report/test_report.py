"""The figures of runs, recomputed from their iterations; predictions; the lines of the ending; the JSON document."""

import itertools
import json
import re
from collections import Counter, deque
from dataclasses import replace
from itertools import zip_longest
from statistics import mean
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from checkpoint_files import MODELS
from enumeration import Clock
from hypothesis import given
from hypothesis import strategies as st
from tiny import ROOT, encoder_of, sample_of, text_of

from benchmarks.output import with_lists
from speculative import load_pair
from speculative.checkpoints.names import HPARAMS, TF_INDEX
from speculative.drafters import DRAFTERS as SPECS
from speculative.engines.contract import PlacedStep
from speculative.engines.model import Call
from speculative.report import measuring
from speculative.report.advice import advice, without_wrong
from speculative.report.document import from_json, to_json
from speculative.report.doubt import NOISE, reason_to_doubt
from speculative.report.ending import CAME, WHY, lines, texts_of
from speculative.report.figures import figures
from speculative.report.make_record import BLOG_TEXT, first_unlike_the_blogs, line_of_session
from speculative.report.measuring import Measured, measure
from speculative.report.page import page
from speculative.report.record import Comparison, DecoderRecord, Difference, Predictions, RuleUsed
from speculative.report.simulate import KnownText, Prices, Simulation
from speculative.report.tables import figure_rows, grid
from speculative.report.turns import median_run, timed_turns
from speculative.rules import TOKEN
from speculative.run import steps as steps_of_run
from speculative.run.batch import decode_together
from speculative.run.decode import DECODERS
from speculative.run.options import FIELDS
from speculative.run.steps import TextStep, origins_of
from speculative.sampling import Proposal, Step
from speculative.trees import Tree

BLOG_PROMPT = FIELDS["prompt"].default
PROMPT = "It was upon a bitterly cold night in the winter of the year, a cold night in the"


# ---- The figures -----------------------------------------------------------------------------------------------------

DRAFTERS = [("model", 1), ("model", 4), ("model", "auto"), ("prompt_lookup", 3), ("prompt_lookup+model", 5)]
DRAFTERS += [("int8/model/ngram", (5, 3, 2)), ("ngram", 4), ("heads", 3), ("model", "tree"), ("ngram", "tree")]
SETTINGS = [{}, {"temperature": 1.0}, {"temperature": 0.7, "accept": "block"}, {"temperature": 1.0, "stop": "e"}]
HOW = [(*drafter, SETTINGS[(i + j) % 4]) for i, drafter in enumerate(DRAFTERS) for j in (0, 1)]


@pytest.mark.parametrize(("drafter", "K", "setting"), HOW)
def test_the_figures_are_those_of_the_iterations(pair, drafter, K, setting):
    if K == "tree" and "accept" in setting:
        setting = {"temperature": 0.7, "accept": "lenient:0.5"}
    session = pair.changed(drafter=drafter, **({"tree": (2, 2)} if K == "tree" else {"K": K}), **setting)
    document = session.compare(PROMPT, 24, repeats=1).document
    json.dumps(document, allow_nan=False)
    f = document["figures"]
    plain, mine = ([i for s in document[name]["samples"] for i in s["iterations"]] for name in DECODERS)
    n_tokens = sum(i["tokens"] for i in mine)
    tested = [a for i in mine for a in i["alpha"]]
    assert f["tokens"] == n_tokens == len(document["speculative"]["samples"][0]["tokens"])
    assert f["drafted"] == sum(i["drafted"] for i in mine)
    assert f["accepted"] == sum(i["accepted"] for i in mine)
    assert f["r"] == n_tokens / sum(i["drafted"] + 1 for i in mine)
    assert f["tokens_per_iteration"] == mean(i["tokens"] for i in mine)
    assert f["alpha"] == (pytest.approx(mean(tested)) if tested else None)
    assert f["tokens_per_iteration_histogram"] == {str(n): c for n, c in Counter(i["tokens"] for i in mine).items()}
    assert sum(f["tested_by_position"]) == len(tested)
    assert sum(f["accepted_by_position"]) == f["accepted"]
    assert sum(tested for _, tested in f["by_source"].values()) == len(tested)
    windows = [[i["drafted"] for i in mine]]  # of each level
    for outer, level in zip([f, *f["levels"]], f["levels"], strict=False):
        windows.append([drafted for i in mine for _, drafted, _ in i["levels"][level["name"]]])
        assert (level["tokens"], level["drafted"]) == (outer["drafted"], sum(windows[-1]))
    if isinstance(K, tuple):
        assert [*map(max, windows)] == [*K]
    assert f["seconds"]["speculative"] == pytest.approx(sum(i["seconds"] for i in mine), abs=0.05)
    parts = sum(f["seconds"][part] for part in ("drafting", "scoring", "rest"))
    assert parts == pytest.approx(f["seconds"]["speculative"])
    per_token = document["autoregressive"]["seconds"] / sum(i["tokens"] for i in plain)
    assert f["speedup"] == pytest.approx(per_token / (f["seconds"]["speculative"] / n_tokens))
    if f["c"] is not None:
        took = f["drafted"] / len(mine) * f["c"] + f["mean_beta"]  # tokens of the target
        assert f["account_blog"] == pytest.approx(f["tokens_per_iteration"] / took)


def scripted(N=60, K=4, alpha=0.75, t_draft=0.1, window=lambda rows: 1 + 0.1 * rows, seed=0):
    """Both records of a run whose drafts are accepted with chance alpha. A row of the target takes window(1) s."""
    rng = np.random.default_rng(seed)
    plain = [TextStep([0], scoring=window(1), seconds=window(1)) for _ in range(N)]
    mine = []
    left = N
    while left:
        k = min(K, left - 1)
        accepted = next((n for n in range(k) if rng.random() >= alpha), k)
        scoring = window(k + 1)
        drafting = k * t_draft
        times = {"drafting": drafting, "scoring": scoring, "seconds": drafting + scoring}
        step = TextStep([0] * (accepted + 1), k, accepted, **times)
        step.alpha, step.q_of_tokens = [alpha] * min(accepted + 1, k), [1.0] * (accepted + 1)
        step.source = ["model"] * k
        mine.append(step)
        left -= accepted + 1
    return tuple(record_of([iterations], name) for name, iterations in zip(DECODERS, (plain, mine), strict=True))


def record_of(samples, name=""):
    seconds = sum(i.seconds for sample in samples for i in sample)
    return DecoderRecord(name, seconds, samples=[*map(sample_of, samples)])


@pytest.fixture(scope="module")
def run(pair):
    """The record of a short run, of which tests change parts."""
    return pair.compare(PROMPT, 4, repeats=1).record


def recorded(run, records, f, **changes):
    """The record of scripted decodes."""
    both = dict(zip(DECODERS, records, strict=True))
    return replace(run, **both, figures=f, difference=None, **changes)


def test_the_costs_and_the_account_of_a_scripted_run(run):
    records = scripted(N=200)
    f = figures(*records)
    assert f.account.c == pytest.approx(0.1 / 1.1)
    assert f.account.beta["5"] == pytest.approx(1.5 / 1.1)
    assert f.account.account_blog == pytest.approx(f.comparison.speedup, rel=0.01)
    rows = figure_rows(recorded(run, records, f))
    assert [row.name for row in rows][-2:] == ["the formula with β", "Leviathan's, with β"]


def test_the_account_of_a_batch_counts_the_texts_in_a_call(run):
    """A call takes the same time for all texts. Some end before others, so later calls serve fewer."""
    texts = [scripted(alpha=alpha) for alpha in (0.3, 0.6, 0.9)]
    records = []
    for number, name in enumerate(DECODERS):
        samples = [both[number].steps for both in texts]
        for steps in zip_longest(*samples):
            for step in [step for step in steps if step][1:]:  # the first of a call has its times
                step.seconds = step.drafting = step.scoring = 0.0
        records.append(record_of(samples, name))
    f = figures(*records)
    assert f.account.occupancy < 0.9
    assert f.account.account_blog == pytest.approx(f.comparison.speedup, rel=0.03)
    assert " % fewer texts in a call, the formula gives " in text_of(recorded(run, records, f), "account")


LESS = "calls of the target with several tokens took less time than calls with one"
LONG = "the times of the single calls, put into the blog's formula with β, give "
WAITED = "the threads together waited 90 s for cores that other programs used"
MANY = "tokens, so the text cannot have been that much faster"
TIMES = [  # seconds of a window / of a row, the shortest row, four windows longer by, waiting -> doubt, no prediction
    (1.4, 1.0, 0, 0, None, None),
    (1.4, 1.0, 60, 0, LONG, LONG),
    (1.4, 1.0, 60, 90, LONG, LONG),
    (1.4, 1.0, 0, 90, None, None),  # equal calls took the same time: they did not wait
    (1.4, 0.8, 0, 90, None, WAITED),
    (0.97, 1.0, 0, 0, None, None),
    # The spread of a row's times excuses nothing.
    (0.82, 1.0, 0, 0, LESS, LESS),
    (0.82, 0.8, 0, 0, LESS, LESS),
    (0.33, 0.3, 0, 0, MANY, MANY),
    (0.2, 1.0, 0, 0, MANY, MANY),
    (0.2, 0.1, 0, 0, MANY, MANY),
    (0.2, 0.1, 0, 90, MANY, WAITED),
]


@pytest.mark.parametrize(("window", "shortest", "longer", "waited", "doubt", "withheld"), TIMES)
def test_doubt_and_predictions(run, window, shortest, longer, waited, doubt, withheld):
    """An impossible speedup is doubted, and predictions need times of a machine at rest."""
    autoregressive, speculative = scripted(window=lambda rows: 1 if rows == 1 else window)
    autoregressive.steps[7].seconds = shortest
    for i in speculative.steps[2:6]:
        i.scoring += longer
        i.seconds += longer
    records = [autoregressive, record_of([speculative.steps])]
    records[1].waited = waited
    f = figures(*records, measured_of(dict.fromkeys(range(2, 10), window), [0.75] * 60))
    record = recorded(run, records, f)
    said = "\n".join(line.text for line in lines(record, CAME, WHY))
    speed = text_of(record, "speed")
    if not longer:
        assert f.account.mean_beta == pytest.approx(window, abs=0.1)
    assert speed.startswith(f"{f.comparison.speedup:.2f} times as fast{', but do not trust it' if doubt else ''}: ")
    assert (doubt or "") in speed
    assert ("nother program probably used the processor: try again." in speed) == bool(doubt and not waited)
    assert (f"β = {f.account.mean_beta:.2f} times" in said) == (doubt is None)
    assert (withheld or "None") in str(f.withheld)
    assert (grid(f) is None) == bool(withheld)
    assert ("\nOther settings are not predicted: " in said) == bool(withheld and not doubt)
    assert ("\nPrediction: " in said) == (withheld is None)
    assert ("The speedup of this run would have been predicted as " in said) == (withheld is None and waited > 0)
    assert said.lower().count("the threads together waited") == bool(waited)


@given(st.floats(0.02, 1), st.floats(0.3, 3), st.floats(1, 30), st.floats(0, 30), st.booleans())
def test_the_noisier_the_machine_the_more_is_doubted(window, factor, spread, more, waited):
    """Of the same figures, beside calls with one row whose times are more or less spread, and threads that waited."""
    f = figures(*scripted(window=lambda rows: 1 if rows == 1 else window))
    speedup = factor * f.comparison.speedup
    doubts = []
    for noise in (0, 1):
        disturbed = replace(f, waited=100.0 if noise and waited else 0.0)
        doubts.append(reason_to_doubt(disturbed, Comparison(speedup, speedup), spread + noise * more) is not None)
    assert doubts[0] <= doubts[1]
    assert doubts[0] or speedup <= (1 + NOISE) * f.tokens_per_iteration


# ---- Predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", ["model", "int8", "prompt_lookup+model", "int8/model", "prompt_lookup"])
def test_greedy_windows_are_foreseen_exactly(pair, own):
    """From a run with K = 4, for every other K and for look-ups, though most of it was never drafted. A copy shares its
    target's cache: its rows depend a little on which of the two wrote it, and so may a window."""
    prompt = f"{PROMPT} {PROMPT}"
    session = pair.changed(drafter=own)
    [record] = timed_turns(session, [prompt], 40, ["speculative"])
    measured = measure(session, [session.encode(prompt)], record)
    assert own in measured.drafters
    for name, K in itertools.product(measured.drafters, (1, 2, 8)):
        other = pair.changed(drafter=name, K=K)
        other.ready([other.encode(prompt)], 40)
        steps = other.steps("speculative", other.encode(prompt), 40, np.random.default_rng(0))
        n_steps = sum(1 for _ in steps)
        simulation = Simulation(measured.texts[0], Prices(lambda rows: 1.0, draft=0.1, by_text=0.0))
        assert simulation.decode(measured.drafters[name], K)[1] == pytest.approx(n_steps, abs=2 * ("int8" in name))


def measured_of(timed, chances):
    drafters = {name: [SPECS[name]] for name in ("model", "prompt_lookup")}
    n = len(chances)
    return Measured(
        drafters, [KnownText([n], range(n), chances, [1.0] * n)], timed, by_text_seconds=0.0, draft_seconds=0.1
    )


def test_a_run_predicts_the_speedup_of_another_K():
    def window(rows):
        return 1 + 0.1 * rows + 0.3 * (rows > 5)

    autoregressive, speculative = scripted(N=2000, window=window)
    measured = measured_of({rows: window(rows) for rows in range(1, 10)}, [0.75] * 2000)
    predicted = figures(autoregressive, speculative, measured).predictions.predicted
    assert [*predicted["model"]] == ["1", "2", "4", "8", "auto"]
    assert [*predicted["prompt_lookup"].values()] == [pytest.approx(1.0, rel=0.1)] * 5
    assert predicted["model"]["4"] == pytest.approx(figures(autoregressive, speculative).comparison.speedup, rel=0.03)
    for K in (1, 2, 8):
        measured_there = figures(*scripted(N=2000, K=K, window=window, seed=1)).comparison.speedup
        assert predicted["model"][str(K)] == pytest.approx(measured_there, rel=0.05)


@given(st.floats(0, 1), st.lists(st.floats(1e-9, 1e9), min_size=9, max_size=9), st.floats(1e-9, 1e9))
def test_no_prediction_exceeds_what_its_window_allows(alpha, seconds, t_row):
    autoregressive, speculative = scripted(N=20, alpha=alpha, window=lambda rows: t_row if rows == 1 else seconds[0])
    f = figures(autoregressive, speculative, measured_of(dict(enumerate(seconds, start=1)), [alpha] * 20))
    for speedups in f.predictions.predicted.values() if f.predictions else ():
        assert all(speedup <= int(K) + 1 + 1e-9 for K, speedup in speedups.items() if K != "auto")
        assert min(f.predictions.window_beta.values()) >= min(1, *f.account.beta.values()) - 1e-9
        assert f.predictions.window_beta["8"] >= f.account.beta["5"] * (1 - 1e-9)
    assert f.doubt or f.comparison.speedup <= (1 + NOISE) * f.tokens_per_iteration
    autoregressive.steps[0].prefill = speculative.steps[0].prefill = True
    f = figures(autoregressive, speculative)
    assert f.doubt or f.comparison.speedup_without_prefill <= (1 + NOISE) * f.tokens_per_iteration


def test_windows_are_timed_once_and_in_a_share_of_the_time(pair, repeating):
    text = pair.encode(PROMPT)
    assert {*measuring.time_windows(pair, text, set(), 10.0)} >= {17, 9, 5, 1}
    assert measuring.time_windows(pair, text, set(), 0.0) == {}


def test_no_window_is_timed_that_does_not_fit_into_the_context():
    """The run's own longest window was timed after a shorter text."""
    assert measuring.sizes_to_time({2, 41}, 33) == [1, 3, 5, 9, 17, 33]
    assert measuring.sizes_to_time({2, 41}, 41) == [1, 41, 3, 5, 9, 17, 33]
    assert measuring.sizes_to_time({5}, 4) == [1, 2, 3]
    assert measuring.sizes_to_time(set(), 0) == []


@pytest.mark.parametrize(("until", "n_blocks"), [(0, 1), (25, 2), (31, 3)])
def test_a_draft_model_is_asked_for_no_block_of_rows_that_would_end_too_late(monkeypatch, until, n_blocks):
    asked = []  # each takes ten seconds
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: 10 * len(asked)))
    model = Mock(side_effect=lambda x, n: asked.append(n) or np.full((n, 2), 0.5), last_logits=np.eye(64, 2))
    sample = [TextStep([0], drafted=1, source=["model"], q_of_tokens=[1.0])] * 64 * 5
    chances, margins = measuring.chances_by_position(model, [0], sample, until)
    assert [*chances] == [0.5] * 64 * 5
    assert [*margins] == pytest.approx(([1.0] * 2 + [0.0] * 62) * n_blocks + [2 / 64] * 64 * (5 - n_blocks))
    assert asked == [64] * n_blocks


def test_a_token_to_which_both_models_give_no_chance_is_accepted():
    """A rule that is not lossless may keep it. The chance is a number, and nothing is printed."""
    model = Mock(return_value=np.array([[0.0, 1.0]] * 3, np.float32), last_logits=np.eye(3, 2))
    steps = [TextStep([token], q_of_tokens=[q]) for token, q in ((0, 0.0), (1, 0.5), (0, 0.5))]
    with np.errstate(all="raise"):
        chances, _ = measuring.chances_by_position(model, [0], steps, until=0.0)
    assert [*chances] == [1.0, 1.0, 0.0]


# ---- The median of runs ----------------------------------------------------------------------------------------------


def test_a_short_decode_is_repeated_with_both_decoders_in_turn(pair, monkeypatch, repeating):
    order = []
    decode_ids = pair.decode_ids

    def decode_and_note(name, *inputs, **how):
        order.append(name)
        return decode_ids(name, *inputs, **how)

    monkeypatch.setattr(pair, "decode_ids", decode_and_note)
    run = pair.compare(PROMPT, 8, repeats=3)
    assert order == [*DECODERS] * 3
    assert run.figures["runs"] == 3
    order.clear()
    assert pair.compare(PROMPT, 8).figures["runs"] == len(order) / 2 > 1  # half a second of 10 ms each at rest


def test_the_median_run_has_the_first_ones_tokens():
    runs = [record_of([[TextStep([token], seconds=s)]]) for token, s in ((1, 5), (2, 1), (1, 2), (1, 9))]
    assert (median_run(runs).seconds, median_run(runs).runs) == (5, 3)


# ---- The ending ------------------------------------------------------------------------------------------------------


def test_without_predictions_a_slow_run_says_why(run):
    """As on JAX; the screens and the pages in golden files have the sentences about predictions."""
    records = scripted(N=400, alpha=0.02, t_draft=0.5)
    record = recorded(run, records, figures(*records))
    assert advice(record).startswith("It does not pay here, because a call with its drafts takes as long as")


@pytest.mark.parametrize(("own", "is_withheld"), [(2.0, False), (2.15, False), (1.86, False), (2.17, True), (1.84, 1)])
def test_predictions_that_are_wrong_for_the_run_itself_are_withheld(run, own, is_withheld):
    predictions = Predictions({"model": {"4": own, "auto": 2.5}}, {})
    f = replace(figures(*scripted()), comparison=Comparison(2.0, 2.0), predictions=predictions)
    f = without_wrong(f, run.options)
    said = advice(recorded(run, scripted(), f))
    reason = f"Other settings are not predicted: the speedup of this run, 2.00, would have been predicted as {own:.2f}."
    assert (f.predictions is None) == is_withheld
    assert (said == reason) == is_withheld


NOTHING = "no other K or drafter of this run would be clearly faster on this text."
LOOKUPS = "prompt_lookup+model"
COPY = f"int8/{LOOKUPS}"
WITH_LOOKUPS = f"--drafter {LOOKUPS} --K auto would be 2.30"
ADVICE = [  # options, the drafter of --fast; of a run at 2.0 the predictions: K = 8, auto, look-ups with auto -> advice
    ({}, LOOKUPS, 2.1, 2.15, 2.15, NOTHING),
    ({}, COPY, 2.1, 2.15, 2.15, f"{NOTHING} Not predicted: --fast."),
    ({}, LOOKUPS, 2.2, 2.15, 2.15, "--K 8 would be 2.20 times as fast on this text."),
    ({}, LOOKUPS, 2.2, 2.17, 2.1, "--K auto would be 2.17"),
    ({}, LOOKUPS, 2.2, 2.17, 2.3, "--fast would be 2.30"),
    ({"temperature": 1}, LOOKUPS, 2.0, 2.1, 2.3, "--fast would be 2.30"),
    ({"temperature": 1, "accept": "lenient:0.5"}, LOOKUPS, 2.0, 2.1, 2.3, WITH_LOOKUPS),
    ({}, COPY, 2.2, 2.17, 2.3, WITH_LOOKUPS),
    ({"K": "auto"}, LOOKUPS, 2.2, 2.3, 2.3, NOTHING),
    ({"K": "auto"}, LOOKUPS, 2.2, 2.3, 2.6, "--fast would be 2.60"),
    ({"fast": True, "drafter": LOOKUPS, "K": "auto"}, LOOKUPS, 2.2, 2.2, 2.3, NOTHING),
    ({"fast": True, "drafter": LOOKUPS, "K": "auto"}, LOOKUPS, 2.2, 2.5, 2.3, "--drafter model --K auto would be 2.50"),
]


@pytest.mark.parametrize(("options", "fast", "number", "auto", "lookups", "said"), ADVICE)
def test_a_run_is_advised_of_what_is_clearly_faster(run, pair, options, fast, number, auto, lookups, said):
    o = replace(run.options, **options)
    records = scripted()
    f = figures(*records)
    predicted = {"model": {"4": 2.0, "8": number, "auto": auto}, LOOKUPS: {"auto": lookups}}
    f = replace(f, comparison=Comparison(2.0, 2.0), predictions=Predictions(predicted, {}), withheld=None)
    rule = RuleUsed(o.accept, "", lossless=not o.accept.startswith("lenient"))
    record = recorded(run, records, f, options=o, fast=fast, rule=rule)
    assert advice(record).startswith(f"Prediction: {said}")


def test_control_characters_of_a_name_are_not_printed(pair, monkeypatch):
    target = pair.models.spec("target")._replace(size="a\x1b[2J\x07")
    monkeypatch.setitem(pair.models.specs, "target", target)
    assert r"Target a\x1b[2J\x07 in float32" in line_of_session(pair)
    assert r"target a\x1b[2J\x07 float32" in repr(pair)


def official(**changes):
    """The spec of the blog's target."""
    return SimpleNamespace(**{"size": "1558M", "dtype": "float32", "hparams": HPARAMS["1558M"]} | changes)


STAND_IN = HPARAMS["1558M"] | {"stand_in": "a small one"}
BLOG = [  # the target, the prompt, the temperature, the token that differs -> its number, 0 for none, None: not said
    (official(), BLOG_PROMPT, 0, 0, 0),
    (official(), BLOG_PROMPT, 0, 7, 7),
    (official(hparams=STAND_IN), BLOG_PROMPT, 0, 1, 1),
    (official(), BLOG_PROMPT, 1, 0, None),
    (official(), PROMPT, 0, 0, None),
    (official(size="mine"), BLOG_PROMPT, 0, 0, None),
    (official(dtype="int8"), BLOG_PROMPT, 0, 0, None),
    (official(hparams=HPARAMS["1558M"] | {"n_ctx": 512}), BLOG_PROMPT, 0, 0, None),
]


@pytest.mark.parametrize(("spec", "prompt", "temperature", "different", "expected"), BLOG)
def test_the_blogs_text_is_recognised(pair, spec, prompt, temperature, different, expected):
    tokens = pair.encoder.encode(BLOG_TEXT)
    if different:
        tokens[different - 1] += 1
    plan = SimpleNamespace(is_greedy=temperature == 0)
    session = SimpleNamespace(plan=plan, encoder=pair.encoder, models=SimpleNamespace(spec=lambda role: spec))
    assert first_unlike_the_blogs(session, [pair.encode(prompt)], [tokens]) == expected


LENIENT = RuleUsed("lenient:0.5", "", lossless=False)
USERS = RuleUsed("mine", "unknown", lossless=False, claim="The rule mine does not claim to keep it.")
LOSSY = "--accept lenient:0.5 does not keep the target's distribution."
SAMPLES = "The texts differ, as they may above temperature 0: both are samples of the target's distribution."
DEFECT = Difference("first difference at position 5.", is_defect=False)
EQUAL = "The texts are equal, token for token, as always at temperature 0."
PARTS = [  # changes of the record, its temperature, whether the texts differ, whether both ran -> texts, law, blog
    ({}, 0, False, True, EQUAL, None, None),
    ({}, 1, False, True, "The texts are equal, token for token.", None, None),
    ({}, 1, True, True, SAMPLES, None, None),
    ({"difference": DEFECT}, 0, True, True, "The texts differ: first difference at position 5.", None, None),
    ({"rule": LENIENT}, 1, True, True, "The texts differ.", LOSSY, None),
    ({"rule": LENIENT}, 1, False, True, "The texts are equal, token for token.", LOSSY, None),
    ({"rule": LENIENT}, 1, False, False, None, LOSSY, None),
    (
        {"rule": LENIENT},
        0,
        False,
        True,
        EQUAL,
        None,
        None,
    ),
    ({"rule": USERS}, 1, False, False, None, USERS.claim, None),
    ({"rule": USERS}, 0, True, True, "The texts differ.", USERS.claim, None),
    ({"blog_text": 0}, 0, False, False, None, None, "The blog printed this text too."),
    ({"blog_text": 7}, 0, False, False, None, None, "(it differs from token 7 on): these are not the official weights"),
    ({"blog_text": 7, "stand_in": "small"}, 0, False, False, None, None, "token 7 on), because these are stand-ins."),
]


@pytest.mark.parametrize(("changes", "temperature", "differ", "both", "texts", "law", "blog"), PARTS)
def test_the_lines_about_the_texts(run, changes, temperature, differ, both, texts, law, blog):
    """A rule that is not lossless is said in every ending above temperature 0."""
    record = replace(run, options=replace(run.options, temperature=temperature), difference=None)
    if "stand_in" in changes:
        changes = {"blog_text": 7, "models": [replace(model, stand_in="small") for model in run.models]}
    record = replace(record, **changes)
    if differ:
        [sample] = run.speculative.samples
        other = replace(run.speculative, samples=[replace(sample, tokens=[*sample.tokens[:-1], 0])])
        record = replace(record, speculative=other)
    if not both:
        record = replace(record, autoregressive=None, figures=replace(run.figures, comparison=None))
    assert (text_of(record, "texts"), text_of(record, "law")) == (texts, law)
    assert (blog or "None") in str(text_of(record, "blog"))


STAND_INS = [  # the stand-ins of target and draft, what they are -> the note
    ({"1558M": "it is a", "124M": "it is b"}, "1558M and 124M are stand-ins for the official models: it is a; it is b"),
    ({"1558M": "random", "124M": "random"}, "1558M and 124M are stand-ins for the official models: random"),
    ({"355M": "random", "124M": None}, "355M is a stand-in for the official model: random"),
    ({"padded-target": "it computes what a does", "124M": None}, "padded-target computes what a does"),
]


@pytest.mark.parametrize(("stand_ins", "note"), STAND_INS)
def test_stand_ins_are_named_once(run, stand_ins, note):
    """A copy of the target has the target's name."""
    both = zip(run.models, stand_ins.items(), strict=True)
    target, draft = [replace(model, size=size, stand_in=stand_in) for model, (size, stand_in) in both]
    record = replace(run, models=[target, draft, replace(target, role="int8")], figures=None)
    assert texts_of(record, "note") == [f"Note: {note}."]


PRINTED = {
    "1558M": BLOG_TEXT,  # toyllm's text begins in the same way
    # picoGPT's
    "124M": " the most powerful machines on the planet.\n\nThe computer is a machine that can perform complex "
    "calculations, and it can perform these calculations in a way that is very similar to the human brain.\n",
}


@pytest.mark.official
@pytest.mark.parametrize("size", PRINTED)
def test_the_official_models_decode_the_texts_that_others_printed(size):
    if not all((MODELS / name / TF_INDEX).is_file() for name in ("124M", "1558M")):
        pytest.skip("models/ does not have the official 124M and 1558M: python main.py downloads them")
    session = load_pair("124M", size, MODELS)
    assert "".join(i.text for i in session.speculative(BLOG_PROMPT, 40)) == PRINTED[size]


def test_nothing_is_drafted(run):
    records = scripted(K=0)
    record = recorded(run, records, figures(*records))
    assert text_of(record, "acceptance") == "Nothing was drafted, so this was autoregressive decoding."
    assert text_of(record, "time") is None


# ---- The record ------------------------------------------------------------------------------------------------------


ORIGINS = [  # (tokens, drafts, their drafters or "tree") -> the origins
    (([1, 2, 3], [1, 2, 4, 5], ()), "accepted, accepted, resampled"),
    (([1, 2], [1], ()), "accepted, bonus"),
    (([1], [], ()), "autoregressive"),
    (([1, 2, 3], [1, 2, 4], ("ngram", "model", "int8")), "accepted, accepted, resampled"),
    # A bonus comes if the path ends in a leaf.
    (([1, 3, 9], [1, 2, 3], "tree"), "accepted, accepted, bonus"),
    (([2, 9], [1, 2, 3], "tree"), "accepted, bonus"),
    (([1, 9], [1, 2, 3], "tree"), "accepted, resampled"),
]


@pytest.mark.parametrize(("step", "expected"), ORIGINS)
def test_origins(step, expected):
    tokens, drafts, source = step
    proposal = Proposal(drafts, [None] * len(drafts), source)
    if source == "tree":
        proposal = Tree("ngram")
        for parent, token in zip((0, 0, 1), drafts, strict=True):
            proposal.add(parent, token, None)
    assert ", ".join(origins_of(Step(tokens, proposal, None))) == expected


def test_steps_of_a_loop_on_a_device_have_its_mean_times_and_the_last_one_the_rest(monkeypatch):
    """The loop makes eight calls in ten seconds, and the third completes the stop text."""
    clock = Clock()
    monkeypatch.setattr(steps_of_run, "time", clock)
    encoder = encoder_of("the", " end")
    log = deque()

    def rounds():
        clock.now += 10
        for number, [token] in enumerate(map(encoder.encode, ["the", "the", " end", "the"])):
            log.append(Call(1.25 * number, 1.25, n_read=1, n_rows=1, derived=True))
            yield [PlacedStep(0, Step([token], Proposal([], ()), ()), [])]

    plan = SimpleNamespace(batch=2, stop=" end", rule=TOKEN, levels=[], rng=np.random.default_rng)
    loops = SimpleNamespace(rounds=lambda *_: rounds(), logs={"target": log})
    setup = SimpleNamespace(plan=plan, device=loops, encoder=encoder)
    steps = decode_together(setup, "speculative", [[0]], 4)
    assert [(i.seconds, i.scoring, i.calls) for i in steps] == [
        (seconds, 1.25, [("target", 0.0, 1.25)]) for seconds in (1.25, 1.25, 7.5)
    ]


def test_the_lists_of_output_are_the_fields_of_the_record(run):
    page = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    assert with_lists(page) == page, "python -m benchmarks output"
    documented = {*re.findall(r"`(\w+)`", page)}
    document = to_json(run)
    [sample] = document["speculative"]["samples"]
    [iteration, *_] = sample["iterations"]
    details = iteration["details"]
    parts = [document, *document["models"], document["rule"], document["speculative"], sample, iteration, details]
    parts += [document["figures"], document["figures"]["seconds"], document["machine"], details["own"]]
    assert {key for part in parts for key in part} <= documented


ROUND_TRIPS = [
    {},
    {"temperature": 1.0, "accept": "block", "stop": ("e", "x")},
    {"drafter": "int8/model", "K": (5, 3)},
    {"tree": (2, 2, 1)},
]


@pytest.mark.parametrize("options", ROUND_TRIPS, ids=str)
def test_a_run_is_the_same_after_it_was_written_and_read(pair, options, tmp_path):
    """Its record, so all of its words, its tables and its page."""
    run = pair.changed(**options).compare(PROMPT, 16, repeats=1)
    run.json(str(tmp_path / "run.json"))
    again = from_json(json.loads((tmp_path / "run.json").read_text(encoding="utf-8")))
    assert again == run.record
    assert page(again) == run.html()
    assert repr(run) == "\n".join(run.document["summary"]) == "\n".join(line.text for line in lines(again, CAME, WHY))
    assert [i["text"] for i in run.iterations] and "".join(i["text"] for i in run.iterations) == run.text
