"""The tables of --verbose and of the page: every figure with its formula, counts, and predictions."""

from collections.abc import Iterator
from typing import NamedTuple

from speculative.report.advice import Setting, best_setting
from speculative.report.record import Account, Comparison, Counts, Figures, RunRecord
from speculative.report.words import RULE_WORDS, duration, label, percent, times
from speculative.support.files import bytes_in_words


class Row(NamedTuple):
    """A figure."""

    name: str
    value: str
    formula: str


class Chart(NamedTuple):
    """A table of counts. columns: its headings. rows: (name, "part of whole", the same in percent)."""

    caption: str
    columns: tuple
    rows: list[tuple]


class Grid(NamedTuple):
    """The predictions by K and drafter."""

    drafters: list[str]
    rows: list[list]  # [K, β, the speedup with each drafter]; the last is that of "auto", without β
    best: Setting
    run: tuple[int, float]  # K, and the measured speedup


# ---- Figures ---------------------------------------------------------------------------------------------------------


def figure_rows(record: RunRecord) -> list[Row]:
    """Return a row for each figure that was measured; none if the speculative decoder has not run."""
    f = record.figures
    if not f:
        return []
    rows = [*count_rows(f, record.rule.formula)]
    if f.comparison and f.account:
        rows += account_rows(f.comparison, f.account)
    for level in f.levels:
        value = f"r {level.r:.2f}, {level.tokens_per_iteration:.1f} tokens a call"
        drafts = f"{level.accepted} of {level.drafted} drafts accepted"
        rows.append(Row(f"level: {label(level.name)}", value, drafts))
    return rows


def count_rows(counts: Counts, chance: str) -> Iterator[Row]:
    """Yield the rows of acceptance. chance: the rule's formula for the acceptance of a draft."""
    if counts.tree:
        chance = "the chance that one of the siblings is accepted"
    yield Row("r", f"{counts.r:.3f}", "tokens / Σ over iterations of (drafted + 1)")
    yield Row("tokens per iteration", f"{counts.tokens_per_iteration:.2f}", "tokens / iterations")
    if counts.accepted_share is not None:
        yield Row("accepted", f"{counts.accepted_share:.3f}", "accepted / drafted, untested drafts too")
    if counts.alpha is not None:
        yield Row("α", f"{counts.alpha:.3f}", f"mean of {chance}, of the tested drafts")
    if counts.alpha_token is not None:
        formula = RULE_WORDS["token"].formula
        yield Row("α, the paper's rule", f"{counts.alpha_token:.3f}", f"mean of {formula}, of the same drafts")


def account_rows(comparison: Comparison, account: Account) -> Iterator[Row]:
    """Yield the rows of the costs, relative to a row of the target, and of the formulas beside the measured speedup."""
    costs = f"{duration(account.c * account.t_target)} / {duration(account.t_target)}"
    windows = [f"{n_rows} rows: {beta:.2f}" for n_rows, beta in account.beta.items() if n_rows != "1"]
    measured = times(comparison.speedup_without_prefill)
    yield Row("c", f"{account.c:.3f}", f"t_draft / t_target = {costs}")
    yield Row("β", f"{account.mean_beta:.2f}", f"t_target of a window / of one row; {'  '.join(windows)}")
    yield Row("measured", measured, "without the prefill, to compare with the formulas")
    yield Row("the blog's formula", times(account.blog_speedup), "r(K + 1) / (Kc + 1)")
    yield Row("the formula with β", times(account.account_blog), "r(K + 1) / (Kc + β)")
    if account.account_leviathan is not None:
        formula = "(1 - α^(K + 1)) / ((1 - α)(Kc + β))"
        yield Row("Leviathan's, with β", times(account.account_leviathan), formula)


def machine_rows(record: RunRecord) -> Iterator[Row]:
    """Yield how the engine used this machine."""
    peak = record.machine.peak_bytes
    if peak:
        weights = sum(model.weight_bytes for model in record.models)
        yield Row("peak memory", bytes_in_words(peak), f"of which {bytes_in_words(weights)} are weights")
    account = record.figures and record.figures.account
    if account and record.target.weight_bytes:  # a function has no weights
        speed = record.target.weight_bytes / account.t_target / 1e9
        yield Row("weights read", f"{speed:.3g} GB/s", "each weight of the target once for an autoregressive token")
    for model in record.models:
        if model.kernels:
            yield Row(f"kernels, {model.role}", *model.kernels)


# ---- Counts ----------------------------------------------------------------------------------------------------------


def charts(counts: Counts | None) -> list[Chart]:
    """Return the accepted drafts by position, and by drafter if there are several; the target's calls by tokens. None
    of them if the speculative decoder has not run."""
    if not counts:
        return []
    place = "depth" if counts.tree else "position"
    both = zip(counts.accepted_by_position, counts.tested_by_position, strict=True)
    by_position = dict(enumerate(both, start=1))
    by_drafter = {label(name): n for name, n in counts.by_source.items()}
    calls = {name: (n, counts.iterations) for name, n in counts.tokens_per_iteration_histogram.items()}
    every = [chart(f"Accepted, by {place}", place, "accepted", by_position)]
    if len(by_drafter) > 1:
        every.append(chart("Accepted, by drafter", "drafter", "accepted", by_drafter))
    every.append(chart("Tokens for each call of the target", "tokens", "calls", calls))
    return [chart for chart in every if chart.rows]


def chart(caption: str, name: str, part: str, counts: dict) -> Chart:
    """Return a chart of {name: (part, whole)}."""
    rows = [(str(name), f"{n} of {whole}", percent(n / whole)) for name, (n, whole) in counts.items()]
    return Chart(caption, (name, part, "share"), rows)


# ---- Predictions -----------------------------------------------------------------------------------------------------


def grid(f: Figures | None) -> Grid | None:
    """Return the predictions; None if there are none."""
    if not f or not f.comparison or not f.predictions or not f.predictions.predicted:
        return None
    predicted, window_beta = f.predictions.predicted, f.predictions.window_beta
    rows = []
    for K in (*window_beta, "auto"):
        speedups = [of_drafter[K] for of_drafter in predicted.values()]
        rows.append([K, window_beta.get(K), *speedups])
    return Grid([*predicted], rows, best_setting(predicted), run=(f.usual_K, f.comparison.speedup))
