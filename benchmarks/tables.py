"""What becomes of measurements: rows of figures, and tables of them; and tasks that take turns while they are timed."""

import re
import time
from collections import defaultdict
from operator import ne
from statistics import median

import numpy as np

from benchmarks.common import BASELINE, Setting
from speculative.measure.figures import figures
from speculative.measure.recorder import Recorder


def summarise(measured):
    """A row for each kind of run. The speedup is a median over the prompts, of medians over the repeats of each."""
    groups = defaultdict(lambda: defaultdict(list))  # {kind: {prompt: [[Iteration, ...] of each repeat]}}
    for s, iterations in measured.items():
        groups[s[3:]][s.prompt].append(iterations)
    rows = []
    for kind in sorted(groups, key=lambda kind: (*kind[:2], kind[2] or 1, kind[3], str(kind[4]).zfill(4))):
        baseline = groups[(BASELINE, *kind[1:4], 0)]
        runs, plain = ([run for prompt in baseline for run in of[prompt]] for of in (groups[kind], baseline))
        # [prompts, repeats] each
        ms, plain_ms = (np.reshape([*map(ms_per_token, x)], (len(baseline), -1)) for x in (runs, plain))
        row = dict(zip(Setting._fields[3:], kind, strict=True)) | figures(recorder_of(plain), recorder_of(runs))
        row |= {"runs": len(runs), "unlike": sum(map(ne, map(tokens, runs), map(tokens, plain)))}
        row |= {"ms_per_token": ms.mean(), "sd": ms.std()}
        row["speedup"] = np.median(np.median(plain_ms, 1) / np.median(ms, 1))
        row |= at_usual_times(runs, plain)
        rows.append({name: float(value) if isinstance(value, np.floating) else value for name, value in row.items()})
    return rows


def at_usual_times(runs, plain):
    """Speedup and time of an iteration, had each iteration taken the median time of those with as many drafts.

    On a machine with other work single iterations take several times as long as the others; medians leave that out,
    and what the text decides stays in. runs and plain: [[Iteration, ...], ...] of the same prompts, in the same order.
    """
    costs = usual_seconds(runs)
    alone = usual_seconds(plain)[0]
    speedups = []
    for run in runs:
        took = sum(costs[i.step.drafted] for i in run[1:])
        speedups.append(alone * len(tokens(run[1:])) / took)
    loops = [costs[i.step.drafted] for run in runs for i in run[1:]]
    error = np.std(speedups) / len(speedups) ** 0.5
    return {"usual_speedup": np.mean(speedups), "usual_speedup_error": error, "usual_loop_ms": 1e3 * np.mean(loops)}


def usual_seconds(runs):
    """{number of drafts: median seconds of the iterations that had so many}, without the first, which prefills."""
    by_drafted = defaultdict(list)
    for run in runs:
        for i in run[1:]:
            by_drafted[i.step.drafted].append(i.seconds)
    return {drafted: median(found) for drafted, found in by_drafted.items()}


def ms_per_token(run):
    return 1e3 * sum(i.seconds for i in run[1:]) / len(tokens(run[1:]))


def mean_and_error(found):
    """The mean of some figures, and its standard error, which a single figure does not have."""
    error = np.std(found, ddof=1) / len(found) ** 0.5 if len(found) > 1 else None
    return float(np.mean(found)), error and float(error)


def tokens(run):
    return [token for i in run for token in i.step.tokens]


def recorder_of(runs):
    recorder = Recorder()
    recorder.samples = runs
    recorder.seconds = sum(i.seconds for i in recorder.iterations)
    return recorder


def seconds(task):
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def take_turns(tasks, rounds, seconds=seconds):
    """{name: function} -> {name: median seconds} of rounds in which each is called once; the first is not counted."""
    measured = [{name: seconds(task) for name, task in tasks.items()} for _ in range(rounds + 1)]
    return {name: median(one[name] for one in measured[1:]) for name in tasks}


def forward(run, n_rows, n_past=64, n_last=None):
    """A forward pass over n_rows rows after n_past tokens, up to the logits of the last n_last, or of all."""
    run.length = n_past
    run(np.arange(n_rows), n_last or n_rows)


def setting_of(domain, temperature, top_p):
    return f"{domain}, temperature {temperature:g}" + (f", top-p {top_p:g}" if top_p else "")


def unlike_texts(rows):
    """The line that says whether anything was lost."""
    unlike = sum(row["unlike"] for row in rows if row["temperature"] == 0)
    return f"\nAt temperature 0, texts that differ from autoregressive decoding's: {unlike}"


def table(rows, columns):
    """Lines of text. columns: words such as "K", "r:.2f" or "β=mean_beta:.2f", that is heading=key:format; _ in the
    heading is a space. What is None, or not in a row, is left empty; words stay as they are."""
    words = [re.fullmatch("(?:(.+)=)?(.+?)(?::(.+))?", word).groups("") for word in columns.split()]
    cells = [[(heading or key).replace("_", " ") for heading, key, _ in words]]
    cells += [[cell(row.get(key), form) for _, key, form in words] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(n) for cell, n in zip(line, widths, strict=True)) for line in cells)


def cell(value, form):
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, form)
