"""The page of a run and the workbench, in a real browser.

The browser is Chromium with its chromedriver, as Debian packages them (apt-get install chromium chromium-driver).
"""

import json
import os
import re
import time
from pathlib import Path

import pytest
from speculative.cli.flags import all_flags, parse
from test_page import HOSTILE, scripted_document
from test_workbench import Scripted

import main
from benchmarks import images
from speculative.cli.display import SHOWN
from speculative.cli.workbench import LABELS, Workbench
from speculative.drafters import KINDS
from speculative.measure import analysis
from speculative.measure.page import page
from speculative.options import DEMO
from speculative.session import Session


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
    emulate(browser, None)
    assert opened
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert opened[-1] in asked
    assert [url for url in asked if not url.startswith((opened[-1], "data:", "about:"))] == []
    browser.get("about:blank")


@pytest.fixture
def show(go_to, tmp_path):
    """A run's document, or the path of a page -> the browser with that page."""

    def show(run, fragment=""):
        path = run
        if isinstance(run, dict):
            path = tmp_path / "page.html"
            path.write_text(page(run), encoding="utf-8", errors="backslashreplace")
        return go_to(path.as_uri(), fragment)

    return show


@pytest.fixture
def run_main(tmp_path, capsys):
    """flags -> (the output of main.py, its page's path, its document)."""

    def run_main(**flags):
        path, json_path = tmp_path / "run.html", tmp_path / "run.json"
        main.main(**{k: str(v) for k, v in (DEMO | {"quiet": True} | flags).items()}, html=path, json=json_path)
        run = json.loads(json_path.read_text(encoding="utf-8"))
        assert page(run) == path.read_text(encoding="utf-8")
        return capsys.readouterr().out, path, run

    return run_main


@pytest.fixture(scope="module")
def pair():
    given = {"demo": True, "threads": 1}
    return Session(parse(given), given, parse)


@pytest.fixture
def bench(pair):
    return Workbench(pair, all_flags())


@pytest.fixture
def endless(pair):
    """A workbench whose pair decodes until it is stopped, with the options of a real one."""
    bench = Workbench(Scripted(), all_flags())
    bench.session.options = pair.options.replaced(n_tokens_to_generate=4)
    bench.session.pair = pair.pair
    return bench


def js(driver, expression, *arguments):
    """The value of an expression in JavaScript."""
    return driver.execute_script(f"return {expression}", *arguments)


def text_of(driver, name):
    return js(driver, "document.getElementById(arguments[0]).textContent", name)


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
    """A screen of this width, and what its user prefers; None: as it is."""
    if width is None:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    else:
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


# ---- The page of a run -----------------------------------------------------------------------------------------------


def walk(driver):
    """Presses the right arrow from the first iteration to the last -> each one's (fragment, outcome)."""
    driver.execute_script("choose(1)")
    seen = []
    while (here := (js(driver, "location.hash"), text_of(driver, "outcome"))) not in seen:
        seen.append(here)
        press(driver, "ARROW_RIGHT")
    return seen


def check_page(driver, run):
    """The texts, and each iteration's verdicts, against the run's document."""
    for name, decoder in (("plain", "autoregressive"), ("speculative", "speculative")):
        expected = run["prompt"]["text"] + run[decoder]["samples"][0]["text"]
        assert text_of(driver, name) == expected.translate(SHOWN)
    [sample] = run["speculative"]["samples"]
    iterations = sample["iterations"]
    for number, ((fragment, outcome), iteration) in enumerate(zip(walk(driver), iterations, strict=True), start=1):
        assert fragment == f"#iteration-{number}"
        assert outcome.startswith(f"Iteration {number} of {len(iterations)}: ")
        drafted, accepted = iteration["drafted"], iteration["accepted"]
        assert (f"{accepted} of {drafted} draft" if drafted else "nothing was drafted") in outcome
    tokens = "[...document.querySelectorAll('#speculative .token')].map((t) => t.classList[1])"
    assert js(driver, tokens) == sample["origins"]


def compared(test, options):
    """The numbers that a card shows of a test."""
    if options["accept"] == "block":
        return [test["w"], test["u"], test["h"]]
    if options["typical"]:
        return [test["q"], 0]
    return [test["u"], test["p"], test["u"] * test["p"], test["q"]]


def check_glass(driver, run, number):
    """The numbers of one iteration, as Python has them."""
    driver.execute_script("choose(arguments[0])", number)
    iteration = run["speculative"]["samples"][0]["iterations"][number - 1]
    details, accepted = iteration["details"], iteration["accepted"]
    cards = js(
        driver,
        "[...document.querySelectorAll('#glass .card')].map((card) => ({formula: "
        "card.querySelector('.formula').textContent, verdict: card.querySelector('.verdict')?.textContent, rows: "
        "[...card.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))}))",
    )
    assert len(cards) == len(details["tested"]) + bool(details["own"])
    for j, (test, card) in enumerate(zip(details["tested"], cards, strict=False)):
        assert ("✓" in card["verdict"]) == (j < accepted)
        assert (card["verdict"] == "✓ accepted") == (test["passed"] and j < accepted)
        if {*test["top"]["p"], *test["top"]["q"]} <= {0, 1}:
            assert card["formula"].startswith("The target's likeliest token: ")
            assert card["rows"] == []
            continue
        numbers = [float(x) for x in re.findall(r"[\d.]+(?:e-\d+)?", card["formula"])]
        assert numbers == pytest.approx(compared(test, run["options"]), rel=0.006, abs=6e-4)
        assert (("<" in card["formula"]) or (">" in card["formula"])) == test["passed"]
        assert len(card["rows"]) == len(test["top"]["tokens"])
        for row, *values in zip(card["rows"], test["top"]["p"], test["top"]["q"], strict=True):
            assert [float(cell.replace("< 0.001", "0")) for cell in row[1:3]] == pytest.approx(values, abs=1e-3)


CASES = {
    "demo": {},
    "sampled": {"temperature": 1, "top_p": 0.9, "n_tokens_to_generate": 40, "seed": 5},
    "K auto": {"K": "auto"},
    "250 tokens": {"n_tokens_to_generate": 250, "prompt": "The"},
    "lenience": {"lenience": 0.5, "temperature": 1, "K": 2},
    "block": {"accept": "block", "temperature": 1, "n_tokens_to_generate": 90},
    "typical": {"typical": 0.3, "temperature": 1},
    "stop": {"stop": "thing", "temperature": 0.7, "n_tokens_to_generate": 90},
    **{name: {"drafter": name} for name in [*KINDS, "prompt_lookup+model", "model/ngram", "model/ngram/prompt_lookup"]},
    "jax": {"engine": "jax", "n_tokens_to_generate": 20},
}


@pytest.mark.parametrize(
    "case", [*[*CASES][:2], *[pytest.param(case, marks=pytest.mark.slow) for case in [*CASES][2:]]]
)
def test_the_page_of_each_kind_of_run(case, show, run_main):
    out, path, run = run_main(**CASES[case])
    driver = show(path, "#iteration-2")
    iterations = run["speculative"]["samples"][0]["iterations"]
    assert text_of(driver, "outcome").startswith(f"Iteration {min(2, len(iterations))} of ")
    check_page(driver, run)
    for name in ("plain", "speculative"):
        assert f"Text = {text_of(driver, name)}\n" in out
    texts = [run[name]["samples"][0]["tokens"] for name in ("autoregressive", "speculative")]
    assert ("equal, token for token" in text_of(driver, "same")) == (texts[0] == texts[1])
    lossy = {"lenience": "With lenience 0.5", "typical": "With typical acceptance, ε = 0.3,"}
    assert lossy.get(case, "") in text_of(driver, "rule")
    if case == "jax":
        assert "one compiled loop on the device" in text_of(driver, "glass")
        assert "does not time single calls" in text_of(driver, "race-note")
    else:
        for number in range(1, len(iterations) + 1) if case in ("sampled", "block") else {1, len(iterations)}:
            check_glass(driver, run, number)
    named = {by for i in iterations for by in i["by"][: i["accepted"]]}
    marks = js(driver, "[...document.querySelectorAll('#legend [data-by]')].map((e) => e.dataset.by)")
    assert sorted(marks) == (sorted(named) if len(named) > 1 else [])
    if case == "demo":
        n_figures = 5 if run["figures"]["busy"] else 15  # where other work took the machine, nothing is predicted
        assert js(driver, "document.querySelectorAll('#figures tbody tr').length") == n_figures
        assert text_of(driver, "summary").startswith("The texts ")
        assert path.stat().st_size < 400_000


CAT = "The cat sat on the mat."


def test_a_rejection_at_each_position_chosen_by_a_click_or_by_hand(show):
    run = scripted_document(CAT, range(5), prompt="Once: ")
    driver = show(run)
    check_page(driver, run)
    for right in range(5):
        check_glass(driver, run, right + 1)
        step_4 = js(driver, "[...document.querySelectorAll('.step')].at(-1).textContent")
        assert (f"draft {right + 1} was rejected" in step_4) == (right < 4) != ("Bonus: " in step_4)
    driver.execute_script("document.querySelectorAll('#speculative .iteration')[2].children[1].click()")
    assert text_of(driver, "outcome").startswith("Iteration 3 of ")
    assert js(driver, "document.querySelector('.card.chosen h4').textContent").startswith("Draft 2")
    click(driver, "previous")
    assert js(driver, "location.hash") == "#iteration-2"
    driver.execute_script("location.hash = '#iteration-4'")
    wait(driver, "byId('outcome').textContent.startsWith('Iteration 4 of ')")
    driver.execute_script("byId('K').focus()")
    press(driver, "ARROW_RIGHT")  # a slider keeps its own arrow keys
    assert text_of(driver, "outcome").startswith("Iteration 4 of ")
    assert text_of(driver, "K-value") == "5"


def test_text_is_data(show):
    """Markup in the prompt and in what the model writes, control characters, and characters over several tokens."""
    run = scripted_document(f"{HOSTILE} é東😀", [3, 0, 9])
    driver = show(run)
    check_page(driver, run)
    assert js(driver, "document.images.length + document.scripts.length") == 2
    every = "".join(map(chr, [*range(0x250), *range(0x600, 0x620), *range(0x2000, 0x2070)]))
    assert js(driver, "shown(arguments[0])", every) == every.translate(SHOWN)
    run["options"][every] = every
    run["figures"]["by_proposer"] = {every: [2, 1]}
    driver = show(run)
    driver.execute_script("for (const script of [...document.scripts]) script.remove()")
    assert not set(js(driver, "document.body.textContent")) & {*map(chr, SHOWN)}


RACE = "[...document.querySelectorAll('.speculative .target')].map((r) => parseFloat(r.getAttribute('width')))"


@pytest.mark.parametrize(
    ("seconds", "speed"), [(410, "50 times faster"), (41, "5 times faster"), (10, "as in the run"), (0.1, "100 times")]
)
def test_the_race(show, seconds, speed):
    """A long one is played faster than it was."""
    run = scripted_document(CAT, [2], prompt="Once: ")
    for decoder, took in (("autoregressive", seconds), ("speculative", seconds / 2)):
        run["figures"]["seconds"][decoder] = run[decoder]["seconds"] = took
        iterations = run[decoder]["samples"][0]["iterations"]
        each = took / len(iterations)
        for iteration in iterations:
            iteration |= {"drafting": 0.2 * each, "scoring": 0.7 * each, "seconds": each}
    driver = show(run)
    assert js(driver, "document.getElementById('speed').selectedOptions[0].textContent").startswith(speed)
    if seconds > 1:
        assert re.search(rf"23 tokens in .* instead of {seconds:.2f} s\.", text_of(driver, "lines"))
    total = js(driver, "Number(document.getElementById('time').max)")
    assert js(driver, RACE) == pytest.approx([100 * i["scoring"] / total for i in iterations])
    for now, known in ((iterations[0]["seconds"] * 0.99, 0), (iterations[0]["seconds"] * 1.01, 3), (total, 23)):
        driver.execute_script("showTime(arguments[0])", now)
        assert js(driver, "race.lanes[1].status.textContent") == f"{known} of 23 tokens"
    for motion in ("no-preference", "reduce") if seconds < 1 else ():
        emulate(driver, None, reduced_motion=motion)
        driver.execute_script("byId('speed').value = 1")
        click(driver, "play")
        wait(driver, "!race.playing")
        assert text_of(driver, "play") == "Play"
        assert js(driver, "race.now") == total


def test_the_sliders_answer_with_the_formulas_of_python(show):
    run = scripted_document(CAT, [2], prompt="Once: ")
    f = run["figures"]
    f |= {"busy": False, "c": 0.2, "beta": {"1": 1.0, "5": 1.4}, "mean_beta": 1.4}  # a busy machine may lack these
    driver = show(run)
    buttons = {b.text: b for b in driver.find_elements("css selector", "#questions button")}

    def answer(K, alpha, c, beta):
        costs = [1 + k * (beta - 1) / 4 for k in range(17)]
        speedups = [analysis.leviathan_speedup(alpha, k, c, costs[k]) for k in range(17)]
        best = speedups.index(max(speedups))
        shown = text_of(driver, "answer")
        assert shown.startswith(f"A call of the target gives {analysis.leviathan_tokens(alpha, K):.2f} tokens")
        assert f" rows: {speedups[K]:.2f}x" in shown
        assert f"The best K is {best}" + (f", with {speedups[best]:.2f}x." if best else ": no speculation.") in shown
        assert f"costs less than {analysis.largest_beta(alpha, K, c):.2f} rows" in shown
        assert all(speedup <= k + 1 for k, speedup in enumerate(speedups))

    answer(4, f["alpha"], 0.2, 1.4)
    buttons["The draft twice as fast"].click()
    answer(4, f["alpha"], 0.1, 1.4)
    buttons["A window for the cost of a row"].click()
    answer(4, f["alpha"], 0.2, 1.0)
    set_slider = "byId(arguments[0]).value = arguments[1]; byId(arguments[0]).dispatchEvent(new Event('input'))"
    for values in ((7, 0.5, 0.25, 1.5), (0, 1, 0, 5), (16, 0.9, 0, 1), (1, 0.3, 0.13, 2.69), (16, 0.995, 1, 1.01)):
        for name, value in zip(("K", "alpha", "c", "beta"), values, strict=True):
            driver.execute_script(set_slider, name, value)
        answer(*values)


@pytest.mark.slow
def test_the_policy_stops_what_is_not_the_pages(browser, tmp_path):
    """A script that was smuggled in does not run, and a picture is not fetched."""
    html = page(scripted_document("ab", [1])).replace("</main>", "<script>stolen = 1</script><img src=x.png></main>")
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8", errors="backslashreplace")
    browser.get(path.as_uri())
    assert js(browser, "typeof stolen") == "undefined"
    blocked = [entry["message"] for entry in browser.get_log("browser")]
    assert len(blocked) == 2
    assert all("Content Security Policy" in line for line in blocked)


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
    cells = "[...document.querySelectorAll('#runs tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    head, *rows = js(driver, cells)
    return [dict(zip([name.strip(" ↑↓") for name in head], row, strict=True)) for row in rows]


def shown_texts(driver):
    """The text of each decoder, and the origins of its tokens."""
    return js(
        driver,
        "[...document.querySelectorAll('#decoders .text')].map((text) => [text.textContent, "
        "[...text.querySelectorAll('.token')].map((t) => t.classList[1])])",
    )


def texts_of_run(run):
    """The same, of a run's document. The autoregressive text is not coloured."""
    prompt = run["prompt"]["text"]
    one, other = [run[name]["samples"][0] for name in ("autoregressive", "speculative")]
    return [
        [(prompt + one["text"]).translate(SHOWN), []],
        [(prompt + other["text"]).translate(SHOWN), other["origins"]],
    ]


def show_run(driver, number):
    driver.find_element("css selector", f"[aria-label='Show run {number}']").click()
    wait(driver, f"shownRun === {number}")


@pytest.mark.slow
def test_a_run_is_shown_while_it_decodes_and_again_later(serving, go_to, bench):
    """Its texts and its result; the form changes only if its options are to be used again. All of its text is data."""
    driver = go_to(serving(bench))
    prompt = "</script><img src=x onerror=alert(1)> {{data}} \u202e\u2066 \x7f é </textarea><b>"
    chosen = {"n_tokens_to_generate": 30, "K": 3, "temperature": 1, "top_p": 0.9, "seed": 5}
    chosen |= {"drafter": "prompt_lookup+model", "stop": " zebra"}
    number = decode(driver, prompt=prompt, accept="block", top_k="", min_p="", only="", **chosen)
    asked = js(driver, "formValues()")
    document = bench.runs[number].document
    assert document["prompt"]["text"] == prompt
    assert {name: document["options"][name] for name in chosen} == chosen
    assert f"r = {bench.runs[number].r:.2f}" in text_of(driver, "lines")
    assert shown_texts(driver) == texts_of_run(document)
    decode(driver, prompt="Another", n_tokens_to_generate=5, temperature=0, stop="", drafter="model", top_p="")
    fill_in(driver, prompt="half a sen")
    typed = js(driver, "formValues()")
    show_run(driver, number)
    assert shown_texts(driver) == texts_of_run(document)
    assert text_of(driver, "headline") == js(driver, "runs[0].headline")
    assert js(driver, "formValues()") == typed
    driver.find_element("css selector", f"[aria-label='Reuse run {number}']").click()
    assert js(driver, "formValues()") == asked
    assert js(driver, "document.images.length + document.querySelectorAll('b').length") == 0
    assert js(driver, "document.querySelector('tr.drawn').id") == f"row-{number}"


@pytest.mark.slow
def test_one_decoder_alone(serving, go_to, bench):
    """Its text and its time, and no speedup; then both again."""
    driver = go_to(serving(bench))
    number = decode(driver, only="speculative", n_tokens_to_generate=9)
    visible = "Object.values(lanes).map((lane) => lane.article.checkVisibility())"
    assert js(driver, visible) == [False, True]
    run = bench.runs[number].document
    assert shown_texts(driver)[1][0] == run["prompt"]["text"] + run["speculative"]["samples"][0]["text"]
    assert text_of(driver, "headline").startswith("9 tokens in ")
    [row] = table_of_runs(driver)
    assert not {"Autoregressive", "Times as fast"} & {*row}
    decode(driver, only="", n_tokens_to_generate=5)
    assert js(driver, visible) == [True, True]


@pytest.mark.slow
def test_the_table_sorts_and_has_the_options_in_which_runs_differ(serving, go_to, bench):
    driver = go_to(serving(bench))
    for K in (10, 2, "auto"):
        decode(driver, n_tokens_to_generate=9, K=K)
    bench.runs[2].document["figures"]["speedup"] = 99  # more than any window allows
    bench.runs[4] = bench.runs[1]  # as if another tab had decoded
    wait(driver, "runs.length === 4")
    rows = table_of_runs(driver)
    assert [row["Run"] for row in rows] == ["4", "3", "2", "1"]
    assert rows[2]["Times as fast"] == "99.00doubtful"
    assert "Seed" not in rows[0]
    for order in (["10", "10", "2", "auto"], ["2", "10", "10", "auto"]):
        driver.find_element("id", "sort-Lookahead K").click()
        assert [row["Lookahead K"] for row in table_of_runs(driver)] == order
        assert js(driver, "document.activeElement.id") == "sort-Lookahead K"


@pytest.mark.slow
def test_each_tab_has_all_runs_and_its_own_form(serving, go_to, bench):
    address = serving(bench)
    driver = go_to(address)
    decode(driver, prompt="Once", n_tokens_to_generate=9, stop="zebra")
    rows = table_of_runs(driver)
    fill_in(driver, prompt=" left \n so ", K="7/", stop=" ")
    driver.refresh()
    wait(driver, "runs.length")
    assert table_of_runs(driver) == rows
    left = js(driver, "formValues()")
    assert (left["prompt"], left["K"], left["stop"], left["n_tokens_to_generate"]) == (" left \n so ", "7/", " ", "9")
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(address)
    wait(driver, "runs.length")
    decode(driver, n_tokens_to_generate=5)
    driver.close()
    driver.switch_to.window(first)
    wait(driver, "runs.length === 2")
    assert js(driver, "formValues()") == left


@pytest.mark.slow
def test_a_wrong_field_is_marked_and_the_last_result_stays(serving, go_to, bench):
    driver = go_to(serving(bench))
    decode(driver, n_tokens_to_generate=5)
    result = [text_of(driver, "headline"), shown_texts(driver)]
    wrong = "[...document.querySelectorAll('[aria-invalid]')].map((field) => field.id)"
    for fields, line, name in (
        ({"K": "none"}, "“Lookahead K” must be a whole number of at least 1", "K"),
        ({"K": 4, "top_p": 7}, "“top-p” must be a number above 0", "top_p"),
        (
            {"top_p": "", "n_tokens_to_generate": 5000},
            "the prompt's 17 tokens and 5000 more exceed",
            "n_tokens_to_generate",
        ),
    ):
        fill_in(driver, **fields)
        click(driver, "start")
        wait(driver, "!request")
        assert text_of(driver, "wrong").startswith(line)
        assert js(driver, wrong) == [name] == [js(driver, "document.activeElement.id")]
        assert [text_of(driver, "headline"), shown_texts(driver)] == result
    decode(driver, n_tokens_to_generate=6)
    assert js(driver, wrong) == []


DECODES = "lanes.speculative.tokens > 2"


@pytest.mark.slow
def test_run_and_stop_by_keyboard_alone(serving, go_to, endless):
    """One button is Run and Stop; Ctrl-Enter in the prompt runs."""
    from selenium.webdriver.common.keys import Keys

    driver = go_to(serving(endless))
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
    while endless.session.running:
        time.sleep(0.01)
    driver.find_element("id", "prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    wait(driver, DECODES)
    driver.get("about:blank")  # leaving the page ends the decode too
    while endless.session.running:
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "during"])
def test_the_server_is_gone(browser, serving, endless, when):
    browser.get(serving(endless))
    if when == "before":
        serving.stop()
    click(browser, "start")
    if when == "during":
        wait(browser, DECODES)
        serving.stop()
    wait(browser, "!request")
    assert text_of(browser, "wrong") == "The server does not answer: is main.py still running?"
    assert text_of(browser, "start") == "Run"
    browser.get_log("browser")  # the browser itself says that it was not answered


@pytest.mark.slow
def test_the_picture_of_the_workbench(browser, tmp_path):
    images.main([str(tmp_path / "workbench.png"), "--demo"])
    drawn = (tmp_path / "workbench.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) > 50_000


# ---- Both ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["page", pytest.param("workbench", marks=pytest.mark.slow)])
def shown(request, serving, show, run_main, go_to):
    """The browser with a run whose prompt is one long word."""
    how = {"prompt": "w" * 90, "temperature": 1, "drafter": "model/ngram", "n_tokens_to_generate": 40}
    if request.param == "page":
        return show(run_main(**how)[1])
    driver = go_to(serving(request.getfixturevalue("bench")))
    decode(driver, **how)
    return driver


@pytest.mark.parametrize(("mode", "background"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 24, 27)")])
def test_a_phone_in_the_dark_and_a_screen_reader(shown, mode, background):
    """Everything that can be used or looked at has a name in the browser's own accessibility tree."""
    for width in (360, 1280):
        emulate(shown, width, color_scheme=mode)
        assert js(shown, "document.documentElement.scrollWidth") <= width
    assert js(shown, "getComputedStyle(document.body).backgroundColor") == background
    roles = ("button", "textbox", "combobox", "link", "image", "img", "region", "form", "heading")
    nodes = shown.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(used) > 20
    nameless = [node for node in used if not node.get("name", {}).get("value", "").strip()]
    assert [node["role"]["value"] for node in nameless] == []


@pytest.mark.slow
@pytest.mark.skipif("AXE_CORE" not in os.environ, reason="AXE_CORE does not name the axe.min.js of npm's axe-core")
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_accessibility(shown, mode):
    emulate(shown, None, color_scheme=mode)
    shown.execute_script(Path(os.environ["AXE_CORE"]).read_text(encoding="utf-8"))
    n_passed, violations = shown.execute_async_script(
        "axe.run(document, {preload: false, iframes: false}).then(({violations, passes}) => arguments[0]("
        "[passes.length, violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html + n.failureSummary)])]))"
    )
    assert n_passed > 20
    assert violations == []
