"""The words and tables of a score, which are the same on the screen, in Python and on the page."""

import math
from collections.abc import Iterator, Sequence
from statistics import pstdev

from speculative.report.advice import best_setting
from speculative.report.doubt import NOISE
from speculative.report.ending import what_runs
from speculative.report.record import ScoredModel, ScoreRecord
from speculative.report.tables import Row
from speculative.report.words import times

Table = list[Sequence[str]]  # the headings, then the rows


def headline(score: ScoreRecord) -> str:
    """Return how well the draft predicts the target here; without a draft, the target's perplexity."""
    draft = score.draft
    if draft and draft.alpha is not None:
        return f"α = {draft.alpha:.3f} on this text"
    return f"Perplexity {perplexity(score.target)} on this text"


def summary(score: ScoreRecord) -> list[str]:
    """Return the lines that a score prints. Those of tables are at most 80 columns wide."""
    lines = [*what_was_read(score), "", *aligned(models_table(score)), "", *about(score)]
    if score.draft and own_expected(score):
        lines += ["", f"Expected with --drafter {score.draft.drafter}:", *aligned(K_table(score))]
    if advised := advice(score):
        lines += ["", *advised]
    return lines


def what_was_read(score: ScoreRecord) -> list[str]:
    """Say what was scored, and by what."""
    n = len(score.tokens)
    line = f"{n - 1:,} tokens, each after all before it."
    if n > score.n_ctx:
        line = f"{n - 1:,} tokens, in excerpts of {score.n_ctx:,} that overlap by half."
    ran = what_runs(score.machine.engine_words, score.networks, score.options)
    return [f"{line} The first token has no score.", ran]


def perplexity(model: ScoredModel) -> str:
    if model.perplexity is None:
        return "infinite"
    return f"{model.perplexity:,.2f}" if model.perplexity < 1e6 else f"{model.perplexity:.3g}"


def name_of(model: ScoredModel) -> str:
    return model.role if model.role == model.size else f"{model.role} {model.size}"


def models_table(score: ScoreRecord) -> Table:
    """Return the figures of each model."""
    rows: Table = [("model", "weights", "nats a token", "perplexity", "α", "c")]
    for model in score.models:
        alpha = ""
        if model.alpha is not None:
            alpha = f"{model.alpha:.3f} ± {standard_error(model.chances):.3f}"
        c = decimals(model.c, 3)
        rows.append((name_of(model), model.dtype, nats(model), perplexity(model), alpha, c))
    return rows


def nats(model: ScoredModel) -> str:
    return "infinite" if model.nats is None else f"{model.nats:.4f}"


def decimals(number: float | None, n: int) -> str:
    """Return a number with n decimals, "" for None."""
    return "" if number is None else f"{number:.{n}f}"


def standard_error(numbers: Sequence[float]) -> float:
    """Return the standard error of the mean of these numbers, as if they did not depend on each other."""
    return pstdev(numbers) / math.sqrt(len(numbers))


def about(score: ScoreRecord) -> list[str]:
    """Say what the figures are."""
    lines = ["Nats and perplexity are the models' own: at temperature 1, without filters."]
    draft = score.draft
    if not draft:
        lines.append(f"--drafter {score.options.drafter} has no model that drafts, so there is no α.")
    elif draft.alpha is None:
        lines.append(f"The rule {score.rule.name} does not tell its chances, so there is no α.")
    else:
        T = f"--temperature {score.options.temperature:g}"
        lines.append(f"α, ± its standard error, is the mean of {score.rule.formula}, at {T}{greedy_words(score)}.")
        if score.options.accept != score.rule.name:
            often = "keeps at least as many drafts as this test of a single draft, often more."
            lines.append(f"--accept {score.options.accept} {often}")
    return lines


def greedy_words(score: ScoreRecord) -> str:
    """Say what the mean is if p and q are one-hot."""
    o = score.options
    is_greedy = o.temperature == 0 and o.draft_temperature in (None, 0)
    return ": the share of tokens for which both have the same likeliest one" if is_greedy else ""


def K_table(score: ScoreRecord) -> Table:
    """Return what the drafter of the target should bring for each K."""
    rows: Table = [("K", "tokens a call", "by α alone", "β", "times as fast")]
    for K, cell in own_expected(score).items():
        numbers = (cell.tokens_a_call, cell.leviathan_tokens, score.beta.get(K), cell.speedup)
        rows.append((K, *(decimals(number, 2) for number in numbers)))
    return rows


def own_expected(score: ScoreRecord) -> dict:
    """Return {K: Expected} of the model that drafts for the target; {} if there is none."""
    return score.expected.get(score.draft.drafter or "", {}) if score.draft else {}


def speedups(score: ScoreRecord) -> dict[str, dict[str, float]]:
    """Return {drafter: {K: the speedup to expect}}; {} if these are withheld."""
    if score.withheld:
        return {}
    return {
        name: {K: cell.speedup for K, cell in of_K.items() if cell.speedup} for name, of_K in score.expected.items()
    }


def advice(score: ScoreRecord) -> list[str]:
    """Say which setting should be the fastest on such a text."""
    if score.withheld:
        return [f"Speedups are not predicted: {score.withheld}."]
    if not score.expected:
        return []
    best = best_setting(speedups(score))
    if best.speedup < 1 + NOISE:
        tried = ", ".join(score.expected)
        return [f"Prediction: with {tried} no K would be clearly faster than no drafts on such a text."]
    o = score.options
    drafter = "" if best.drafter == o.drafter and not o.fast else f"--drafter {best.drafter} "
    return [f"Prediction: {drafter}--K {best.K} would be {best.speedup:.2f} times as fast on such a text."]


def grid_table(score: ScoreRecord) -> Table:
    """Return the speedups of every drafter for each K."""
    by_drafter = speedups(score)
    rows: Table = [("K", *(f"predicted, {name}" for name in by_drafter))]
    for K in next(iter(by_drafter.values()), {}):
        rows.append((K, *(times(of_K[K]) for of_K in by_drafter.values())))
    return rows


def tokens_table(score: ScoreRecord) -> Table:
    """Return each token with the logarithms of its probabilities, its chance, and the models' own likeliest tokens."""
    target, draft = score.target, score.draft
    models = [target, draft] if draft else [target]
    of_draft = ["log p", "α"] if draft else []
    bests = [f"likeliest, {model.role}" for model in models]
    rows: Table = [("#", "token", "log q", *of_draft, *bests)]
    for i, piece in enumerate(score.pieces[1:]):
        numbers = [log_prob(target, i)]
        if draft:
            chance = draft.chances[i] if draft.chances else None
            numbers += [log_prob(draft, i), decimals(chance, 2)]
        names = [score.names[model.likeliest[i]] for model in models]
        rows.append((str(i + 1), repr(piece), *numbers, *map(repr, names)))
    return rows


def log_prob(model: ScoredModel, i: int) -> str:
    number = model.log_probs[i]
    return "-inf" if number is None else f"{number:.3f}"


def figure_rows(score: ScoreRecord) -> list[Row]:
    """Return each figure with its formula."""
    rows = []
    for model in score.models:
        letter = "q" if model is score.target else "p"
        name = name_of(model)
        rows.append(Row(f"nats a token, {name}", nats(model), f"mean of -log {letter}, at temperature 1"))
        rows.append(Row(f"perplexity, {name}", perplexity(model), "e to the power of these nats"))
        if model.alpha is not None:
            rows.append(Row(f"α, {name}", f"{model.alpha:.3f}", f"mean of {score.rule.formula}"))
        if model.c is not None:
            rows.append(Row(f"c, {name}", f"{model.c:.3f}", "t_draft / t_target"))
    for K, cell in own_expected(score).items():
        formula = "the text, cut into windows"
        if cell.leviathan_tokens is not None:
            formula += f"; by α alone (1 - α^(K + 1)) / (1 - α) = {cell.leviathan_tokens:.2f}"
        rows.append(Row(f"tokens a call, K = {K}", f"{cell.tokens_a_call:.2f}", formula))
    return rows


def without_empty_columns(table: Table) -> Table:
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    return [*zip(*columns, strict=True)]


def aligned(table: Table) -> Iterator[str]:
    """Yield the lines of a table, without empty columns: the first column to the left, the others to the right."""
    lines = without_empty_columns(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
        cells[0] = line[0].ljust(widths[0])
        yield "  ".join(cells).rstrip()
