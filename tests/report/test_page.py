"""The page that replays a run: the numbers and sentences that it draws, and the contents that its file may hold."""

import copy
import functools
import json
import operator
import random
import re
import shlex
from dataclasses import replace

import pytest
from page_runs import HOSTILE, POLICY, PROMPT, SAMPLED, origins_of, policy_of, run_of, with_prompt_and_text
from tiny import ROOT

from speculative.cli.command import read_words
from speculative.cli.modes import replay
from speculative.report.close_up import VISIBLE
from speculative.report.document import from_json, read_run
from speculative.report.page import FAST, command, page, page_data
from speculative.run.options import DEMO, Options, make_options
from speculative.support.errors import UserError
from speculative.support.files import write_json


@pytest.fixture(scope="module")
def sampled(pair):
    return run_of(pair, **SAMPLED)


def data_of(html):
    """The data that a page holds."""
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])


# ---- The numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["token", "block", "lenient:0.5", "typical:0.1"])
def test_a_close_up_has_the_numbers_that_decided(pair, accept):
    run = run_of(pair, **SAMPLED, accept=accept)
    [sample] = run["speculative"]["samples"]
    names = {int(token): text.translate(VISIBLE) for token, text in run["vocabulary"].items()}
    for i, shown in zip(sample["iterations"], page_data(from_json(run))["iterations"], strict=True):
        drafts, tested, own = i["details"].values()
        steps = shown["steps"]
        assert steps[0].get("chips", []) == [[names[token], "", j < len(tested)] for j, token in enumerate(drafts)]
        cards = [card for step in steps for card in step.get("cards", [])]
        assert cards[-1]["token"] == names[own["token"]]
        for draft, test, card in zip(drafts[: len(tested)], tested, cards[:-1], strict=True):
            u, p, q = (test[name] for name in "upq")
            numbers = [float(x) for x in re.findall(r"\d[\d.]*(?:e-\d+)?", card["formula"])]
            expected = {"token": [u, p, u * p, q], "lenient:0.5": [0.5, u, p, 0.5 * u * p, q]}
            expected |= {"block": [test.get("w"), u, test.get("h")], "typical:0.1": [q, 0] if q else [q]}
            assert numbers == pytest.approx(expected[accept], rel=0.006)
            assert bool(re.search("[<>]", card["formula"])) == test["passed"]
            if accept not in ("block", "typical:0.1"):
                assert test["passed"] == (numbers[-2] < numbers[-1])
            assert card["rows"][card["drawn"]][0] == card["token"] == names[draft]
            assert card["rows"] == [[names[token], *chances] for token, *chances in test["top"]]


CLOSE_UPS = {"greedy": {}, "sampled": SAMPLED, "block": {**SAMPLED, "accept": "block"}, "tree": {"tree": (2, 2, 1)}}


@pytest.mark.parametrize("name", CLOSE_UPS)
def test_the_sentences_of_a_close_up_are_as_they_were(name, pair, request):
    data = page_data(from_json(run_of(pair, **CLOSE_UPS[name])))
    said = [data["rule"]["about"]]
    for shown in data["iterations"]:
        said.append(shown["outcome"])
        for step in shown["steps"]:
            said.append(f"  {step['title']} | {step.get('text', '')}")
            for card in step.get("cards", []):
                said.append(f"    {card['title']}: {card.get('verdict', '')} {card['formula']} | {card['caption']}")
    text = re.sub(r"\d+\.\d+(e-\d+)?( m?s)?", "#", "\n".join(said)) + "\n"
    path = ROOT / "tests" / "report" / "golden_pages" / f"close_up_{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("how", [SAMPLED, {"drafter": "int8/model", "K": (6, 2)}, {"tree": (2, 2, 1)}], ids=str)
def test_the_race_is_the_run_on_one_time_axis(pair, how):
    run = run_of(pair, **how)
    data = page_data(from_json(run))
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


def takes_all(proposal, q, rng):
    return [*proposal.tokens, 0]


TRUE = [  # options -> a part of the page, and what is said there
    ({"accept": takes_all, "temperature": 1}, "The rule takes_all is a function of yours, whose tests are not known."),
    ({"drafter": "heads"}, {"draft", "target"}),
    ({"drafter": "ngram"}, {"draft", "target"}),
    ({"drafter": "int8/model", "K": (6, 2)}, {"draft", "level", "target"}),
]


@pytest.mark.parametrize(("options", "said"), TRUE)
def test_the_captions_of_a_page_are_true(pair, options, said):
    """Of a rule without tests, of the kinds of calls, and of the marks of drafters."""
    data = page_data(from_json(run_of(pair, **options)))
    if isinstance(said, str):
        assert data["rule"]["no_tests"] == said
    else:
        assert {call["kind"] for call in data["lanes"]["speculative"]["calls"]} == said
    swatches = [(origin, data["marks"].get(drafter)) for origin, drafter, _ in data["legend"]]
    assert len({*swatches}) == len(swatches)


COMMANDS = [  # options -> words of the page's command, which has no others but those of the bundled pair
    ({}, ""),
    ({"K": 7, "temperature": 0.5, "stop": ("a b", "c")}, "--K 7 --temperature 0.5 --stop 'a b' --stop c"),
    ({"drafter": "model/ngram", "K": (8, 2), "seed": 4}, "--K 8/2 --seed 4 --drafter model/ngram"),
    ({"fast": True}, "--fast"),
    ({"tree": (2, 1), "top_p": 0.9, "temperature": 1}, "--temperature 1 --top_p 0.9 --tree 2,1"),
]


@pytest.mark.parametrize(("options", "words"), COMMANDS)
def test_the_command_of_a_page_makes_the_same_run(pair, options, words):
    o = Options(**vars(pair.changed(**options).options), json="run.json", verbose=True)
    python, main, *typed = shlex.split(command(o, [], PROMPT))
    assert (python, main) == ("python", "main.py")
    assert sorted(typed) == sorted(["--demo", "--threads", "1", "--prompt", PROMPT, *shlex.split(words)])
    again = make_options(Options, read_words(typed))
    stands_for = {name: getattr(again, name) for name in FAST if o.fast}
    assert again == replace(o, json=None, verbose=False, prompt=PROMPT, **stands_for)


# ---- The file --------------------------------------------------------------------------------------------------------


def test_nothing_in_the_data_is_markup_and_the_policy_allows_nothing_else(sampled):
    """In a browser, each test also finds that nothing else was asked for."""
    html = page(from_json(with_prompt_and_text(sampled, HOSTILE)))
    assert data_of(html)["prompt"] == HOSTILE
    data = html.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    rest = html.replace(data, "")
    assert rest.count("</script>") == 2
    assert "{{" not in rest
    assert policy_of(html) == POLICY


def test_the_page_in_docs_is_one_of_today(monkeypatch):
    """It is made of the run beside it."""
    monkeypatch.setitem(DEMO, "target_model_size", "padded-target")  # which these tests do not decode with
    path = ROOT / "docs" / "demo.html"
    html = path.read_text(encoding="utf-8")
    assert page(read_run(str(path.with_suffix(".json")))) == html, "python -m speculative page docs/demo.json"
    assert len(html.encode()) < 400_000
    assert not re.search(r"/(home|root|tmp|work)/", html)


NOT_RUNS = {  # a file's text -> what is said of it
    "": "is empty",
    "[1, 2": "is not a run: give a file that --json has written",
    "[1, 2]": "is not a run: give a file that --json has written",
    '{"schema": 7}': "has schema 7, and this version reads 8: decode again with --json",
    '{"schema": 8}': "is not a run (see its options): give a file that --json has written",
    '{"schema": 8, "options": {"seed": "x"}}': "is not a run (see its options.seed): give a file",
}


@pytest.mark.parametrize("text", NOT_RUNS)
def test_a_file_that_is_not_a_run(text, tmp_path):
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(NOT_RUNS[text])):
        replay([str(tmp_path / "run.json")])
    assert not (tmp_path / "run.html").exists()


def places_of(value):
    """Each object or list in a document, and each key or index of it."""
    for place in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, place
        yield from places_of(value[place])


REMOVED = object()
DAMAGE = [REMOVED, None, "text", "", -1, 10**30, 0.5, True, [], [[]], {}, {"a": 1}]


def test_a_run_with_one_value_that_is_damaged_gives_a_page_or_a_line(pair, tmp_path, capsys):
    run = run_of(pair, 4, **SAMPLED)
    path = tmp_path / "run.json"
    named = [(run["autoregressive"]["samples"][0]["tokens"], 0, REMOVED), (run, "prompts", None)]
    places = [*places_of(run)]
    drawn = random.Random(0)
    said = set()
    for owner, place, damage in named + [(*drawn.choice(places), drawn.choice(DAMAGE)) for _ in range(120)]:
        before = copy.copy(owner)
        if damage is REMOVED:
            del owner[place]
        else:
            owner[place] = damage
        path.write_text(json.dumps(run))
        try:
            replay([str(path)])
        except UserError as error:
            said.add(re.sub(r"has schema .*| \(see its [\w.]+\)", "", str(error)))
        owner.clear()
        owner.extend(before) if isinstance(owner, list) else owner.update(before)
    assert said <= {f"{path} is not a run: give a file that --json has written", f"{path} "}
    assert capsys.readouterr().out


DAMAGED = {  # the key that is named -> where its value is lost, or is another
    "figures.speedup": (("figures", "speedup"), "fast"),
    "figures.r": (("figures", "r"), REMOVED),
    "speculative.samples.iterations.drafted": (("speculative", "samples", 0, "iterations", 0, "drafted"), None),
    "machine.cpus": (("machine", "cpus"), [2]),
    "prompts": (("prompts",), None),
    "rule.comparison": (("rule", "comparison"), 5),
}


@pytest.mark.parametrize("key", DAMAGED)
def test_the_damaged_key_is_named(key, sampled, tmp_path):
    damaged = copy.deepcopy(sampled)
    (*outer, last), value = DAMAGED[key]
    owner = functools.reduce(operator.getitem, outer, damaged)
    owner[last] = value
    if value is REMOVED:
        del owner[last]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(damaged))
    with pytest.raises(UserError, match=re.escape(f"is not a run (see its {key}): give a file")):
        replay([str(path)])


def test_the_page_of_an_earlier_run(sampled, tmp_path, capsys):
    path = tmp_path / "run.json"
    write_json(str(path), sampled)
    replay([str(path)])
    assert capsys.readouterr().out.startswith(f"Wrote {tmp_path / 'run.html'}: the run as a page")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == page(from_json(sampled))
    with pytest.raises(UserError, match="this run uses"):
        replay([str(path), str(path)])
    with pytest.raises(UserError, match="page has no option --verbose"):
        replay([str(path), "--verbose"])
    several = sampled | {"prompts": sampled["prompts"] * 2}
    write_json(str(path), several)
    with pytest.raises(UserError, match="has 2 texts, and a page shows one"):
        replay([str(path)])
