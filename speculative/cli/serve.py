"""--serve: the workbench, for the browser of this machine. Its routes are in workbench.py."""

import contextlib
import signal
import socket
from collections.abc import Mapping
from typing import Any

from speculative.session import Session
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.signals import ENDINGS, end

FLAGS = (
    Flag(
        "serve",
        arguments.integer(0, 65535),
        "serve the workbench, a page for the browser of this machine, at this port (8000)",
        excludes=("prompt", "prompt_file", "unconditional", "batch", "json", "html", "verify", "interactive"),
        needs=("starlette", "uvicorn"),
        bare="8000",
    ),
)


def server(app: Any) -> Any:
    """Return uvicorn's server for this application, with its limits."""
    import uvicorn

    limits = {"limit_concurrency": 64, "h11_max_incomplete_event_size": 2**14}
    one = uvicorn.Server(uvicorn.Config(app, http="h11", log_config=None, log_level="critical", **limits))
    one.capture_signals = contextlib.nullcontext  # else uvicorn waits for the decode that is under way
    return one


def serve(session: Session, flags: Mapping[str, Flag], port: int) -> None:
    """Answer until Ctrl-C or SIGTERM, which end the process at once: there is nothing to save. flags: those of the
    command line. Raises UserError."""
    from speculative.cli.workbench import Workbench, application

    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(f"cannot serve at port {port}: {error.strerror}; --serve 0 takes one that is free") from None
    with listening:
        for number in ENDINGS:
            signal.signal(number, lambda number, _: end(number))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        server(application(Workbench(session, flags))).run(sockets=[listening])
