"""The workbench of --serve: a form, both texts while they are decoded, and a table of the runs.

One decode runs at a time, in a thread. Its steps go to the page as server-sent events, in the answer to the request
that asked for it: whoever closes the page or presses Stop ends the request, and with it the decode.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

from speculative import drafters
from speculative.measure.document import DECODERS
from speculative.measure.page import ORIGINS, fill, findings, placed
from speculative.measure.run import Run
from speculative.options import FIELDS, as_typed, text
from speculative.session import Session
from speculative.support.errors import UserError
from speculative.support.terminal import without_secrets

LABELS = {  # of the options that the form has; none of them names a file
    "n_tokens_to_generate": "Tokens",
    "K": "Lookahead K",
    "temperature": "Temperature",
    "drafter": "Drafter",
    "accept": "Acceptance rule",
    "seed": "Seed",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "stop": "Stop text",
}
CHOICES = {
    "drafter": [*drafters.DRAFTERS, "prompt_lookup+model", "model/ngram", "model/prompt_lookup", "int8/model"],
    "accept": ["token", "block", "lenient:0.5", "typical:0.1"],
}
MOST_BYTES = 2**16  # of a request
MOST_RUNS = 20  # that are kept: a run may have half a megabyte
PAUSE = 0.05  # seconds between two looks at a decode, which shares the interpreter's lock


class Stopped(Exception):
    """The page that asked for this decode is gone."""


class Workbench:
    """The models, and the runs so far."""

    def __init__(self, session: Session):
        self.session = session
        self.turn = asyncio.Lock()  # held by the request whose decode runs,
        self.decoding = threading.Lock()  # and by its thread, which ends a little later than a request that is stopped
        self.runs = {}  # {number: Run}

    def page(self) -> str:
        o = self.session.options
        models = f"The target is {without_secrets(o.target_model_size)}"
        if "draft" in self.session.roles:
            models += f" and the draft model {without_secrets(o.draft_model_size)}"
        legend = [[origin, None, words] for origin, words in ORIGINS.items()]
        data = {
            "models": models,
            "prompt": getattr(o, "prompt", ""),
            "fields": fields(vars(o)),
            "legend": legend,
        }
        scripts = ("elements.js", "form.js", "lanes.js", "runs.js", "decode.js")
        styles = ("page.css", "workbench.css")
        return fill("workbench.html", styles, scripts, data, Path(__file__).parent / "web")

    async def events(self, prompt: str, values: dict[str, str]) -> AsyncIterator[str]:
        """Decode when it is this request's turn, and yield server-sent events: waiting, step, done, error."""
        if self.turn.locked():
            yield event("waiting", None)
        async with self.turn:
            told = deque()
            stopped = threading.Event()
            thread = threading.Thread(target=self.decode, args=(prompt, values, told, stopped), daemon=True)
            thread.start()
            try:
                while thread.is_alive() or told:
                    if told:
                        yield "".join([event(*told.popleft()) for _ in range(len(told))])
                    await asyncio.sleep(PAUSE)
            finally:
                stopped.set()

    def decode(self, prompt: str, values: dict[str, str], told: deque, stopped: threading.Event) -> None:
        """Decode in a thread; told receives the events."""

        def watch(name, step, recorder):
            if stopped.is_set():
                raise Stopped
            # The rest of a character has no origin: the run shows it when it is done.
            tokens = [[text, *origin.split(": ")] for text, origin in zip(step.pieces, step.origins, strict=False)]
            told.append(("step", [name, tokens, step.drafting, step.scoring, recorder.seconds]))

        try:
            with self.decoding:
                run = self.run(prompt, values, watch)
            if stopped.is_set():
                return
            number = max(self.runs, default=0) + 1
            self.runs[number] = run
            self.runs.pop(number - MOST_RUNS, None)
            told.append(("done", summary(number, run.document)))
        except Stopped:
            pass
        except Exception as error:
            told.append(("error", str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"))

    def run(self, prompt: str, values: dict[str, str], watch: Callable) -> Run:
        session = self.session.changed(**{name: value or None for name, value in values.items()})
        return session.compare(prompt, session.options.n_tokens_to_generate, watch=watch)


def event(kind: str, value: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(value)}\n\n"


def steps_of(document: dict) -> list[list]:
    """The steps of a run: its decoder, its tokens, seconds of the draft and of the target, and the time at its end."""
    return [
        [name, [[*token.values()] for token in i["tokens"]], i["drafting"], i["scoring"], i["end"]]
        for name in DECODERS
        for i in placed(document[name])
    ]


# ---- The form and the table ------------------------------------------------------------------------------------------


def fields(options: dict) -> list[dict]:
    """The fields of the form: name, label, value as it is typed, help, choices (empty: it is typed)."""
    values = typed(options)
    return [
        {
            "name": name,
            "label": label,
            "value": values[name],
            "help": FIELDS[name].metadata["help"],
            "choices": [*dict.fromkeys((*CHOICES[name], values[name]))] if name in CHOICES else [],
        }
        for name, label in LABELS.items()
    ]


def typed(options: dict) -> dict[str, str]:
    """The values of the form's fields, as they are typed."""
    return {name: "" if options[name] is None else as_typed(name, options[name]) for name in LABELS}


def summary(number: int, document: dict) -> dict:
    """A run as the page shows it. values: its options, as they are typed; decoders: {name: [tokens, seconds]}."""
    o, f = document["options"], document["figures"]
    n_tokens = {name: sum(len(sample["tokens"]) for sample in document[name]["samples"]) for name in DECODERS}
    return {
        "number": number,
        "values": typed(o) | {"prompt": o["prompt"]},
        "decoders": {name: [n, document[name]["seconds"]] for name, n in n_tokens.items()},
        "speedup": f["speedup"],
        "tokens_per_call": f["tokens_per_iteration"] if f["drafted"] else None,
        "accepted": f["accepted"] / f["drafted"] if f["drafted"] else None,
        "r": f["r"] if f["drafted"] else None,
        **findings(document),
    }


# ---- The server ------------------------------------------------------------------------------------------------------


def application(workbench: Workbench) -> Starlette:
    async def home(request: Request):
        return HTMLResponse(workbench.page())

    async def decode(request: Request):
        if request.headers.get("origin") not in (None, f"http://{request.headers['host']}"):
            raise HTTPException(403, "only the page itself may ask")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"a request has at most {MOST_BYTES:,} bytes")
        try:
            asked = json.loads(body)
            prompt = text(asked["prompt"])
            values = {name: text(asked["values"][name]) for name in asked["values"]}
        except (ValueError, TypeError, KeyError, RecursionError):
            raise HTTPException(400, 'a request is {"prompt": text, "values": {field: text}}') from None
        if {*values} - {*LABELS}:
            raise HTTPException(400, "the form does not have these fields")
        return StreamingResponse(workbench.events(prompt, values), media_type="text/event-stream")

    async def runs(request: Request):
        return JSONResponse([summary(number, run.document) for number, run in workbench.runs.items()])

    async def run(request: Request):
        one = workbench.runs.get(request.path_params["number"])
        if one is None:
            raise HTTPException(404, f"this run is not kept: the last {MOST_RUNS} are")
        if request.path_params["kind"] == "json":
            return JSONResponse(one.document)
        if request.path_params["kind"] == "steps":
            return JSONResponse(steps_of(one.document))
        return HTMLResponse(one.html().encode(errors="backslashreplace"))

    routes = [Route("/", home), Route("/decode", decode, methods=["POST"])]
    routes += [Route("/runs", runs), Route("/runs/{number:int}/{kind}", run)]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=routes, middleware=[trusted])
