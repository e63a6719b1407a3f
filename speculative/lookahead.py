"""A lookahead K that is chosen, window by window, from measured acceptance and costs.

AutoK measures how often drafts are accepted, position by position, the time of a draft token, and the time of the
target's calls. It chooses the K with the most tokens per second (costs.best_k); one of the choices is K = 0,
autoregressive decoding.

A window of K drafts is K + 1 rows to the target. Windows are chosen by their drafts and timed by their rows: a choice
of 0 is a call of one row, and window(2) gives the seconds of a call with one draft.

K may depend on all that was known before its window was drafted, but not on what was drafted. A drafter that takes back
an improbable token no longer draws from p; the test u < q / p then passes too many of the probable ones, and the output
is not the target's any more. So K is settled before the drafter is called.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from speculative.costs import Cost, best_k, line_through
from speculative.sampling import NOTHING, Step, speculative_sampling, token_by_token

DISCOUNT = 0.95  # of older counts, with each window: acceptance is an average over about 20
LEAN = 8  # weight, in windows, of the assumption that a position is accepted as often as the one before it
STAKE = 0.03  # share of the time of autoregressive decoding that is spent on trying whether drafting pays by now


def decode_chain(
    x, draft: Callable, target_model: Callable, N: int, K, rng, accept: Callable = token_by_token
) -> Iterator[Step]:
    """speculative_sampling, where K may also be an AutoK."""
    if isinstance(K, AutoK):
        return K.decode(x, draft, target_model, N, rng, accept)
    return speculative_sampling(x, draft, target_model, N, K, rng, accept)


class Auto:
    """Chooses a lookahead by measured costs: AutoK a number, autotree.AutoTree the shape of a tree. decode() decodes
    with this object as the lookahead, timed and counted; without it, the choice stays 1.

    While it is 0, nothing is learned about the drafter. So one draft is tried again: at once if the last window paid
    for itself, else when it puts at stake no more than STAKE of the time since then. So a drafter that never helps
    costs about STAKE. What was learned stays for the next decode with the same models and drafter.
    """

    sampling: Callable  # the loop that decode() times
    nothing: Callable  # x -> the empty proposal, where the choice is 0 and the drafter is not asked
    best: Callable  # -> the choice with the most expected tokens per second
    count: Callable  # counts the tests of a step

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        """clock gives seconds."""
        self.clock = clock
        self.draft = Cost()  # of a draft token
        self.feed = Cost()  # of a token that the drafter has to catch up on
        self.windows = defaultdict(Cost)  # {rows: of a call of the target}
        self.means = {}  # {rows: mean seconds of such a call},
        self.trusted = {}  # those of them that were timed more than once,
        self.window = line_through({1: 0.0})  # and from these rows -> seconds, for any number of rows
        self.n_asked = 1.0  # discounted count of windows for which the drafter was asked,
        self.n_proposed = 1.0  # and of those for which it had something to propose
        self.first_draft = None  # (seconds, tokens of the prompt) of the first window
        self.prefilled = False  # whether both models have read the prompt, so that a time is that of a window
        self.since = 0.0  # seconds of autoregressive decoding since the last window
        self.behind = 0  # the tokens that it gave, which the drafter has not read
        self.paid = True  # whether the last window took no longer than autoregressive decoding of its tokens
        self.seen = np.empty(0, int)  # the text at the end of the last decode

    def __call__(self):
        if not self.windows:
            # First a draft: both models read the prompt, so that this window is not timed. Then none: one row is timed.
            return 0 if self.first_draft else 1
        if len(self.draft.timed) < 2:
            # Then a draft twice, as the first may have been interrupted.
            return 1 if self.prefilled else 0
        at_stake = self.draft() + self.window(2) - self.window(1) + self.behind * self.feed()
        again = self.prefilled and (self.paid or at_stake <= STAKE * self.since)
        return self.best() or int(again)

    def time_window(self, rows: int, seconds: float) -> None:
        """Files the seconds of a call of the target. Calls that were timed once only may have been interrupted, so they
        count while there is nothing better; and one row takes no longer than several."""
        cost = self.windows[rows]
        cost.add(seconds)
        self.means[rows] = cost()
        if len(cost.timed) > 1:
            self.trusted[rows] = cost()
        known = self.trusted if max(self.trusted, default=1) > 1 else self.means
        self.window = line_through(known | {1: min(self.means.values())})

    def row(self) -> float:
        """Seconds of one row: the unit of all costs."""
        return self.window(1) or 1.0  # a coarse clock may have measured 0

    def beta(self) -> Callable[[int], float]:
        """rows -> the cost of a window, in rows. Where the drafter has nothing to propose, a window is one row."""
        row = self.window(1)
        more = self.n_proposed / self.n_asked / self.row()
        return lambda rows: 1 + more * (self.window(rows) - row)

    def know(self, windows: dict[int, float], draft: float) -> None:
        """Takes costs that were measured before the first decode: {rows: seconds}, and the seconds of a draft token."""
        for _ in range(2):  # as if measured twice: time_window does not trust a single timing
            self.draft.add(draft)
            for rows, seconds in windows.items():
                self.time_window(rows, seconds)

    def decode(self, x, draft: Callable, target_model: Callable, N: int, rng, *rule) -> Iterator[Step]:
        """sampling(x, draft, target_model, N, self, rng, *rule), timed and counted. rule: of acceptance, or nothing."""
        wanted = 0  # how many drafts were asked for (AutoTree: in what shape),
        drafting = 0.0  # and the seconds that they took

        def timed(x, k):
            nonlocal wanted, drafting
            wanted = k
            start = self.clock()
            proposal = draft(x, k) if k else self.nothing(x)
            drafting = self.clock() - start
            return proposal

        steps = self.sampling(x, timed, target_model, N, self, rng, *rule)
        self.prefilled = self.follows(x)
        text = [*x]
        while True:
            start = self.clock()
            step = next(steps, None)
            if step is None:
                self.seen = np.asarray(text)
                return
            scoring = self.clock() - start - drafting  # the loop's own work too: it grows with the window
            if self.prefilled:
                self.file_times(wanted, step, drafting, scoring)
            elif wanted and not self.first_draft:
                self.first_draft = drafting, len(x)
            if wanted:
                self.count(step)
            self.prefilled = True
            text += step.tokens
            yield step

    def follows(self, x) -> bool:  # [n]
        """True if a decode goes on from where another one ended, as those of a level do: then nothing is prefilled."""
        n = min(len(self.seen), len(x) - 1)
        return n > 0 and bool(np.array_equal(self.seen[:n], np.asarray(x)[:n])) and len(x) - n <= 2

    def file_times(self, k: int, step: Step, drafting: float, scoring: float) -> None:
        """Files the seconds of a step for which k drafts were asked."""
        m = step.drafted
        self.time_window(m + 1, scoring)
        if k == 0:
            self.since += scoring
            self.behind += 1
            return
        if self.behind > 2:
            self.feed.add(drafting - k * self.draft(), self.behind)
        else:  # no further behind than after any window, so that to read these tokens is a part of drafting
            self.draft.add(drafting, k)
            if self.first_draft and not self.feed.timed:
                # what the first draft took beyond this one, it took to read the prompt
                seconds, n_prompt = self.first_draft
                self.feed.add(seconds - self.draft(), n_prompt)
        row = self.window(1)
        self.paid = k * self.draft() + self.window(m + 1) - row <= step.accepted * row
        self.since = 0.0
        self.behind = 0


class AutoK(Auto):
    """Chooses K. decode() is speculative_sampling with this object as its K."""

    sampling = staticmethod(speculative_sampling)
    nothing = staticmethod(lambda x: NOTHING)

    def __init__(
        self,
        K_max: int = 16,
        clock: Callable[[], float] = time.perf_counter,
        expected: tuple[float, float] = (2.5, 3.0),
    ):
        """expected: the counts of acceptance begin as if so many of so many drafts had passed."""
        super().__init__(clock)
        self.K_max = K_max
        passed, of = expected
        self.tested = [of] + [0.0] * (K_max - 1)  # discounted counts by position
        self.accepted = [passed] + [0.0] * (K_max - 1)

    def best(self) -> int:
        share = self.n_proposed / self.n_asked
        first, *later = self.chances()
        K, _ = best_k([share * first, *later], self.draft() / self.row(), self.beta())
        if max(self.windows) == 1:  # only rows have been timed: what a long window costs is not known yet
            return min(K, 1)
        return K

    def chances(self) -> Iterator[float]:
        """The chances a_1, a_2, ... of acceptance: later positions are tested less often, and lean on those before."""
        a = 0.0
        lean = 0
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            a = (accepted + lean * a) / (tested + lean)
            lean = LEAN  # all but the first, which has none before it
            yield a

    def count(self, step: Step) -> None:
        """Counts which positions were reached and which were accepted."""
        n_accepted = step.accepted
        n_tested = step.reached
        self.n_asked = DISCOUNT * self.n_asked + 1
        self.n_proposed = DISCOUNT * self.n_proposed + (n_tested > 0)
        if n_tested > 0:
            self.tested = [DISCOUNT * count + (i < n_tested) for i, count in enumerate(self.tested)]
            self.accepted = [DISCOUNT * count + (i < n_accepted) for i, count in enumerate(self.accepted)]
