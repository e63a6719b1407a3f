"""Predictions of other lookaheads and drafters, from one run and the measurements after it (measuring.py).

The decoded tokens are known, so they are decoded once more for each setting (simulate.py). At each place the run tells
the chance that the draft model's token is accepted there, or the draft model was asked. (Why min(1, p / q), not
q / p: the text is fixed here. Given that a token came out, the chance that it was the draft and was accepted is
min(p, q) / q. Its mean over texts is Σ min(p, q).)
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from speculative.costs import ByRows, line_through
from speculative.drafters.base import DrafterSpec
from speculative.measure.measuring import Measured
from speculative.measure.record import DecoderRecord, Predictions
from speculative.measure.simulate import KnownText, Prices, Simulation

LOOKAHEADS = (1, 2, 4, 8, 16, 32)  # that are predicted, beside the run's own and auto
MIN_CALLS = 3  # calls of the run, whose mean counts as the time of a window of this size
SIMULATIONS = 4  # decodes of a setting if drafts are accepted by chance: their mean depends little on it
SIMULATED_TOKENS = 800  # tokens of all these decodes, if the text is long


class Conditions(NamedTuple):
    """What all predictions are computed from."""

    texts: Sequence[KnownText]
    prices: Prices
    N: int  # tokens of the run
    autoregressive: float  # seconds of N tokens
    prefill: float  # seconds of the speculative run
    loop_seconds: float  # for a second of calls

    def speedup(self, specs: Sequence[DrafterSpec], K: int | str) -> float:
        """Return the speedup of a drafter with a K, which may be "auto": from the means over several draws of the
        chances."""
        n_draws = self.draws_of(specs)
        seconds = 0.0  # of all calls
        n_calls = 0  # of the target
        for text in self.texts:
            for draw in range(n_draws):
                took, calls = Simulation(text, self.prices, shift=draw / n_draws).decode(specs, K)
                seconds += took / n_draws
                n_calls += calls
        most = self.N * n_draws / n_calls  # tokens of a call
        return min(most, self.autoregressive / (self.prefill + self.loop_seconds * seconds))

    def draws_of(self, specs: Sequence[DrafterSpec]) -> int:
        """Return the number of decodes that a setting needs: several if chance decides about a draft."""
        chances = [chance for text in self.texts for chance in text.chances]
        if all(spec.by_text for spec in specs) or not any(0 < chance < 1 for chance in chances):
            return 1
        return max(1, min(SIMULATIONS, SIMULATED_TOKENS // len(chances)))


def predict(
    autoregressive: DecoderRecord, speculative: DecoderRecord, prefill: float, costs: ByRows, measured: Measured
) -> Predictions:
    """Predict the speedup of each drafter: for "auto", and for each of the lookaheads() up to the longest window that
    was timed. The Ks are texts, as in JSON.

    prefill: its seconds in the speculative run. costs: {rows: seconds of a call of the target}, of one row and of those
    of the run.
    """
    steps = speculative.iterations
    n_calls = Counter(step.drafted + 1 for step in steps if not step.prefill)  # {rows: calls of the run}
    in_run = {rows: seconds for rows, seconds in costs.items() if n_calls[rows] >= MIN_CALLS or rows == 1}
    by_rows = in_run | in_the_loop(measured.timed, in_run)
    Ks = lookaheads(n_calls, max(by_rows))
    if not Ks:
        return Predictions({}, {})

    # The run's calls, at the prices of the predictions: what the run took beyond these was spent between its calls.
    window = line_through(by_rows)
    in_calls = sum(step.drafting + window(step.drafted + 1) for step in steps)
    N = speculative.n_tokens
    conditions = Conditions(
        texts=measured.texts,
        prices=Prices(window, measured.draft_seconds, measured.by_text_seconds),
        N=N,
        autoregressive=N * autoregressive.seconds / autoregressive.n_tokens,
        prefill=prefill,
        loop_seconds=(speculative.seconds - prefill) / in_calls,
    )
    settings: list[int | str] = [*Ks, "auto"]
    predicted = {}
    for name, specs in measured.drafters.items():
        predicted[name] = {str(K): conditions.speedup(specs, K) for K in settings}
    return Predictions(predicted, window_beta={str(K): window(K + 1) / in_run[1] for K in Ks})


def lookaheads(n_calls: Counter, most_rows: int) -> list[int]:
    """Return the Ks that are predicted: LOOKAHEADS and the run's most frequent K, if their windows have no more
    rows."""
    usual_K = max(n_calls, key=n_calls.__getitem__, default=1) - 1
    return sorted(K for K in {*LOOKAHEADS, usual_K} if 0 < K < most_rows)


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
