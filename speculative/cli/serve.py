"""--serve: the workbench, for the browser of this machine. Its routes are in workbench.py."""

import os
import signal
import socket
from typing import Any

from speculative.session import Session
from speculative.support.errors import UserError


def server(app: Any) -> Any:
    """Return uvicorn's server for this application, with its limits. A signal does not wait for a decode to end."""
    import uvicorn

    limits = {"limit_concurrency": 64, "h11_max_incomplete_event_size": 2**14, "timeout_graceful_shutdown": 0}
    return uvicorn.Server(uvicorn.Config(app, http="h11", log_config=None, log_level="critical", **limits))


def serve(session: Session, port: int) -> None:
    """Answer until Ctrl-C or SIGTERM, which end the process at once: there is nothing to save. Raises UserError."""
    from speculative.cli.workbench import Workbench, application

    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(f"cannot serve at port {port}: {error.strerror}; --serve 0 takes one that is free") from None
    with listening:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os._exit(128 + number))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        server(application(Workbench(session))).run(sockets=[listening])
