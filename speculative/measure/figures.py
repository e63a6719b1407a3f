"""The figures of a run, computed from the records of both decoders: acceptance, times, account, predictions.

Figures that depend on K are averages over iterations: they stay right if K varies or a window is cut short.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from speculative.costs import costs_by_rows, line_through
from speculative.measure.analysis import blog_speedup, leviathan_tokens
from speculative.measure.predictions import Measured, predict
from speculative.measure.recorder import Recorder

NOISE = 0.05  # share of a time; smaller differences may be chance
DISAGREE = 1.5  # factor between the measured speedup and its account, from which on one of them is wrong
MIN_CALLS = 3  # whose mean counts as the time of a call with so many rows
MIN_ITERATIONS = 5  # to find that they disagree
# Figures that are None if only one decoder has run; and all but the first three if the run was too short.
COMPARISON = ["speedup", "speedup_without_prefill", "doubt", "t_target", "c", "beta", "mean_beta"]
COMPARISON += ["account_blog", "account_leviathan", "predicted", "window_beta"]


def figures(autoregressive: Recorder | None, speculative: Recorder, measured: Measured | None = None) -> dict[str, Any]:
    """Return all figures of a run, ready for JSON. Those that compare the decoders are None if only one has run."""
    known = costs(speculative)
    whole = speculative.seconds
    parts = {name: sum(getattr(i, name) for i in speculative.iterations) for name in ("drafting", "scoring")}
    parts |= {"rest": max(0.0, whole - sum(parts.values())), "prefill": known.prefill}
    found = counts(speculative) | dict.fromkeys(COMPARISON)
    found |= {"runs": speculative.runs, "t_draft": known.draft, "waited": speculative.waited}
    found |= {"seconds": {"autoregressive": None, "speculative": whole, **parts}}
    if not autoregressive:
        return found
    of_rows = costs(autoregressive)
    ratio = speculative.n_tokens / autoregressive.n_tokens  # a stop text may cut the two texts at different places
    found["seconds"]["autoregressive"] = autoregressive.seconds
    found["waited"] += autoregressive.waited
    found["speedup"] = ratio * autoregressive.seconds / whole
    found["speedup_without_prefill"] = ratio * (autoregressive.seconds - of_rows.prefill) / (whole - known.prefill)
    t_target = of_rows.rows.get(1)
    if t_target and known.rows and known.draft is not None:
        found |= account(autoregressive, speculative, t_target, known, found, measured)
    rows = [i.seconds for i in autoregressive.iterations if i.seconds and not i.prefill and not i.derived]
    return found | {"doubt": reason_to_doubt(found, median(rows) / min(rows) if rows else None)}


# ---- The counts ------------------------------------------------------------------------------------------------------


def counts(speculative: Recorder) -> dict[str, Any]:
    """Count the drafts, and those that were tested and accepted."""
    iterations = speculative.iterations
    alpha = [a for i in iterations for a in i.alpha]
    tested = Counter(j for i in iterations for j in range(len(i.alpha)))
    accepted = Counter(j for i in iterations for j in range(i.accepted))
    by_source = Counter(name for i in iterations for name in i.source[: len(i.alpha)])
    passed = Counter(name for i in iterations for name in i.source[: i.accepted])
    histogram = Counter(len(i.tokens) for i in iterations)
    [(usual, _)] = Counter(i.drafted for i in iterations).most_common(1)
    levels: dict[str, list] = {}
    for iteration in iterations:
        for name, calls in iteration.levels.items():
            levels.setdefault(name, []).extend(calls)
    return {
        **sums([(len(i.tokens), i.drafted, i.accepted) for i in iterations]),
        "alpha": mean(alpha) if alpha else None,
        "tree": any(i.tree for i in iterations),
        "usual_K": usual,
        "tokens_per_iteration_histogram": with_texts(dict(sorted(histogram.items()))),
        "tested_by_position": [tested[j] for j in range(len(tested))],
        "accepted_by_position": [accepted[j] for j in range(len(tested))],
        "by_source": {name: [passed[name], n] for name, n in by_source.most_common()},
        "levels": [{"name": name, **sums(calls)} for name, calls in levels.items() if calls],
    }


def sums(calls: Sequence) -> dict[str, Any]:
    """(tokens, drafted, accepted) of each call of the target, or of the model of a level -> their counts."""
    n_tokens, drafted, accepted = (sum(column) for column in zip(*calls, strict=True))
    return {
        "iterations": len(calls),
        "tokens": n_tokens,
        "drafted": drafted,
        "accepted": accepted,
        "r": n_tokens / (drafted + len(calls)),
        "tokens_per_iteration": n_tokens / len(calls),
    }


# ---- The times -------------------------------------------------------------------------------------------------------


class Costs(NamedTuple):
    """Seconds of a decoder. A call of the target includes what the loop does besides."""

    rows: dict[int, float]  # {rows: seconds of a call of the target that read nothing else}
    draft: float | None  # seconds of a draft token; 0 if nothing was drafted, None if each proposal read the prompt
    prefill: float  # seconds of reading the prompt, beyond those that the same calls take otherwise

    @property
    def window(self) -> Callable[[int], float]:
        """A function of any number of rows, on lines between known ones. One row takes no longer than several."""
        return line_through(self.rows)


def costs(run: Recorder) -> Costs:
    """Return the mean times of a decoder's calls. The time of empty proposals belongs to the tokens of the others."""
    timed = [i for i in run.iterations if i.seconds]  # of texts that are decoded together, the first one's
    rows = costs_by_rows((i.drafted + 1, i.seconds - i.drafting) for i in timed if not i.prefill)
    proposals = [i for i in timed if not i.draft_prefill]
    drafted = sum(i.drafted for i in proposals)
    draft = None if any(i.drafted for i in timed) else 0.0
    if drafted:
        draft = sum(i.drafting for i in proposals) / drafted
    known = Costs(rows, draft, 0.0)
    if not known.rows:
        return known
    window = known.window
    scoring = [i.seconds - i.drafting - window(i.drafted + 1) for i in timed if i.prefill]
    drafting = [i.drafting - i.drafted * (draft or 0.0) for i in timed if i.draft_prefill]
    return known._replace(prefill=sum(max(0.0, seconds) for seconds in scoring + drafting))


def account(
    autoregressive: Recorder,
    speculative: Recorder,
    t_target: float,
    speculative_costs: Costs,
    found: dict,
    measured: Measured | None,
) -> dict[str, Any]:
    """Return the run's costs, the formulas' account of its speedup, and the predictions for other lookaheads."""
    windows = [i.drafted for i in speculative.iterations]
    K = mean(windows)
    c = speculative_costs.draft / t_target
    window = speculative_costs.window
    beta = mean(window(m + 1) for m in windows) / t_target
    known = {
        "t_target": t_target,
        "c": c,
        "beta": with_texts({rows: seconds / t_target for rows, seconds in speculative_costs.rows.items()}),
        "mean_beta": beta,
        "account_blog": blog_speedup(found["r"], K, c, beta),
    }
    if found["alpha"] is None or found["tree"]:
        return known
    if speculative.rule.name != "block":  # its chances depend on the drafts before
        known["account_leviathan"] = mean(leviathan_tokens(found["alpha"], m) for m in windows) / (K * c + beta)
    if measured:
        calls = Counter(i.drafted + 1 for i in speculative.iterations if not i.prefill)
        rows = {n: seconds for n, seconds in speculative_costs.rows.items() if calls[n] >= MIN_CALLS} | {1: t_target}
        predicted, window_beta = predict(autoregressive, speculative, speculative_costs.prefill, rows, measured)
        known["predicted"] = {name: with_texts(speedups) for name, speedups in predicted.items()}
        known["window_beta"] = with_texts(window_beta)
    return known


def reason_to_doubt(f: dict[str, Any], spread: float | None) -> str | None:
    """Return the reason to doubt the measured speedup, or None.

    spread: median / least time of the calls with one row, within which a figure is no surprise; None if not known.
    """
    most = f["tokens_per_iteration"]
    limit = (1 + NOISE) * most * (spread or 1)
    if f["speedup"] > limit:
        return f"{most:.2f} tokens for each call of the target allow no more than that factor"
    without = f["speedup_without_prefill"]
    if without > limit:
        return f"{without:.2f} without the prompt, and {most:.2f} tokens for each call of the target allow no more"
    if f["mean_beta"] is None:
        return None
    if spread and f["mean_beta"] * spread < 1 - NOISE:
        return "calls of the target with several tokens took less time than calls with one"
    ratio = without / f["account_blog"]
    if f["iterations"] >= MIN_ITERATIONS and not 1 / DISAGREE < ratio < DISAGREE:
        return "some calls took many times as long as others"
    return None


def with_texts(by_number: dict[int, Any]) -> dict[str, Any]:
    """Return the dict with texts for keys: JSON has no numbers there."""
    return {str(number): value for number, value in by_number.items()}
