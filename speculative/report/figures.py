"""The figures of a run, computed from the records of both decoders: counts, times, their comparison, predictions.

Figures that depend on K are averages over steps: they stay right if K varies or a window is cut short.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from speculative.lookahead.costs import ByRows, costs_by_rows, line_through
from speculative.report.doubt import are_steady, disturbance, reason_to_doubt, spread_of
from speculative.report.predictions import Measured, predict
from speculative.report.record import (
    Account,
    Comparison,
    Counts,
    DecoderRecord,
    Figures,
    Level,
    Seconds,
    Times,
)
from speculative.run.steps import TextStep


def figures(
    autoregressive: DecoderRecord | None,
    speculative: DecoderRecord,
    measured: Measured | None = None,
    by_blocks: bool = False,
) -> Figures:
    """Return the figures of a run. measured: the times that predictions need beside it. by_blocks: whether the rule
    tests blocks, of which Leviathan's formula does not speak."""
    steps = speculative.steps
    counts = count(steps)
    costs = costs_of(steps)
    times = times_of(autoregressive, speculative, costs)
    f = Figures(**vars(counts), **vars(times))
    if not autoregressive:
        return f
    plain = costs_of(autoregressive.steps)
    comparison = compare(counts, times.seconds, autoregressive, plain.prefill)
    account = account_of(counts, costs, steps, plain.by_rows.get(1), by_blocks)
    if account:
        account = for_a_batch(account, texts_in_a_call(steps) / texts_in_a_call(autoregressive.steps))
    f = replace(f, account=account)
    doubt = reason_to_doubt(f, comparison, spread_of(autoregressive.steps))
    f = replace(f, comparison=replace(comparison, doubt=doubt))
    if not measured or not account or f.alpha is None:
        return f
    # Predictions need the times of a machine at rest, at least in the calls that count.
    at_rest = are_steady(autoregressive.steps) and are_steady(steps)
    withheld = (None if at_rest else disturbance(f)) or doubt
    if withheld:
        return replace(f, withheld=withheld)
    return replace(f, predictions=predict(f, comparison, account, steps, costs.by_rows, measured))


# ---- The counts ------------------------------------------------------------------------------------------------------


def count(steps: Sequence[TextStep]) -> Counts:
    """Count the drafts, and those that were tested and accepted."""
    n_tested = [len(step.alpha) for step in steps]
    n_accepted = [step.accepted for step in steps]
    positions = range(1, 1 + max(n_tested))
    histogram = Counter(len(step.tokens) for step in steps)
    [(usual_K, _)] = Counter(step.drafted for step in steps).most_common(1)
    return Counts(
        **sums((len(step.tokens), step.drafted, step.accepted) for step in steps),
        alpha=mean_of(chance for step in steps for chance in step.alpha),
        alpha_token=mean_of(chance for step in steps for chance in step.alpha_token),
        tree=any(step.tree for step in steps),
        usual_K=usual_K,
        tokens_per_iteration_histogram={str(n): histogram[n] for n in sorted(histogram)},
        tested_by_position=[reaching(position, n_tested) for position in positions],
        accepted_by_position=[reaching(position, n_accepted) for position in positions],
        by_source=by_source(steps),
        levels=levels_of(steps),
    )


def mean_of(numbers: Iterable[float]) -> float | None:
    """Return the mean, None if there are no numbers."""
    numbers = [*numbers]
    return mean(numbers) if numbers else None


def reaching(position: int, lengths: Sequence[int]) -> int:
    """Return how many of these lengths reach a position, from 1."""
    return sum(length >= position for length in lengths)


def sums(calls: Iterable[Sequence[int]]) -> dict:
    """(tokens, drafted, accepted) of each call of the target, or of the model of a level -> the fields of Sums."""
    columns = [*zip(*calls, strict=True)]
    n = len(columns[0])
    n_tokens, drafted, accepted = map(sum, columns)
    return {
        "iterations": n,
        "tokens": n_tokens,
        "drafted": drafted,
        "accepted": accepted,
        "accepted_share": accepted / drafted if drafted else None,
        "mean_K": drafted / n,
        "r": n_tokens / (drafted + n),
        "tokens_per_iteration": n_tokens / n,
    }


def by_source(steps: Sequence[TextStep]) -> dict[str, list[int]]:
    """{drafter: [accepted, tested]} of its drafts, the drafter with the most tested first."""
    tested = Counter(name for step in steps for name in step.source[: len(step.alpha)])
    accepted = Counter(name for step in steps for name in step.proposers)
    return {name: [accepted[name], n] for name, n in tested.most_common()}


def levels_of(steps: Sequence[TextStep]) -> list[Level]:
    """Return the sums of each level of a staged drafter, the outermost first."""
    calls: dict[str, list] = defaultdict(list)
    for step in steps:
        for name, of_step in step.levels.items():
            calls[name] += of_step
    return [Level(**sums(of_level), name=name) for name, of_level in calls.items() if of_level]


# ---- The times -------------------------------------------------------------------------------------------------------


class Costs(NamedTuple):
    """Seconds of a decoder. A call of the target includes the rest of the loop's work."""

    by_rows: ByRows  # {rows: seconds of a call of the target that read nothing else}
    draft: float | None  # seconds of a draft token; 0 if nothing was drafted, None if each proposal read the prompt
    prefill: float  # seconds of reading the prompt, beyond those that the same calls take otherwise


def costs_of(steps: Sequence[TextStep]) -> Costs:
    """Return the mean times of a decoder's calls."""
    timed = [step for step in steps if step.seconds]  # the first of texts decoded together has the times
    windows = []  # (rows, seconds)
    for step in timed:
        if not step.prefill:
            windows.append((step.drafted + 1, step.seconds - step.drafting))
    by_rows = costs_by_rows(windows)
    t_draft = seconds_of_a_draft(timed)
    return Costs(by_rows, t_draft, prefill_seconds(timed, by_rows, t_draft or 0.0))


def seconds_of_a_draft(steps: Sequence[TextStep]) -> float | None:
    """Return the seconds of a draft token in these steps; 0 if nothing was drafted, None if each proposal read the
    prompt. The time of empty proposals belongs to the tokens of the others."""
    proposals = [step for step in steps if not step.draft_prefill]
    drafted = sum(step.drafted for step in proposals)
    if drafted:
        return sum(step.drafting for step in proposals) / drafted
    return None if any(step.drafted for step in steps) else 0.0


def prefill_seconds(timed: Sequence[TextStep], by_rows: ByRows, t_draft: float) -> float:
    """Return the seconds of reading the prompt: those of the calls that read it, beyond the usual ones."""
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


def times_of(autoregressive: DecoderRecord | None, speculative: DecoderRecord, costs: Costs) -> Times:
    drafting = sum(step.drafting for step in speculative.steps)
    scoring = sum(step.scoring for step in speculative.steps)
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


def compare(counts: Counts, seconds: Seconds, autoregressive: DecoderRecord, prefill: float) -> Comparison:
    """Return the speedup, without its doubt. prefill: the seconds in which the autoregressive decoder read its
    prompt."""
    ratio = counts.tokens / autoregressive.n_tokens  # a stop text may cut the two texts at different places
    speedup = ratio * autoregressive.seconds / seconds.speculative
    without = ratio * (autoregressive.seconds - prefill) / (seconds.speculative - seconds.prefill)
    return Comparison(speedup, without)


def account_of(
    counts: Counts, costs: Costs, steps: Sequence[TextStep], t_target: float | None, by_blocks: bool
) -> Account | None:
    """Return the costs of a run, relative to a row of the target, and the formulas' account of its speedup. None if
    every call of a kind also read the prompt."""
    by_rows = costs.by_rows
    if not t_target or not by_rows or costs.draft is None:
        return None
    drafted = [step.drafted for step in steps]
    K = counts.mean_K
    c = costs.draft / t_target
    window = line_through(by_rows)
    beta = mean(window(m + 1) for m in drafted) / t_target
    leviathan = None
    if counts.alpha is not None and not counts.tree and not by_blocks:
        tokens = mean(leviathan_tokens(counts.alpha, m) for m in drafted)
        leviathan = tokens / (K * c + beta)
    return Account(
        t_target=t_target,
        c=c,
        beta={str(n): seconds / t_target for n, seconds in by_rows.items()},
        mean_beta=beta,
        blog_speedup=blog_speedup(counts.r, K, c),
        account_blog=blog_speedup(counts.r, K, c, beta),
        account_leviathan=leviathan,
    )


def texts_in_a_call(steps: Sequence[TextStep]) -> float:
    """Return the mean number of texts that a call of the target served. The first of these has the call's times."""
    return len(steps) / max(1, sum(step.seconds > 0 for step in steps))


def for_a_batch(account: Account, occupancy: float) -> Account:
    """Return the account of a run whose calls served so many times the texts of those without drafts: the formulas
    speak of one text."""
    leviathan = account.account_leviathan
    return replace(
        account,
        occupancy=occupancy,
        account_blog=occupancy * account.account_blog,
        account_leviathan=None if leviathan is None else occupancy * leviathan,
    )


# ---- The formulas of the papers --------------------------------------------------------------------------------------

# p is the draft's distribution, q the target's, K the number of drafts in a window, as in Chen et al. 2023. (Leviathan
# et al. 2023 swap p and q and write γ for K.) There are two acceptance rates: r is the share of the K + 1 tokens that
# an iteration could give; α is the chance that one drafted token is accepted, 1 - TVD(p, q).
#
# Costs are relative to one row of the target, the cost of a token in autoregressive decoding: c = t_draft / t_target is
# the cost of a drafted token, β = t_target(K + 1 rows) / t_target(1 row) that of scoring a window. The papers take β
# for 1, as it nearly is if reading the weights takes all the time.


def blog_speedup(r: float, K: float, c: float, beta: float = 1.0) -> float:
    """The speedup from r: r (K + 1) tokens are decoded in the time of K drafts and a window.

    Source: the blog post, "Speedup Results", which has 1 for β.
    """
    tokens = r * (K + 1)
    seconds = K * c + beta
    return tokens / seconds


def leviathan_tokens(alpha: float, K: int) -> float:
    """Expected tokens per iteration, between 1 and K + 1, if each draft is accepted with chance α, independently.

    Source: Leviathan et al. 2023, equation 1: (1 - α^(K + 1)) / (1 - α), which is the sum written here.
    """
    chances = [alpha**i for i in range(K + 1)]  # chances that the first i drafts are accepted
    return sum(chances)
