"""--serve: what the workbench answers, to whom, and what a real browser makes of its page."""

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_flags import refused

import main
from plumbing.errors import UserError
from plumbing.terminal import SHOWN
from speculative import load_pair
from speculative.cli.flags import live_flags, with_values
from speculative.cli.serve import serve

pytest.importorskip("starlette")
from speculative.cli import workbench as module
from speculative.cli.workbench import FIELDS, MOST_BYTES, MOST_DECODES, MOST_RUNS, Workbench, application, asked

ROOT = Path(main.__file__).parent
ADDRESS = "127.0.0.1:8000"
PROMPT = "the thing in"
ASKS = {"origin": f"http://{ADDRESS}", "content-type": "application/json"}


@pytest.fixture(scope="module")
def pair(tiny_pair):
    return load_pair("draft", "target", models_dir=tiny_pair, threads=1)


@pytest.fixture
def bench(pair):
    return Workbench(pair, live_flags())


@pytest.fixture
def client(bench):
    pytest.importorskip("httpx2")
    from starlette.testclient import TestClient

    return TestClient(application(bench, ADDRESS), base_url=f"http://{ADDRESS}")


def ask(client, prompt=PROMPT, headers=ASKS, **flags):
    flags = {"n_tokens_to_generate": 12} | flags
    body = {"prompt": prompt, "flags": {name: str(value) for name, value in flags.items()}}
    return client.post("/decode", headers=headers, content=json.dumps(body))


def events(text):
    """A stream of server-sent events -> [(kind, value)], but for those that say that nothing has happened yet."""
    found = [part.split("\n") for part in text.split("\n\n") if part]
    assert all(len(lines) == 2 and lines[0][:7] == "event: " and lines[1][:6] == "data: " for lines in found)
    found = [(kind[7:], json.loads(data[6:])) for kind, data in found]
    return [one for one in found if one != ("waiting", 0)]


# ---- What is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"K": "auto"}, {"temperature": 1, "top_p": 0.9, "seed": 7, "K": 3}])
def test_the_steps_of_a_decode_and_its_run(client, pair, flags):
    answer = ask(client, **flags)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *steps, (last, summary) = events(answer.text)
    assert last == "done" and {kind for kind, _ in steps} == {"step"}
    document = client.get("/runs/1.json").json()
    for name in ("autoregressive", "speculative"):
        mine = [step for _, step in steps if step["decoder"] == name]
        text = "".join(text for step in mine for text, _ in step["tokens"])
        sample = document[name]["samples"][0]
        assert text == sample["text"]
        assert [origin.partition(":")[0] for s in mine for _, origin in s["tokens"] if origin] == sample["origins"]
        assert 0 < mine[-1]["end"] <= document[name]["seconds"]
    if "auto" not in flags.values():
        expected = pair.changed(**flags).compare(PROMPT, 12)
        assert (
            document["speculative"]["samples"][0]["tokens"] == expected.document["speculative"]["samples"][0]["tokens"]
        )
    assert (summary["number"], summary["prompt"], summary["n_tokens_to_generate"]) == ("1", PROMPT, 12)
    page = client.get("/runs/1")
    assert page.headers["content-type"].startswith("text/html") and "<h1>" in page.text
    assert client.get("/").text.count('"number":"1"') == 1  # a page that is loaded again knows the run


def test_the_page_has_the_flags_with_their_help(client, pair):
    html = client.get("/").text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    assert [field["name"] for field in data["fields"]] == [*FIELDS]
    for field in data["fields"]:
        assert field["help"] == live_flags()[field["name"]].help
        assert field["value"] == getattr(pair.o, field["name"])
    assert (data["target"], data["draft"]) == ("target", "draft")


def test_the_page_keeps_its_policy(client):
    """Nothing but its own style and script, and requests to where it came from."""
    html = client.get("/").text
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', html)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)[1]
    from speculative.measure.page import sha256

    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'{sha256(style)}'",
        "script-src": f"'{sha256(script)}'",
        "connect-src": "'self'",
        "frame-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for path in ("/", "/runs/1", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == "frame-ancestors 'self'"
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_only_so_many_runs_are_kept(client):
    for _ in range(MOST_RUNS + 2):
        ask(client, n_tokens_to_generate=1)
    assert client.get("/runs/2").status_code == 404 and client.get("/runs/3").status_code == 200
    assert client.get(f"/runs/{MOST_RUNS + 2}").status_code == 200


@pytest.mark.parametrize(
    "name", ["0", "1.html", "1.", "-1", "1/..", "..%2f1", "%2e%2e/main.py", "9" * 5000, "1.json.", "é"]
)
def test_no_such_run(client, name):
    ask(client)
    assert client.get(f"/runs/{name}").status_code == 404


# ---- Whom it answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}, 421),  # DNS rebinding
        ({"host": "127.0.0.1", "origin": "http://127.0.0.1"}, 421),
        ({"host": "127.0.0.1:8001", "origin": "http://127.0.0.1:8001"}, 421),
        ({"host": "127.0.0.1:8000.attacker.example"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://localhost:8000"}, 403),  # another origin than the host's
        ({"origin": "https://127.0.0.1:8000"}, 403),
        ({"origin": "null"}, 403),  # a sandboxed frame's
        ({"origin": None}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),  # which a form may send without asking
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": None}, 415),
    ],
)
def test_whose_requests_are_decoded(client, headers, status):
    headers = {name: value for name, value in (ASKS | headers).items() if value is not None}
    answer = ask(client, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert answer.text.isprintable() and len(answer.text) < 100
        assert client.get("/runs/1").status_code == 404


def test_who_may_read(client):
    ask(client)
    for path in ("/", "/runs/1", "/runs/1.json"):
        assert client.get(path).status_code == 200
        assert client.get(path, headers={"sec-fetch-site": "none"}).status_code == 200
        assert client.get(path, headers={"host": "attacker.example"}).status_code == 421
        assert client.get(path, headers={"origin": "http://attacker.example"}).status_code == 403
        linked = client.get(path, headers={"sec-fetch-site": "cross-site"}).status_code
        assert linked == (200 if path == "/" else 403)
    assert client.post("/", headers=ASKS).status_code == 405
    assert client.get("/decode").status_code == 405
    assert client.get("/main.py").status_code == client.get("/../main.py").status_code == 404


BAD = [b"", b"{", b"[]", b"1", b"null", b'"x"', b'{"prompt": "x"}', b'{"flags": {}}', b"\xff", b"[" * 60_000]
BAD += [b'{"prompt": 1, "flags": {}}', b'{"prompt": "x", "flags": []}', b'{"prompt": "x", "flags": {"K": 4}}']
BAD += [
    b'{"prompt": "\\ud800", "flags": {}}',
    b'{"prompt": "x", "flags": {"K": null}}',
    b'{"prompt": NaN, "flags": {}}',
]
BAD += [b'{"prompt": "x", "flags": {"%s": "/etc/passwd"}}' % name for name in (b"prompt_file", b"ngram_text", b"html")]
BAD += [b'{"prompt": "x", "flags": {"%s": "x"}}' % name for name in (b"models_dir", b"self", b"main", b"stop")]


@pytest.mark.parametrize("body", BAD)
def test_what_is_no_request(client, body):
    answer = client.post("/decode", headers=ASKS, content=body)
    assert (answer.status_code, answer.text) == (400, 'a request is {"prompt": text, "flags": {flag: text}}')


def test_a_request_is_bounded(client):
    assert ask(client, prompt="x" * MOST_BYTES).status_code == 413
    assert ask(client, drafter="model/" * 17).status_code == 400


def test_a_request_that_does_not_arrive():
    class Request:
        headers = ASKS

        async def stream(self):
            yield b"{"
            await asyncio.sleep(3600)

    with pytest.raises(module.HTTPException) as caught:
        asyncio.run(asked(Request(), slow=0.01))
    assert caught.value.status_code == 408


@pytest.mark.parametrize(
    ("prompt", "flags", "line"),
    [
        (PROMPT, {"K": 0}, "--K must be a whole number of at least 1"),
        (PROMPT, {"temperature": "hot"}, "--temperature must be a number of at least 0, not 'hot'"),
        (PROMPT, {"n_tokens_to_generate": 10**9}, "the prompt's 1 tokens and 1000000000 more exceed the context"),
        (PROMPT, {"drafter": "../heads"}, "unknown drafter '..'"),
        (PROMPT, {"drafter": "x" * 100}, "unknown drafter 'xxxxx"),
        (PROMPT, {"seed": "9" * 100}, "--seed must be a whole number"),
        ("x" * 200, {}, "the prompt's 200 tokens and 12 more exceed the context of 128 tokens"),
    ],
)
def test_flags_are_checked_as_the_command_lines_are(client, prompt, flags, line):
    answer = ask(client, prompt, **flags)
    [(kind, said)] = events(answer.text)
    assert kind == "error" and said.startswith(line) and said.isprintable() and len(said) < 400
    assert ask(client).status_code == 200  # and the next one is decoded


# ---- One at a time ---------------------------------------------------------------------------------------------------


class Scripted:
    """A pair whose decodes go on until they are allowed to end."""

    def __init__(self, fails=None):
        self.o = SimpleNamespace(n_tokens_to_generate=4)
        self.go_on = threading.Semaphore(0)
        self.running = []
        self.fails = fails

    def changed(self, **flags):
        return self

    def compare(self, prompt, n, watch):
        self.running.append(prompt)
        recorder = SimpleNamespace(seconds=0.5, now=SimpleNamespace(drafting=0.1, scoring=0.2))
        step = SimpleNamespace(text="a", pieces=["a"], origins=["bonus"])
        try:
            while True:
                watch("speculative", step, recorder)
                if self.go_on.acquire(timeout=0.02):
                    raise self.fails or RuntimeError("the end")
        finally:
            self.running.remove(prompt)


async def first(stream, kind):
    """The first event of this kind."""
    while True:
        for found in events(await asyncio.wait_for(stream.__anext__(), 60)):
            if found[0] == kind:
                return found


async def until(what):
    while not what():
        await asyncio.sleep(0.01)


def test_one_decodes_and_the_others_wait():
    async def session():
        pair = Scripted()
        bench = Workbench(pair, live_flags())
        streams = [bench.events(prompt, {}) for prompt in "abc"]
        await first(streams[0], "step")
        assert await first(streams[1], "waiting") == ("waiting", 1)
        assert await first(streams[2], "waiting") == ("waiting", 2)
        assert pair.running == ["a"]
        await streams[1].aclose()  # who waits may give up
        assert await first(streams[2], "waiting") == ("waiting", 1)
        pair.go_on.release()
        await first(streams[2], "step")
        assert pair.running == ["c"]
        await streams[2].aclose()
        await until(lambda: not bench.decodes)
        assert pair.running == []

    asyncio.run(session())


def test_who_closes_the_page_ends_the_decode():
    async def session():
        pair = Scripted()
        bench = Workbench(pair, live_flags())
        stream = bench.events("a", {})
        await first(stream, "step")
        assert pair.running == ["a"]
        await stream.aclose()
        await until(lambda: not pair.running and not bench.decodes)

    asyncio.run(session())


@pytest.mark.parametrize(
    ("error", "line"),
    [(UserError("one line"), "one line"), (MemoryError(), "MemoryError: "), (ValueError("oh"), "ValueError: oh")],
)
def test_a_decode_that_fails_says_so(error, line):
    async def session():
        pair = Scripted(error)
        bench = Workbench(pair, live_flags())
        pair.go_on.release()
        assert await first(bench.events("a", {}), "error") == ("error", line)
        await until(lambda: not bench.decodes)

    asyncio.run(session())


def test_too_many_at_a_time(bench, client):
    bench.decodes += [threading.Thread()] * MOST_DECODES
    assert ask(client).status_code == 503
    bench.decodes.clear()
    assert ask(client).status_code == 200


# ---- The flag --------------------------------------------------------------------------------------------------------


def test_the_port():
    assert with_values(["--serve"]) == ["--serve=8000"]
    assert with_values(["--serve", "--demo"]) == ["--serve=8000", "--demo=True"]
    assert with_values(["--serve", "9000"]) == ["--serve=9000"]
    for value in ("80", "1023", "65536", "-1", "x", "0.0.0.0:8000", "", "00"):
        assert refused(serve=value).startswith("--serve must be")
    for other in ({"interactive": "True"}, {"prompt": "a"}, {"html": "a.html"}, {"verify": "True"}):
        assert "cannot be combined" in refused(serve="8000", **other)


def test_a_port_that_is_taken(pair):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot serve at port {port}: .*; --serve 0 takes one that is free"):
            serve(pair, live_flags(), port)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_ends_it_while_it_decodes(tiny_pair, number, line):
    models = [f"--models_dir={tiny_pair}", "--draft_model_size=draft", "--target_model_size=target"]
    command = [sys.executable, "main.py", "--serve", "0", *models]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        host = address.split("/")[2]
        body = json.dumps({"prompt": "the", "flags": {"n_tokens_to_generate": "100", "drafter": "model/ngram"}})
        head = f"POST /decode HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\ncontent-type: application/json\r\n"
        with socket.create_connection(host.split(":")) as asking:
            asking.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            answer = b""
            while b"event: step" not in answer:
                answer += asking.recv(4096)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (128 + number, "")
        assert err.splitlines()[-1] == line and "Traceback" not in err
    finally:
        process.kill()


@pytest.mark.slow
def test_no_more_of_a_request_is_read_than_it_may_have(serving, bench):
    host = serving(bench).split("/")[2]
    head = f"POST /decode HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection(host.split(":")) as asking:
        asking.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        with contextlib.suppress(OSError):  # it hangs up
            for _ in range(10_000):
                asking.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
                if select.select([asking], [], [], 0)[0]:
                    break
        assert asking.recv(100).startswith(b"HTTP/1.1 413 ")


# ---- In a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def serving():
    """bench -> the address at which it answers, until the end of the test; .stop() ends it before."""
    import uvicorn

    servers = []

    def serving(bench):
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        app = application(bench, address)
        server = uvicorn.Server(uvicorn.Config(app, http="h11", lifespan="off", log_level="critical"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        servers.append((server, thread, listening))
        while not server.started:
            time.sleep(0.01)
        return f"http://{address}/"

    def stop():
        for server, thread, listening in servers:
            server.should_exit = server.force_exit = True
            thread.join()
            listening.close()
        servers.clear()

    serving.stop = stop
    yield serving
    stop()


@pytest.fixture(scope="module")
def bundled_pair():
    return load_pair("tiny-draft", "tiny-target", models_dir=ROOT / "models", threads=1)


@pytest.fixture
def show(browser, serving):
    """bench -> the browser with its page. In the end it has complained of nothing and asked nobody else."""
    addresses = []

    def show(bench):
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get_log("browser")
        addresses.append(serving(bench))
        browser.get(addresses[-1])
        return browser

    yield show
    assert addresses and browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith((addresses[-1], "data:", "about:"))] == []
    browser.get("about:blank")


class Endless(Scripted):
    """A pair that decodes until it is stopped, with the options of a real one."""

    def __init__(self, pair):
        super().__init__()
        self.o = pair.o._replace(n_tokens_to_generate=4)
        self.loaded = pair.loaded


def text_of(driver, name):
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", name)


def wait(driver, what, *arguments):
    """Until a condition in JavaScript holds."""
    look = f"const [done] = [...arguments].slice(-1); (function look() {{ {what} ? done() : setTimeout(look, 20) }})()"
    driver.set_script_timeout(120)
    driver.execute_async_script(look, *arguments)


def fill_in(driver, **fields):
    for name, value in fields.items():
        driver.execute_script("byId(arguments[0]).value = arguments[1]", name, str(value))


def decode(driver, **fields):
    """Fills the form in and presses Run -> the run's document, when it is done."""
    fill_in(driver, **fields)
    driver.find_element("id", "start").click()
    wait(driver, "!request")
    number = driver.execute_script("return [...runs.keys()].at(-1)")
    assert text_of(driver, "state").startswith("Done: "), text_of(driver, "wrong")
    return number


def in_frame(driver, name, text):
    """What an element of the run's page says, once it shows that run."""
    wait(driver, f"byId('frame').contentDocument?.getElementById('{name}')?.textContent && "
                 "byId('frame').contentDocument.body.textContent.includes(arguments[0])", text)  # fmt: skip
    return driver.execute_script("return byId('frame').contentDocument.getElementById(arguments[0]).textContent", name)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_run_from_the_prompt_to_the_last_token(show, bundled_pair, temperature):
    bench = Workbench(bundled_pair, live_flags())
    driver = show(bench)
    prompt = "It was a dark night, and"
    number = decode(driver, prompt=prompt, n_tokens_to_generate=30, temperature=temperature, K=3, seed=5)
    document = bench.runs[number].document
    options = {name: document["options"][name] for name in ("K", "temperature", "seed", "n_tokens_to_generate")}
    assert options == {"K": 3, "temperature": temperature, "seed": 5, "n_tokens_to_generate": 30}
    texts = driver.execute_script("return Object.values(lanes).map((lane) => lane.text.textContent)")
    origins = driver.execute_script(
        "return Object.values(lanes).map((l) => [...l.text.querySelectorAll('.token')].map((t) => t.classList[1]))"
    )
    calls = driver.execute_script(
        "return Object.values(lanes).map((lane) => lane.picture.querySelectorAll('rect.target').length)"
    )
    for i, name in enumerate(("autoregressive", "speculative")):
        sample = document[name]["samples"][0]
        assert texts[i] == prompt + sample["text"]
        assert origins[i] == sample["origins"]
        assert calls[i] == len(sample["iterations"])
    assert in_frame(driver, "speculative", prompt) == prompt + document["speculative"]["samples"][0]["text"]
    assert f"r = {bench.runs[number].r:.3f}" in text_of(driver, "state")
    height = "const page = byId('frame').contentDocument.documentElement; return page.scrollHeight - page.clientHeight"
    wait(driver, "(() => { " + height + " <= 0; })()")  # it needs no scroll bar of its own
    decode(driver, prompt="Another", n_tokens_to_generate=5, temperature=0)
    rows = driver.execute_script(
        "return [...document.querySelectorAll('#runs tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert [row[1] for row in rows] == ["Another", prompt] and rows[1][3] == "3"
    driver.find_element("css selector", f"[aria-label='Show run {number}']").click()
    assert in_frame(driver, "speculative", prompt).startswith(prompt)
    driver.refresh()
    assert driver.execute_script("return [...runs.keys()]") == ["1", "2"]  # they outlive the page


@pytest.mark.slow
def test_text_is_data(show, bundled_pair):
    hostile = "</script><img src=x onerror=alert(1)> {{data}} \u202e\u2066 \x7f é </textarea><b>"
    bench = Workbench(bundled_pair, live_flags())
    driver = show(bench)
    number = decode(driver, prompt=hostile, n_tokens_to_generate=9)
    shown = hostile.translate(SHOWN)
    assert driver.execute_script("return lanes.speculative.text.textContent").startswith(shown)
    assert driver.execute_script("return document.querySelector('#runs tbody td').textContent") == shown
    assert in_frame(driver, "speculative", "img src=x").startswith(shown)
    driver.refresh()
    assert driver.execute_script("return document.querySelector('#runs tbody td').textContent") == shown
    assert driver.execute_script("return document.images.length + document.querySelectorAll('b').length") == 0
    assert bench.runs[number].document["prompt"]["text"] == hostile


@pytest.mark.slow
def test_what_is_wrong_is_said_beside_the_form(show, bundled_pair):
    driver = show(Workbench(bundled_pair, live_flags()))
    fill_in(driver, K="none")
    driver.find_element("id", "start").click()
    wait(driver, "!request")
    assert text_of(driver, "wrong").startswith("--K must be a whole number of at least 1")
    assert text_of(driver, "state") == "Not decoded."
    decode(driver, K="8/2", drafter="model/ngram", n_tokens_to_generate=5)
    assert text_of(driver, "wrong") == ""
    assert driver.execute_script("return document.querySelectorAll('#runs tbody td')[2].textContent") == "8/2"


@pytest.mark.slow
def test_stop_by_keyboard_alone(show, bundled_pair):
    """Ctrl-Enter in the prompt runs; then the focus is on Stop, and after that on Run again."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    pair = Endless(bundled_pair)
    bench = Workbench(pair, live_flags())
    driver = show(bench)
    order = []
    for _ in range(11):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        order.append(driver.execute_script("return document.activeElement.id"))
    assert order[:9] == ["prompt", *FIELDS, "start"]
    driver.find_element("id", "start").send_keys(Keys.ENTER)
    wait(driver, "lanes.speculative.tokens > 2")
    assert driver.execute_script("return document.activeElement.id") == "stop"
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    wait(driver, "!request")
    assert (
        text_of(driver, "state") == "Stopped." and driver.execute_script("return document.activeElement.id") == "start"
    )
    driver.find_element("id", "prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    wait(driver, "request && lanes.speculative.tokens > 2")
    driver.get("about:blank")  # who leaves ends the decode too
    while pair.running or bench.decodes:
        time.sleep(0.01)


@pytest.mark.slow
def test_two_windows(show, bundled_pair):
    pair = Endless(bundled_pair)
    bench = Workbench(pair, live_flags())
    driver = show(bench)
    address = driver.current_url
    fill_in(driver, prompt="first")
    driver.find_element("id", "start").click()
    wait(driver, "lanes.speculative.tokens > 2")
    window = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        driver.get(address)
        fill_in(driver, prompt="second")
        driver.find_element("id", "start").click()
        wait(driver, "byId('state').textContent.startsWith('Waiting: 1 other text')")
        assert pair.running == ["first"]
        second = driver.current_window_handle
        driver.switch_to.window(window)
        driver.find_element("id", "stop").click()
        driver.switch_to.window(second)
        wait(driver, "lanes.speculative.tokens > 2")
        assert pair.running == ["second"]
        driver.find_element("id", "stop").click()
        wait(driver, "!request")
    finally:
        driver.close()
        driver.switch_to.window(window)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "during"])
def test_the_server_is_gone(browser, serving, bundled_pair, when):
    pair = Endless(bundled_pair)
    browser.get(serving(Workbench(pair, live_flags())))
    if when == "before":
        serving.stop()
    browser.find_element("id", "start").click()
    if when == "during":
        wait(browser, "lanes.speculative.tokens > 2")
        serving.stop()
    wait(browser, "!request")
    assert text_of(browser, "wrong") == "The server does not answer: is main.py still running?"
    assert browser.execute_script("return byId('start').disabled") is False
    browser.get_log("browser")  # the browser itself says that it was not answered


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_phone_in_the_dark_and_a_screen_reader(show, bundled_pair, mode):
    driver = show(Workbench(bundled_pair, live_flags()))
    features = [{"name": "prefers-color-scheme", "value": mode}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        decode(driver, prompt="w" * 90, n_tokens_to_generate=20)
        in_frame(driver, "speculative", "wwww")
        for width in (390, 1280):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert nameless(driver) == []
        background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 27)"}[mode]
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def nameless(driver):
    """What can be used or looked at and has no name in the browser's own accessibility tree."""
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = ("button", "textbox", "combobox", "link", "image", "img", "region", "form", "Iframe", "article", "heading")
    used = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(used) > 20
    return [node["role"]["value"] for node in used if not node.get("name", {}).get("value", "").strip()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_accessibility(show, axe, bundled_pair, mode):
    driver = show(Workbench(bundled_pair, live_flags()))
    features = [{"name": "prefers-color-scheme", "value": mode}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    decode(driver, prompt="It was a dark night, and", temperature=1, n_tokens_to_generate=40)
    driver.execute_script(axe)
    violations = driver.execute_async_script(
        "axe.run(document, {preload: false, iframes: false}).then(({violations}) => arguments[0]("
        "violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html + n.failureSummary)])))"
    )
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert violations == []
