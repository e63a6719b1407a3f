"""The threads that share a pass of the C engine."""

import contextlib
import ctypes
import threading
import time
from queue import SimpleQueue

from speculative.engines.c.library import library

REFUSALS = {  # {name of a pass's result in threads.c: the reason}
    "no_such_token": "a token was asked for that does not exist",
    "no_room": "there is no room for so many rows",
}
CONTENTION_NANOSECONDS = 20_000_000  # nanoseconds of passes after which waiting and working are compared
SINGLE_THREAD_SECONDS = 1.0  # seconds for which one thread works alone if the others had no core


class ThreadPool:
    """The threads that share a pass: the one that calls, and workers, which C keeps awake for a while after each pass.

    Only one pass at a time may run: see network.LOCK.
    """

    def __init__(self):
        self.workers: list[threading.Thread] = []
        self.wake: SimpleQueue[int] = SimpleQueue()  # numbers of workers that are asleep in Python
        self.call_ns = 0
        self.waited_ns = 0
        self.single_until = 0.0  # time.perf_counter()

    def run(self, call: ctypes.Structure, n_threads: int) -> None:
        """Compute a pass: call is engine.c's struct GPT2. Raises ValueError for rows that C refuses."""
        call.n_threads = 1 if time.perf_counter() < self.single_until else n_threads
        run_pass = library().run_pass
        results = library().numbers["result"]
        result = run_pass(ctypes.byref(call), 0)
        if result == results["others_asleep"]:
            self.wake_workers(n_threads - 1)
            result = run_pass(ctypes.byref(call), 1)
        for name, reason in REFUSALS.items():
            if result == results[name]:
                raise ValueError(reason)
        self.look_for_cores(call)

    def wake_workers(self, n: int) -> None:
        """Wake n workers, which are started if there are fewer."""
        self.workers = [worker for worker in self.workers if worker.is_alive()]  # none in a forked process
        with contextlib.suppress(RuntimeError):  # no more threads, or Python is ending: it goes on without them
            while len(self.workers) < n:
                worker = threading.Thread(target=self.join_passes, daemon=True)
                worker.start()
                self.workers.append(worker)
        for number in range(1, 1 + min(len(self.workers), n)):
            self.wake.put(number)

    def look_for_cores(self, call: ctypes.Structure) -> None:
        """On a machine that others use, a thread may wait a whole time slice for a worker: after a while in which the
        first waited longer than it worked, it works alone for a second."""
        self.call_ns += call.call_ns
        self.waited_ns += call.waited_ns
        if self.call_ns <= CONTENTION_NANOSECONDS:
            return
        if self.waited_ns > self.call_ns / 2:
            self.single_until = time.perf_counter() + SINGLE_THREAD_SECONDS
        self.call_ns = 0
        self.waited_ns = 0

    def join_passes(self) -> None:
        """A worker's thread: it computes its share of passes in C, and sleeps here if there is none for a while."""
        while True:
            library().join_passes(self.wake.get())


pool = ThreadPool()
