"""A lookahead K that is chosen, window by window, from measured acceptance and costs.

AutoK measures how often drafts are accepted, position by position, and the time of a draft token and of a row. It
chooses the K with the most tokens per second (costs.best_k); one of the choices is K = 0, autoregressive decoding.

K may depend on all that was known before its window was drafted, but not on what was drafted. A drafter that takes back
an improbable token no longer draws from p; the test u < q / p then passes too many of the probable ones, and the output
is not the target's any more. So K is settled before the drafter is called.
"""

import time
from collections.abc import Callable, Iterator

from speculative.costs import Cost, best_k
from speculative.sampling import Step, speculative_sampling

DISCOUNT = 0.95  # of older counts, with each window: acceptance is an average over about 20
LEAN = 8  # weight, in windows, of the prior that a position is accepted as often as the one before it
STAKE = 0.03  # share of the time of autoregressive decoding that is spent on trying whether drafting pays by now


def decode_chain(x, draft: Callable, target_model: Callable, N: int, K, rng, lenience: float = 1.0) -> Iterator[Step]:
    """speculative_sampling, where K may also be an AutoK."""
    if isinstance(K, AutoK):
        return K.decode(x, draft, target_model, N, rng, lenience=lenience)
    return speculative_sampling(x, draft, target_model, N, K, rng, lenience)


class AutoK:
    """Chooses K. decode() is speculative_sampling with this object as its K, timed and counted; without it, K stays 1.

    While K is 0, nothing is learned about the drafter. So a window of 1 is tried again: at once if the last window paid
    for itself, else when it puts at stake no more than STAKE of the time since then. So a drafter that never helps
    costs about STAKE. What was learned stays for the next decode with the same models and drafter.
    """

    sampling = staticmethod(speculative_sampling)  # what decode watches
    nothing = staticmethod(lambda x: ([], [], []))  # the proposal of a drafter that is not asked

    def __init__(self, K_max: int = 10, clock: Callable[[], float] = time.perf_counter):
        self.K_max, self.clock = K_max, clock  # clock gives seconds
        # A draft token; a token that the drafter has to catch up on; a row of the target; each additional row.
        self.draft, self.feed, self.row, self.further = Cost(), Cost(), Cost(), Cost()
        # Discounted counts by position, begun as if 2.5 of 3 first drafts had passed.
        self.tested, self.accepted = [3.0] + [0.0] * (K_max - 1), [2.5] + [0.0] * (K_max - 1)
        self.asked = self.proposed = 1.0  # discounted counts of windows: a drafter may have nothing to propose
        self.first_draft = None  # (seconds, tokens of the prompt) of the first window
        self.since, self.behind = 0.0, 0  # seconds of autoregressive decoding since the last window, and its tokens
        self.paid = True  # whether the last window took no longer than autoregressive decoding of its tokens

    def __call__(self) -> int:
        if not self.row.timed:
            return int(not self.first_draft)  # a window while both models prefill, which is not timed; then a row
        if len(self.draft.timed) < 2:
            return int(self.prefilled)  # a window of 1, and another, as the first may have been interrupted
        at_stake = self.draft() + self.further() + self.behind * self.feed()
        again = self.prefilled and (self.paid or at_stake <= STAKE * self.since)
        return self.best() or int(again)

    def best(self) -> int:
        """The K with the most expected tokens per second."""
        row, share = self.row() or 1.0, self.proposed / self.asked
        first, *later = self.acceptance()
        c, further = self.draft() / row, share * self.further() / row
        K, _ = best_k([share * first, *later], c, lambda rows: 1 + (rows - 1) * further)
        return K if self.further.timed else min(K, 1)

    def acceptance(self) -> Iterator[float]:
        """a_1, a_2, ...: later positions are tested less often, and lean on the one before."""
        a, lean = 0.0, 0
        for accepted, tested in zip(self.accepted, self.tested, strict=True):
            a, lean = (accepted + lean * a) / (tested + lean), LEAN
            yield a

    def decode(self, x, draft: Callable, target_model: Callable, N: int, rng, **options) -> Iterator[Step]:
        """sampling(x, draft, target_model, N, K=self, rng, **options), watched."""
        asked, proposal, drafting = 0, None, 0.0  # how many drafts, what came, and the seconds that it took

        def timed(x, k):
            nonlocal asked, proposal, drafting
            start = self.clock()
            proposal = draft(x, k) if k else self.nothing(x)
            asked, drafting = k, self.clock() - start
            return proposal

        steps, self.prefilled = self.sampling(x, timed, target_model, N, self, rng, **options), False
        while True:
            start = self.clock()
            step = next(steps, None)
            if step is None:
                return
            scoring = self.clock() - start - drafting  # with what the loop does beside, more of it for a window
            if self.prefilled:
                self.time(asked, proposal, step, drafting, scoring)
            elif asked and not self.first_draft:
                self.first_draft = drafting, len(x)
            if asked:
                self.count(proposal, step)
            self.prefilled = True
            yield step

    def time(self, k: int, proposal, step: Step, drafting: float, scoring: float) -> None:
        """Files the seconds of a step for which k drafts were asked."""
        m = step.drafted
        if m == 0 or scoring < self.row():  # a row takes no longer than a window
            self.row.add(scoring)
        if m > 0:
            self.further.add(scoring - self.row(), m)
        if k == 0:
            self.since, self.behind = self.since + scoring, self.behind + 1
            return
        if self.behind > 2:
            self.feed.add(drafting - k * self.draft(), self.behind)
        else:  # as far behind as after any window: reading these tokens counts as drafting
            self.draft.add(drafting, k)
            if not self.feed.timed:  # what the first draft took beyond this one, it took to read the prompt
                seconds, n_prompt = self.first_draft
                self.feed.add(seconds - self.draft(), n_prompt)
        self.paid = k * self.draft() + m * self.further() <= step.accepted * self.row()
        self.since, self.behind = 0.0, 0

    def count(self, proposal, step: Step) -> None:
        """Counts which positions were met and which were accepted."""
        n, met = step.accepted, min(step.drafted, step.accepted + 1)
        self.asked, self.proposed = DISCOUNT * self.asked + 1, DISCOUNT * self.proposed + (met > 0)
        if met > 0:
            self.tested = [DISCOUNT * count + (i < met) for i, count in enumerate(self.tested)]
            self.accepted = [DISCOUNT * count + (i < n) for i, count in enumerate(self.accepted)]
