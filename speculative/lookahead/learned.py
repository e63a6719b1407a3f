"""All that --K auto has learned: about each of its drafters, and about the costs of windows and tokens.

Decodes in several threads may share it. Tuples and arrays are replaced, not changed in place; an update of a number
that another thread overwrites does no harm.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from speculative.engines.model import Call
from speculative.lookahead.costs import Recent, WindowCosts, time_windows

K_MAX = 32  # the most drafts in a window: about twice the longest that is timed
WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode
N_SHORT = 3  # beside other texts only the first N_SHORT of WINDOW_ROWS are timed: longer windows cost too much there
N_DRAFTS_TIMED = 5  # times that a draft token is timed before a decode: the first two take much longer than the others

# Constants of Acceptance.
DECAY = 0.95  # factor on all older evidence at each proposal: about the last 20 count
SCALES = 2.0 ** np.arange(-4, 5)[:, None]  # [n_scales, 1], as multiples of the s that is expected
G_VALUES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.995])  # [n_g], the values of g
PRIOR_DRAFTS = 24  # accepted drafts that count before the first one: g is expected to be large


def now() -> float:
    return time.perf_counter()


class DrafterStats:
    """All that is learned about a drafter."""

    def __init__(self, scale: float):
        """scale: how far its margins are usually off, as expected."""
        self.scale = scale
        self.acceptance = Acceptance(scale)
        self.draft_seconds = Recent()  # seconds of a draft token
        self.seconds_unasked = 0.0  # the target's seconds since the drafter was last asked and not passed over


class Attempt(NamedTuple):
    """The drafts of a drafter in the last step, if it was asked."""

    margins: Sequence[float]  # the margins of its drafts
    seconds: float


class Learned:
    """The times before a decode, and the experience of its steps. learn_costs comes before the first decode."""

    def __init__(self, scales: Sequence[float], clock: Callable = now, is_alone: bool = True):
        """scales: how far the margins of each drafter are usually off. is_alone: whether no other texts share the
        calls."""
        self.clock = clock
        self.is_alone = is_alone
        self.stats = [DrafterStats(scale) for scale in scales]
        self.window_costs = WindowCosts({1: 0.0})
        self.recent_seconds = 0.0  # seconds of the steps so far, older ones discounted
        self.recent_tokens = 0.0  # the same of their tokens; 0 until the costs are measured

    @property
    def is_measured(self) -> bool:
        return self.recent_tokens > 0

    def learn_costs(self, time_window: Callable, timers: Sequence, most_rows: int) -> None:
        """Measure the costs to set out from: medians, as a call may be interrupted.

        time_window(rows): the seconds of a call of the target now. timers: for each drafter a function without
        parameters, the seconds of a draft token now. most_rows: the most rows that a window can have.
        """
        for stats, timer in zip(self.stats, timers, strict=True):
            times = [timer() for _ in range(N_DRAFTS_TIMED)]
            stats.draft_seconds.add(median(times))
        sizes = WINDOW_ROWS if self.is_alone else WINDOW_ROWS[:N_SHORT]
        possible = [rows for rows in sizes if rows <= most_rows]
        self.window_costs = WindowCosts(time_windows(time_window, possible))
        # Begin as if two tokens had been decoded at the best K.
        best = min(map(self.expected_seconds, range(K_MAX)))
        self.recent_seconds = 2 * best
        self.recent_tokens = 2.0

    @property
    def token_seconds(self) -> float:
        """The seconds that a token takes at present."""
        return self.recent_seconds / self.recent_tokens

    def expected_seconds(self, K: int) -> float:
        """The seconds of a token if the last drafter always gives K drafts, which are accepted as often as expected."""
        last = self.stats[-1]
        n_expected = sum(last.acceptance.rate**i for i in range(K + 1))
        return (K * last.draft_seconds.usual + self.window_costs.seconds(K + 1)) / n_expected

    def learn(self, attempts: Mapping[DrafterStats, Attempt], n_accepted: int, call: Call) -> None:
        """Learn from a step. attempts: of its drafters. call: the target's, as it was logged."""
        for stats in self.stats:
            stats.seconds_unasked += call.seconds
        for stats, (margins, _) in attempts.items():
            stats.seconds_unasked = 0.0
            if margins:
                stats.acceptance.learn(margins, n_accepted)
        if not call.prefill:  # a step that reads the prompt tells nothing of the times of others
            self.learn_times(attempts, n_accepted, call)

    def learn_times(self, attempts: Mapping[DrafterStats, Attempt], n_accepted: int, call: Call) -> None:
        """Learn the seconds of a token and of a draft."""
        self.window_costs.learn(call)
        self.recent_seconds = DECAY * self.recent_seconds + call.seconds
        self.recent_tokens = DECAY * self.recent_tokens + n_accepted + 1
        for stats, attempt in attempts.items():
            n_drafts = len(attempt.margins)
            usual = stats.draft_seconds.usual
            self.recent_seconds += n_drafts * usual  # if one draft was interrupted, tokens are not dearer from now on
            stats.draft_seconds.add(attempt.seconds / max(1, n_drafts))


# ---- The chance that a draft is accepted, by its margin --------------------------------------------------------------


class Acceptance:
    """The chance that a draft is accepted, learned from earlier drafts with a similar margin.

    A draft's margin m tells how much the drafter prefers it to its second choice. Assume that the target's own margin
    is m plus Laplace noise of scale s. Then the target prefers this token too with chance 1 - exp(-m/s)/2. Of the
    drafts that it prefers, it accepts a share g:

        chance(m) = g (1 - exp(-m/s)/2)

    s and g are unknown. Each pair of them on a grid has a weight, its likelihood for the drafts so far, of which older
    ones count less.
    """

    def __init__(self, scale: float):
        """scale: the s that is expected, within a factor of 8."""
        self.scales = scale * SCALES  # [n_scales, 1]
        distance = np.log2(SCALES) / 3  # [n_scales, 1], of s from the one that is expected
        self.log_prior = PRIOR_DRAFTS * np.log(G_VALUES) - distance**2  # [n_scales, n_g], log weights
        self.weigh(self.log_prior)
        self.n_tested = 3.0  # discounted, as if three drafts with a margin of two scales had been tested
        self.n_accepted = 3.0 * self.chance(2 * scale)

    @property
    def rate(self) -> float:
        """The rate at which drafts are accepted: the chance of a draft whose margin is not known yet."""
        return self.n_accepted / self.n_tested

    def preferred(self, margin: float) -> np.ndarray:  # -> [n_scales, 1]
        """The chance that the target prefers such a draft too, for each s."""
        return 1 - np.exp(-margin / self.scales) / 2

    def chance(self, margin: float) -> float:
        """The chance that a draft with this margin is accepted: the mean over the grid."""
        preferred = self.preferred(margin)[:, 0]  # [n_scales]
        return float(preferred @ self.weighted_g)

    def weigh(self, evidence: np.ndarray) -> None:  # [n_scales, n_g], log weights
        weights = np.exp(evidence - np.max(evidence))  # [n_scales, n_g]
        self.evidence = evidence
        self.weighted_g = weights @ G_VALUES / np.sum(weights)  # [n_scales], Σ g · weight: together the mean of g

    def learn(self, margins: Sequence[float], n_accepted: int) -> None:
        """Count the drafts of a proposal that were tested: those that were accepted, and the next if there is any."""
        tested = margins[: n_accepted + 1]
        evidence = DECAY * self.evidence + (1 - DECAY) * self.log_prior  # [n_scales, n_g]
        for i, margin in enumerate(tested):
            chances = G_VALUES * self.preferred(margin)  # [n_scales, n_g]
            likelihood = chances if i < n_accepted else 1 - chances
            evidence += np.log(likelihood)
        self.weigh(evidence)
        self.n_tested = DECAY * self.n_tested + len(tested)
        self.n_accepted = DECAY * self.n_accepted + n_accepted
