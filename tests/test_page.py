"""The page that replays a run: the numbers and sentences that it draws, and the contents that its file may hold."""

import copy
import json
import re

import pytest
from tiny import ROOT

from speculative import load_pair
from speculative.measure.page import SCRIPTS, VISIBLE, duration, fill, findings, page, page_data
from speculative.measure.report import ALONE, percent
from speculative.measure.run import compare
from speculative.rules import RULES, TOKEN

HOSTILE = "</script><img src=x onerror=alert(1)> \0\x1b[31m\x7f\x9b\u202e\u2066 {{data}} \u2028 é"
PROMPT = "Once upon a time"
SAMPLED = {"temperature": 1, "seed": 4}  # its windows of 4 have 0, 1, 2, 3 and 4 accepted drafts


@pytest.fixture(scope="module")
def pair():
    return load_pair(demo=True, threads=1)


def run_of(pair, N=40, prompt=PROMPT, **options):
    return compare(pair.changed(**options), prompt, N, repeats=1).document


@pytest.fixture(scope="module")
def sampled(pair):
    return run_of(pair, **SAMPLED)


def origins_of(sample):
    return [origin for i in sample["iterations"] for origin in i["origins"]]


def data_of(html):
    """The data that a page holds."""
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])


def with_prompt_and_text(run, text):
    """The same run, in which the prompt and the first token's text are this, and so are its likeliest tokens."""
    run = copy.deepcopy(run)
    run["prompt"]["text"] = text
    for name in ("autoregressive", "speculative"):
        first = run[name]["samples"][0]["iterations"][0]
        first["pieces"][0] = text
        first["text"] = "".join(first["pieces"])
    run["vocabulary"] = dict.fromkeys(run["vocabulary"], text)
    run["options"] |= {"stop": text, "prompt": text}
    return run


# ---- The numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["token", "block", "lenient:0.5", "typical:0.1"])
def test_a_close_up_has_the_numbers_that_decided(pair, accept):
    run = run_of(pair, **SAMPLED, accept=accept)
    data = page_data(run)
    [sample] = run["speculative"]["samples"]
    names = {int(token): text.translate(VISIBLE) for token, text in run["vocabulary"].items()}
    tokens, text = [], PROMPT
    for i, shown in zip(sample["iterations"], data["iterations"], strict=True):
        details = i["details"]
        assert shown["before"].removeprefix("…") == text[-60:]
        text += i["text"]
        tokens += [*details["drafts"][: i["accepted"]], details["own"]["token"]]
        assert [shown[name] for name in ("drafted", "accepted")] == [i["drafted"], i["accepted"]]
        assert [shown[name] for name in ("drafting", "scoring")] == [duration(i["drafting"]), duration(i["scoring"])]
        assert shown["drafts"] == [[names[token], ""] for token in details["drafts"]]
        assert [test["token"] for test in details["tested"]] == details["drafts"][: len(details["tested"])]
        for test, card in zip(details["tested"], shown["tested"], strict=True):
            u, p, q = (test[name] for name in "upq")
            numbers = [float(x) for x in re.findall(r"\d[\d.]*(?:e-\d+)?", card["formula"])]
            expected = {"token": [u, p, u * p, q], "lenient:0.5": [0.5, u, p, 0.5 * u * p, q], "typical:0.1": [q, 0]}
            expected["block"] = [test.get("w"), u, test.get("h")]
            assert numbers == pytest.approx(expected[accept], rel=0.006)
            assert bool(re.search("[<>]", card["formula"])) == test["passed"] == card["passed"]
            if accept not in ("block", "typical:0.1"):
                assert test["passed"] == (numbers[-2] < numbers[-1])
            assert card["rows"][card["drawn"]][0] == card["token"] == names[test["token"]]
            assert card["rows"] == [[names[token], *chances] for token, *chances in test["top"]]
        assert shown["own"]["from"] == details["own"]["from"]
        assert shown["own"]["token"] == names[tokens[-1]]
    assert tokens == sample["tokens"]
    lossy = "" if accept in ("token", "block") else f"--accept {accept}"
    assert data["rule"]["lossy"] == lossy
    assert data["lines"][0].endswith("does not keep the target's distribution.") == bool(lossy)


def test_a_rule_that_was_added_has_a_page(pair, monkeypatch):
    monkeypatch.setitem(RULES, "mine", (lambda: TOKEN._replace(name="mine"), None))
    [one, *_] = page_data(run_of(pair, **SAMPLED, accept="mine"))["iterations"]
    assert re.fullmatch(r"u = [\d.]+, p = [\d.]+, q = [\d.]+", one["tested"][0]["formula"])


@pytest.mark.parametrize("how", [SAMPLED, {"drafter": "int8/model", "K": (6, 2)}, {"tree": (2, 2, 1)}], ids=str)
def test_the_race_is_the_run_on_one_time_axis(pair, how):
    run = run_of(pair, **how)
    data = page_data(run)
    assert data["seconds"] == pytest.approx(max(run[name]["seconds"] for name in data["lanes"]), rel=0.02)
    for name, lane in data["lanes"].items():
        [sample] = run[name]["samples"]
        assert "".join(token["text"] for token in lane["tokens"]) == sample["text"]
        assert [token["origin"] for token in lane["tokens"]] == origins_of(sample)
        assert lane["tokens"][-1]["time"] == pytest.approx(sum(i["seconds"] for i in sample["iterations"]))
        calls = [call for call in lane["calls"] if call["kind"] == "target"]
        assert [call["seconds"] for call in calls] == [i["scoring"] for i in sample["iterations"]]
        for before, after in zip(lane["calls"], lane["calls"][1:], strict=False):
            assert after["begin"] >= before["begin"] + before["seconds"] - 1e-9
            assert 0 <= before["line"] < lane["lines"]
    assert ("level" in {call["kind"] for call in data["lanes"]["speculative"]["calls"]}) == ("drafter" in how)
    if "tree" in how:
        pairs = zip(run["speculative"]["samples"][0]["iterations"], data["iterations"], strict=True)
        i, shown = next((i, shown) for i, shown in pairs if i["accepted"])
        kept, children = [], shown["tree"]
        while accepted := [branch for branch in children if branch[1]]:
            [[token, _, children]] = accepted
            kept.append(token)
        assert kept == [
            run["vocabulary"][str(i["tree"]["tokens"][n - 1])].translate(VISIBLE) for n in i["tree"]["path"]
        ]


def test_the_charts_and_the_grid_are_the_figures(sampled):
    f, data = sampled["figures"], page_data(sampled)
    for (_, _, columns, rows), counts in zip(data["charts"], charts_of(f), strict=True):
        assert columns[-1] == "share"
        assert [tuple(row) for row in rows] == [(a / n, name, f"{a} of {n}", percent(a / n)) for name, a, n in counts]
    assert page_data(sampled | {"figures": f | {"predicted": None}})["grid"] is None
    predicted = {"model": [1.2, 1.4, 1.5, 1.4, 1.3], "prompt_lookup": [1.0, 0.9, 0.8, 0.7, 0.6]}
    f = f | {"window_beta": {str(K): 1 + K / 10 for K in range(1, 6)}}
    f["predicted"] = {name: {str(K): x for K, x in enumerate(xs, start=1)} for name, xs in predicted.items()}
    assert page_data(sampled | {"figures": f})["grid"] == {
        "drafters": ["model", "prompt_lookup"],
        "rows": [[1, 1.1, 1.2, 1.0], [2, 1.2, 1.4, 0.9], [3, 1.3, 1.5, 0.8], [4, 1.4, 1.4, 0.7]],
        "curves": [*predicted.values()],
        "best": ["model", 3],
        "run": [4, f["speedup"]],
    }


def charts_of(f):
    """The counts of each chart: (name, part, whole)."""
    places = enumerate(zip(f["accepted_by_position"], f["tested_by_position"], strict=True), start=1)
    calls = f["tokens_per_iteration_histogram"].items()
    return [(str(j), *counts) for j, counts in places], [(tokens, n, f["iterations"]) for tokens, n in calls]


def test_a_page_of_the_speculative_decoder_alone(command, tmp_path):
    path = tmp_path / "run.html"
    words = ["--demo", "--n_tokens_to_generate=12", "--only=speculative", f"--html={path}"]
    assert command(*words)[0] == 0
    data = data_of(path.read_text(encoding="utf-8"))
    assert [*data["lanes"]] == ["speculative"]
    assert data["headline"].endswith(" tokens a second")
    assert (data["grid"], data["advice"]) == (None, None)
    assert data["lines"][0] == ALONE
    assert not any("speedup" in line for line in data["reasons"])


TOLD = [  # the speedup, its doubt, the summary's second line -> the headline, the line below
    (1.2, None, "1.20 times as fast: 12 tokens a second.", "1.20 times as fast", "12 tokens a second."),
    (1.2, "unlikely", "Doubtful: 1.20 times.", "1.20 times as fast, doubtful", "Doubtful: 1.20 times."),
    (0.8, None, "Slower: 0.80 times as fast: 8 tokens a second.", "0.80 times as fast", "8 tokens a second."),
]


@pytest.mark.parametrize(("speedup", "doubt", "said", "headline", "line"), TOLD)
def test_a_speedup_is_said_once_and_with_its_doubt(speedup, doubt, said, headline, line):
    run = {"summary": ["The texts differ.", said], "figures": {"speedup": speedup, "doubt": doubt}}
    assert findings(run) == {"headline": headline, "lines": ["The texts differ.", line]}


def test_the_close_up_opens_at_a_rejection_after_an_accepted_draft(pair, sampled):
    accepted = [0 < i["accepted"] < i["drafted"] for i in sampled["speculative"]["samples"][0]["iterations"]]
    assert page_data(sampled)["opening"] == 1 + accepted.index(True)
    assert page_data(run_of(pair, 3, K=1))["opening"] == 1


# ---- The file --------------------------------------------------------------------------------------------------------


def test_nothing_in_the_data_is_markup_and_nothing_is_loaded(sampled):
    html = page(with_prompt_and_text(sampled, HOSTILE))
    assert data_of(html)["prompt"] == HOSTILE
    data = html.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    rest = html.replace(data, "")
    assert rest.count("</script>") == 2
    assert "{{" not in rest
    assert set(re.findall(r"(.{6})https?:", rest)) == {'href="', 'ntNS("'}  # links, and SVG's name
    assert not re.search(r"<link(?! rel=\"icon\" href=\"data:,\")|<script src|@import|url\(", rest)
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', html)[1]
    sources = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (sources.pop("default-src"), sources.pop("img-src")) == ("'none'", "data:")
    assert all(re.fullmatch(r"'sha256-[\w+/=]{44}'", sources[name]) for name in ("style-src", "script-src"))
    assert len(sources) == 2


def test_the_page_in_docs_is_one_of_today():
    html = (ROOT / "docs" / "demo.html").read_text(encoding="utf-8")
    data = data_of(html)
    assert fill("page.html", ("page.css",), SCRIPTS, data) == html, "write it again, as docs/output.md says"
    assert len(html.encode()) < 400_000
    assert not re.search(r"/(home|root|tmp|work)/", html)
