"""Several processes that compute the same: how they meet, and how those that are left hear that one has ended.

JAX itself would wait for its heartbeats, and end with a stack trace. So the first process has a connection to each of
the others, which the system closes as soon as a process ends, however it does.
"""

import atexit
import os
import re
import secrets
import socket
import sys
import threading
import time

import jax

from speculative.support.errors import UserError, first_line

KEY = "speculative: where the first process listens"  # in the store that JAX's processes share
DONE = b"done"
CONNECTING = 10  # seconds
GRACE = 1  # seconds in which the first process may tell of the same fault itself


def start_processes() -> bool:
    """Joins the other processes, if the environment says that there are any; before anything else is done with JAX.

    -> whether this process is the first, the one that prints.

    JAX_COORDINATOR_ADDRESS is host:port of the first process. JAX_NUM_PROCESSES and JAX_PROCESS_ID, or what Slurm, Open
    MPI or Kubernetes set, say how many there are and which this one is. All have to run the same command.
    Where they have not met after JOIN_SECONDS (300), this process ends with a line and status 2. Raises UserError where
    the environment says what cannot be.
    """
    if not os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return True
    host, _, port = os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:  # jaxlib crashes over some
        raise UserError("JAX_COORDINATOR_ADDRESS must be host:port of the first process, as in 10.0.0.1:1234")
    counts = {name: os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JOIN_SECONDS")}
    for name, value in counts.items():
        if not re.fullmatch(r"[0-9]{1,6}", value or "0"):
            raise UserError(f"{name} must be a whole number below a million, not {value!r:.80}")
    n_processes, process_id, seconds = (None if value is None else int(value) for value in counts.values())
    seconds = 300 if seconds is None else seconds
    check = "check JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
    late = f"error: the other processes have not joined within JOIN_SECONDS={seconds}: {check}\n"
    timer = threading.Timer(seconds, end, [late])
    timer.daemon = True
    timer.start()
    try:
        # JAX would take SIGTERM for a notice that the machine is needed elsewhere, and go on.
        if "jax_enable_preemption_service" in jax.config.values:
            jax.config.update("jax_enable_preemption_service", False)
        # JAX's own limit ends the process with a C++ stack trace, so it is set to come later.
        jax.distributed.initialize(
            num_processes=n_processes, process_id=process_id, initialization_timeout=seconds + 60
        )
        keep_stdout()
        watch_each_other(host.strip("[]"))
        return jax.process_index() == 0
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot join the other processes ({first_line(error)}): {check}") from error
    finally:
        timer.cancel()


def end(line: str) -> None:
    """Ends the process with the line and status 2, also while the main thread is in C++, where no exception reaches."""
    os.write(2, line.encode())
    os._exit(2)


def keep_stdout() -> None:
    """From now on only Python writes to standard output. Gloo, which links the processes on CPUs, prints there, from
    C++: that goes to standard error."""
    stdout = getattr(sys.stdout, "stream", sys.stdout)
    if stdout is not sys.__stdout__ or stdout.fileno() != 1:
        return
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    kept = {"encoding": stdout.encoding, "errors": stdout.errors}
    sys.stdout = open(ours, "w", buffering=1 if stdout.line_buffering else -1, **kept)  # noqa: SIM115


def watch_each_other(host: str) -> None:
    """From now on this process ends with a line and status 2 where another has ended before it was done. host: where
    the others find the first. Where they cannot reach each other, nothing is watched but by JAX."""
    from jax._src import distributed  # the store has no public name

    store = distributed.global_state.client
    try:
        if jax.process_index() == 0:
            token = secrets.token_hex(16)
            with socket.create_server(("", 0)) as listener:
                store.key_value_set(KEY, f"{listener.getsockname()[1]} {token}")
                listener.settimeout(CONNECTING)
                others = accept(listener, token, jax.process_count() - 1)
        else:
            port, token = store.blocking_key_value_get(KEY, 1000 * CONNECTING).split()
            others = [socket.create_connection((host, int(port)), timeout=CONNECTING)]
            others[0].sendall(token.encode())
    except OSError:
        return
    over = threading.Event()
    for other in others:
        threading.Thread(target=end_with, args=(other, over), daemon=True).start()
    atexit.register(say_done, others, over)  # before JAX lets go of the others, which comes next


def accept(listener: socket.socket, token: str, n: int) -> list[socket.socket]:
    """n connections of those who know the token."""
    others = []
    while len(others) < n:
        other, _ = listener.accept()
        other.settimeout(GRACE)
        if other.recv(len(token), socket.MSG_WAITALL) == token.encode():
            others.append(other)
    return others


def end_with(other: socket.socket, over: threading.Event) -> None:
    """Ends this process when another one has ended and has not said that it is done."""
    other.settimeout(None)
    try:
        said = other.recv(len(DONE))
    except OSError:  # it was killed
        said = b""
    if said == DONE:
        return
    if jax.process_index() == 0:
        time.sleep(GRACE)
    if not over.is_set():
        end("error: another of the processes has ended before it was done: see what it says\n")


def say_done(others: list[socket.socket], over: threading.Event) -> None:
    over.set()
    for other in others:
        try:
            other.sendall(DONE)
        except OSError:
            continue
