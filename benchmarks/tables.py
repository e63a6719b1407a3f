"""Tables: measurements become rows of figures, and these a table; and tasks that take turns while they are timed."""

import re
import time
from collections import defaultdict
from itertools import groupby
from operator import itemgetter, ne
from statistics import median

import numpy as np

from benchmarks.grid import BASELINE, Setting
from speculative.measure.figures import figures
from speculative.measure.recorder import Recorder


def summarise(measured):
    """A row for each kind of run. The speedup is a median over the prompts, of medians over the repeats of each."""
    groups = defaultdict(lambda: defaultdict(list))  # {kind: {prompt: [[Iteration, ...] of each repeat]}}
    for s, iterations in measured.items():
        groups[s[3:]][s.prompt].append(iterations)
    rows = []
    for kind in sorted(groups, key=place_of):
        baseline = groups[(BASELINE, *kind[1:4], 0, None, "token")]
        runs, plain = ([run for prompt in baseline for run in of[prompt]] for of in (groups[kind], baseline))
        # [prompts, repeats] each
        ms, plain_ms = (np.reshape([*map(ms_per_token, x)], (len(baseline), -1)) for x in (runs, plain))
        row = dict(zip(Setting._fields[3:], kind, strict=True)) | figures(recorder_of(plain), recorder_of(runs))
        row |= {"runs": len(runs), "unlike": sum(map(ne, map(tokens, runs), map(tokens, plain)))}
        row |= {"ms_per_token": ms.mean(), "sd": ms.std()}
        row["speedup"] = np.median(np.median(plain_ms, 1) / np.median(ms, 1))
        row |= at_usual_times(runs, plain)
        # At temperature 0 a repeat is the same text again, and no further evidence.
        texts = runs if row["temperature"] else [of_prompt[0] for of_prompt in groups[kind].values()]
        row |= of_texts(texts) | whole_times(runs)
        rows.append({name: float(value) if isinstance(value, np.floating) else value for name, value in row.items()})
    return rows


def place_of(kind):
    """The place of a kind of run in a table: by setting, autoregressive decoding first."""
    drafter, temperature, top_p, domain, K, lenience, accept = kind
    return temperature, top_p or 1, domain, drafter != BASELINE, drafter, str(K).zfill(4), -(lenience or 1), accept


def by_setting(rows):
    """The rows of each temperature, top-p and domain, autoregressive decoding's first."""
    return [[*of] for _, of in groupby(rows, key=itemgetter("temperature", "top_p", "domain"))]


def of_texts(texts):
    """The iterations of a text, their mean and spread; r of a text, its mean and standard error."""
    n = [len(run) for run in texts]
    row = {"texts": len(texts), "text_iterations": np.mean(n)}
    row |= zip(("p50", "p90", "p99"), np.percentile(n, [50, 90, 99]), strict=True)
    row["text_iterations_sd"] = np.std(n, ddof=1) if len(n) > 1 else None
    row["text_r"], row["text_r_error"] = mean_and_error([len(tokens(run)) / rows_of(run) for run in texts])
    return row


def whole_times(runs):
    """Milliseconds of a text with its prefill, and of an iteration without it."""
    ms = [1e3 * sum(i.seconds for i in run) for run in runs]
    loop_ms = 1e3 * np.mean([i.seconds for run in runs for i in run[1:]])
    return {"text_ms": np.mean(ms), "text_ms_sd": np.std(ms), "loop_ms": loop_ms}


def rows_of(run):
    """The number of rows that the target scored."""
    return sum(i.step.drafted + 1 for i in run)


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


def autoregressive_of(row):
    """The line above the table of one setting. row: of autoregressive decoding."""
    top_p = f", top-p {row['top_p']:g}" if row["top_p"] else ""
    setting = f"{row['domain']}, temperature {row['temperature']:g}{top_p}"
    return f"\n{setting}: autoregressive decoding takes {row['ms_per_token']:.2f} ms a token"


def unlike_texts(rows):
    """The line that says whether anything was lost; "" where nothing was decoded at temperature 0."""
    greedy = [row for row in rows if row["temperature"] == 0]
    if not greedy:
        return ""
    return f"\nAt temperature 0, texts that differ from autoregressive decoding's: {sum(r['unlike'] for r in greedy)}"


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
