"""--serve: the answers of the workbench, and to whom it answers."""

import asyncio
import json
import re
import socket

import pytest
from benches import Endless
from checkpoint_files import PROMPT, USUAL
from page_runs import POLICY, policy_of
from tiny import refusal, tokens_of

from speculative.checkpoints import download
from speculative.cli import workbench
from speculative.cli.command import read_options
from speculative.drafters import DRAFTERS
from speculative.report.page import marks
from speculative.report.run import compare
from speculative.run.decode import DECODERS
from speculative.run.options import FIELDS
from speculative.run.session import Session

pytest.importorskip("uvicorn")
from speculative.cli.workbench import LABELS, MOST_RUNS, Workbench, application, legend, serve

ADDRESS = "127.0.0.1:8000"
ORIGIN = {"origin": f"http://{ADDRESS}"}


@pytest.fixture(scope="module")
def pair(tiny_pair):
    return Session(read_options(USUAL | {"models_dir": str(tiny_pair)}))


@pytest.fixture
def bench(pair):
    return Workbench(pair)


@pytest.fixture
def client(bench):
    return client_of(bench)


def client_of(bench):
    pytest.importorskip("httpx2")
    from starlette.testclient import TestClient

    return TestClient(application(bench), base_url=f"http://{ADDRESS}")


def ask(client, headers=ORIGIN, **values):
    values = {"prompt": PROMPT, "n_tokens_to_generate": 12} | values
    return client.post("/decode", headers=headers, json={name: str(value) for name, value in values.items()})


def events(text):
    """A stream of server-sent events -> [(kind, value)]"""
    matches = [re.fullmatch("event: (.*)\ndata: (.*)", part) for part in text.split("\n\n") if part]
    return [(match[1], json.loads(match[2])) for match in matches]


# ---- The answers -----------------------------------------------------------------------------------------------------


FAST = {"drafter": "prompt_lookup+model", "K": "auto", "accept": "token"}  # the settings of a small target
HOW = [{"K": "auto", "stop": r". /stop \n"}, {"fast": "on"}]
HOW += [{"temperature": 1, "top_p": 0.9, "seed": 7, "accept": "block"}]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_the_steps_of_a_decode_and_its_run(client, pair, options, request):
    if "temperature" in options:  # repeated, the others might have other steps in their median run
        request.getfixturevalue("repeating")
    answer = ask(client, **options)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *told, (last, summary) = events(answer.text)
    assert (last, {kind for kind, _ in told}) == ("done", {"step"})
    document = client.get("/runs/1/json").json()
    for name in DECODERS:
        [sample] = document[name]["samples"]
        kept = [[*token] for i in sample["iterations"] for token in zip(i["pieces"], i["origins"], strict=True)]
        steps = [step for _, step in told if step[0] == name]
        assert [token[:2] for step in steps for token in step[1]] == kept
        assert steps[-1][-1] > 0
    known = {name: value for name, value in options.items() if name != "fast"}  # which changes no greedy text
    assert tokens_of(document) == tokens_of(compare(pair.changed(**known), PROMPT, 12, repeats=1).document)
    asked = {"prompt": PROMPT, "n_tokens_to_generate": 12} | options | (FAST if "fast" in options else {})
    assert summary["values"].items() >= {name: str(value) for name, value in asked.items()}.items()
    assert summary["figures"] == document["figures"]
    assert client.get("/runs").json() == [summary]  # for a page that is loaded again, and for other tabs


def test_the_page_has_the_options_with_their_help_and_keeps_its_policy(client):
    """The policy allows nothing but the page's own style and script, and requests to the server."""
    html = client.get("/").text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    assert data["values"]["prompt"] == PROMPT
    assert {field["name"]: field["help"] for field in data["fields"]} == {n: FIELDS[n].metadata["help"] for n in LABELS}
    for name, choices in [(field["name"], field["choices"]) for field in data["fields"] if field["choices"]]:
        assert data["values"][name] in choices
        assert choices == ["off", "on"] if name == "fast" else all(read_options({name: choice}) for choice in choices)
    assert policy_of(html) == [*POLICY, "connect-src 'self'", "base-uri 'none'", "form-action 'none'"]


def test_only_so_many_runs_are_kept_and_others_are_not_found(bench, client, monkeypatch):
    run = compare(bench.session, PROMPT, 1)
    monkeypatch.setattr(workbench, "compare", lambda *_, **__: run)
    for _ in range(MOST_RUNS + 2):
        bench.decode({"prompt": PROMPT}, workbench.Watcher())
    for name in ("3/page", f"{MOST_RUNS + 2}/page"):
        assert client.get(f"/runs/{name}").text == run.html()
    for name in (
        "2/page",
        "0/json",
        "-1/page",
        f"{5000 * '9'}/page",
        "..%2f3/page",
        "9999999/json",
        "../main.py",
        "3/x",
    ):
        assert client.get(f"/runs/{name}").status_code == 404


NO_FORMS = ["{", "", "null", "3", '["the"]', '{"K": "4"}', '{"prompt": 3}', '{"prompt": "a", "x": "b"}']
NO_FORMS += [b"\xff", "[" * 9**5]


@pytest.mark.parametrize("body", NO_FORMS, ids=lambda body: repr(body)[:30])
def test_a_request_that_is_not_a_form_is_one_sentence(client, body):
    answer = client.post("/decode", headers=ORIGIN, content=body)
    assert (answer.status_code, "a JSON object of texts" in answer.text) == (400, True)


def test_what_is_too_long_is_refused_before_it_is_encoded(client, pair, monkeypatch):
    answer = client.post("/decode", headers=ORIGIN, content=b" " * (workbench.MOST_BYTES + 1))
    assert answer.status_code == 413
    monkeypatch.setattr(pair.encoder, "encode", None)
    line = f"the prompt's 800,000 bytes exceed the context of {pair.n_ctx} tokens: shorten the prompt"
    assert events(ask(client, prompt="é" * 400_000).text) == [("error", {"line": line, "field": ""})]


def test_a_foreseen_error_is_the_line_of_a_command(client, monkeypatch):
    def compare(*given, **more):
        raise MemoryError("4 GB")

    monkeypatch.setattr(workbench, "compare", compare)
    line = "there is too little memory (4 GB): take smaller models, or raise the limit"
    assert events(ask(client).text) == [("error", {"line": line, "field": ""})]


def test_a_password_is_never_shown(tiny_pair, monkeypatch):
    monkeypatch.setattr(download, "MOST_RETRIES", 0)
    options = {"source": "http://user:s3cret@127.0.0.1:1/?token=k3y", "drafter": "prompt_lookup"}
    options |= {"models_dir": str(tiny_pair), "draft_model_size": "124M"}
    client = client_of(Workbench(Session(read_options(USUAL | options))))
    done, refused = ask(client), ask(client, drafter="model")  # which has to be downloaded
    assert [events(answer.text)[-1][0] for answer in (done, refused)] == ["done", "error"]
    answers = [done, refused, *map(client.get, ("/", "/runs", "/runs/1/json", "/runs/1/page"))]
    assert all(answer.status_code == 200 and not re.search("s3cret|k3y", answer.text) for answer in answers)


# ---- To whom ---------------------------------------------------------------------------------------------------------


ELSEWHERE = {"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}  # DNS rebinding
HOSTS = ("127.0.0.1.attacker.example", "0.0.0.0:8000", "my-machine:8000", "localhost.", "127.0.0.1:8000@a", "")
REFUSED = [(ELSEWHERE, 400), *(({"host": host}, 400) for host in HOSTS)]
# another site, another program of this machine, a sandboxed frame
REFUSED += [({"origin": origin}, 403) for origin in ("http://attacker.example", "http://127.0.0.1:8001", "null")]


def test_only_the_page_itself_can_ask(bench, client):
    for headers, status in REFUSED:
        answer = ask(client, headers=ORIGIN | headers)
        assert answer.status_code == status
        assert client.get("/runs", headers=headers).status_code == (400 if status == 400 else 200)
    for name in ("prompt_file", "ngram_text", "html", "models_dir"):  # which the form does not have
        assert ask(client, **{name: "/etc/passwd"}).status_code == 400
    wrong = ask(client, temperature="hot")
    assert events(wrong.text) == [
        ("error", {"line": "“Temperature” must be a number of at least 0, not 'hot'", "field": "temperature"})
    ]
    assert bench.runs == {}
    assert ask(client, headers={"host": "localhost:8000", "origin": "http://localhost:8000"}).status_code == 200
    assert len(bench.runs) == 1


# ---- One at a time ---------------------------------------------------------------------------------------------------


async def first(stream, kind):
    """The first event of this kind."""
    while True:
        for event in events(await asyncio.wait_for(stream.__anext__(), 60)):
            if event[0] == kind:
                return event


def test_one_decodes_and_the_others_wait(bench, monkeypatch):
    endless = Endless(monkeypatch)

    async def requests():
        streams = [bench.events({"prompt": prompt, "n_tokens_to_generate": "4"}) for prompt in "abcd"]
        await first(streams[0], "step")
        for stream in streams[1:]:
            await first(stream, "waiting")
        assert endless.running == ["a"]
        await streams[1].aclose()  # a page that waits may be closed
        endless.fail.release()
        assert await first(streams[0], "error") == ("error", {"line": "RuntimeError: the end", "field": ""})
        await streams[0].aclose()
        await first(streams[2], "step")
        assert endless.running == ["c"]
        await streams[2].aclose()  # and so may a page that decodes: the next one waits until its thread has ended
        await first(streams[3], "step")
        await streams[3].aclose()
        while endless.running:
            await asyncio.sleep(0.01)

    asyncio.run(requests())
    assert (endless.most, bench.runs) == (1, {})


def test_a_port_that_is_taken(pair):
    with socket.create_server(("127.0.0.1", 0)) as other:
        line = refusal(serve, pair, other.getsockname()[1])
    assert re.fullmatch("cannot serve at port [0-9]+: .*; --serve 0 takes a free one", line)


def test_each_mark_of_a_drafter_has_a_key():
    letters = marks(DRAFTERS)
    assert {letters[drafter] for _, drafter, _ in legend() if drafter} == {*letters.values()} == {"c", "h", "l", "n"}
