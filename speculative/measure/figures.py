"""The figures of a run, computed from the records of both decoders: acceptance, times, account, predictions.

Figures that depend on K are averages over iterations: they stay right if K varies or a window is cut short.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from speculative.costs import costs_by_rows, line_through
from speculative.measure.analysis import blog_speedup, leviathan_tokens
from speculative.measure.predictions import Measured, predict
from speculative.measure.turns import Record

NOISE = 0.05  # share of a time; smaller differences may be chance
DISAGREE = 1.5  # factor between the measured speedup and its account, from which on one of them is wrong
DISTURBED = 0.25  # share of the decodes' time; threads that waited longer for a core disturbed the times
MIN_ITERATIONS = 5  # to find that they disagree
# Figures that are None if only one decoder has run; and all but the first three if the run was too short.
COMPARISON = ["speedup", "speedup_without_prefill", "doubt", "t_target", "c", "beta", "mean_beta", "blog_speedup"]
COMPARISON += ["account_blog", "account_leviathan", "predicted", "window_beta", "withheld"]


def figures(autoregressive: Record | None, speculative: Record, measured: Measured | None = None) -> dict[str, Any]:
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
    rows = [i.seconds for i in autoregressive.iterations if i.seconds and not i.prefill and not i.derived]
    t_target = of_rows.rows.get(1)
    if t_target and known.rows and known.draft is not None:
        found |= account(speculative, t_target, known, found)
    found["doubt"] = reason_to_doubt(found, median(rows) / min(rows) if rows else None)
    if measured and found["account_blog"] and found["alpha"] is not None:
        # predictions need the times of a machine at rest
        found["withheld"] = disturbance(found) or reason_to_doubt(found, spread=1.0)
        if not found["withheld"]:
            found |= predict(autoregressive, speculative, known.prefill, known.rows | {1: t_target}, measured)
    return found


# ---- The counts ------------------------------------------------------------------------------------------------------


def counts(speculative: Record) -> dict[str, Any]:
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
        "tokens_per_iteration_histogram": {str(n): histogram[n] for n in sorted(histogram)},
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
        "accepted_share": accepted / drafted if drafted else None,
        "mean_K": drafted / len(calls),
        "r": n_tokens / (drafted + len(calls)),
        "tokens_per_iteration": n_tokens / len(calls),
    }


# ---- The times -------------------------------------------------------------------------------------------------------


class Costs(NamedTuple):
    """Seconds of a decoder. A call of the target includes what the loop does besides."""

    rows: dict[int, float]  # {rows: seconds of a call of the target that read nothing else}
    draft: float | None  # seconds of a draft token; 0 if nothing was drafted, None if each proposal read the prompt
    prefill: float  # seconds of reading the prompt, beyond those that the same calls take otherwise


def costs(run: Record) -> Costs:
    """Return the mean times of a decoder's calls. The time of empty proposals belongs to the tokens of the others."""
    timed = [i for i in run.iterations if i.seconds]  # of texts that are decoded together, the first one's
    rows = costs_by_rows((i.drafted + 1, i.seconds - i.drafting) for i in timed if not i.prefill)
    proposals = [i for i in timed if not i.draft_prefill]
    drafted = sum(i.drafted for i in proposals)
    draft = None if any(i.drafted for i in timed) else 0.0
    if drafted:
        draft = sum(i.drafting for i in proposals) / drafted
    if not rows:
        return Costs(rows, draft, 0.0)
    window = line_through(rows)
    prefill = [i.seconds - i.drafting - window(i.drafted + 1) for i in timed if i.prefill]
    prefill += [i.drafting - i.drafted * (draft or 0.0) for i in timed if i.draft_prefill]
    return Costs(rows, draft, sum(max(0.0, seconds) for seconds in prefill))


def account(speculative: Record, t_target: float, known: Costs, found: dict) -> dict[str, Any]:
    """Return the costs of a run, relative to a row of the target, and the formulas' account of its speedup."""
    windows = [i.drafted for i in speculative.iterations]
    K = found["mean_K"]
    c = known.draft / t_target  # type: ignore[operator]  # figures() asks for it
    window = line_through(known.rows)
    beta = mean(window(m + 1) for m in windows) / t_target
    leviathan = None
    if found["alpha"] is not None and not found["tree"] and not speculative.rule.blocks:
        leviathan = mean(leviathan_tokens(found["alpha"], m) for m in windows) / (K * c + beta)
    return {
        "t_target": t_target,
        "c": c,
        "beta": {str(rows): seconds / t_target for rows, seconds in known.rows.items()},
        "mean_beta": beta,
        "blog_speedup": blog_speedup(found["r"], K, c),
        "account_blog": blog_speedup(found["r"], K, c, beta),
        "account_leviathan": leviathan,
    }


def disturbance(f: dict[str, Any]) -> str | None:
    """Say for how long threads had no core. None if that took little of the decodes' time."""
    whole = f["seconds"]["speculative"] + (f["seconds"]["autoregressive"] or 0.0)
    waited = f"threads waited {f['waited']:.3g} s in all for a core that other programs had"
    return waited if f["waited"] >= DISTURBED * whole else None


def reason_to_doubt(f: dict[str, Any], spread: float | None) -> str | None:
    """Return the reason to doubt the measured speedup, or None.

    spread: median / least time of the calls with one row, within which a figure is no surprise; None if not known.
    """
    most = f["tokens_per_iteration"]
    limit = (1 + NOISE) * most * (spread or 1)
    if f["speedup"] > limit:
        return f"{most:.2f} tokens for each call of the target allow no such speedup"
    without = f["speedup_without_prefill"]
    if without > limit:
        return f"{without:.2f} without the prompt, and {most:.2f} tokens for each call of the target allow no more"
    if f["mean_beta"] is None:
        return None
    if spread and f["mean_beta"] * spread < 1 - NOISE:
        return "calls of the target with several tokens took less time than calls with one"
    ratio = without / f["account_blog"]
    if f["iterations"] >= MIN_ITERATIONS and not 1 / DISAGREE < ratio < DISAGREE:
        return f"the times of single calls say {f['account_blog']:.2f}"
    return None
