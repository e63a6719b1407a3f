"""The workbench of --serve: a form, both texts while they are decoded, and a table of the runs.

One decode runs at a time, in a thread. Its steps go to the page as server-sent events, in the answer to the request
that asked for it: whoever closes the page or presses Stop ends the request, and with it the decode.
"""

import asyncio
import json
import re
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator
from itertools import zip_longest
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

from speculative.cli.help import CHOICES, value_in_words
from speculative.drafters import DRAFTERS
from speculative.report.advice import advice
from speculative.report.make_record import line_of_session
from speculative.report.page import ORIGINS, SCRIPTS, STYLES, fill, findings, marks
from speculative.report.run import Run, compare
from speculative.run.decode import DECODERS
from speculative.run.options import FIELDS, Options
from speculative.run.session import Session
from speculative.run.steps import TextStep
from speculative.run.values import STOP, without_escapes
from speculative.support.errors import UserError, explanation

WEB = Path(__file__).parent / "web"
LABELS = {  # the labels of the form's options; none of them names a file
    "n_tokens_to_generate": "Tokens",
    "K": "Lookahead K",
    "temperature": "Temperature",
    "drafter": "Drafter",
    "accept": "Acceptance",
    "fast": "Fast",
    "seed": "Seed",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "eta": "eta",
    "stop": "Stop text",
}
MENUS = {"drafter": CHOICES["drafter"], "accept": CHOICES["accept"], "fast": ["off", "on"]}
NAMES = ("prompt", *LABELS)  # the names of the texts in a request
Form = dict[str, str]  # {field: its text}

MOST_RUNS = 20  # kept in memory; one takes up to 0.5 MB
MOST_BYTES = 1_000_000  # bytes of a request
HOSTS = ["127.0.0.1", "localhost"]  # names of this machine; a stranger's page could ask under a name of its own
PAUSE = 0.05  # seconds between two looks at a decode, which shares the interpreter's lock


class Workbench:
    """The models, and the runs so far."""

    def __init__(self, session: Session[Options]):
        self.session = session
        self.thread = threading.Thread()  # the thread of a decode, once there is one
        self.runs: dict[int, Run] = {}

    def page(self) -> str:
        values = typed(vars(self.session.options))
        data = {
            "engine": line_of_session(self.session),
            "values": values,
            "fields": [field(name, values[name]) for name in LABELS],
            "legend": legend(),
            "marks": marks(DRAFTERS),
        }
        scripts = [SCRIPTS[0], *(WEB / f"{name}.js" for name in ("form", "lanes", "runs", "decode"))]
        policy = "; connect-src 'self'; base-uri 'none'; form-action 'none'"
        styles = [*STYLES, WEB / "workbench.css"]
        return fill(WEB / "workbench.html", styles, scripts, data, "Speculative sampling, tried out", policy)

    async def events(self, values: Form) -> AsyncIterator[str]:
        """Decode when no other request does, and yield server-sent events: waiting, step, done, error."""
        if self.thread.is_alive():
            yield event("waiting", None)
        while self.thread.is_alive():
            await asyncio.sleep(PAUSE)
        watcher = Watcher()
        self.thread = thread = threading.Thread(target=self.decode, args=(values, watcher), daemon=True)
        thread.start()
        told = watcher.told
        try:
            while thread.is_alive() or told:
                await asyncio.sleep(PAUSE)
                while told:
                    yield event(*told.popleft())
        finally:
            watcher.is_stopped = True

    def decode(self, values: Form, watcher: "Watcher") -> None:
        """Decode in a thread, and tell the watcher."""
        tell = watcher.told.append
        try:
            session = self.session.changed(**options_of(values))
            N = session.options.n_tokens_to_generate
            run = compare(session, without_escapes(values["prompt"]), N, watch=watcher.step)
            number = max(self.runs, default=0) + 1
            self.runs[number] = run
            self.runs.pop(number - MOST_RUNS, None)
            tell(("done", summary(number, run)))
        except UserError as error:
            fields = [part for part in error.sentence if part in LABELS]
            tell(("error", {"line": error.words(label_of), "field": fields[0] if fields else ""}))
        except Exception as error:
            line = explanation(error) or f"{type(error).__name__}: {error}"
            tell(("error", {"line": line, "field": ""}))


class Watcher:
    """Tells the page each step of a decode, until the page is gone."""

    def __init__(self):
        self.told: deque[tuple] = deque()  # the events that are not sent yet
        self.is_stopped = False
        self.seconds = dict.fromkeys(DECODERS, 0.0)  # seconds of each decoder so far

    def step(self, name: str, step: TextStep) -> None:
        if self.is_stopped:
            raise UserError("stopped")  # nobody reads this: the page that asked for this decode is gone
        every = zip_longest(step.pieces, step.origins, step.proposers)
        tokens = [token for token in every if token[1]]  # the rest of a character is shown when the run is done
        self.seconds[name] += step.seconds
        self.told.append(("step", [name, tokens, step.drafting, step.scoring, self.seconds[name]]))


def options_of(values: Form) -> dict:
    """The texts of a form's fields -> options; an empty field is the default."""
    options: dict = {name: values[name] or None for name in LABELS.keys() & values}
    if options.get("stop"):
        options["stop"] = [*map(without_escapes, values["stop"].split(STOP))]  # as as_typed writes them
    return options


def label_of(option: str) -> str:
    """Return an option as the form calls it; one that the form does not have, as a command line does."""
    return f"“{LABELS[option]}”" if option in LABELS else f"--{option}"


def event(kind: str, value: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n"


# ---- The form and the table ------------------------------------------------------------------------------------------


def field(name: str, value: str) -> dict:
    """A field of the form. choices: its values, if they are not typed."""
    choices = [*dict.fromkeys((*MENUS[name], value))] if name in MENUS else []
    return {"name": name, "label": LABELS[name], "help": FIELDS[name].metadata["help"], "choices": choices}


def typed(options: dict) -> Form:
    """The prompt and the options of the form, as they are typed."""
    return {name: "" if options[name] is None else value_in_words(name, options[name]) for name in NAMES}


def legend() -> list[list]:
    """Return [origin, drafter or None, explanation] of each origin, and of drafts that have a mark."""
    rows: list[list] = [[origin, None, words] for origin, words in ORIGINS.items()]
    letters = marks(DRAFTERS)
    for letter in dict.fromkeys(letters.values()):
        names = [name for name in letters if letters[name] == letter]
        rows.append(["accepted", names[0], f"proposed by {' or '.join(names)}, accepted by the target"])
    return rows


def summary(number: int, run: Run) -> dict:
    """A run as the page shows it. values: of the form."""
    values = typed(vars(run.record.options))
    told = findings(run.record) | {"advice": advice(run.record)}
    return {"number": number, "values": values, "figures": run.figures, **told}


# ---- The server ------------------------------------------------------------------------------------------------------


async def fields_of(request: Request) -> Form:
    """Return the form that a request holds, {field: text}. Raises HTTPException if it is something else."""
    try:
        values = await request.json()
    except (ValueError, RecursionError):
        values = None
    is_form = isinstance(values, dict) and {"prompt"} <= {*values} <= {*NAMES}
    if not is_form or {*map(type, values.values())} != {str}:
        raise HTTPException(400, f'a request is a JSON object of texts: "prompt", and any of {", ".join(LABELS)}')
    return values


def application(workbench: Workbench) -> Starlette:
    """The routes of the workbench. Only this machine may ask, and only the page itself may ask for a decode."""

    async def home(request: Request):
        return HTMLResponse(workbench.page())

    async def decode(request: Request):
        if request.headers.get("origin") not in (None, f"http://{request.headers['host']}"):
            raise HTTPException(403, "only the workbench's own page may ask")
        values = await fields_of(request)
        return StreamingResponse(workbench.events(values), media_type="text/event-stream")

    async def runs(request: Request):
        return JSONResponse([summary(*numbered) for numbered in workbench.runs.items()])

    def run_of(request: Request) -> Run:
        number = request.path_params["number"]
        run = workbench.runs.get(int(number)) if re.fullmatch("[0-9]{1,9}", number) else None
        if run is None:
            raise HTTPException(404, f"only the last {MOST_RUNS} runs are kept")
        return run

    async def page(request: Request):
        return HTMLResponse(run_of(request).html())

    async def document(request: Request):
        return JSONResponse(run_of(request).document)

    routes = [
        Route("/", home),
        Route("/decode", decode, methods=["POST"]),
        Route("/runs", runs),
        Route("/runs/{number}/page", page),
        Route("/runs/{number}/json", document),
    ]
    hosts = Middleware(TrustedHostMiddleware, HOSTS)
    return Starlette(routes=routes, middleware=[hosts], max_body_size=MOST_BYTES)


def server(workbench: Workbench) -> uvicorn.Server:
    """Return the server of a workbench. A signal ends it at once: there is nothing to save."""
    app = application(workbench)
    return uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical", timeout_graceful_shutdown=0))


def serve(session: Session[Options], port: int) -> None:
    """Answer until Ctrl-C or SIGTERM. Raises UserError."""
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(f"cannot serve at port {port}: {error.strerror}; --serve 0 takes a free one") from None
    with listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        server(Workbench(session)).run(sockets=[listening])
