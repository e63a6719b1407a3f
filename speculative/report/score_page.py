"""A score as one page: the text with the tokens that the draft would lose, the figures, and the speedup to expect."""

from collections import Counter
from dataclasses import replace

from speculative.report import score_words as words
from speculative.report import tables
from speculative.report.advice import best_setting
from speculative.report.close_up import VISIBLE
from speculative.report.page import WEB, command, every_option, fill
from speculative.report.record import ScoredModel, ScoreRecord
from speculative.report.words import functions_used

STYLES = [WEB / "page.css", WEB / "score.css"]
SCRIPTS = [WEB / f"{name}.js" for name in ("elements", "score", "grid")]
MOST_TOKENS = 3000  # tokens of a text that the page shows
MOST_NATS = 10.0  # nats from which a surprise has the darkest colour
BANDS = 10  # bands of the chances of acceptance in the chart


def score_page(score: ScoreRecord) -> str:
    """Return the page of a score, as HTML."""
    data = page_data(score)
    return fill(WEB / "score.html", STYLES, SCRIPTS, data, f"{data['headline']}: speculative sampling")


def page_data(score: ScoreRecord) -> dict:
    """Return all that the page draws, as plain numbers and strings."""
    o = score.options
    n = len(score.tokens)
    n_shown = min(n, MOST_TOKENS)
    columns, *rows = words.without_empty_columns(words.models_table(score))
    ids = score.tokens[:n_shown]
    likeliest = {token for model in score.models for token in model.likeliest[: n_shown - 1]}
    return {
        "headline": words.headline(score),
        "lines": words.what_was_read(score),
        "command": command(replace(o, score=o.score or "FILE"), functions_used(score.networks, o), prompt=None),
        "options": every_option(o, score.machine),
        "models": [columns, rows],
        "tokens": score.pieces[:n_shown],
        "shown": f"The first {n_shown:,} of {n:,} tokens." if n_shown < n else "",
        "ids": ids,
        "names": {str(token): score.names[token].translate(VISIBLE) for token in {*ids, *likeliest}},
        "layers": [*loss_layers(score, n_shown - 1), *surprise_layers(score, n_shown - 1)],
        "opening": opening(score, n_shown - 1),
        "columns": ["model", "chance", "nats", "its likeliest", "α"],
        "scores": [scores_of(model, n_shown - 1) for model in score.models],
        "reasons": words.about(score),
        "charts": [chances_chart(score.draft)] if score.draft and {*score.draft.chances} - {0.0, 1.0} else [],
        "table": words.figure_rows(score),
        "advice": " ".join(words.advice(score)),
        "grid": grid(score),
    }


# ---- The text --------------------------------------------------------------------------------------------------------


def loss_layers(score: ScoreRecord, n: int) -> list[dict]:
    """Return the colours of the first n scored tokens by what each draft would lose."""
    return [
        {
            "name": f"by what {words.name_of(model)} would lose",
            "low": "kept",
            "high": "lost",
            "marked": "lost more often than not",
            "shares": [round(1 - chance, 3) for chance in model.chances[:n]],
        }
        for model in score.models
        if model.chances
    ]


def surprise_layers(score: ScoreRecord, n: int) -> list[dict]:
    """Return the colours of the first n scored tokens by how little each model expects them."""
    return [
        {
            "name": f"by the surprise of {words.name_of(model)}",
            "low": "0 nats",
            "high": f"{MOST_NATS:.0f} nats or more",
            "marked": f"more than {MOST_NATS / 2:.0f} nats",
            "shares": [1 if log is None else round(min(1.0, -log / MOST_NATS), 3) for log in model.log_probs[:n]],
        }
        for model in score.models
    ]


def opening(score: ScoreRecord, n: int) -> int:
    """Return the number of the token to show first, from 0: the one that the draft loses the most."""
    if not score.draft or not score.draft.chances:
        return 1
    chances = score.draft.chances[:n]
    return 1 + chances.index(min(chances))


def scores_of(model: ScoredModel, n: int) -> dict:
    """Return what a model gives to the first n scored tokens."""
    return {
        "model": words.name_of(model),
        "log_probs": [log if log is None else round(log, 4) for log in model.log_probs[:n]],
        "likeliest": model.likeliest[:n],
        "chances": [round(chance, 4) for chance in model.chances[:n]],
    }


# ---- The figures -----------------------------------------------------------------------------------------------------


def chances_chart(draft: ScoredModel) -> tables.Chart:
    """Return how many tokens have which chance of acceptance."""
    n = len(draft.chances)
    bands = Counter(min(BANDS - 1, int(BANDS * chance)) for chance in draft.chances)
    rows = {f"{band / BANDS:.1f}": (bands[band], n) for band in range(BANDS)}
    return tables.chart("Tokens by their α", "α from", "tokens", rows)


def grid(score: ScoreRecord) -> dict | None:
    """Return the speedups by K and drafter, as the page of a run has them; None if there are none."""
    speedups = words.speedups(score)
    if not speedups:
        return None
    rows = []
    Ks = [*next(iter(speedups.values()))]
    for K in Ks:
        of_drafters = [of_K[K] for of_K in speedups.values()]
        rows.append([K, score.beta.get(K), *of_drafters])
    best = best_setting(speedups)
    names = [*speedups]
    made = tables.Grid(names, rows, best, run=(0, 0.0))  # none was run
    return made._asdict()
