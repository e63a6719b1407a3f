"""The page that replays a run: what is recorded for it, how it is written, and what a real browser makes of it.

The browser is Chromium with its chromedriver, as Debian packages them (apt-get install chromium chromium-driver).
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_flags import parse, refusal, refused

import main
from encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from plumbing import files
from plumbing.errors import UserError
from speculative import costs
from speculative.cli.display import SHOWN, check_output
from speculative.cli.flags import DEMO
from speculative.drafters import KINDS, make_drafter
from speculative.drafters.base import Parts, Proposal
from speculative.drafters.level import level
from speculative.drafters.model import model_drafter
from speculative.drafters.ngram import ngram_model
from speculative.measure import analysis
from speculative.measure import page as page_module
from speculative.measure.details import N_TOP, likeliest
from speculative.measure.document import document, token_ids
from speculative.measure.page import page, read_page
from speculative.measure.recorder import Recorder
from speculative.measure.run import Run
from speculative.sampling import Step, autoregressive_sampling, max_fn, speculative_sampling
from speculative.stop import cut

ROOT = Path(main.__file__).parent
HOSTILE = "</script><img src=x onerror=alert(1)> \0\x1b[31m\x7f\x9b\u202e\u2066 {{data}} \u2028 é"
ENCODER = Encoder({token: i for i, token in enumerate([*BYTE_TO_CHAR.values(), END_OF_TEXT])}, [])
RNG = np.random.default_rng


def random_model(seed, n_vocab=60, wanted=None):
    """A model whose distributions are fixed by the text so far: its own, or those of `wanted`, blurred."""

    def model(x, n_last=1):  # [n] -> [n_last, n_vocab]
        rows = []
        for end in range(len(x) - n_last + 1, len(x) + 1):
            p = RNG([seed, *(int(t) for t in x[:end])]).random(n_vocab) ** 6
            rows.append(p / p.sum())
        own = np.array(rows, np.float32)
        return own if wanted is None else (own + 2 * wanted(x, n_last)) / np.float32(3)

    return model


def recorded(N=40, K=4, lenience=1.0, details=True, seed=0, steps=lambda steps: steps):
    """Two Recorders of decoders over random models."""
    target = random_model(1)
    draft_model = random_model(2, wanted=target)
    plain, speculative = (Recorder(lenience, details=details) for _ in range(2))
    rng = plain.rng(RNG(seed))
    list(plain.watch(steps(autoregressive_sampling([3], plain.target(target), N, rng))))
    rng = speculative.rng(RNG(seed))
    draft = speculative.draft(model_drafter(draft_model, rng))
    decoder = speculative_sampling([3], draft, speculative.target(target), N, K, rng, lenience)
    list(speculative.watch(steps(decoder)))
    return plain, speculative, draft_model, target


# ---- What decided an iteration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lenience", [1.0, 0.5])
def test_the_details_are_what_decided(lenience):
    _, speculative, draft_model, target = recorded(200, lenience=lenience)
    x, seen = [3], set()
    for iteration in speculative.iterations:
        step, d = iteration.step, iteration.details
        m = len(d["drafts"])
        p = np.concatenate([draft_model([*x, *d["drafts"][:j]]) for j in range(m)]) if m else []  # [m, n_vocab]
        q = target([*x, *d["drafts"]], m + 1)  # [m + 1, n_vocab]
        assert m == step.drafted and len(d["tested"]) == min(m, step.accepted + 1)
        for j, test in enumerate(d["tested"]):
            token = d["drafts"][j]
            assert (test["p"], test["q"]) == (float(p[j][token]), float(q[j][token]))
            assert (test["u"] * test["p"] < test["q"]) == (j < step.accepted) and 0 <= test["u"] < lenience
            assert token in test["top"]["tokens"] and N_TOP <= len(test["top"]["tokens"]) <= N_TOP + 1
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


def test_the_likeliest():
    p = RNG(0).random(1000).astype(np.float32)
    assert likeliest(p) == np.argsort(-p)[:N_TOP].tolist()
    least = int(np.argmin(p))
    assert likeliest(p, least) == [*np.argsort(-p)[:N_TOP].tolist(), least]
    assert likeliest(np.eye(30, dtype=np.float32)[7]) == [7]  # what has no chance is not shown
    assert likeliest(np.array([0.2, 0.8], np.float32)) == [1, 0]


def test_details_change_no_token_and_are_kept_only_where_asked_for():
    with_details, without = recorded(), recorded(details=False)
    for a, b in zip(with_details[:2], without[:2], strict=True):
        assert [i.step for i in a.iterations] == [i.step for i in b.iterations]
        assert all(i.details for i in a.iterations) and not any(i.details for i in b.iterations)
    rng = RNG(0)
    assert Recorder().rng(rng) is rng
    assert Recorder(details=True).rng(RNG(5)).integers(9) == RNG(5).integers(9)


def test_details_after_a_stop_and_with_an_empty_residual():
    same = np.full((4, 3), 1 / 3, np.float32)
    recorder = Recorder(details=True)
    rng = recorder.rng(Scripted([0.5, 0.9, 0.2, 0.3]))
    draft = recorder.draft(lambda x, k: Proposal([1, 2, 0], same[:3]))
    steps = speculative_sampling([0], draft, recorder.target(lambda x, n_last: same), 4, 3, rng)
    list(recorder.watch(cut(step, 2) for step in itertools.islice(steps, 1)))
    [iteration] = recorder.iterations
    assert iteration.details["drafts"] == [1, 2] and iteration.details["own"] is None
    assert [test["u"] for test in iteration.details["tested"]] == [0.5, 0.9]

    recorder = Recorder(details=True)  # p = q but for rounding: rejected, and nothing is left to resample from
    p, q = np.array([[0.6, 0.5]], np.float32), np.array([[0.5, 0.5]] * 2, np.float32)
    draft = recorder.draft(lambda x, k: Proposal([0], p))
    steps = speculative_sampling(
        [0], draft, recorder.target(lambda x, n_last: q), 2, 1, recorder.rng(Scripted([0.9, 0.7]))
    )
    list(recorder.watch(itertools.islice(steps, 1)))
    assert recorder.iterations[0].details["own"] == {
        **{"from": "q", "u": 0.7},
        "top": {"tokens": [0, 1], "probability": [0.5, 0.5]},
    }


class Scripted:
    """A generator whose numbers are known."""

    def __init__(self, numbers):
        self.random = iter(numbers).__next__


@pytest.mark.parametrize(
    ("name", "proposers"),
    {
        "model": {"model"},
        "ngram": {"ngram"},
        "prompt_lookup": {"prompt_lookup"},
        "model/ngram": {"ngram", "model"},
        "model/prompt_lookup": {"prompt_lookup", "model"},
        "prompt_lookup+model": {"prompt_lookup", "model"},
        "model/ngram/prompt_lookup": {"prompt_lookup", "ngram", "model"},
    }.items(),
)
def test_who_proposed_each_token(name, proposers):
    """Against what each part proposed by its own account."""
    rng, n_vocab, told = RNG(0), 60, []

    def telling(draft):
        def drafting(x, k):
            proposal = draft(x, k)
            told.append([int(t) for t in proposal.tokens])
            return proposal

        return drafting

    model = random_model(1, wanted=lambda x, n_last: np.eye(n_vocab, dtype=np.float32)[[(x[-1] + 1) % 5] * n_last])
    log_ngram = ngram_model(n_vocab, lambda log_p: log_p)
    parts = Parts(n_vocab, rng, models={"draft": model}, prepared={"ngram": log_ngram}, inner_K=(4,) * name.count("/"))
    draft = make_drafter(name, parts).chain
    x, seen = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1], set()
    for _ in range(60):
        tokens, _, by = draft(x, 6)
        assert len(by) == len(tokens)
        seen |= set(by)
        x = [*x, *tokens, int(rng.integers(n_vocab))]
    assert seen == proposers

    cheap = telling(model_drafter(ngram_model(n_vocab, np.exp), rng, "cheap"))
    tokens, _, by = level("dear", model, cheap, 4, rng)(x, 5)
    first = told[0]
    agreed = next((i for i, (a, b) in enumerate(zip(first, tokens, strict=False)) if a != b), len(first))
    assert by[: agreed + 1] == ["cheap"] * agreed + ["dear"]


# ---- The document and the file ---------------------------------------------------------------------------------------


def scripted_document(text, hits, K=4, prompt=HOSTILE, **flags):
    """The document of a greedy run over single bytes, whose text is known; hits: how many drafts are right, in turn."""
    script, n = ENCODER.encode(text), len(ENCODER.encode(prompt))
    windows = itertools.cycle(hits)

    def one_hot(ids):
        return np.eye(ENCODER.n_vocab, dtype=np.float32)[ids]

    def target(x, n_last=1):
        return one_hot([script[(len(x) - n - i) % len(script)] for i in reversed(range(n_last))])

    def draft(x, k):
        right = next(windows)
        tokens = [script[len(x) - n + i] if i < right else ENCODER.eot for i in range(k)]
        return Proposal(tokens, one_hot(tokens) if k else [])

    x, N = ENCODER.encode(prompt), len(script)
    plain, speculative = Recorder(details=True), Recorder(details=True)
    list(plain.watch(autoregressive_sampling(x, plain.target(target), N, plain.rng(RNG(0)))))
    decoder = speculative_sampling(
        x, speculative.draft(draft), speculative.target(target), N, K, speculative.rng(RNG(0))
    )
    list(speculative.watch(decoder))
    options = parse(prompt="x", K=K, **flags)._asdict()
    return document(options, ENCODER, [prompt], [x], plain, speculative)


def test_the_document_has_all_that_the_page_needs():
    written = json.loads(json.dumps(scripted_document("aé東b", [1, 0]), allow_nan=False))
    [sample] = written["speculative"]["samples"]
    assert sample["pieces"] == ["a", "", "é", "", "", "東", "b"] and sample["text"] == "aé東b"
    for run in ("autoregressive", "speculative"):
        for iteration in written[run]["samples"][0]["iterations"]:
            assert {str(token) for token in token_ids(iteration["details"])} <= written["vocabulary"].keys()
    assert written["vocabulary"][str(ENCODER.encode("é")[0])] == "\\xc3"
    documented = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    details = next(i["details"] for i in sample["iterations"] if i["details"]["tested"])
    keys = [*sample["iterations"][0], *details, *details["tested"][0], *details["own"], *details["own"]["top"]]
    assert [key for key in [*keys, *written] if f"`{key}`" not in documented] == []


def test_a_text_without_its_last_bytes():
    written = scripted_document("a", [0])
    recorders = Recorder(), Recorder()
    tokens = ENCODER.encode("é")[:1]
    for recorder in recorders:
        list(recorder.watch(iter([Step(tokens, 0, 0)])))
    [sample] = document(written["options"], ENCODER, [""], [[1]], *recorders)["speculative"]["samples"]
    assert sample["pieces"] == ["\N{REPLACEMENT CHARACTER}"] == [sample["text"]]


def test_nothing_in_the_data_is_markup():
    html = page(scripted_document("</script>" + HOSTILE, [2]))
    data = html.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data and json.loads(data)["prompt"]["text"] == HOSTILE
    assert html.count("</script>") == 2 and "{{" not in html.replace(data, "")
    assert set(re.findall(r"(.{6})https?:", html.replace(data, ""))) == {'href="', 'ntNS("'}  # links, and SVG's name


def test_one_text_for_a_page(tmp_path):
    two = scripted_document("ab", [1])
    two["speculative"]["samples"] *= 2
    with pytest.raises(UserError, match="a page shows one text, and this run has 2"):
        page(two)


BAD_RUNS = {
    "no JSON": b"{",
    "not UTF-8": b"\xff",
    "no object": b"[1]",
    "no run": b'{"schema": 3}',
    "no samples": b'{"schema": 3, "speculative": {"samples": 4}}',
    "deep": b"[" * 100_000,
    "of an infinite schema": b'{"schema": Infinity}',
    "of another time": b'{"schema": 1}',
    "of an earlier schema 3": b'{"schema": 3, "figures": {"speedup": 2}}',
}


@pytest.mark.parametrize("kind", BAD_RUNS)
def test_a_file_that_is_no_run(kind, tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(BAD_RUNS[kind])
    assert ("schema" if "of" in kind.split() else "is not a run") in refusal(read_page, str(path))


def test_a_run_without_a_figure_that_came_later():
    run = scripted_document("ab", [1])
    Run(run)
    del run["figures"]["busy"]
    assert refusal(Run, run).startswith("this run lacks the figure busy, as an earlier version with schema 3 wrote it")


WRONG = {
    "a key that is missing": lambda run, sample: sample.pop("origins"),
    "a type": lambda run, sample: sample["iterations"][0].update(seconds="1"),
    "a truth for a number": lambda run, sample: run["figures"].update(speedup=True),
    "a number that cannot be drawn": lambda run, sample: run["figures"].update(speedup=1e308),
    "one token less": lambda run, sample: sample["tokens"].pop(),
    "more accepted than drafted": lambda run, sample: sample["iterations"][0].update(accepted=9),
    "an origin of no meaning": lambda run, sample: sample["origins"].__setitem__(0, "</p>"),
    "a token without its text": lambda run, sample: run.update(vocabulary={}),
    "details of another shape": lambda run, sample: sample["iterations"][0]["details"].update(own=3),
    "one test too few": lambda run, sample: sample["iterations"][0]["details"]["tested"].pop(),
    "p for more tokens": lambda run, sample: sample["iterations"][0]["details"]["tested"][0]["top"]["p"].append(0),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_that_was_a_run(kind, tmp_path):
    path = tmp_path / "run.json"
    run = json.loads(json.dumps(scripted_document("abc", [1])))
    path.write_text(json.dumps(run))
    read_page(str(path))
    WRONG[kind](run, run["speculative"]["samples"][0])
    path.write_text(json.dumps(run))
    assert refusal(read_page, str(path)).endswith("is not a run: it should be what main.py --json writes")


def test_the_page_in_docs_is_one_of_today():
    html = (ROOT / "docs" / "demo.html").read_text(encoding="utf-8")
    run = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    del run["report"]
    assert page(run) == html, "write it again, as docs/output.md says"
    assert len(html.encode()) < 400_000 and not re.search(r"/(home|root|tmp|work)/", html)


def test_the_page_of_a_file(tmp_path, monkeypatch):
    written = scripted_document("abc", [1])
    files.write_json(str(tmp_path / "run.json"), written)
    command = [sys.executable, "-m", "speculative.measure.page", str(tmp_path / "run.json"), "-o", "run.html"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == page(json.loads(json.dumps(written)))
    over = subprocess.run([*command[:4], "-o", command[3]], env=env, capture_output=True, text=True)
    assert (over.returncode, over.stdout) == (2, "") and "would be overwritten" in over.stderr
    assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(written))
    command[3:] = [str(tmp_path / "missing.json"), "-o", "other.html"]
    failed = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (2, "") and not (tmp_path / "other.html").exists()
    assert re.fullmatch(r"error: cannot read .*missing\.json: No such file or directory\n", failed.stderr)
    monkeypatch.setattr(argparse._sys, "argv", ["page", "run.json", "-o", str(tmp_path)])
    with pytest.raises(UserError, match=r"cannot write to .*: it is a folder"):
        page_module.main()


# ---- The flags -------------------------------------------------------------------------------------------------------


def test_flags_that_do_not_go_together():
    for other in ({"batch": 2}, {"n_samples": 2}, {"verify": True}):
        assert "cannot be combined" in refused(html="a.html", **other)
    assert refused(details=True).endswith("it is about what --json writes: add --json FILE")
    assert "written twice" in refusal(check_output, parse(html="a", json="./a"))
    assert parse(details=True, json="a").details and parse(html="a").html == "a"


@pytest.mark.parametrize("path", ["missing/run.html", "folder", "file/run.html", "a" * 300])
def test_a_path_that_cannot_be_written_is_one_line_before_the_models_are_read(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        main.main(html=path, target_model_size="none-of-this-name")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_no_room_is_one_line_before_the_models_are_read(tmp_path):
    """A limit on the size of files stands for a full disk: to the program the two are the same, an OSError."""
    command = [sys.executable, str(ROOT / "main.py"), "--html", "run.html", "--models_dir", str(tmp_path)]
    resource = pytest.importorskip("resource")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))  # noqa: E731
    done = subprocess.run(command, cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and os.listdir(tmp_path) == []
    assert done.stderr == "error: cannot write to run.html: File too large\n"


def test_what_the_run_prints_to_is_not_replaced(tmp_path):
    """/dev/stdout, redirected into a file, is a link to a plain file: the page would take its place."""
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    command = [sys.executable, str(ROOT / "main.py"), "--html", "link", "--models_dir", str(tmp_path)]
    with open(tmp_path / "out", "w") as out:
        done = subprocess.run(command, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: cannot write to link: this run prints to it\n")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "out").read_text() == ""


def test_no_half_page(tmp_path, monkeypatch):
    """Where the disk fills up during the run."""
    path = tmp_path / "run.html"
    path.write_text("old")
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**10, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write to .*: File too large"):
            files.write_text(str(path), page(scripted_document("ab", [1])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["run.html"]


def test_details_for_json_alone(tiny_pair, tmp_path, capsys):
    flags = {"models_dir": tiny_pair, "target_model_size": "target", "draft_model_size": "draft", "prompt": "the"}
    main.main(**flags, n_tokens_to_generate=9, details=True, json=tmp_path / "run.json", quiet=True)
    read_page(str(tmp_path / "run.json"))
    written = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert all(i["details"] for i in written["speculative"]["samples"][0]["iterations"])
    main.main(**flags, n_tokens_to_generate=9, json=tmp_path / "run.json", quiet=True)
    written = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert "vocabulary" not in written
    assert not any("details" in i for i in written["speculative"]["samples"][0]["iterations"])


# ---- In a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def show(browser, tmp_path):
    """HTML or a path -> the browser with that page. In the end it has complained of nothing and asked for nothing."""
    opened = []

    def show(html, fragment=""):
        path = html if isinstance(html, Path) else tmp_path / "page.html"
        if path is not html:
            path.write_text(html, encoding="utf-8", errors="backslashreplace")
        browser.get("about:blank")
        browser.get_log("performance"), browser.get_log("browser")
        opened.append(path.as_uri())
        browser.get(opened[-1] + fragment)
        return browser

    yield show
    assert opened and browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if url not in opened and not url.startswith(("data:", "about:"))] == []
    assert any(url in opened for url in asked)


def text_of(driver, name):
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", name)


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def walk(driver):
    """Presses the right arrow from the first iteration to the last -> each one's (fragment, outcome)."""
    from selenium.webdriver.common.keys import Keys

    driver.execute_script("choose(1)")
    seen = []
    while not seen or seen[-1] != (here := (driver.execute_script("return location.hash"), text_of(driver, "outcome"))):
        seen.append(here if seen else (driver.execute_script("return location.hash"), text_of(driver, "outcome")))
        press(driver, Keys.ARROW_RIGHT)
    return seen


def check_page(driver, run):
    """The texts, and each iteration's verdicts, against the run's document."""
    prompt = run["prompt"]["text"]
    for name, decoder in (("plain", "autoregressive"), ("speculative", "speculative")):
        expected = prompt + run[decoder]["samples"][0]["text"]
        assert text_of(driver, name) == "".join(expected).translate(SHOWN)
    iterations = run["speculative"]["samples"][0]["iterations"]
    for number, ((fragment, outcome), iteration) in enumerate(zip(walk(driver), iterations, strict=True), start=1):
        assert fragment == f"#iteration-{number}"
        assert outcome.startswith(f"Iteration {number} of {len(iterations)}: ")
        drafted, accepted = iteration["drafted"], iteration["accepted"]
        assert (f"{accepted} of {drafted} draft" if drafted else "nothing was drafted") in outcome
    return iterations


def check_glass(driver, run, number):
    """The numbers of one iteration, as Python has them."""
    driver.execute_script("choose(arguments[0])", number)
    details = run["speculative"]["samples"][0]["iterations"][number - 1]["details"]
    accepted = run["speculative"]["samples"][0]["iterations"][number - 1]["accepted"]
    cards = driver.execute_script(
        "return [...document.querySelectorAll('#glass .card')].map((card) => ({formula: "
        "card.querySelector('.formula').textContent, verdict: card.querySelector('.verdict')?.textContent, rows: "
        "[...card.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))}))"
    )
    assert len(cards) == len(details["tested"]) + bool(details["own"])
    for j, (test, card) in enumerate(zip(details["tested"], cards, strict=False)):
        numbers = [float(x) for x in re.findall(r"[\d.]+(?:e-\d+)?", card["formula"])]
        assert numbers == pytest.approx([test["u"], test["p"], test["u"] * test["p"], test["q"]], rel=0.006, abs=6e-4)
        assert ("<" in card["formula"]) == (j < accepted) == (card["verdict"] == "✓ accepted")
        assert len(card["rows"]) == len(test["top"]["tokens"])
        for row, *values in zip(card["rows"], test["top"]["p"], test["top"]["q"], strict=True):
            assert [float(cell.replace("< 0.001", "0")) for cell in row[1:3]] == pytest.approx(values, abs=1e-3)


def run_main(tmp_path, capsys, **flags):
    """-> (what main.py prints, its page's path, its document)."""
    path, json_path = tmp_path / "run.html", tmp_path / "run.json"
    main.main(**{k: str(v) for k, v in (DEMO | {"quiet": True} | flags).items()}, html=path, json=json_path)
    assert read_page(str(json_path)) == path.read_text(encoding="utf-8")
    return capsys.readouterr().out, path, json.loads(json_path.read_text(encoding="utf-8"))


def test_the_page_of_the_demo(show, tmp_path, capsys):
    out, path, run = run_main(tmp_path, capsys)
    assert path.stat().st_size < 400_000
    driver = show(path)
    check_page(driver, run)
    for name in ("plain", "speculative"):
        assert f"Text = {text_of(driver, name)}\n" in out
    assert "equal, token for token" in text_of(driver, "same")
    origins = driver.execute_script(
        "return [...document.querySelectorAll('#speculative .token')].map((t) => t.classList[1])"
    )
    assert origins == run["speculative"]["samples"][0]["origins"]
    for number in (1, 3):
        check_glass(driver, run, number)
    n_figures = driver.execute_script("return document.querySelectorAll('#figures tbody tr').length")
    assert n_figures == 15 and text_of(driver, "summary").startswith("Speedup = ")


def test_the_page_of_a_sampled_run(show, tmp_path, capsys):
    _, path, run = run_main(tmp_path, capsys, temperature=1, top_p=0.9, n_tokens_to_generate=40, seed=5)
    driver = show(path, "#iteration-2")
    assert text_of(driver, "outcome").startswith("Iteration 2 of ")
    for number in range(1, len(check_page(driver, run)) + 1):
        check_glass(driver, run, number)
    assert "Both are drawn from the target's distribution." in text_of(driver, "same")


CASES = {
    "K auto": {"K": "auto"},
    "250 tokens": {"n_tokens_to_generate": 250, "prompt": "The"},
    "lenience": {"lenience": 0.5, "temperature": 1, "K": 2},
    "stop": {"stop": "thing", "temperature": 0.7, "n_tokens_to_generate": 90},
    **{name: {"drafter": name} for name in [*KINDS, "prompt_lookup+model", "model/ngram", "model/ngram/prompt_lookup"]},
    "jax": {"engine": "jax", "n_tokens_to_generate": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_page_of_each_kind_of_run(case, show, tmp_path, capsys):
    _, path, run = run_main(tmp_path, capsys, **CASES[case])
    driver = show(path)
    n_iterations = len(check_page(driver, run))
    if case == "jax":
        assert "one compiled loop on the device" in text_of(driver, "glass")
        assert "does not tell how long a call took" in text_of(driver, "race-note")
    else:
        for number in {1, n_iterations}:
            check_glass(driver, run, number)
    tokens = [i for i in run["speculative"]["samples"][0]["iterations"] for _ in range(i["accepted"])]
    named = {by for i in tokens for by in i["by"][: i["accepted"]]}
    marks = driver.execute_script("return [...document.querySelectorAll('#legend [data-by]')].map((e) => e.dataset.by)")
    assert sorted(marks) == (sorted(named) if len(named) > 1 else [])


def test_a_rejection_at_each_position(show):
    run = scripted_document("The cat sat on the mat.", range(5), prompt="Once: ")
    driver = show(page(run))
    check_page(driver, run)
    for right in range(5):
        check_glass(driver, run, right + 1)
        step_4 = driver.execute_script("return [...document.querySelectorAll('.step')].at(-1).textContent")
        assert (f"draft {right + 1} was rejected" in step_4) == (right < 4) != ("Bonus: " in step_4)


def test_text_is_data(show):
    """Markup in the prompt and in what the model writes, control characters, and characters over several tokens."""
    run = scripted_document(f"{HOSTILE} é東😀", [3, 0, 9])
    driver = show(page(run))
    check_page(driver, run)
    assert driver.execute_script("return document.images.length + document.scripts.length") == 2
    every = "".join(map(chr, [*range(0x250), *range(0x600, 0x620), *range(0x2000, 0x2070)]))
    assert driver.execute_script("return shown(arguments[0])", every) == every.translate(SHOWN)
    run["options"][every] = every
    run["figures"]["by_proposer"] = {every: [2, 1]}
    driver = show(page(run))
    driver.execute_script("for (const script of [...document.scripts]) script.remove()")
    assert not set(driver.execute_script("return document.body.textContent")) & {*map(chr, SHOWN)}


def test_a_token_is_chosen_by_a_click_or_by_hand(show):
    run = scripted_document("The cat sat on the mat.", [2], prompt="Once: ")
    driver = show(page(run))
    driver.execute_script("document.querySelectorAll('#speculative .iteration')[2].children[1].click()")
    assert text_of(driver, "outcome").startswith("Iteration 3 of ")
    assert driver.execute_script("return document.querySelector('.card.chosen h4').textContent").startswith("Draft 2")
    driver.find_element("id", "previous").click()
    assert driver.execute_script("return location.hash") == "#iteration-2"
    driver.execute_script("location.hash = '#iteration-4'")
    driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert text_of(driver, "outcome").startswith("Iteration 4 of ")
    from selenium.webdriver.common.keys import Keys

    driver.find_element("id", "K").send_keys(Keys.ARROW_RIGHT)  # a slider keeps its own arrow keys
    assert text_of(driver, "outcome").startswith("Iteration 4 of ") and text_of(driver, "K-value") == "5"


def test_the_race(show):
    run = scripted_document("The cat sat on the mat.", [2], prompt="Once: ")
    driver = show(page(run))
    sample = run["speculative"]["samples"][0]
    ends = np.cumsum([i["seconds"] for i in sample["iterations"]])
    widths = driver.execute_script("return [...document.querySelectorAll('.speculative .target')].map((r) => "
                                   "parseFloat(r.getAttribute('width')))")  # fmt: skip
    total = driver.execute_script("return Number(document.getElementById('time').max)")
    assert widths == pytest.approx([100 * i["scoring"] / total for i in sample["iterations"]])
    for now, known in ((ends[0] * 0.99, 0), (ends[0] * 1.01, 3), (total, 23)):
        driver.execute_script("showTime(arguments[0])", now)
        status = driver.execute_script("return race.lanes[1].status.textContent")
        assert status == f"{known} of 23 tokens"
    for mode in ("no-preference", "reduce"):
        features = [{"name": "prefers-reduced-motion", "value": mode}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.execute_script("document.getElementById('speed').value = 1")
        driver.find_element("id", "play").click()
        driver.execute_async_script(
            "const done = arguments[0]; (function look() { race.playing ? setTimeout(look, 20) : done(); })()"
        )
        assert text_of(driver, "play") == "Play" and driver.execute_script("return race.now") == total
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_formulas_are_those_of_python(show):
    run = scripted_document("The cat sat on the mat.", [2], prompt="Once: ")
    driver = show(page(run))
    grid = [
        (a, K, c, b)
        for a in (0.0, 0.3, 0.605, 0.9, 1.0)
        for K in (0, 1, 4, 16)
        for c in (0.0, 0.13, 1.7)
        for b in (0.9, 1.0, 2.69)
    ]
    found = driver.execute_script(
        "return arguments[0].map(([a, K, c, b]) => [leviathanTokens(a, K), leviathanSpeedup(a, K, c, b), "
        "blogSpeedup(a, K, c, b), largestBeta(a, K, c), "
        "...bestK(Array(16).fill(a), c, lineThrough([[1, 1], [5, b]]))])",
        grid,
    )
    for (a, K, c, b), values in zip(grid, found, strict=True):
        best = costs.best_k([a] * 16, c, costs.line_through({1: 1.0, 5: b}))
        expected = [analysis.leviathan_tokens(a, K), analysis.leviathan_speedup(a, K, c, b)]
        expected += [analysis.blog_speedup(a, K, c, b), analysis.largest_beta(a, K, c), *best]
        assert values == pytest.approx(expected, abs=1e-9, rel=1e-9)
    for points in ({1: 1.0}, {1: 1.0, 5: 2.0}, {1: 1.0, 3: 1.5, 5: 1.2}):
        line = costs.line_through(points)
        script = "const line = lineThrough(arguments[0]); return arguments[1].map(line)"
        actual = driver.execute_script(script, sorted(points.items()), list(range(1, 20)))
        assert actual == pytest.approx([line(rows) for rows in range(1, 20)], abs=1e-9)


def test_the_sliders(show, tmp_path, capsys):
    _, path, run = run_main(tmp_path, capsys, n_tokens_to_generate=40)
    f = run["figures"]
    f |= {"busy": False, "c": 0.2, "beta": {"1": 1.0, "5": 1.4}}  # what a busy machine may not tell
    path.write_text(page(run), encoding="utf-8")
    driver = show(path)
    buttons = {b.text: b for b in driver.find_elements("css selector", "#questions button")}
    beta = costs.line_through({1: 1.0} | {int(n): b for n, b in f["beta"].items() if int(n) > 1})(5)

    def answer(K, alpha, c, beta):
        cost = costs.line_through({1: 1.0, 5: beta})
        best, best_speedup = costs.best_k([alpha] * 16, c, cost)
        shown = text_of(driver, "answer")
        tokens, speedup = analysis.leviathan_tokens(alpha, K), analysis.leviathan_speedup(alpha, K, c, cost(K + 1))
        assert shown.startswith(f"An iteration gives {tokens:.2f} tokens")
        assert f" rows: {speedup:.2f}x" in shown
        assert f"The best K is {best}" + (f", with {best_speedup:.2f}x." if best else ": no speculation.") in shown
        assert f"costs less than {analysis.largest_beta(alpha, K, c):.2f} rows" in shown

    answer(4, f["alpha"], f["c"], beta)
    buttons["The draft twice as fast"].click()
    answer(4, f["alpha"], f["c"] / 2, beta)
    buttons["A window for the cost of a row"].click()
    answer(4, f["alpha"], f["c"], 1.0)
    for values in ({"K": 7, "alpha": 0.5, "c": 0.25, "beta": 1.5}, {"K": 0, "alpha": 1, "c": 0, "beta": 5}):
        set_slider = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.oninput; "
        for name, value in values.items():
            driver.execute_script(set_slider + "e.dispatchEvent(new Event('input'))", name, value)
        answer(*values.values())


def test_a_phone_and_the_dark(show):
    driver = show(page(scripted_document("The cat sat on the mat. " * 3, [2], prompt="w" * 90)))
    backgrounds = set()
    for mode, width in (("light", 360), ("dark", 360), ("light", 1280)):
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        )
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        backgrounds.add(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert backgrounds == {"rgb(255, 255, 255)", "rgb(22, 24, 27)"}
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_the_policy_stops_what_is_not_the_pages(browser, tmp_path):
    """A script that was smuggled in does not run, and a picture is not fetched."""
    html = page(scripted_document("ab", [1])).replace("</main>", "<script>stolen = 1</script><img src=x.png></main>")
    (tmp_path / "page.html").write_text(html, encoding="utf-8", errors="backslashreplace")
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.execute_script("return typeof stolen") == "undefined"
    blocked = [entry["message"] for entry in browser.get_log("browser")]
    assert len(blocked) == 2 and all("Content Security Policy" in line for line in blocked)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_accessibility(show, axe, tmp_path, capsys, mode):
    _, path, _ = run_main(tmp_path, capsys, temperature=1, drafter="model/ngram")
    driver = show(path)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]}
    )
    driver.execute_script(axe)
    found = driver.execute_async_script(
        "axe.run(document, {preload: false}).then(({violations, passes}) => arguments[0]([passes.length, "
        "violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html + n.failureSummary)])]))"
    )
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    n_passed, violations = found
    assert n_passed > 20 and violations == []


@pytest.mark.slow
def test_the_size_with_a_vocabulary_of_50257(tmp_path):
    """40 tokens, none of which repeats what is shown of another, at the widest."""
    rng, n_vocab = RNG(0), 50257
    big = Encoder({token: i for i, token in enumerate([*BYTE_TO_CHAR.values(), END_OF_TEXT])}, [])
    big.id_to_bytes = {i: f" token{i}".encode() for i in range(n_vocab)}
    draw = lambda x, n_last=1: rng.dirichlet(np.full(n_vocab, 0.01), n_last).astype(np.float32)  # noqa: E731
    recorders = Recorder(details=True), Recorder(details=True)
    list(recorders[0].watch(autoregressive_sampling([1], recorders[0].target(draw), 40, recorders[0].rng(rng))))
    counted = recorders[1].rng(rng)
    draft = recorders[1].draft(model_drafter(draw, counted))
    list(recorders[1].watch(speculative_sampling([1], draft, recorders[1].target(draw), 40, 16, counted)))
    size = len(page(document(parse(K=16)._asdict(), big, [" x"], [[1]], *recorders)).encode())
    assert 100_000 < size < 600_000


def slower(run, times):
    """The same run, so many times as slow."""
    run = json.loads(json.dumps(run))
    for name in ("autoregressive", "speculative"):
        run[name]["seconds"] *= times
        run["figures"]["seconds"][name] *= times
        for iteration in run[name]["samples"][0]["iterations"]:
            for part in ("drafting", "scoring", "seconds"):
                iteration[part] *= times
    return run


def test_a_long_race_is_played_faster_than_it_was(show):
    run = scripted_document("The cat sat on the mat.", [2], prompt="Once: ")
    total = max(run[name]["seconds"] for name in ("autoregressive", "speculative"))  # the race ends with the slower one
    for seconds, name in ((410, "50 times faster"), (41, "5 times faster"), (10, "as in the run"), (0.1, "100 times")):
        driver = show(page(slower(run, seconds / total)))
        chosen = driver.execute_script("return document.getElementById('speed').selectedOptions[0].textContent")
        assert chosen.startswith(name)
        assert (
            re.search(rf"as fast: 23 tokens in .* instead of {seconds:.2f} s\.", text_of(driver, "result"))
            or seconds < 1
        )
        headings = driver.execute_script("return [...document.querySelectorAll('h2')].map((h) => h.textContent)")
        assert headings[2:] == ["3. One iteration, close up", "4. Why it was this fast", "5. What would make it faster"]
