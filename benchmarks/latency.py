"""How times vary: the mean, the standard deviation and percentiles of the times of texts and of tokens, by K.

Chen et al., section 4: a larger K raises the variance of a sequence's time, which matters where the slowest tenth or
hundredth of answers does. A token's time is the wait for it: tokens of one call of the target come together, so all but
the first of them have 0. The first call, which also reads the prompt, does not count for tokens.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.tables import table

SETTING = ("temperature", "top_p", "domain", "drafter", "accept")  # columns that the lines of one comparison share
COLUMNS = "T=temperature:g top-p=top_p:g domain K of mean:.2f ±=deviation:.2f P50:.2f P90:.2f P99:.2f"


def waits(iterations: Sequence[dict]) -> list[float]:
    """Return the milliseconds for which a reader waits for each token of a text, but for those of the first call."""
    times = []
    for step in iterations[1:]:
        together = max(0, step["tokens"] - 1)
        times += [1e3 * step["seconds"]] + [0.0] * together
    return times


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return the mean, the standard deviation and the percentiles of times."""
    p50, p90, p99 = np.percentile(times, [50, 90, 99])
    return {"mean": np.mean(times), "deviation": np.std(times), "P50": p50, "P90": p90, "P99": p99}


def rows_of(runs: Sequence[dict], decoder: str, line: dict) -> list[dict]:
    """Return the spread of a decoder's texts and of its tokens. decoder: "plain" or "spec". line: of the grid, whose
    other columns the rows have."""
    texts = []
    tokens = []
    for run in runs:
        texts.append(run[f"{decoder}_text_ms"])
        tokens += run[f"{decoder}_waits"]
    of_texts = line | {"of": "text"} | spread(texts)
    of_tokens = line | {"of": "token"} | spread(tokens or [0.0])
    return [of_texts, of_tokens]


def by_K(lines: Sequence[dict]) -> str:
    """Return the table of a grid's lines. K = 0 is autoregressive decoding, of which all runs of a setting count."""
    lines_of: dict[tuple, list[dict]] = defaultdict(list)
    for line in lines:
        setting = tuple(line[name] for name in SETTING)
        lines_of[setting].append(line)
    rows = []
    for of_setting in lines_of.values():
        every = [run for line in of_setting for run in line["of"]]
        rows += rows_of(every, "plain", of_setting[0] | {"K": 0})
        for line in of_setting:
            rows += rows_of(line["of"], "spec", line)
    return table(rows, COLUMNS)
