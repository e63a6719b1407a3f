"""The answers of --serve: a page, decodes as they happen, and runs that are over.

It is built on Starlette, as all it needs is four routes, a stream and a policy. Each decode has a thread of its own,
and one runs at a time. Its steps go to the page as server-sent events, in the answer to the request that asked for it.
So whoever closes the page or presses Stop ends the request, and with it the decode.
"""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from speculative import drafters
from speculative.cli.guard import Guard
from speculative.filters import Filters
from speculative.measure.page import fill
from speculative.measure.recorder import Recorder
from speculative.measure.run import Run
from speculative.options import FIELDS as OPTIONS
from speculative.session import Session
from speculative.support.errors import UserError

# The flags that a request may set.
FIELDS = ("n_tokens_to_generate", "K", *Filters._fields, "drafter", "accept", "stop", "seed", "only")
MOST_BYTES = 2**16  # of a request
LONGEST = 100  # characters of a flag: a drafter of a thousand levels would take minutes for a token
MOST_DECODES = 8  # one that runs, and those that wait
MOST_RUNS = 20  # that are kept: a run may have half a megabyte
PAUSE = 0.05  # seconds between two looks at a decode, which should have the interpreter to itself


class Stopped(Exception):
    """Nobody waits for this decode any more."""


class Workbench:
    """The models, the decodes that were asked for, and the runs that are over."""

    def __init__(self, session: Session):
        self.session = session
        self.decodes = []  # a thread for each; the first of them runs, the others have not begun
        self.runs = {}  # {number: Run}
        self.numbers = map(str, range(1, 10**9))

    def page(self) -> str:
        o = self.session.options
        fields = [{"name": name, "value": getattr(o, name), "help": OPTIONS[name].metadata["help"]} for name in FIELDS]
        if o.tree:
            fields[1]["value"] = None  # K, in place of which it stands
        draft = o.draft_model_size if "draft" in self.session.roles else None
        data = {"fields": fields, "prompt": getattr(o, "prompt", ""), "target": o.target_model_size, "draft": draft}
        data |= {"drafters": [*drafters.DRAFTERS], "filters": Filters._fields}
        styles = ("page.css", "workbench.css")
        scripts = ("elements.js", "form.js", "lanes.js", "runs.js", "decode.js")
        return fill("workbench.html", styles, scripts, data, Path(__file__).parent / "web")

    async def events(self, prompt: str, flags: dict[str, str | None]) -> AsyncIterator[str]:
        """Decodes when its turn comes -> an empty text, once it has a place; then server-sent events: waiting, step,
        done, error. Raises HTTPException where there is no place."""
        if len(self.decodes) >= MOST_DECODES:
            raise HTTPException(503, f"{MOST_DECODES} are at it already: try again later")
        told = deque()
        stopped = threading.Event()
        thread = threading.Thread(target=self.decode, args=(prompt, flags, told, stopped), daemon=True)
        self.decodes.append(thread)
        spoke = 0.0
        try:
            yield ""
            while thread.ident is None or thread.is_alive() or told:
                ahead = self.decodes.index(thread) if thread.ident is None else 0
                if thread.ident is None and not ahead:
                    thread.start()
                lines = [event(*told.popleft()) for _ in range(len(told))]
                if lines or time.monotonic() > spoke + 1:
                    spoke = time.monotonic()
                    yield "".join(lines) or event("waiting", ahead)
                await asyncio.sleep(PAUSE)
        finally:
            stopped.set()
            if thread.ident is None:
                self.decodes.remove(thread)

    def decode(self, prompt: str, flags: dict[str, str | None], told: deque, stopped: threading.Event) -> None:
        """In a thread."""

        def watch(name, step, recorder):
            if stopped.is_set():
                raise Stopped
            now = recorder.now
            tokens = [*zip(step.pieces, step.origins, strict=True)] or [(step.text, "")]
            times = {"drafting": now.drafting, "scoring": now.scoring, "end": recorder.seconds}
            told.append(("step", {"decoder": name, "tokens": tokens} | times))

        try:
            session = self.session.changed(**flags)
            if session.options.only:
                run = alone(session, prompt, watch)
            else:
                run = session.compare(prompt, session.options.n_tokens_to_generate, watch)
            number = next(self.numbers)
            self.runs = {name: self.runs[name] for name in [*self.runs][1 - MOST_RUNS :]} | {number: run}
            told.append(("done", summary(number, run)))
        except Stopped:
            pass
        except Exception as error:
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            told.append(("error", kind + str(error).strip()))
        finally:
            self.decodes.remove(threading.current_thread())


def alone(session: Session, prompt: str, watch: Callable) -> Run:
    """Session.compare with one decoder, which leaves nothing to compare: there is no page of such a run."""
    o = session.options
    N = o.n_tokens_to_generate
    session.ready([prompt], N)
    recorders = {"autoregressive": Recorder(), "speculative": Recorder()}
    recorders[o.only] = session.recorder()
    for step in session.texts(o.only, [prompt], N, recorder=recorders[o.only]):
        watch(o.only, step, recorders[o.only])
    return Run(session.document([prompt], [*recorders.values()], prompt=prompt))


def event(kind: str, value: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n"


def summary(number: str, run: Run) -> dict:
    """A run's line in the list of runs. A decoder that was not asked is None."""
    options = run.document["options"]
    line = {"number": number, "speedup": run.speedup, "r": run.r} | {n: options[n] for n in (*FIELDS, "tree", "prompt")}
    if options["tree"]:
        line["K"] = None
    for name in ("autoregressive", "speculative"):
        tokens = [token for sample in run.document[name]["samples"] for token in sample["tokens"]]
        line[name] = {"tokens": len(tokens), "seconds": run.document[name]["seconds"]} if tokens else None
    return line


async def asked(request: Request) -> tuple[str, dict[str, str | None]]:
    """A request's prompt and flags, as typed; None is the default. Raises HTTPException."""
    if request.headers.get("content-type") != "application/json":  # a form of another site's could not say so
        raise HTTPException(415, "a request is JSON")
    body = bytearray()
    async for part in request.stream():
        body.extend(part)
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"a request may have {MOST_BYTES:,} bytes")
    try:
        content = json.loads(body)
        prompt = content["prompt"]
        flags = content["flags"]
        if {*flags} - {*FIELDS} or not all(isinstance(value, str) for value in (prompt, *flags.values())):
            raise ValueError
        if max(map(len, flags.values()), default=0) > LONGEST:
            raise HTTPException(400, f"a flag may have {LONGEST} characters")
        return prompt, {name: value or None for name, value in flags.items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise HTTPException(400, 'a request is {"prompt": text, "flags": {flag: text}}') from None


def application(workbench: Workbench, address: str) -> Starlette:
    """address: the host and port at which this is served."""

    async def home(request: Request) -> Response:
        return HTMLResponse(workbench.page())

    async def decode(request: Request) -> Response:
        stream = workbench.events(*await asked(request))
        await anext(stream)  # it has a place, or has raised before the answer has a status
        return StreamingResponse(stream, media_type="text/event-stream")

    async def runs(request: Request) -> Response:
        return JSONResponse([summary(number, run) for number, run in workbench.runs.items()])

    async def run(request: Request) -> Response:
        number, dot, kind = request.path_params["name"].partition(".")
        if number not in workbench.runs or dot + kind not in ("", ".json"):
            raise HTTPException(404, f"no such run: the last {MOST_RUNS} are kept")
        run = workbench.runs[number]
        if kind:
            return JSONResponse(run.document)
        if run.document["options"]["only"]:
            raise HTTPException(404, "one decoder alone has no page")
        return HTMLResponse(run.html().encode(errors="backslashreplace"))

    routes = [Route("/", home), Route("/decode", decode, methods=["POST"])]
    routes += [Route("/runs", runs), Route("/runs/{name}", run)]
    return Starlette(routes=routes, middleware=[Middleware(Guard, address=address)])
