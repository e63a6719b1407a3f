"""--serve: the workbench, for the browser of this machine. What it answers is in workbench.py."""

import contextlib
import os
import signal
import socket
from functools import partial
from typing import Any

from speculative.session import Session
from speculative.support.errors import UserError


def server(app: Any, **how) -> Any:
    """The server that answers with this application. how: see guard.Connection."""
    import uvicorn

    from speculative.cli.guard import Connection

    class Server(uvicorn.Server):
        def capture_signals(self):  # uvicorn would wait for the answers that are under way
            return contextlib.nullcontext()

    quiet = {"log_config": None, "log_level": "critical", "access_log": False, "server_header": False}
    plain = {"ws": "none", "lifespan": "off", "proxy_headers": False, "h11_max_incomplete_event_size": 2**14}
    return Server(uvicorn.Config(app, http=partial(Connection, **how), **plain, **quiet))


def serve(session: Session, port: int) -> None:
    """Answers until Ctrl-C or SIGTERM, which end the process at once: nothing is to be saved. flags:
    those of the command line. Raises UserError."""
    from speculative.cli.workbench import Workbench, application

    with socket.socket() as listening:
        if os.name == "posix":  # where the port of a server that has just ended is kept for a while
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # so that who reads the address can ask at once
        except OSError as error:
            raise UserError(
                f"cannot serve at port {port}: {error.strerror}; --serve 0 takes one that is free"
            ) from None
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        app = application(Workbench(session), address)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os._exit(128 + number))
        print(f"http://{address}/", flush=True)
        server(app).run(sockets=[listening])
