"""The threads that share a forward pass: they meet at barriers, and wait for the next pass without being in the way.

A pass of a small model takes a fraction of a millisecond and has dozens of stages; the operating system takes 50 µs to
wake a thread. So a thread that has to wait looks again and again for a few microseconds, as its partners are rarely
further behind than that. Then it also offers its core to others each time, so that on a busy machine it does not keep
the one it waits for from running. Between passes, after a millisecond or so of that, it goes to sleep.

The threads are Python's own. What they run is compiled and has released the GIL, so it never waits for the interpreter.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from speculative.support.errors import UserError, first_line

# The counters that all threads read and write: passes asked for, threads at the barrier, barriers passed, threads dead.
POSTED, ARRIVED, MET, DEAD = range(4)
LINE = 64  # bytes from one counter to the next: a cache line, so that a change of one disturbs no reader of another

LOOKS = 200  # that a waiting thread takes, in a few microseconds, before it also offers its core
# Where others want the cores too, threads that wait for each other get little done: each barrier may cost a time slice.
JUDGED = 0.02  # seconds of work after which it is judged whether there are cores for all
ENOUGH = 0.75  # of that time the first thread should have had its core
ALONE = 1.0  # seconds without the others where it had not; then they are tried again
PATIENCE = 4000  # looks with such an offer, of 0.3 µs or more each, before a thread without work goes to sleep


# ---- In LLVM's language ----------------------------------------------------------------------------------------------

_I64 = ir.IntType(64)
_triple = binding.get_process_triple()


def _counter(builder, state, which):
    return builder.inttoptr(builder.add(state, builder.mul(which, _I64(LINE))), _I64.as_pointer())


@intrinsic
def read(typing, state, which):
    """A counter of the state at that address. What was written before the counter was changed is seen after this."""

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_counter(builder, *arguments), "acquire", 8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def add(typing, state, which, n):
    """Adds n to a counter in one stroke -> what it was before."""

    def codegen(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _counter(builder, *arguments[:2]), arguments[2], "acq_rel")

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typing):
    """Tells the CPU that it is in a loop that waits."""

    def codegen(context, builder, signature, arguments):
        if _triple.startswith(("x86_64", "i686")):
            name = "llvm.x86.sse2.pause"
            operands = []
        elif _triple.startswith(("aarch64", "arm64")):
            name = "llvm.aarch64.hint"
            operands = [ir.IntType(32)(1)]
        else:
            return context.get_dummy_value()
        function = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        builder.call(get_or_insert_function(builder.module, function, name), operands)
        return context.get_dummy_value()

    return types.void(), codegen


_offer_core = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.intc())


# ---- Waiting ---------------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def wait_for_change(state, which, old, patience):
    """Returns when the counter is no longer `old`, when a thread is dead, or after so many looks (0: no limit)."""
    looks = 0
    while read(state, which) == old and not read(state, DEAD):
        looks += 1
        if looks <= LOOKS:
            pause()
        elif looks - LOOKS == patience:
            return
        else:
            _offer_core()


@njit(error_model="numpy")
def meet(state, n_threads):
    """A barrier: each thread goes on when all have come here, and then sees all that they have written."""
    if n_threads == 1:
        return
    met = read(state, MET)
    if add(state, ARRIVED, 1) == n_threads - 1:
        add(state, ARRIVED, -n_threads)
        add(state, MET, 1)
    else:
        wait_for_change(state, MET, met, 0)


# ---- The threads -----------------------------------------------------------------------------------------------------


class Team:
    """n_threads threads that do one job after the other. The first is whoever calls run; it starts the others."""

    def __init__(self, n_threads: int, work: Callable, job_dtype: np.dtype, new_thread: Callable = threading.Thread):
        """work(thread, state, job, done) is compiled. Thread 0 posts the job that lies in job [1], does its part and
        returns. The others do their part of whatever is posted, until there is nothing for a while; `done` is how many
        jobs they have done, and what work returns."""
        self.new_thread = new_thread
        self.n_threads = n_threads
        self.work = work
        self.job = np.zeros(1, job_dtype)
        self.reset()

    def reset(self) -> None:
        memory = np.zeros(5 * LINE // 8, np.int64)
        self.counters = memory[-memory.ctypes.data % LINE // 8 :]
        self.state = self.counters.ctypes.data
        self.running = threading.Lock()
        self.awake = threading.Condition()
        self.posted = 0
        self.closed = False
        self.error = None
        self.alone_until = self.seconds = self.seconds_with_core = 0.0
        self.threads = []
        self.process = os.getpid()

    def run(self, job: np.ndarray) -> None:  # [1]
        """Does the job in all threads and returns when it is done. Raises UserError where a thread has died."""
        if self.process != os.getpid():
            self.reset()  # the other threads did not come along into a forked process
        with self.running:
            self.check()
            if len(self.threads) < self.n_threads - 1:
                self.start()
            self.job[:] = job
            with self.awake:
                self.posted = int(self.counters[POSTED * LINE // 8]) + 1
                self.awake.notify_all()
            start = time.perf_counter()
            start_with_core = time.thread_time()
            self.work(0, self.state, self.job, self.posted - 1)
            self.judge(time.perf_counter() - start, time.thread_time() - start_with_core)
            self.check()

    def check(self) -> None:
        """Raises UserError where a thread has died: there is nobody to meet at the barriers any more."""
        if self.error:
            raise UserError(f"a thread of the NumPy engine has died ({first_line(self.error)}); --threads 1 may help")

    def judge(self, seconds: float, with_core: float) -> None:
        """Notes how long a job took, and for how much of that the first thread had a core."""
        self.seconds += seconds
        self.seconds_with_core += with_core
        if self.seconds > JUDGED:
            if self.seconds_with_core < ENOUGH * self.seconds:
                self.alone_until = time.perf_counter() + ALONE
            self.seconds = self.seconds_with_core = 0.0

    def has_cores(self) -> bool:
        """True if all threads are worth using: not for a second after the machine was seen to be busy."""
        return time.perf_counter() >= self.alone_until

    def start(self) -> None:
        try:
            for number in range(1, self.n_threads):
                thread = self.new_thread(target=self.partner, args=(number,), daemon=True)
                thread.start()
                self.threads.append(thread)
        except RuntimeError as error:  # the system has no more
            self.close()
            self.error = error  # the next run does not wait for threads that are not there
            raise UserError(f"cannot start {self.n_threads} threads ({first_line(error)}): --threads 1") from error

    def partner(self, thread: int) -> None:
        done = 0
        try:
            while True:
                with self.awake:
                    while self.posted == done and not self.closed:
                        self.awake.wait()
                if self.closed or self.error:
                    return
                done = self.work(thread, self.state, self.job, done)
        except BaseException as error:  # else those at the barrier would wait for this thread for ever
            self.error = error
            self.counters[DEAD * LINE // 8] = 1

    def close(self) -> None:
        """Ends the other threads."""
        with self.awake:
            self.closed = True
            self.awake.notify_all()
