"""Predictions of other Ks and drafters, from one run and the measurements after it (measuring.py).

The decoded tokens are known, so they are decoded once more for each setting (simulate.py). At each position the run
tells the chance that the draft model's token is accepted there, or the draft model was asked.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from speculative.drafters.base import Drafter
from speculative.lookahead.costs import ByRows, line_through
from speculative.report.record import Account, Comparison, Figures, Predictions
from speculative.report.simulate import KnownText, Prices, Simulation
from speculative.run.steps import TextStep

KS = (1, 2, 4, 8, 16, 32)  # Ks to predict, beside the run's own and auto
MIN_CALLS = 3  # calls of the run, whose mean counts as the time of a window of this size
SIMULATIONS = 4  # decodes of a setting if drafts are accepted by chance: their mean depends little on it
SIMULATED_TOKENS = 800  # tokens of all these decodes, if the text is long


class Measured(NamedTuple):
    """The times that predictions need beside the run."""

    drafters: dict[str, list[Drafter]]  # drafters to predict, by name; a+b has two
    texts: Sequence[KnownText]
    timed: ByRows  # {rows: seconds of a call of the target, or of a part of it}
    by_text_seconds: float  # seconds of a proposal of a drafter without a model
    draft_seconds: float  # seconds of a token of the draft model


def predict(
    f: Figures,
    comparison: Comparison,
    account: Account,
    steps: Sequence[TextStep],
    in_run: ByRows,
    measured: Measured,
) -> Predictions:
    """Predict the speedup of each drafter: for "auto", and for each of Ks_to_predict() up to the longest window that
    was timed. The Ks are texts, as in JSON.

    f, comparison, account: of the run. steps: of its speculative decoder. in_run: {rows: seconds of a call of the
    target} in these.
    """
    n_calls = Counter(step.drafted + 1 for step in steps if not step.prefill)  # {rows: calls of the run}
    by_rows = costs_of_windows(account.t_target, in_run, n_calls, measured.timed)
    Ks = Ks_to_predict(n_calls, max(by_rows))
    if not Ks:
        return Predictions({}, {})
    prices = Prices(line_through(by_rows), measured.draft_seconds, measured.by_text_seconds)
    prefill = f.seconds.prefill
    # Seconds of the run for a second in its calls.
    overhead = (f.seconds.speculative - prefill) / seconds_in_calls(steps, prices)
    autoregressive_seconds = comparison.speedup * f.seconds.speculative  # seconds of as many tokens
    settings: list[int | str] = [*Ks, "auto"]
    predicted: dict = {}
    for name, specs in measured.drafters.items():
        predicted[name] = {}
        for K in settings:
            seconds, calls = mean_decode(measured.texts, prices, specs, K)
            speedup = autoregressive_seconds / (prefill + overhead * seconds)
            predicted[name][str(K)] = min(speedup, f.tokens / calls)  # a call of the target costs a token at least
    return Predictions(predicted, window_beta={str(K): prices.window(K + 1) / account.t_target for K in Ks})


def costs_of_windows(t_target: float, in_run: ByRows, n_calls: Counter, timed: ByRows) -> ByRows:
    """Return {rows: seconds of a window}: of the run, if it made MIN_CALLS such calls, and else as timed."""
    often = {rows: seconds for rows, seconds in in_run.items() if n_calls[rows] >= MIN_CALLS}
    often[1] = t_target
    return often | in_the_loop(timed, often)


def seconds_in_calls(steps: Sequence[TextStep], prices: Prices) -> float:
    """Return the seconds of the run's calls, without reading the prompt: the run's time beyond these was spent
    between its calls."""
    seconds = 0.0
    for step in steps:
        seconds += step.drafted * prices.draft if step.draft_prefill else step.drafting
        seconds += prices.window(step.drafted + 1)
    return seconds


def mean_decode(texts: Sequence[KnownText], prices: Prices, specs: Sequence[Drafter], K: int | str) -> tuple:
    """Decode these texts with a drafter and a K, which may be "auto" -> seconds of all calls, calls of the target. If
    chance decides about drafts, they are means over several decodes."""
    chances = [chance for text in texts for chance in text.chances]
    n_draws = 1
    if not all(spec.by_text for spec in specs) and any(0 < chance < 1 for chance in chances):
        n_draws = max(1, min(SIMULATIONS, SIMULATED_TOKENS // len(chances)))
    seconds = 0.0
    n_calls = 0
    for number, text in enumerate(texts):
        for draw in range(n_draws):
            shift = (draw + number / len(texts)) / n_draws  # each text has its own numbers
            seconds_of_text, calls = Simulation(text, prices, shift).decode(specs, K)
            seconds += seconds_of_text
            n_calls += calls
    return seconds / n_draws, n_calls / n_draws


def Ks_to_predict(n_calls: Counter, most_rows: int) -> list[int]:
    """Return KS and the run's most frequent K, without those whose windows have more rows than most_rows."""
    most_frequent_K = max(n_calls, key=n_calls.__getitem__, default=1) - 1
    return sorted(K for K in {*KS, most_frequent_K} if 0 < K < most_rows)


def in_the_loop(timed: ByRows, in_run: ByRows) -> ByRows:
    """Return {rows: seconds of a window in the loop} of the sizes that the run lacks; {} if no size was timed in both.

    timed: {rows: seconds of a window alone}, which is faster than in the loop. in_run: {rows: seconds in the loop}.
    """
    both = in_run.keys() & timed.keys()
    alone = sum(timed[rows] for rows in both)
    if not alone:
        return {}
    factor = sum(in_run[rows] for rows in both) / alone
    others = {}
    for rows in timed.keys() - in_run.keys():  # kept between the run's times for fewer and for more rows
        shorter = [in_run[n] for n in in_run if n < rows]
        longer = [in_run[n] for n in in_run if n > rows]
        at_least = max([factor * timed[rows], *shorter])
        others[rows] = min([at_least, *longer])
    return others
