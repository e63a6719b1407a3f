"""The page that replays a run: what is recorded for it, how it is written, and of which files."""

import itertools
import json
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from enumeration import random_model
from speculative.accept import TOKEN, choose
from speculative.stop import cut
from test_flags import parse, refused
from tiny import ROOT, encoder_of, one_hot, refusal, stub

from encoder import StreamDecoder
from speculative.cli.display import check_output
from speculative.drafters.model import model_drafter
from speculative.measure.details import N_TOP, likeliest
from speculative.measure.document import document, token_ids
from speculative.measure.page import SCRIPTS, fill, findings, page, page_data
from speculative.measure.recorder import Recorder
from speculative.measure.run import Run
from speculative.sampling import Proposal, autoregressive_sampling, max_fn, speculative_sampling
from speculative.session import last_step

HOSTILE = "</script><img src=x onerror=alert(1)> \0\x1b[31m\x7f\x9b\u202e\u2066 {{data}} \u2028 é"
ENCODER = encoder_of()
RNG = np.random.default_rng


# ---- What decided an iteration ---------------------------------------------------------------------------------------


def recorded(target, make_draft, x, N, K=4, rule=TOKEN, details=True):
    """Two Recorders of decoders over this target and the draft that make_draft(rng) gives."""
    plain, speculative = (Recorder(rule, details=details) for _ in range(2))
    list(plain.watch(autoregressive_sampling(x, plain.target(target), N, RNG(0)), text=StreamDecoder(ENCODER)))
    rng = RNG(0)
    draft, scored = speculative.draft(make_draft(rng)), speculative.target(target)
    steps = speculative_sampling(x, draft, scored, N, K, rng, rule.chain)
    list(speculative.watch(steps, text=StreamDecoder(ENCODER)))
    return plain, speculative


@pytest.mark.parametrize("lenience", [1.0, 0.5])
def test_the_details_are_what_decided(lenience):
    """And where none are asked for, none are kept, and the tokens are the same."""
    target, draft_model = random_model(1, 20), random_model(2, 20)
    record = partial(recorded, target, partial(model_drafter, draft_model), [3], 200, rule=choose(lenience=lenience))
    plain, speculative = record()
    x, seen = [3], set()
    for iteration in speculative.iterations:
        step, d = iteration.step, iteration.details
        m = len(d["drafts"])
        p = np.concatenate([draft_model([*x, *d["drafts"][:j]], 1) for j in range(m)]) if m else []  # [m, n_vocab]
        q = target([*x, *d["drafts"]], m + 1)  # [m + 1, n_vocab]
        assert m == step.drafted
        assert len(d["tested"]) == min(m, step.accepted + 1)
        for j, test in enumerate(d["tested"]):
            token = d["drafts"][j]
            assert (test["p"], test["q"]) == (float(p[j][token]), float(q[j][token]))
            assert (test["u"] * test["p"] < test["q"]) == (j < step.accepted) == test["passed"]
            assert 0 <= test["u"] < lenience
            assert token in test["top"]["tokens"]
            assert N_TOP <= len(test["top"]["tokens"]) <= N_TOP + 1
            assert test["top"]["p"] == pytest.approx(p[j][test["top"]["tokens"]], rel=1e-3)
            assert test["top"]["q"] == pytest.approx(q[j][test["top"]["tokens"]], rel=1e-3)
        rejected = step.accepted < m
        drawn_from = max_fn(q[step.accepted] - p[step.accepted]) if rejected else q[m]
        own, cumulative = d["own"], np.cumsum(drawn_from, dtype=np.float64)
        assert own["from"] == ("residual" if rejected else "q")
        assert np.searchsorted(cumulative, own["u"] * cumulative[-1], side="right") == step.tokens[-1]
        assert own["top"]["probability"] == pytest.approx(drawn_from[own["top"]["tokens"]], rel=1e-3)
        x += step.tokens
        seen.add(step.accepted)
    assert seen == {0, 1, 2, 3, 4}  # a rejection at each position, and none
    for run, without in zip((plain, speculative), record(details=False), strict=True):
        assert [i.step for i in run.iterations] == [i.step for i in without.iterations]
        assert all(i.details for i in run.iterations)
        assert not any(i.details for i in without.iterations)


def test_the_likeliest():
    p = RNG(0).random(1000).astype(np.float32)
    assert likeliest(p) == np.argsort(-p)[:N_TOP].tolist()
    least = int(np.argmin(p))
    assert likeliest(p, least) == [*np.argsort(-p)[:N_TOP].tolist(), least]
    assert likeliest(np.eye(30, dtype=np.float32)[7]) == [7]  # what has no chance is not shown
    assert likeliest(np.array([0.2, 0.8], np.float32)) == [1, 0]


def first_details(tokens, p, q, numbers, n):
    """Of a first step with these drafts and random numbers, cut to n tokens."""
    recorder = Recorder(details=True)
    rng = SimpleNamespace(random=iter(numbers).__next__)
    draft, target = recorder.draft(lambda x, k: Proposal(tokens, p)), recorder.target(lambda x, n_last: q)
    steps = itertools.islice(speculative_sampling([0], draft, target, 9, len(tokens), rng), 1)
    list(recorder.watch(cut(step, n) for step in steps))
    return recorder.iterations[0].details


def test_details_after_a_stop_and_with_an_empty_residual():
    same = np.full((4, 3), 1 / 3, np.float32)
    stopped = first_details([1, 2, 0], same[:3], same, [0.5, 0.9, 0.2, 0.3], 2)
    assert (stopped["drafts"], stopped["own"], [test["u"] for test in stopped["tested"]]) == ([1, 2], None, [0.5, 0.9])
    p, q = np.array([[0.6, 0.5]], np.float32), np.array([[0.5, 0.5]] * 2, np.float32)  # equal but for rounding
    own = first_details([0], p, q, [0.9, 0.7], 1)["own"]
    assert own == {"from": "q", "u": 0.7, "top": {"tokens": [0, 1], "probability": [0.5, 0.5]}}


# ---- The document and the file ---------------------------------------------------------------------------------------


def scripted_document(text, hits, prompt=HOSTILE):
    """The document of a greedy run over single bytes, whose text is known; hits: how many drafts are right, in turn."""
    script, x = ENCODER.encode(text), ENCODER.encode(prompt)
    windows = itertools.cycle(hits)

    def target(tokens, n_last=1):
        first = len(tokens) - n_last + 1 - len(x)
        return one_hot(*[script[(first + i) % len(script)] for i in range(n_last)], n_vocab=ENCODER.n_vocab)

    def draft(tokens, k):
        right = next(windows)
        drafts = [script[len(tokens) - len(x) + i] if i < right else ENCODER.eot for i in range(k)]
        return Proposal(drafts, one_hot(*drafts, n_vocab=ENCODER.n_vocab))

    recorders = recorded(target, lambda rng: draft, x, len(script))
    return document(vars(parse(prompt="x")), ENCODER, [prompt], [x], *recorders)


def test_the_document_has_all_that_the_page_needs():
    written = json.loads(json.dumps(scripted_document("aé東b", [1, 0]), allow_nan=False))
    [sample] = written["speculative"]["samples"]
    assert sample["pieces"] == ["a", "", "é", "", "", "東", "b"]
    assert sample["text"] == "aé東b"
    for run in ("autoregressive", "speculative"):
        for iteration in written[run]["samples"][0]["iterations"]:
            assert {str(token) for token in token_ids(iteration["details"])} <= written["vocabulary"].keys()
    first = ENCODER.encode("é")[0]
    assert written["vocabulary"][str(first)] == "\\xc3"
    documented = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    details = next(i["details"] for i in sample["iterations"] if i["details"]["tested"])
    keys = [*sample["iterations"][0], *details, *details["tested"][0], *details["own"], *details["own"]["top"]]
    keys += [*written, *written["speculative"], *sample, *sample["origins"], *written["prompt"], *written["machine"]]
    keys += [*written["figures"], *written["figures"]["seconds"]]
    assert [key for key in keys if f"`{key}`" not in documented and f'`"{key}"`' not in documented] == []
    recorder = Recorder()
    text = StreamDecoder(ENCODER)
    list(recorder.watch(iter([stub([first], 0, 0)]), text=text))
    [last] = last_step(text, recorder.samples[0], 0)  # the text ends without its last bytes
    [sample] = document(written["options"], ENCODER, [""], [[1]], recorder, recorder)["speculative"]["samples"]
    assert sample["pieces"] == ["\N{REPLACEMENT CHARACTER}"] == [sample["text"]] == [last.text]


def test_nothing_in_the_data_is_markup():
    html = page(scripted_document("</script>" + HOSTILE, [2]))
    data = html.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["prompt"] == HOSTILE
    assert html.count("</script>") == 2
    assert "{{" not in html.replace(data, "")
    assert set(re.findall(r"(.{6})https?:", html.replace(data, ""))) == {'href="', 'ntNS("'}  # links, and SVG's name


def test_a_run_without_a_figure_that_came_later():
    run = scripted_document("ab", [1])
    Run(run)
    del run["figures"]["busy"]
    assert refusal(Run, run).startswith("this run lacks the figure busy, as an earlier version with schema 3 wrote it")


def test_the_page_in_docs_is_one_of_today():
    html = (ROOT / "docs" / "demo.html").read_text(encoding="utf-8")
    data = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    assert fill("page.html", ("page.css",), SCRIPTS, data) == html, "write it again, as docs/output.md says"
    assert len(html.encode()) < 400_000
    assert not re.search(r"/(home|root|tmp|work)/", html)


# ---- What the page draws ---------------------------------------------------------------------------------------------


def test_no_prediction_is_above_what_its_window_allows():
    run = scripted_document("abcdef", [2])
    run["figures"] |= {"best_K": 1, "predicted_best": 3.4}
    [bar] = [cells for cells, *_ in page_data(run)["charts"][2]["rows"] if "K = 1" in cells[0]]
    assert bar[1] == "2.00x"
    assert not any("3.40" in cell for row in page_data(run)["table"] for cell in row)


def test_a_speedup_above_the_tokens_per_call_is_shown_with_its_doubt():
    f = scripted_document("abcdef", [1])["figures"] | {"busy": False, "disagree": False}
    tokens = f["tokens_per_iteration"]
    assert findings(f | {"speedup": 0.9 * tokens})["doubt"] == ""
    doubtful = findings(f | {"speedup": 1.5 * tokens})
    assert doubtful["headline"] == f"{1.5 * tokens:.2f} times as fast, doubtful"
    assert f"{tokens:.2f} tokens for each call of the target" in doubtful["doubt"]


def test_the_close_up_opens_at_a_rejection_after_an_accepted_draft():
    assert page_data(scripted_document("abcdefghijkl", [4, 0, 2]))["opening"] == 3
    assert page_data(scripted_document("abcdefghijkl", [4]))["opening"] == 1


def test_passwords_are_not_shown():
    run = scripted_document("ab", [1])
    run["options"]["source"] = "https://user:secret@host.example/gpt-2?token=hidden&x=1"
    shown = dict(page_data(run)["options"])["source"]
    assert shown == "https://…host.example/gpt-2?token=…&x=1"


def test_a_page_shows_one_text_that_is_decoded():
    for other in ({"batch": 2}, {"n_samples": 2}, {"verify": True}):
        assert "cannot be combined" in refused(html="a.html", **other)
    assert "written twice" in refusal(check_output, parse(html="a", json="./a"))
    assert parse(details=True, json="a").details
    assert parse(details=True, html="a").html == "a"


def test_details_for_json_alone(run_json):
    for details in (True, False):
        _, written = run_json(quiet=True, details=details)
        assert ("vocabulary" in written) == details
        assert all(bool(i.get("details")) == details for i in written["speculative"]["samples"][0]["iterations"])
