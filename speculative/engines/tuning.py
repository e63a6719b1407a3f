"""The choices that depend on the CPU and change no bit of a product, measured where they are used.

Asking for memory ahead makes a window of int8 1.6 times as fast and one of float32 1.4 times as slow on the same CPU,
and a row a third faster on another (docs/kernels.md), so no constant is right for all. For each weight format the
choices are measured once, in about a second, with the layers and threads of a model that no cache holds. What is found
is kept beside the compiled kernels for a week.

On a busy machine times tell little. So something else than the usual choice is taken only where it was faster in nearly
every round.
"""

import functools
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from llvmlite import binding

from speculative.engines.compiled import LAYER, work
from speculative.engines.cpu import this_cpu
from speculative.engines.formats import find
from speculative.engines.kernels import MOST_ROWS, PLAN, ROWS, VERSION
from speculative.engines.team import Team
from speculative.support.files import replacing

WEEK = 7 * 24 * 3600  # seconds for which a choice is good
SECONDS = 1.0  # that measuring takes
ENOUGH = 2**26  # bytes, which take a millisecond or more to read
ROUNDS = 8  # the fewest that tell anything
FASTER = 0.95  # of the usual choice's time, which another one must be below


class Choice(NamedTuple):
    """A part of the plan, and what it may be."""

    part: Callable  # plan -> the array to write to
    n_rows: int  # of a pass that shows what it is worth
    candidates: tuple[int, ...]
    usual: Callable  # Format -> one of them


def ahead(n_rows: int, beyond: int) -> Choice:
    """The bytes between the loop and the memory that it asks for, with n_rows rows or more, but fewer than `beyond`."""
    usual = 8192
    return Choice(
        part=lambda plan: plan["ahead"][:, n_rows:beyond],
        n_rows=n_rows,
        candidates=(0, usual, 16384),
        usual=lambda format: usual if n_rows >= format.prefetch_from else 0,
    )


MEASURED = [n for n in (1, 2, 3, 5, 8) if n <= ROWS]  # rows; what lies between two does as the first of them
CHOICES = {f"ahead_{n}": ahead(n, beyond) for n, beyond in zip(MEASURED, [*MEASURED[1:], MOST_ROWS + 1], strict=True)}
SEVERAL = 2 * ROWS - 3  # rows that take two passes
CHOICES["rows"] = Choice(lambda plan: plan["rows"], SEVERAL, (0, ROWS * 3 // 4), lambda format: 0)
CHOICES["share"] = Choice(lambda plan: plan["share"], SEVERAL, (16384, 131072), lambda format: 16384)


def usual(name: str) -> dict[str, int]:
    """The choices where nothing is measured."""
    return {choice: CHOICES[choice].usual(find(name)) for choice in CHOICES}


@functools.cache
def plan_of(name: str) -> np.ndarray:  # [1] PLAN
    """The choices that the kernel of that weight format goes by, wherever it is used. Before anything is measured, and
    for models that a cache holds, it is the usual."""
    plan = np.zeros(1, PLAN)
    follow(plan, usual(name))
    return plan


def follow(plan: np.ndarray, chosen: dict[str, int]) -> None:  # [1] PLAN
    for name, value in chosen.items():
        CHOICES[name].part(plan)[:] = value


# ---- Measuring -------------------------------------------------------------------------------------------------------


def stopwatch(run: Callable, team: Team, layer_bytes: int) -> Callable[[int], float]:
    """seconds(n_rows) of a pass through a few layers, other ones each time, so that they come from memory."""
    job = run.job.copy()
    tokens = np.zeros(run.chunk, np.int64)
    job["tokens"] = job["positions"] = tokens.ctypes.data
    job["sees"] = job["n_past"] = job["n_last"] = 0
    n_layer = int(job["n_layer"][0])
    n = min(n_layer, -(-ENOUGH // layer_bytes))
    first = int(job["blocks"][0])
    layers = itertools.cycle(range(first, first + (n_layer - n + 1) * LAYER.itemsize, n * LAYER.itemsize))
    job["n_layer"] = n

    def seconds(n_rows, kept=(run, tokens)):  # whose addresses the job has
        job["blocks"] = next(layers)
        job["n_rows"] = n_rows
        start = time.perf_counter()
        team.run(job)
        return time.perf_counter() - start

    return seconds


def measure(
    plan: np.ndarray,
    usual: dict[str, int],
    seconds: Callable[[int], float],
    limit: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict:
    """{name of a choice: {candidate: [its time over the usual one's, of each round]}}, from rounds that take `limit`
    seconds. seconds(n_rows) times a pass that goes by the plan, [1] PLAN, which is the usual in the end."""
    ratios = {name: {candidate: [] for candidate in choice.candidates} for name, choice in CHOICES.items()}
    follow(plan, usual)
    seconds(2 * ROWS)  # finds memory and threads ready from then on
    end = clock() + limit
    while clock() < end:
        for name, choice in CHOICES.items():
            times = {}
            for candidate in choice.candidates:
                choice.part(plan)[:] = candidate
                times[candidate] = seconds(choice.n_rows)
            choice.part(plan)[:] = usual[name]
            for candidate, taken in times.items():
                ratios[name][candidate].append(taken / times[usual[name]])
    return ratios


def best(ratios: dict[int, list[float]], usual: int) -> int:
    """The candidate with the least median time, if there were ROUNDS rounds or more, and in nine of ten it took less
    than FASTER of the usual one's time; else the usual one."""
    fastest = min(ratios, key=lambda candidate: median(ratios[candidate]))
    n_rounds = len(ratios[usual])
    n_faster = sum(ratio < FASTER for ratio in ratios[fastest])
    return fastest if n_rounds >= ROUNDS and n_faster >= 0.9 * n_rounds else usual


# ---- What is kept ----------------------------------------------------------------------------------------------------


class Tuned(NamedTuple):
    chosen: dict[str, int]
    ratios: dict  # as measure gives them; {} where nothing had to be measured


def this_machine() -> str:
    """The things that a choice depends on."""
    return f"{binding.get_host_cpu_name()} {sorted(this_cpu().features)}, kernels {VERSION}"


def read_kept(path: Path, candidates: dict[str, Sequence[int]], now: float) -> dict[str, int] | None:
    """The choices that were made, of {name: candidates}; None if none are kept, or they are damaged, of another machine
    or too old."""
    try:
        kept = json.loads(Path(path).read_text())
        fits = kept["machine"] == this_machine() and 0 <= now - kept["time"] < WEEK
        chosen = {name: int(kept["chosen"][name]) for name in candidates}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    known = all(value in candidates[name] for name, value in chosen.items())
    return chosen if fits and known else None


def keep(path: Path, now: float, chosen: dict[str, int]) -> None:
    """Keeps the choices. Where nothing can be written, the next run measures again."""
    try:
        with replacing(path) as part:
            Path(part).write_text(json.dumps({"machine": this_machine(), "time": now, "chosen": chosen}))
    except OSError:
        pass


def settle(
    path: Path,
    candidates: dict[str, Sequence[int]],
    usual: dict[str, int],
    measured: Callable[[], dict],
    anew: bool,
    now: float | None,
) -> Tuned:
    """What was chosen and is kept at that path, or else the best of what measured() gives, which is kept from now on.

    candidates, usual: of each choice, by its name. measured() -> {name: ratios, as best takes them}.
    """
    now = time.time() if now is None else now
    chosen = None if anew else read_kept(path, candidates, now)
    if chosen is not None:
        return Tuned(chosen, {})
    ratios = measured()
    chosen = {name: best(ratios[name], usual[name]) for name in candidates}
    keep(path, now, chosen)
    return Tuned(chosen, ratios)


def tune(
    run: Callable,
    format: str,
    layer_bytes: int,
    limit: float = SECONDS,
    anew: bool = False,
    folder: str | None = None,
    now: float | None = None,
) -> Tuned:
    """Sets what the format's kernel goes by to what was chosen on this machine, or is chosen now, with the layers of a
    CompiledPass, in its threads.

    limit: seconds of measuring. anew: whatever was chosen before. folder: where choices are kept; None: beside what
    numba has compiled.
    """
    team = run.ready_team()
    path = Path(folder or work.stats.cache_path, f"tuned-{format}-{team.n_threads}.json")
    without = usual(format)
    candidates = {name: choice.candidates for name, choice in CHOICES.items()}

    def measured():
        return measure(plan_of(format), without, stopwatch(run, team, layer_bytes), limit)

    tuned = settle(path, candidates, without, measured, anew, now)
    follow(plan_of(format), tuned.chosen)
    return tuned


def described(format: str) -> str:
    """For the report. The first of several row counts stands for those up to the next."""
    plan = plan_of(format)[0]
    ahead = plan["ahead"]  # [MOST_ROWS + 1]
    parts = [f"{n}: {ahead[n]}" for n in range(1, len(ahead)) if n == 1 or ahead[n] != ahead[n - 1]]
    rows = f"; at most {plan['rows']} rows in a pass" if plan["rows"] else ""
    return f"bytes asked for ahead by rows: {', '.join(parts)}{rows}"
