"""The page of a run and the workbench, in a real browser."""

import copy
import json
import os
import re
import time
from pathlib import Path

import pytest
from benches import Endless
from page_runs import HOSTILE, SAMPLED, origins_of, run_of, with_prompt_and_text
from readme_words import sentences, words_of_today
from tiny import ROOT

from benchmarks.images import WORDS
from benchmarks.tables import without_numbers
from speculative import load_pair
from speculative.cli.command import read_options
from speculative.cli.display import PRINTABLE
from speculative.cli.workbench import LABELS, Workbench
from speculative.report.close_up import VISIBLE
from speculative.report.document import from_json
from speculative.report.page import page
from speculative.run.decode import DECODERS
from speculative.run.options import DEMO
from speculative.run.session import Session


@pytest.fixture
def go_to(browser):
    """An address -> the browser with its page. In the end it has complained of nothing and asked nobody else."""
    opened = []

    def go_to(address, fragment=""):
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get_log("browser")
        opened.append(address)
        browser.get(address + fragment)
        return browser

    yield go_to
    emulate(browser, 0)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert opened[-1] in asked
    assert [url for url in asked if not url.startswith((opened[-1], "data:", "about:"))] == []
    browser.get("about:blank")


@pytest.fixture
def show(go_to, tmp_path):
    """A run's document -> the browser with its page."""

    def show(run, fragment=""):
        path = tmp_path / "page.html"
        path.write_text(page(from_json(run)), encoding="utf-8", errors="backslashreplace")
        return go_to(path.as_uri(), fragment)

    return show


@pytest.fixture(scope="module")
def sampled(pair):
    return run_of(pair, **SAMPLED)


@pytest.fixture
def bench(pair):
    return Workbench(Session(read_options({"demo": "True"}), pair.models, quiet=True))


@pytest.fixture
def endless(monkeypatch):
    return Endless(monkeypatch)


def js(driver, expression, *arguments):
    """The value of an expression in JavaScript."""
    return driver.execute_script(f"return {expression}", *arguments)


def text_of(driver, name):
    return js(driver, "byId(arguments[0]).textContent", name)


def texts(driver, selector):
    return js(driver, "[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)


def origins(driver, selector):
    return js(driver, "[...document.querySelectorAll(arguments[0])].map((e) => e.classList[1])", f"{selector} .token")


def wait(driver, what):
    """Until a condition in JavaScript holds."""
    look = f"const [done] = [...arguments].slice(-1); (function look() {{ {what} ? done() : setTimeout(look, 20) }})()"
    driver.set_script_timeout(120)
    driver.execute_async_script(look)


def click(driver, name):
    driver.find_element("id", name).click()


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(driver).send_keys(*(getattr(Keys, key) for key in keys)).perform()


def emulate(driver, width, **features):
    """A screen of this width, and what its user prefers; 0: as it is."""
    metrics = {"width": width, "height": 800 * bool(width), "deviceScaleFactor": 0, "mobile": 0 < width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


# ---- The page of a run -----------------------------------------------------------------------------------------------


def texts_of_run(run):
    """The text of each decoder, as a browser shows it."""
    samples = [run[name]["samples"][0] for name in DECODERS]
    texts = ["".join(step["text"] for step in sample["iterations"]) for sample in samples]
    return [(run["prompt"]["text"] + text).translate(PRINTABLE) for text in texts]


PAGES = {
    "greedy": [],
    "sampled": ["--temperature=1", "--seed=4", "--prompt=Once upon a time", "-n=40"],  # a rejection at each position
    "alone": ["--only=speculative", "--temperature=1", "--accept=typical:0.1", "-n=20"],
    "tree": ["--tree=2,2,1", "-n=20"],
    "staged": ["--drafter=int8/model", "--K=6/2", "--temperature=1", "--accept=block", "-n=20"],
    "mixed": ["--drafter=prompt_lookup+model", "--K=2", "--temperature=1", "--accept=lenient:0.5", "--stop=thing"],
    "slower": ["--drafter=ngram", "--K=16", "--temperature=1", "-n=20"],
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in [*PAGES][2:]]
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e-\d+)?")
# All text of a page, then the first iteration with no accepted draft, with one, ...
READ = """(() => {
  const said = [document.body.innerText], seen = new Set();
  data.iterations.forEach(({ accepted }, i) => {
    if (seen.has(accepted)) return;
    seen.add(accepted);
    choose(i + 1);
    said.push(byId("outcome").innerText, byId("glass").innerText);
  });
  return said.join("\\n");
})()"""


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("name", ["greedy", "sampled", *SLOW])
def test_a_page_says_what_it_said(name, command, go_to, tmp_path, monkeypatch, request):
    """The last digits may be those of another CPU."""
    monkeypatch.setattr("speculative.report.make_record.processor", lambda: "a CPU")
    monkeypatch.setattr("speculative.report.make_record.n_cores", lambda: 2)
    path = tmp_path / "page.html"
    assert command("--demo", *PAGES[name], f"--html={path}")[0] == 0
    said = js(go_to(path.as_uri()), READ)
    said = re.sub(r"C \(.*?\), \d+ threads?", "C", re.sub(r"\n\s*", "\n", said))
    golden = ROOT / "tests" / "report" / "golden_pages" / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(said, encoding="utf-8")
    known = golden.read_text(encoding="utf-8")
    assert NUMBER.sub("#", said) == NUMBER.sub("#", known)
    numbers, expected = ([float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (said, known))
    assert numbers == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_a_page_of_jax_says_what_it_lacks(show):
    pytest.importorskip("jax")
    run = run_of(load_pair(demo=True, engine="jax"), N=20)
    run["figures"] |= {"speedup": 0.5, "doubt": None}  # so it is advised
    driver = show(run)
    assert "one compiled loop on the device" in text_of(driver, "glass")
    assert "equal ones are drawn equally long" in text_of(driver, "race-note")
    assert js(driver, "byId('advice').checkVisibility()")
    assert not js(driver, "[...document.querySelectorAll('.predicted')].some((e) => e.checkVisibility())")


def test_a_rejection_at_each_position_chosen_by_a_click_or_by_hand(show, sampled):
    driver = show(sampled, "#iteration-2")
    assert text_of(driver, "outcome").startswith("Iteration 2 of ")
    assert origins(driver, "#speculative") == origins_of(sampled["speculative"]["samples"][0])
    driver.execute_script("document.querySelectorAll('#speculative .iteration')[2].children[0].click()")
    assert text_of(driver, "outcome").startswith("Iteration 3 of ")
    assert texts(driver, ".card.chosen h4")[0].startswith("Draft 1")
    click(driver, "previous")
    press(driver, "ARROW_LEFT")
    assert js(driver, "location.hash") == "#iteration-1"
    driver.execute_script("location.hash = '#iteration-4'")
    wait(driver, "byId('outcome').textContent.startsWith('Iteration 4 of ')")
    driver.execute_script("byId('time').focus()")
    before = js(driver, "race.now")
    press(driver, "ARROW_LEFT")  # a slider keeps its own arrow keys
    assert text_of(driver, "outcome").startswith("Iteration 4 of ")
    assert js(driver, "race.now") < before


def test_text_is_data(show, sampled):
    """Markup in the prompt and in what the model writes, control characters, in options and in names."""
    run = with_prompt_and_text(sampled, HOSTILE)
    driver = show(run)
    assert texts(driver, "#plain, #speculative") == texts_of_run(run)
    assert {*texts(driver, ".card .chip")} == {HOSTILE.translate(VISIBLE).translate(PRINTABLE)}
    assert js(driver, "document.images.length + document.scripts.length") == 2
    every = "".join(map(chr, [*range(0x250), *range(0x600, 0x620), *range(0x2000, 0x2070)]))
    assert js(driver, "shown(arguments[0])", every) == every.translate(PRINTABLE)
    run["figures"]["by_source"] = {every: [2, 1], "model": [1, 1]}
    driver = show(run)
    driver.execute_script("for (const script of [...document.scripts]) script.remove()")
    assert not set(js(driver, "document.body.textContent")) & {*map(chr, PRINTABLE)}


@pytest.mark.parametrize(("seconds", "speed"), [(410, "50 times faster"), (10, "as in the run"), (0.1, "100 times")])
def test_the_race(show, sampled, seconds, speed):
    """A long one is played faster than it was."""
    run = copy.deepcopy(sampled)
    for decoder, took in (("autoregressive", seconds), ("speculative", seconds / 2)):
        iterations = run[decoder]["samples"][0]["iterations"]
        each = took / len(iterations)
        for iteration in iterations:
            iteration |= {"drafting": 0.2 * each, "scoring": 0.7 * each, "seconds": each}
            iteration["calls"] = [["draft", 0, 0.2 * each], ["target", 0.2 * each, 0.7 * each]]
    driver = show(run)
    assert js(driver, "document.getElementById('speed').selectedOptions[0].textContent").startswith(speed)
    total = js(driver, "Number(document.getElementById('time').max)")
    widths = "[...document.querySelectorAll('.speculative .target')].map((r) => parseFloat(r.getAttribute('width')))"
    assert js(driver, widths) == pytest.approx([100 * i["scoring"] / total for i in iterations])
    first = iterations[0]["seconds"]
    for now, known in ((first * 0.99, 0), (first * 1.01, iterations[0]["tokens"]), (total, 40)):
        driver.execute_script("showTime(arguments[0])", now)
        assert js(driver, "race.lanes[1].status.textContent") == f"{known} of 40 tokens"
    for motion in ("no-preference", "reduce") if seconds < 1 else ():
        emulate(driver, 0, reduced_motion=motion)
        driver.execute_script("byId('speed').value = 1")
        click(driver, "play")
        wait(driver, "!race.playing")
        assert (text_of(driver, "play"), js(driver, "race.now")) == ("Play", total)


# ---- The workbench ---------------------------------------------------------------------------------------------------


def fill_in(driver, **fields):
    for name, value in fields.items():
        driver.execute_script("byId(arguments[0]).value = arguments[1]", name, str(value))


def decode(driver, **fields):
    """Fills the form in and presses Run -> the run's number, when it is done."""
    fill_in(driver, **fields)
    click(driver, "start")
    wait(driver, "!request")
    assert text_of(driver, "wrong") == ""
    return js(driver, "runs.at(-1).number")


def table_of_runs(driver):
    """[{column: text}] of each row"""
    rows = "[...document.querySelectorAll('#runs tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    head, *rows = js(driver, rows)
    return [dict(zip([name.strip(" ↑↓") for name in head], row, strict=True)) for row in rows]


def shown_texts(driver):
    """The text of each decoder, and the origins of all tokens that are coloured: the speculative ones."""
    return texts(driver, "#decoders .text"), origins(driver, "#decoders")


@pytest.mark.slow
def test_a_run_is_shown_while_it_decodes_and_again_later(serving, go_to, bench):
    """Its texts and its result; the form changes only if its options are to be used again. All of its text is data."""
    driver = go_to(serving(bench))
    prompt = "</script><img src=x onerror=alert(1)> {{data}} \u202e\u2066 \x7f é </textarea><b>"
    chosen = {"n_tokens_to_generate": 30, "K": 3, "temperature": 1, "top_p": 0.9, "seed": 5}
    chosen |= {"drafter": "prompt_lookup+model", "stop": " zebra"}
    number = decode(driver, prompt=prompt, accept="block", **chosen)
    asked = js(driver, "formValues()")
    document = bench.runs[number].document
    assert document["prompt"]["text"] == prompt
    assert {name: document["options"][name] for name in chosen} == chosen
    assert f"r = {bench.runs[number].r:.2f}" in text_of(driver, "lines")
    expected = (texts_of_run(document), origins_of(document["speculative"]["samples"][0]))
    assert shown_texts(driver) == expected
    decode(driver, prompt="Another", n_tokens_to_generate=5, temperature=0, stop="", drafter="model", top_p="")
    fill_in(driver, prompt="half a sen")
    typed = js(driver, "formValues()")
    driver.find_element("css selector", f"[aria-label='Show run {number}']").click()
    wait(driver, f"shownRun === {number}")
    assert shown_texts(driver) == expected
    assert text_of(driver, "headline") == js(driver, "runs[0].headline")
    assert js(driver, "formValues()") == typed
    driver.find_element("css selector", f"[aria-label='Reuse run {number}']").click()
    assert js(driver, "formValues()") == asked
    assert js(driver, "document.images.length + document.querySelectorAll('b').length") == 0


@pytest.mark.slow
def test_the_table_sorts_and_has_the_runs_of_all_tabs(serving, go_to, bench):
    driver = go_to(serving(bench))
    for K in (10, 2, "auto"):
        decode(driver, n_tokens_to_generate=9, K=K)
    bench.runs[2].document["figures"] |= {"speedup": 99, "doubt": "more than any window allows"}
    bench.runs = {1: bench.runs[1], 2: bench.runs[2], 3: bench.runs[3], 4: bench.runs[1]}  # another tab has decoded
    wait(driver, "runs.length === 4")
    del bench.runs[1]  # there are too many by now
    wait(driver, "runs.length === 3")
    rows = table_of_runs(driver)
    assert [row["Run"] for row in rows] == ["4", "3", "2"]
    assert rows[2]["Times as fast"] == "99.00doubtful"
    assert [*rows[0]][7:] == ["Lookahead K", ""]
    for order in (["10", "2", "auto"], ["2", "10", "auto"]):
        driver.find_element("id", "sort-Lookahead K").click()
        assert [row["Lookahead K"] for row in table_of_runs(driver)] == order
        assert js(driver, "document.activeElement.id") == "sort-Lookahead K"
    fill_in(driver, prompt=" left \n so ", K="7/", stop=" ")
    left = js(driver, "formValues()")
    driver.refresh()  # a tab keeps its form
    wait(driver, "runs.length === 3")
    assert js(driver, "formValues()") == left


@pytest.mark.slow
def test_a_wrong_field_is_marked_and_the_last_result_stays(serving, go_to, bench):
    driver = go_to(serving(bench))
    decode(driver, n_tokens_to_generate=5)
    result = [text_of(driver, "headline"), shown_texts(driver)]
    wrong = "[...document.querySelectorAll('[aria-invalid]')].map((field) => field.id)"
    for fields, line in (
        ({"K": "none"}, "“Lookahead K” must be a whole number from 1 to 1024"),
        ({"K": 4, "top_p": 7}, "“top-p” must be a number above 0"),
        ({"top_p": "", "n_tokens_to_generate": 5000}, "the prompt's 17 tokens and 5000 more exceed"),
    ):
        fill_in(driver, **fields)
        click(driver, "start")
        wait(driver, "!request")
        assert text_of(driver, "wrong").startswith(line)
        assert js(driver, wrong) == [[*fields][-1]] == [js(driver, "document.activeElement.id")]
        assert [text_of(driver, "headline"), shown_texts(driver)] == result
    decode(driver, n_tokens_to_generate=6)
    assert js(driver, wrong) == []
    disabled = "names.filter((name) => byId(name).disabled).sort()"
    assert js(driver, disabled) == []
    driver.find_element("id", "fast").send_keys("on")  # it takes the place of other fields
    assert js(driver, disabled) == ["K", "accept", "drafter"]
    options = bench.runs[decode(driver)].document["options"]
    assert (options["fast"], options["K"], options["drafter"]) == (True, "auto", "prompt_lookup+model")


DECODES = "lanes.speculative.tokens > 2"


@pytest.mark.slow
def test_run_and_stop_by_keyboard_alone_until_the_server_is_gone(serving, go_to, bench, endless):
    """One button is Run and Stop; Ctrl-Enter in the prompt runs."""
    from selenium.webdriver.common.keys import Keys

    driver = go_to(address := serving(bench))
    focused = "document.activeElement"
    for name in ("prompt", *[*LABELS][:6], "more", "start"):
        press(driver, "TAB")
        assert js(driver, f"{focused}.id || {focused}.parentElement.id") == name
    press(driver, "ENTER")
    wait(driver, DECODES)
    assert js(driver, f"{focused}.textContent") == "Stop"
    press(driver, "ENTER")
    wait(driver, "!request")
    assert (text_of(driver, "state"), text_of(driver, "start")) == ("", "Run")
    while endless.running:
        time.sleep(0.01)
    driver.find_element("id", "prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    wait(driver, DECODES)
    driver.get("about:blank")  # leaving the page ends the decode too
    while endless.running:
        time.sleep(0.01)
    driver.get(address)
    click(driver, "start")
    wait(driver, DECODES)
    for begin in (serving.stop, lambda: click(driver, "start")):  # while it decodes, and before it does
        begin()
        wait(driver, "!request")
        assert text_of(driver, "wrong") == "The server does not answer: is main.py still running?"
        assert text_of(driver, "start") == "Run"
    driver.get_log("browser")  # the browser itself says that it was not answered


# ---- A score ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def scored(pair, clock, go_to, tmp_path):
    """The browser with the page of a text that was scored, which holds all that could do harm."""
    path = tmp_path / "score.html"
    pair.changed(temperature=1, drafter="int8/model").score(f"It was {HOSTILE} {'w' * 90}\nand then").page(path)
    return go_to(path.as_uri())


def test_a_score_shows_the_tokens_that_each_draft_would_lose(scored):
    names = js(scored, "[...byId('layer').options].map((option) => option.text)")
    drafts = [f"by what {name} would lose" for name in ("int8 tiny-target", "draft tiny-draft")]
    models = ("target tiny-target", "int8 tiny-target", "draft tiny-draft")
    assert names == drafts + [f"by the surprise of {name}" for name in models]
    lost = "document.querySelectorAll('#text .lost').length"
    assert js(scored, lost) == 0  # a copy loses next to nothing
    js(scored, "(byId('layer').value = 1, byId('layer').dispatchEvent(new Event('change')))")
    assert js(scored, lost) == js(scored, "data.scores[2].chances.filter((chance) => chance < 0.5).length") > 0
    for number in (3, 2):  # by a click, then by a key
        js(scored, f"texts[{number}].click()" if number == 3 else "byId('previous').click()")
        assert js(scored, "document.querySelector('#text .chosen') === texts[chosen]")
        assert js(scored, "byId('where').textContent").startswith(f"Token {number} of ")
    assert js(scored, "byId('token').querySelectorAll('tbody tr').length") == 3


# ---- Both ------------------------------------------------------------------------------------------------------------


def of_any_target(text):
    """The same words, whether the target is padded, so that a decode takes seconds, or not; and without the note that
    other programs ran beside."""
    text = re.sub(r" ?Other settings are not predicted: the threads together waited .*? used\.", "", text)
    return re.sub(r"# m?s\b", "# ms", text.replace("padded-target", "tiny-target"))


@pytest.mark.usefixtures("clock")  # a slow machine would show seconds in place of milliseconds
@pytest.mark.parametrize("name", ["page.png", pytest.param("workbench.png", marks=pytest.mark.slow)])
def test_a_picture_of_docs_has_the_words_of_today(name, serving, show, pair, go_to, bench):
    if name == "page.png":
        driver = show(run_of(pair, DEMO["n_tokens_to_generate"], DEMO["prompt"], temperature=1))
    else:
        driver = go_to(serving(bench))
        for K in (8, 2, 4):
            decode(driver, K=K)
    today = of_any_target(words_of_today() + without_numbers("\n".join(driver.execute_script(WORDS, 1e6))))
    description = pytest.importorskip("PIL.Image").open(ROOT / "docs" / name).text["Description"]
    lines = of_any_target(description).splitlines()
    assert len(lines) > 20
    assert [line for line in lines if not all(sentence in today for sentence in sentences(line))] == []


@pytest.fixture(params=["page", "score", pytest.param("workbench", marks=pytest.mark.slow)])
def shown(request, serving, show, bench, go_to):
    """The browser with a run whose prompt is one long word."""
    how = {"prompt": "w" * 90, "temperature": 1, "drafter": "model/ngram"}
    if request.param == "score":
        return request.getfixturevalue("scored")
    if request.param == "page":
        request.getfixturevalue("clock")  # so that there are predictions
        return show(run_of(bench.session, **how))
    driver = go_to(serving(bench))
    decode(driver, **how)
    decode(driver, prompt="a", K=2, drafter="model", accept="block", seed=1, stop="z", top_p=0.9)
    return driver


# The left and the right end of all that is seen: texts, pictures and controls.
BOXES = """(() => {
  const clipped = (e) => innerWidth > 800 && e.closest('#runs') && !e.closest('.ways');  // a wide table scrolls
  const boxes = [...document.querySelectorAll('svg, input, select, textarea, button, .text, .card')]
    .filter((e) => !clipped(e));
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const parent = texts.currentNode.parentElement;
    if (parent.checkVisibility() && texts.currentNode.data.trim() && !clipped(parent)) boxes.push(range);
  }
  return boxes.map((box) => box.getBoundingClientRect()).filter(({ width }) => width)
    .map(({ left, right }) => [left, right]);
})()"""


RUN_AXE = """axe.run(document, {preload: false, iframes: false}).then((found) => arguments[0]([found.passes.length,
  found.violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html + n.failureSummary)])]))"""


def test_a_phone_in_the_dark_a_wide_screen_and_a_screen_reader(shown):
    """Everything that can be used or looked at has a name in the browser's own accessibility tree."""
    for width in (390, 800, 1280):
        emulate(shown, width)
        assert js(shown, "document.documentElement.scrollWidth") <= width
        assert [box for box in js(shown, BOXES) if box[0] < -1 or box[1] > width + 1] == []
        parts = "byId('grid') ? ['grid', 'advice', byId('play') ? 'play' : 'layer', 'next'] : ['start', 'runs']"
        for name in js(shown, parts):
            assert shown.find_element("id", name).is_displayed()
    roles = ("button", "textbox", "combobox", "link", "image", "img", "region", "form", "heading")
    nodes = shown.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(used) > 12
    nameless = [node for node in used if not node.get("name", {}).get("value", "").strip()]
    assert [node["role"]["value"] for node in nameless] == []
    axe = os.environ.get("AXE_CORE")  # the axe.min.js of npm's axe-core
    for mode, background in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 24, 27)")):
        emulate(shown, width, color_scheme=mode)
        assert js(shown, "getComputedStyle(document.body).backgroundColor") == background
        if axe:
            shown.execute_script(Path(axe).read_text(encoding="utf-8"))
            n_passed, violations = shown.execute_async_script(RUN_AXE)
            assert n_passed > 20
            assert violations == []
