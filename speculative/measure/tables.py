"""The tables of --verbose and of the page: every figure with its formula, counts, and predictions."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from speculative.measure.advice import Setting, best_setting
from speculative.measure.record import Account, Comparison, Counts, Figures, Level, RunRecord
from speculative.measure.words import duration, label, percent


class Row(NamedTuple):
    """A figure."""

    name: str
    value: str
    formula: str


class Chart(NamedTuple):
    """A table of counts. columns: its headings. rows: (name, "part of whole", the same in percent)."""

    caption: str
    columns: tuple[str, str, str]
    rows: list[tuple[str, str, str]]


class Grid(NamedTuple):
    """The predictions by K and drafter."""

    drafters: list[str]
    rows: list[list]  # [K, β, the speedup with each drafter]; the last is that of "auto", without β
    best: Setting
    run: tuple[int, float]  # K, and the measured speedup


# ---- Figures ---------------------------------------------------------------------------------------------------------


def figure_rows(record: RunRecord) -> list[Row]:
    """Return a row for each figure that was measured."""
    f = record.figures
    rows = [*count_rows(f.counts, record.rule.formula)]
    if f.account:
        rows += account_rows(f.comparison, f.account, f.times.t_draft)
    return [*rows, *map(level_row, f.counts.levels)]


def count_rows(counts: Counts, chance: str) -> Iterator[Row]:
    """Yield the rows of what was accepted. chance: the rule's formula for the acceptance of a draft."""
    yield Row("r", f"{counts.r:.3f}", "tokens / Σ over iterations of (drafted + 1)")
    yield Row("tokens per iteration", f"{counts.tokens_per_iteration:.2f}", "tokens / iterations")
    if counts.accepted_share is not None:
        yield Row("accepted", f"{counts.accepted_share:.3f}", "accepted / drafted, untested drafts too")
    if counts.alpha is not None:
        chance = "the chance that one of the siblings is accepted" if counts.tree else chance
        yield Row("α", f"{counts.alpha:.3f}", f"mean of {chance}, of the tested drafts")


def account_rows(comparison: Comparison, account: Account, t_draft: float) -> Iterator[Row]:
    """Yield the rows of the costs, and of the formulas beside the measured speedup."""
    costs = f"t_draft / t_target = {duration(t_draft)} / {duration(account.t_target)}"
    windows = "  ".join(f"{rows} rows: {beta:.2f}" for rows, beta in account.beta.items() if rows != "1")
    measured = comparison.speedup_without_prefill
    yield Row("c", f"{account.c:.3f}", costs)
    yield Row("β", f"{account.mean_beta:.2f}", f"t_target of a window / of one row; {windows}")
    yield Row("measured", f"{measured:.2f}x", "without the prefill, to compare with the formulas")
    yield Row("the blog's formula", f"{account.blog_speedup:.2f}x", "r(K + 1) / (Kc + 1)")
    yield Row("the formula with β", f"{account.account_blog:.2f}x", "r(K + 1) / (Kc + β)")
    if account.account_leviathan is not None:
        formula = "(1 - α^(K + 1)) / ((1 - α)(Kc + β))"
        yield Row("Leviathan's, with β", f"{account.account_leviathan:.2f}x", formula)


def level_row(level: Level) -> Row:
    rates = f"r {level.r:.2f}, {level.tokens_per_iteration:.1f} tokens a call"
    return Row(f"level: {label(level.name)}", rates, f"{level.accepted} of {level.drafted} drafts accepted")


def machine_rows(record: RunRecord) -> Iterator[Row]:
    """Yield how the engine used this machine."""
    if record.machine.peak_bytes:
        weights = sum(model.weight_bytes for model in record.models)
        peak = f"{record.machine.peak_bytes / 1e9:.2f} GB"
        yield Row("peak memory", peak, f"of which {weights / 1e9:.2f} GB are weights")
    for model in record.models:
        if model.kernels:
            yield Row(f"kernels, {model.role}", *model.kernels)


# ---- Counts ----------------------------------------------------------------------------------------------------------


def charts(counts: Counts) -> list[Chart]:
    """Return the accepted drafts by position, and by drafter if there are several; the target's calls by tokens."""
    every = [positions(counts), sources(counts), calls(counts)]
    return [chart for chart in every if chart.rows]


def positions(counts: Counts) -> Chart:
    place = "depth" if counts.tree else "position"
    both = zip(counts.accepted_by_position, counts.tested_by_position, strict=True)
    rows = [part_of(str(position), *of) for position, of in enumerate(both, start=1)]
    return Chart(f"Accepted, by {place}", (place, "accepted", "share"), rows)


def sources(counts: Counts) -> Chart:
    rows = [part_of(label(name), *both) for name, both in counts.by_source.items()]
    return Chart("Accepted, by drafter", ("drafter", "accepted", "share"), rows if len(rows) > 1 else [])


def calls(counts: Counts) -> Chart:
    histogram = counts.tokens_per_iteration_histogram
    rows = [part_of(tokens, n, counts.iterations) for tokens, n in histogram.items()]
    return Chart("Tokens for each call of the target", ("tokens", "calls", "share"), rows)


def part_of(name: str, part: int, whole: int) -> tuple[str, str, str]:
    return name, f"{part} of {whole}", percent(part / whole)


# ---- Predictions -----------------------------------------------------------------------------------------------------


def grid(f: Figures) -> Grid | None:
    """Return the predictions; None if there are none."""
    if not f.predictions or not f.predictions.predicted:
        return None
    predicted = f.predictions.predicted
    window_beta: dict[str, Any] = {**f.predictions.window_beta, "auto": None}
    rows = []
    for K, beta in window_beta.items():
        rows.append([K, beta, *(speedups[K] for speedups in predicted.values())])
    return Grid([*predicted], rows, best_setting(predicted), (f.counts.usual_K, f.speedup))
