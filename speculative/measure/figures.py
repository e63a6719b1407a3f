"""The figures of a run, computed from the records of both decoders: acceptance, times, account, predictions.

Figures that depend on K are averages over the iterations, so they also hold if K changes or a window is cut short.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import Any

from speculative.measure.analysis import blog_speedup, leviathan_tokens
from speculative.measure.costs import costs, line, prefill_seconds
from speculative.measure.predictions import Measured, predict
from speculative.measure.recorder import Recorder

NOISE = 0.05  # share of a time; smaller differences may be chance
DISAGREE = 1.5  # factor between the measured speedup and its account, from which on one of them is wrong
MIN_ITERATIONS = 5  # to find that they disagree
# The keys of account(), which are None if the run was too short to measure them.
ACCOUNT = ("t_target", "t_draft", "c", "beta", "mean_beta", "account_blog", "account_leviathan", "predicted")


def figures(autoregressive: Recorder, speculative: Recorder, measured: Measured | None = None) -> dict[str, Any]:
    """Return all figures of two decoders' runs over the same prompt, ready for JSON."""
    found = counts(speculative) | times(autoregressive, speculative) | dict.fromkeys(ACCOUNT)
    found |= account(autoregressive, speculative, found, measured)
    return found | {"doubt": doubt(found)}


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
    levels = {}
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


def times(autoregressive: Recorder, speculative: Recorder) -> dict[str, Any]:
    """Return the seconds of each part, and the measured speedup, with the prefill and without."""
    drafting = total(i.drafting for i in speculative.iterations)
    scoring = total(i.scoring for i in speculative.iterations)
    records = {"autoregressive": autoregressive, "speculative": speculative}
    prefills = {name: prefill_seconds(record) for name, record in records.items()}
    # Per token, as a stop text may cut the two texts at different places.
    seconds = [record.seconds / record.n_tokens for record in records.values()]
    later = [(record.seconds - prefills[name]) / record.n_tokens for name, record in records.items()]
    return {
        "seconds": {
            **{name: record.seconds for name, record in records.items()},
            "drafting": drafting,
            "scoring": scoring,
            "rest": None if drafting is None else speculative.seconds - drafting - scoring,
            "prefill": prefills["speculative"],
        },
        "runs": max(record.runs for record in records.values()),
        "speedup": seconds[0] / seconds[1],
        "speedup_without_prefill": later[0] / later[1] if later[1] else None,
    }


def account(autoregressive: Recorder, speculative: Recorder, found: dict, measured: Measured | None) -> dict[str, Any]:
    """Return the run's costs, the formulas' account of its speedup, and the predictions for other lookaheads."""
    known_costs = costs(autoregressive, speculative)
    if known_costs is None:
        return {}
    windows = [i.drafted for i in speculative.iterations]
    window = line(known_costs.t_window)
    K = mean(windows)
    c = known_costs.c
    beta = mean(window(m + 1) for m in windows) / known_costs.t_target
    known = {
        "t_target": known_costs.t_target,
        "t_draft": known_costs.t_draft,
        "c": c,
        "beta": with_texts({rows: seconds / known_costs.t_target for rows, seconds in known_costs.t_window.items()}),
        "mean_beta": beta,
        "account_blog": blog_speedup(found["r"], K, c, beta),
    }
    if found["alpha"] is None or found["tree"]:
        return known
    if speculative.rule.name != "block":  # its chances depend on the drafts before
        known["account_leviathan"] = mean(leviathan_tokens(found["alpha"], m) for m in windows) / (K * c + beta)
    if measured and beta >= 1 - NOISE:
        known["predicted"] = with_texts(predict(autoregressive, speculative, measured))
    return known


def doubt(f: dict[str, Any]) -> str | None:
    """Return the reason to doubt the measured speedup, or None."""
    if f["speedup"] > f["tokens_per_iteration"]:
        return f"{f['tokens_per_iteration']:.2f} tokens for each call of the target allow no more than that factor"
    if f["mean_beta"] is None:
        return None
    if f["mean_beta"] < 1 - NOISE:
        return "calls of the target with several tokens took less time than calls with one"
    ratio = (f["speedup_without_prefill"] or f["account_blog"]) / f["account_blog"]
    if f["iterations"] >= MIN_ITERATIONS and not 1 / DISAGREE < ratio < DISAGREE:
        return "some calls took many times as long as others"
    return None


def with_texts(by_number: dict[int, Any]) -> dict[str, Any]:
    """Return the dict with texts for keys: JSON has no numbers there."""
    return {str(number): value for number, value in by_number.items()}


def total(seconds) -> float | None:
    """Return their sum, None if any of them is unknown."""
    seconds = list(seconds)
    return None if None in seconds else sum(seconds)
