"""The number of threads of a small model, measured where it is used.

Another thread takes its share of the weights' reading, and adds a wait at each barrier. A model that no cache holds
takes all cores. How many serve a small one depends on how quickly the cores hear from each other, so each size is timed
once, in a tenth of a second. No bit of what is computed depends on it.
"""

import functools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from speculative.engines.compiled import JOB, work
from speculative.engines.team import Team
from speculative.engines.tuning import Tuned, settle

THREAD_BYTES = 2**23  # of weights for each thread after the first, where nothing is measured
SECONDS = 0.1  # that measuring takes
PASSES = 4  # of a turn
PAUSE = 2e-4  # seconds between two of them

chosen = {}  # {key of a model: threads}


@functools.cache
def make_team(n_threads: int) -> Team:
    """The threads are shared by all models."""
    return Team(n_threads, work, JOB)


def choose_team(n_threads: int) -> Team:
    """n threads; or one alone, while the machine is too busy for more. No bit of what they compute depends on that."""
    team = make_team(n_threads)
    return team if team.has_cores() else make_team(1)


def key_of(format: str, n_bytes: int, most: int) -> str:
    """Models share a number that have the same format, the same number of cores, and sizes between the same two powers
    of 2."""
    return f"{format}-{n_bytes.bit_length()}-{most}"


def threads_of(format: str, n_bytes: int, most: int) -> int:
    """The threads of a model with so many bytes of weights, at most `most`: as measured, or as is usual."""
    return chosen.get(key_of(format, n_bytes, most), usual(n_bytes, most))


def usual(n_bytes: int, most: int) -> int:
    return min(most, 1 + n_bytes // THREAD_BYTES)


def candidates(n_bytes: int, most: int) -> list[int]:
    """The powers of two up to all cores, all cores, and the usual number."""
    powers = [2**i for i in range(most.bit_length())]
    return sorted({*powers, most, usual(n_bytes, most)})


def stopwatch(run: Callable) -> Callable[[int], float]:
    """seconds(n_threads) of PASSES of a CompiledPass over one token, in so many threads.

    Between two of them Python is busy, as it is where tokens are drawn: threads that do well in a row may then be slow.
    """
    token = np.zeros(1, np.int64)

    def one_pass():
        run.length = 0
        start = time.perf_counter()
        run(token, 1)
        end = time.perf_counter()
        while time.perf_counter() < end + PAUSE:
            pass
        return end - start

    def seconds(n_threads):
        run.team = partial(make_team, n_threads)
        one_pass()  # may have to wake the others
        return sum(one_pass() for _ in range(PASSES))

    return seconds


def measure(numbers: list[int], usual: int, seconds: Callable[[int], float], limit: float, clock: Callable) -> dict:
    """{threads: [their time over the usual number's, of each round]}, from rounds that take `limit` seconds."""
    ratios = {n: [] for n in numbers}
    end = clock() + limit
    while clock() < end:
        times = {n: seconds(n) for n in numbers}
        for n, taken in times.items():
            ratios[n].append(taken / times[usual])
    return ratios


def tune_threads(
    run: Callable,
    format: str,
    n_bytes: int,
    most: int,
    limit: float = SECONDS,
    anew: bool = False,
    folder: str | None = None,
    now: float | None = None,
    seconds: Callable[[int], float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Tuned:
    """Sets the number of threads of models like this one to what was chosen on this machine, or is chosen now.

    run: a CompiledPass that nobody else uses. The other arguments are those of tuning.tune; seconds and clock time it.
    """
    key = key_of(format, n_bytes, most)
    path = Path(folder or work.stats.cache_path, f"threads-{key}.json")
    numbers = candidates(n_bytes, most)
    without = usual(n_bytes, most)

    def measured():
        return {"threads": measure(numbers, without, seconds or stopwatch(run), limit, clock)}

    tuned = settle(path, {"threads": numbers}, {"threads": without}, measured, anew, now)
    chosen[key] = tuned.chosen["threads"]
    return tuned
