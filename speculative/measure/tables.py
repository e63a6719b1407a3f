"""The tables of --verbose and of the page: every figure with its formula, counts, and predictions."""

from collections.abc import Iterator
from typing import NamedTuple

from speculative.measure.advice import Setting, best_setting
from speculative.measure.record import Account, Comparison, Counts, Figures, Level, RunRecord
from speculative.measure.rule_words import RULE_WORDS
from speculative.measure.words import duration, label, percent, times


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
        rows += cost_rows(f.account, f.times.t_draft)
        rows += formula_rows(f.comparison, f.account)
    for level in f.counts.levels:
        rows.append(level_row(level))
    return rows


def count_rows(counts: Counts, chance: str) -> Iterator[Row]:
    """Yield the rows of what was accepted. chance: the rule's formula for the acceptance of a draft."""
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


def cost_rows(account: Account, t_draft: float) -> Iterator[Row]:
    """Yield the rows of the costs, relative to a row of the target."""
    costs = f"{duration(t_draft)} / {duration(account.t_target)}"
    windows = []
    for n_rows, beta in account.beta.items():
        if n_rows != "1":
            windows.append(f"{n_rows} rows: {beta:.2f}")
    yield Row("c", f"{account.c:.3f}", f"t_draft / t_target = {costs}")
    yield Row("β", f"{account.mean_beta:.2f}", f"t_target of a window / of one row; {'  '.join(windows)}")


def formula_rows(comparison: Comparison, account: Account) -> Iterator[Row]:
    """Yield the rows of the formulas beside the measured speedup."""
    measured = times(comparison.speedup_without_prefill)
    yield Row("measured", measured, "without the prefill, to compare with the formulas")
    yield Row("the blog's formula", times(account.blog_speedup), "r(K + 1) / (Kc + 1)")
    yield Row("the formula with β", times(account.account_blog), "r(K + 1) / (Kc + β)")
    if account.account_leviathan is not None:
        formula = "(1 - α^(K + 1)) / ((1 - α)(Kc + β))"
        yield Row("Leviathan's, with β", times(account.account_leviathan), formula)


def level_row(level: Level) -> Row:
    return Row(
        name=f"level: {label(level.name)}",
        value=f"r {level.r:.2f}, {level.tokens_per_iteration:.1f} tokens a call",
        formula=f"{level.accepted} of {level.drafted} drafts accepted",
    )


def machine_rows(record: RunRecord) -> Iterator[Row]:
    """Yield how the engine used this machine."""
    if record.machine.peak_bytes:
        peak = record.machine.peak_bytes / 1e9
        weights = sum(model.weight_bytes for model in record.models) / 1e9
        yield Row("peak memory", f"{peak:.2f} GB", f"of which {weights:.2f} GB are weights")
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
    rows = []
    for position, tested in enumerate(counts.tested_by_position, start=1):
        accepted = counts.accepted_by_position[position - 1]
        rows.append(part_of(str(position), accepted, tested))
    return Chart(f"Accepted, by {place}", (place, "accepted", "share"), rows)


def sources(counts: Counts) -> Chart:
    rows = []
    if len(counts.by_source) > 1:
        for name, (accepted, tested) in counts.by_source.items():
            rows.append(part_of(label(name), accepted, tested))
    return Chart("Accepted, by drafter", ("drafter", "accepted", "share"), rows)


def calls(counts: Counts) -> Chart:
    rows = []
    for tokens, n_calls in counts.tokens_per_iteration_histogram.items():
        rows.append(part_of(tokens, n_calls, counts.iterations))
    return Chart("Tokens for each call of the target", ("tokens", "calls", "share"), rows)


def part_of(name: str, part: int, whole: int) -> tuple[str, str, str]:
    share = percent(part / whole)
    return name, f"{part} of {whole}", share


# ---- Predictions -----------------------------------------------------------------------------------------------------


def grid(f: Figures) -> Grid | None:
    """Return the predictions; None if there are none."""
    if not f.predictions or not f.predictions.predicted:
        return None
    predicted = f.predictions.predicted
    rows = []
    for K in (*f.predictions.window_beta, "auto"):
        beta = f.predictions.window_beta.get(K)
        speedups = [of_drafter[K] for of_drafter in predicted.values()]
        rows.append([K, beta, *speedups])
    return Grid(
        drafters=[*predicted],
        rows=rows,
        best=best_setting(predicted),
        run=(f.counts.usual_K, f.speedup),
    )
