"""The figures of a run, computed from the records of both decoders: counts, times, their comparison, predictions.

Figures that depend on K are averages over steps: they stay right if K varies or a window is cut short.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any, NamedTuple

from speculative.costs import costs_by_rows, line_through
from speculative.measure.analysis import blog_speedup, leviathan_tokens
from speculative.measure.doubt import disturbance, reason_to_doubt, spread_of
from speculative.measure.predictions import Measured, predict
from speculative.measure.record import (
    Account,
    Comparison,
    Counts,
    Figures,
    Level,
    Seconds,
    Times,
)
from speculative.measure.turns import Record
from speculative.steps import TextStep


def figures(autoregressive: Record | None, speculative: Record, measured: Measured | None = None) -> Figures:
    """Return the figures of a run. measured: what predictions need beside it."""
    counts = count(speculative.iterations)
    speculative_costs = costs_of(speculative)
    times = times_of(autoregressive, speculative, speculative_costs)
    if not autoregressive:
        return Figures(counts, times, None, None, None)
    autoregressive_costs = costs_of(autoregressive)
    comparison = compare(autoregressive, speculative, autoregressive_costs, speculative_costs, counts, times)
    account = comparison.account
    if not (measured and account and counts.alpha is not None):
        return Figures(counts, times, comparison, None, None)
    # Predictions need the times of a machine at rest.
    withheld = disturbance(times) or comparison.doubt
    if withheld:
        return Figures(counts, times, comparison, None, withheld)
    by_rows = speculative_costs.by_rows | {1: account.t_target}
    predictions = predict(autoregressive, speculative, speculative_costs.prefill, by_rows, measured)
    return Figures(counts, times, comparison, predictions, None)


# ---- The counts ------------------------------------------------------------------------------------------------------


def count(steps: Sequence[TextStep]) -> Counts:
    """Count the drafts, and those that were tested and accepted."""
    chances = [chance for step in steps for chance in step.alpha]
    papers = [chance for step in steps for chance in step.alpha_token]
    n_tested = [len(step.alpha) for step in steps]
    n_accepted = [step.accepted for step in steps]
    tested = by_position(n_tested)
    histogram = Counter(len(step.tokens) for step in steps)
    [(usual_K, _)] = Counter(step.drafted for step in steps).most_common(1)
    return Counts(
        **sums((len(step.tokens), step.drafted, step.accepted) for step in steps),
        alpha=mean(chances) if chances else None,
        alpha_token=mean(papers) if papers else None,
        tree=any(step.tree for step in steps),
        usual_K=usual_K,
        tokens_per_iteration_histogram={str(n): histogram[n] for n in sorted(histogram)},
        tested_by_position=tested,
        accepted_by_position=by_position(n_accepted, len(tested)),
        by_source=by_source(steps),
        levels=levels_of(steps),
    )


def sums(calls: Iterable[Sequence[int]]) -> dict[str, Any]:
    """(tokens, drafted, accepted) of each call of the target, or of the model of a level -> the fields of Sums."""
    calls = [*calls]
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


def by_position(lengths: Sequence[int], n: int | None = None) -> list[int]:
    """Return how many of these lengths reach each of the positions 1, 2, ..., n; n: the longest, if it is left out."""
    positions = range(1, 1 + (max(lengths) if n is None else n))
    return [sum(length >= position for length in lengths) for position in positions]


def by_source(steps: Sequence[TextStep]) -> dict[str, list[int]]:
    """{drafter: [accepted, tested]} of its drafts, the drafter with the most tested first."""
    tested: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for step in steps:
        n_tested = len(step.alpha)
        tested.update(step.source[:n_tested])
        accepted.update(step.source[: step.accepted])
    names = [name for name, _ in tested.most_common()]
    return {name: [accepted[name], tested[name]] for name in names}


def levels_of(steps: Sequence[TextStep]) -> list[Level]:
    """Return the sums of each level of a staged drafter, the outermost first."""
    calls: dict[str, list] = defaultdict(list)
    for step in steps:
        for name, of_step in step.levels.items():
            calls[name] += of_step
    levels = []
    for name, of_level in calls.items():
        if of_level:
            levels.append(Level(**sums(of_level), name=name))
    return levels


# ---- The times -------------------------------------------------------------------------------------------------------


class Costs(NamedTuple):
    """Seconds of a decoder. A call of the target includes what the loop does besides."""

    by_rows: dict[int, float]  # {rows: seconds of a call of the target that read nothing else}
    draft: float | None  # seconds of a draft token; 0 if nothing was drafted, None if each proposal read the prompt
    prefill: float  # seconds of reading the prompt, beyond those that the same calls take otherwise


def costs_of(record: Record) -> Costs:
    """Return the mean times of a decoder's calls."""
    timed = [step for step in record.iterations if step.seconds]  # of texts decoded together, the first has the times
    windows = []  # (rows, seconds)
    for step in timed:
        if not step.prefill:
            windows.append((step.drafted + 1, step.seconds - step.drafting))
    by_rows = costs_by_rows(windows)
    t_draft = seconds_of_a_draft(timed)
    return Costs(by_rows, t_draft, prefill_seconds(timed, by_rows, t_draft or 0.0))


def seconds_of_a_draft(timed: Sequence[TextStep]) -> float | None:
    """Return the seconds of a draft token; 0 if nothing was drafted, None if each proposal read the prompt. The time of
    empty proposals belongs to the tokens of the others."""
    proposals = [step for step in timed if not step.draft_prefill]
    drafted = sum(step.drafted for step in proposals)
    if drafted:
        return sum(step.drafting for step in proposals) / drafted
    return None if any(step.drafted for step in timed) else 0.0


def prefill_seconds(timed: Sequence[TextStep], by_rows: dict[int, float], t_draft: float) -> float:
    """Return the seconds of reading the prompt: what the calls that read it took beyond those that did not."""
    if not by_rows:
        return 0.0
    window = line_through(by_rows)
    seconds = 0.0
    for step in timed:
        if step.prefill:
            seconds += max(0.0, step.seconds - step.drafting - window(step.drafted + 1))
        if step.draft_prefill:
            seconds += max(0.0, step.drafting - step.drafted * t_draft)
    return seconds


def times_of(autoregressive: Record | None, speculative: Record, costs: Costs) -> Times:
    drafting = sum(step.drafting for step in speculative.iterations)
    scoring = sum(step.scoring for step in speculative.iterations)
    seconds = Seconds(
        autoregressive=autoregressive.seconds if autoregressive else None,
        speculative=speculative.seconds,
        drafting=drafting,
        scoring=scoring,
        rest=max(0.0, speculative.seconds - drafting - scoring),
        prefill=costs.prefill,
    )
    waited = speculative.waited + (autoregressive.waited if autoregressive else 0.0)
    return Times(seconds, speculative.runs, waited, costs.draft)


# ---- Both decoders ---------------------------------------------------------------------------------------------------


def compare(
    autoregressive: Record,
    speculative: Record,
    autoregressive_costs: Costs,
    speculative_costs: Costs,
    counts: Counts,
    times: Times,
) -> Comparison:
    """Return the speedup, its doubt and its account."""
    ratio = speculative.n_tokens / autoregressive.n_tokens  # a stop text may cut the two texts at different places
    t_target = autoregressive_costs.by_rows.get(1)
    account = None
    if t_target and speculative_costs.by_rows and speculative_costs.draft is not None:
        account = account_of(speculative, counts, t_target, speculative_costs.draft, speculative_costs.by_rows)
    speedup = ratio * autoregressive.seconds / speculative.seconds
    autoregressive_seconds = autoregressive.seconds - autoregressive_costs.prefill
    speculative_seconds = speculative.seconds - speculative_costs.prefill
    without = ratio * autoregressive_seconds / speculative_seconds
    comparison = Comparison(speedup, without, None, account)
    doubt = reason_to_doubt(counts, times, comparison, spread_of(autoregressive.iterations))
    return Comparison(speedup, without, doubt, account)


def account_of(
    speculative: Record, counts: Counts, t_target: float, t_draft: float, by_rows: dict[int, float]
) -> Account:
    """Return the costs of a run, relative to a row of the target, and the formulas' account of its speedup."""
    windows = [step.drafted for step in speculative.iterations]
    c = t_draft / t_target
    window = line_through(by_rows)
    beta = mean(window(m + 1) for m in windows) / t_target
    leviathan = None
    if counts.alpha is not None and not counts.tree and not speculative.rule.blocks:
        tokens = mean(leviathan_tokens(counts.alpha, m) for m in windows)
        leviathan = tokens / (counts.mean_K * c + beta)
    return Account(
        t_target=t_target,
        c=c,
        beta={str(n): seconds / t_target for n, seconds in by_rows.items()},
        mean_beta=beta,
        blog_speedup=blog_speedup(counts.r, counts.mean_K, c),
        account_blog=blog_speedup(counts.r, counts.mean_K, c, beta),
        account_leviathan=leviathan,
    )
