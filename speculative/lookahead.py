"""K, and the K that chooses itself: what is learned about drafters and costs, and kept for the next decode.

A draft is of use if it is accepted and all drafts before it are. One more draft pays if the chance of that, times the
seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If not
even the first one pays, the target decodes alone. auto_drafter.py decides this after each draft, by what AutoK has
learned: the chance at each margin (acceptance.py), and the costs of drafts and windows (costs.py).

Decodes in several threads may share an AutoK. Tuples and arrays are replaced, not changed in place; an update of a
number that another thread overwrites does no harm.

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each place instead of one α for all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from speculative.acceptance import DECAY
from speculative.auto_drafter import Asked, AutoDrafter, DrafterRecord
from speculative.costs import WindowCosts
from speculative.drafters import first_of

WINDOW_ROWS = (1, 2, 5, 9, 17)  # rows of the windows that are timed before a decode
N_SHORT = 3  # beside other texts only the first N_SHORT of WINDOW_ROWS are timed: longer windows cost too much there
N_DRAFTS_TIMED = 5  # times that a draft token is timed before a decode: the first two take much longer than the others


class Lookahead(Protocol):
    """What decides how many drafts a window has."""

    @property
    def K_max(self) -> int:
        """The most drafts in a window."""

    def drafter_of(self, drafts: Sequence, model: Any) -> Callable:
        """The drafter draft(x, k) for one decode, of these drafters and their target."""


@dataclass(frozen=True)
class FixedK:
    """A K that is a number."""

    K_max: int

    def drafter_of(self, drafts: Sequence, model: Any) -> Callable:
        """The first of these drafters that proposes anything."""
        return first_of(drafts)


class AutoK:
    """A K that is chosen by costs, for the drafters of a+b and their target; it is kept for the next decode."""

    K_max = 32  # about twice the longest window that is timed

    def __init__(self, scales: Sequence[float], clock: Callable = lambda: time.perf_counter(), is_alone: bool = True):
        """scales: the expected scale of each drafter's acceptance. clock: of this module at each call, unless it is
        another one, as of a simulation. is_alone: whether no other texts share the calls."""
        self.clock = clock
        self.is_alone = is_alone
        self.records = [DrafterRecord(scale) for scale in scales]
        self.window_costs = WindowCosts()
        self.recent_seconds = 0.0  # of the steps so far, older ones discounted
        self.recent_tokens = 0.0  # the same of their tokens

    @property
    def is_measured(self) -> bool:
        return self.window_costs.seconds_before is not None

    def measure(self, time_window: Callable, timers: Sequence, most_rows: int) -> None:
        """Measure costs to set out from: medians, as a call may be interrupted. time_window(rows): the seconds of a
        call of the target now. timers: for each drafter, timer(): the seconds of a draft token now. most_rows: that a
        window can have."""
        for record, timer in zip(self.records, timers, strict=True):
            times = [timer() for _ in range(N_DRAFTS_TIMED)]
            record.draft_seconds.add(median(times))
        sizes = WINDOW_ROWS if self.is_alone else WINDOW_ROWS[:N_SHORT]
        possible = [rows for rows in sizes if rows <= most_rows]
        self.window_costs.measure(time_window, possible)
        # start as if two tokens had been decoded at the best K
        best = min(map(self.expected_seconds, range(self.K_max)))
        self.recent_seconds = 2 * best
        self.recent_tokens = 2.0

    @property
    def token_seconds(self) -> float:
        """The seconds that a token takes at present."""
        return self.recent_seconds / self.recent_tokens

    def expected_seconds(self, K: int) -> float:
        """The seconds of a token if the last drafter always gives K drafts, which are accepted as often as expected."""
        record = self.records[-1]
        n_expected = sum(record.acceptance.mean**i for i in range(K + 1))
        return (K * record.draft_seconds.usual + self.window_costs(K + 1)) / n_expected

    def drafter_of(self, drafts: Sequence, model: Any) -> AutoDrafter:
        return AutoDrafter(self, drafts, model)

    def learn(self, asked: Mapping[DrafterRecord, Asked], n_accepted: int, call: Any) -> None:
        """Learn from a step. asked: what its drafters did. call: the target's, as it was logged."""
        for record in self.records:
            record.idle_seconds += call.seconds
        for record, (margins, _) in asked.items():
            record.idle_seconds = 0.0
            if margins:
                record.acceptance.learn(margins, n_accepted)
        if not call.prefill:  # a step that reads the prompt tells nothing of the times of others
            self.learn_times(asked, n_accepted, call)

    def learn_times(self, asked: Mapping[DrafterRecord, Asked], n_accepted: int, call: Any) -> None:
        """Learn what a token and a draft take."""
        self.window_costs.learn(call)
        self.recent_seconds = DECAY * self.recent_seconds + call.seconds
        self.recent_tokens = DECAY * self.recent_tokens + n_accepted + 1
        for record, (margins, seconds) in asked.items():
            # At their usual cost: if one draft was interrupted, tokens are not dearer from now on.
            self.recent_seconds += len(margins) * record.draft_seconds.usual
            record.draft_seconds.add(seconds / max(1, len(margins)))
