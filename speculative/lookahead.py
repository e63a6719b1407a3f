"""A lookahead K that chooses itself, again and again, from what the run has measured so far.

With a_i the chance that the i-th draft is accepted if those before it were, a window of k drafts is expected to give
1 + a_1 + a_1 a_2 + ... + a_1 ... a_k tokens, and takes t_draft(k) + t_target(k + 1) seconds. K is the k with the most
tokens per second; 0, plain decoding, is one of them. (A drafter may have something to propose in only a share s of its
windows. The others are plain steps that also paid for the asking, and tokens per second over both kinds are
(s * tokens + 1 - s) / (t_draft(k) + s * t_target(k + 1) + (1 - s) * t_target(1)).)

**What may be looked at.** The choice uses the times and acceptances of earlier iterations. It could also use p, as long
as it does so before the token is drawn from it. No token may be dropped for what it turned out to be: a drafter that
takes one back because it came out improbable no longer proposes tokens that are distributed as p, but more often the
probable ones. The acceptance test, which divides by p, then passes too many of these, and the output is not the
target's any more. To settle k before the drafter is called, and never to cut down its tokens, is the simple way to be
safe.

As no time is the same twice, neither are the windows; nor then, above temperature 0, the tokens, whatever the seed.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from statistics import median_low

import numpy as np

from speculative.sampling import Step, speculative_sampling

DISCOUNT = 0.95  # of the past, with each window: acceptance is that of the last 20 or so
LEAN = 8  # windows' worth of belief that a position is accepted as often as the one before it
HOPE = 0.02  # the least chance that is given to a drafter that finds nothing to propose
STAKE = 0.03  # the share of plain decoding's time that may be lost on finding out whether drafting pays
FIRST_TOKENS = 256  # what so many tokens allow to be lost is available from the start
SURE = 1.3  # times plain decoding's speed: a gain for which one plain step is enough to compare with
PATIENCE = 12  # plain tokens after which a window is tried even if so few do not pay for its risk (STAKE) yet
TRUST = 0.9  # where more first drafts than this pass and K is still 0, drafting takes too long: one more tells nothing
STAYS = 0.005  # seconds that a choice stays for: with small models that is several iterations, with large ones just one
TICK = 1e-9  # seconds: less is not told apart from 0
MOVED = 0.02  # of what a size takes: for less, what depends on it is not worked out anew
SLOWEST = 5  # plain steps for a draft: more is laid to the reading of the prompt where the two are not told apart
IN_STEP = 2  # tokens: the drafter is no further behind after a window or a plain step, and reading them is drafting


class AutoK:
    """Chooses K. decode() is speculative_sampling with this object as its K, timed and counted.

    What it has learned stays from one decode to the next: use one for each pair of models and drafter.

    Acceptance is counted by position, discounted so that it follows the text. With K = 0 nothing is learned about it,
    so now and then a window of 1 is tried, and at once another if it is accepted and that may change something.

    The promise is that decoding takes hardly longer than plain decoding, whatever the drafter: about STAKE, though of
    fewer than FIRST_TOKENS tokens it may be a larger share. So each window's loss (what windows of its size take, less
    what plain decoding would have taken for its tokens; a gain if negative) is added up over all decodes, and but for
    the very first no window is opened that could bring the sum above STAKE * (plain time of the tokens so far, at least
    of FIRST_TOKENS). What one decode gained, another may lose. The draft's prefill of the prompt is not counted; its
    catching up on tokens that were decoded without it is. Where that takes nearly STAKE a token, no window is tried
    again after a long plain stretch.

    It may lose more where times mislead. What a draft takes is known after two, so a drafter more than three times
    slower than the target may lose more by these. One whose calls take now one time and now another is known later. And
    while K is above 0 no plain step is timed, so a machine that gets faster is noticed late.

    Choosing takes time too, the more so as the models have pushed all else out of the processor's caches. So a
    choice stays for STAYS; only its first iteration is timed, and all acceptances are learned at the next choice.
    """

    def __init__(self, K_max: int = 10, clock: Callable[[], float] = time.perf_counter):
        """K_max is at least 1; clock gives seconds."""
        self.K_max, self.clock = K_max, clock
        self.draft_times = Times(K_max, mean_but_longest, recent=20)  # by number of tokens asked for
        self.target_times = Times(K_max + 1)  # by number of rows
        self.feed_times = Times(1)  # of 1 token that the drafter has to catch up on
        self.draft_prefill = self.target_prefill = 0.0  # seconds of the calls that read the prompt
        self.first_draft = None  # (tokens read, seconds) of the first, until the next tells prefill and drafting apart
        # Discounted counts by position, begun as if 2.5 of 3 first drafts had passed.
        self.tried = [3.0] + [0.0] * (K_max - 1)
        self.accepted = [2.5] + [0.0] * (K_max - 1)
        self.windows = self.proposals = 1.0  # discounted counts: drafter asked, something proposed
        self.tokens = 0
        self.lost = 0.0  # seconds
        self.plain_tokens = math.inf  # since the last window; inf where another is to be tried at once
        self.k, self.stays_until = 0, -math.inf  # the last choice, and when by the clock it is looked at anew
        self.asked_for = 0  # drafts: less than was chosen, where the text ends
        self.not_learned = []  # (k, step) of iterations that the counts do not hold yet

    def decode(self, x, draft: Callable, target_model: Callable, N: int, rng, **options) -> Iterator[Step]:
        """speculative_sampling(x, draft, target_model, N, K=self, rng, **options), watched."""
        self.learn_all()
        self.n = self.n_prompt = len(x)
        self.n_fed = 0  # how many tokens of the text the drafter was given or drew itself
        self.prefilled = False  # whether the target has read the prompt
        self.stays_until = -math.inf
        if self.first_draft:  # and no other came: it may have taken that long for reading, or for drafting
            _, seconds = self.first_draft
            self.lost += min(seconds, SLOWEST * self.target_times(1))
            self.first_draft = None
        draft, target_model = self.timed_draft(draft), self.timed_target(target_model)
        for step in speculative_sampling(x, draft, target_model, N, self, rng, **options):
            self.n_fed = min(self.n_fed, self.n + step.accepted)  # what was rejected, the drafter has to read anew
            self.n += len(step.tokens)
            self.not_learned.append((self.asked_for, step))
            yield step

    def __call__(self) -> int:
        now = self.clock()
        self.watched = now >= self.stays_until
        if self.watched:
            self.learn_all()
            self.k, stays = self.choose()
            self.stays_until = now + STAYS * stays
        return self.k

    def choose(self) -> tuple[int, bool]:
        """-> k, and whether it stays: what is wanted, but no more than the stake allows."""
        if not self.target_times.samples:  # a window of 1, as both models read the prompt, and then a plain step
            return int(not self.prefilled and not self.draft_prefill), False
        k, stays = self.wanted()
        allowed = STAKE * max(self.tokens, FIRST_TOKENS) * self.target_times(1)
        while k > 0 and self.lost + self.at_risk(k) * (self.windows_in_stay(k) if stays else 1) > allowed:
            k -= 1
        return k, stays

    def wanted(self) -> tuple[int, bool]:
        """-> k, and whether it stays: not where it is there to find something out."""
        # No window timed yet: the longest whose drafting takes no more than a plain step, as far as the two prefills
        # tell. It shows what rows cost, and how many drafts are accepted.
        if self.target_times.slope is None:
            return max(1, min(self.K_max, int(self.target_prefill / max(self.draft_prefill, TICK)))), False

        # The one plain step may have been interrupted, and while k is above 0 there are no more. So another, where the
        # gain is small or a window took less than that step.
        k, gain = self.fastest()
        plain = self.target_times(1)
        first, *more = self.target_times.samples[1]
        if not more and (gain < SURE or first > plain):
            return 0, False

        # Where plain decoding is the fastest, now and then a window of 1, as the text may have changed.
        due = self.plain_tokens >= PATIENCE or self.at_risk(1) <= STAKE * self.plain_tokens * plain
        if k == 0 and due:
            return 1, False
        return k, self.prefilled

    def fastest(self) -> tuple[int, float]:
        """-> k, gain: the k with the most expected tokens per second, and how often plain decoding's that rate is."""
        plain = self.target_times(1)
        share = max(HOPE, self.proposals / self.windows)  # how often the drafter has something to propose
        best_k, best_rate = 0, 1 / plain
        expected, all_accepted = 1.0, 1.0
        t_draft, t_target = self.draft_times.seconds[1:], self.target_times.seconds[2:]
        for k, (a, drafting, scoring) in enumerate(zip(self.acceptance(), t_draft, t_target, strict=True), start=1):
            all_accepted *= a
            expected += all_accepted
            seconds = drafting + share * scoring + (1 - share) * plain
            rate = (share * expected + (1 - share)) / seconds
            if rate > best_rate:
                best_k, best_rate = k, rate
        return best_k, best_rate * plain

    def acceptance(self) -> Iterator[float]:
        """a_1, a_2, ...: later positions are tried less often, and lean on the one before."""
        a, lean = 0.0, 0
        for accepted, tried in zip(self.accepted, self.tried, strict=True):
            a = (accepted + lean * a) / (tried + lean)
            lean = LEAN
            yield a

    def at_risk(self, k: int) -> float:
        """What a window loses against plain decoding, in seconds, where none of its drafts is accepted.

        Until a window was timed, a row counts as a plain step, which is too much; until a draft was, drafting counts 0.
        """
        return self.draft_times(k) + self.target_times(k + 1) + self.catch_up_time() - self.target_times(1)

    def windows_in_stay(self, k: int) -> float:
        return max(1.0, STAYS / (self.draft_times(k) + self.target_times(k + 1)))

    def catch_up_time(self) -> float:
        n_not_read = self.n - max(self.n_fed, self.n_prompt)
        if n_not_read <= IN_STEP:
            return 0.0
        # Reading a token takes at most what drafting one does: a prompt of a token or two does not tell how much, and
        # where one call tells, it may have been interrupted.
        one = self.draft_times(1)
        return n_not_read * (min(self.feed_times(1), one) if self.feed_times.samples else one)

    def timed_draft(self, draft: Callable) -> Callable:
        def timed(x, k):
            self.asked_for = k
            if k == 0:
                return [], []
            n_behind = len(x) - self.n_fed
            self.lost += self.catch_up_time()  # 0 within a stay: the drafter is in step since its first window
            start = self.clock()
            tokens, p = draft(x, k)
            if self.watched:
                self.time_draft(k, n_behind, self.clock() - start)
            self.n_fed = len(x) + len(tokens)
            return tokens, p

        return timed

    def time_draft(self, k: int, n_behind: int, seconds: float) -> None:
        """Files a draft's time as that of k tokens; where it had to catch up, what exceeds that as time to feed."""
        if not self.prefilled:
            self.draft_prefill = seconds
        if n_behind > IN_STEP:
            if not self.draft_times.samples:
                self.first_draft = n_behind, seconds  # the prefill, and a token of which the cost is not yet known
            elif self.n_fed > 0:  # else it may know the prompt from the decode before
                self.feed_times.add(1, max(0.0, seconds - self.draft_times(k)) / n_behind)
            return
        if self.first_draft:
            n_prompt, first_seconds = self.first_draft
            seconds = min(seconds, k * first_seconds)  # more was an interruption
            one = seconds / k
            self.feed_times.add(1, max(0.0, first_seconds - one) / n_prompt)
            self.lost += one  # learn() took it for 0
            self.first_draft = None
        self.draft_times.add(k, seconds)

    def timed_target(self, target_model: Callable) -> Callable:
        def timed(x, n_last):
            start = self.clock()
            q = target_model(x, n_last=n_last)
            if not self.prefilled:
                self.target_prefill, self.prefilled = self.clock() - start, True
            elif self.watched:
                self.target_times.add(n_last, self.clock() - start)
            return q

        return timed

    def learn_all(self) -> None:
        for k, step in self.not_learned:
            self.learn(k, step)
        self.not_learned = []

    def learn(self, k: int, step: Step) -> None:
        """k is how many drafts were asked for."""
        n_new, m, n_accepted = len(step.tokens), step.drafted, step.accepted
        self.tokens += n_new
        if k == 0:
            self.plain_tokens += n_new
            return
        if m > 0:
            trusted = self.accepted[0] > TRUST * self.tried[0]
            self.plain_tokens = math.inf if m == n_accepted and not trusted else 0
        elif self.draft_times(k) > STAKE * self.target_times(1):  # else asking costs so little that it may go on
            self.plain_tokens = 0
        self.lost += self.draft_times(k) + self.target_times(m + 1) - n_new * self.target_times(1)
        self.windows = DISCOUNT * self.windows + 1
        self.proposals = DISCOUNT * self.proposals + (m > 0)
        if m > 0:
            self.tried = [DISCOUNT * count + (i < min(m, n_accepted + 1)) for i, count in enumerate(self.tried)]
            self.accepted = [DISCOUNT * count + (i < n_accepted) for i, count in enumerate(self.accepted)]


def mean_but_longest(seconds) -> float:
    """For a drafter such as a+b, whose calls take now one time and now another, where the median shows one of the two.
    The two longest are left out, as they may have been interrupted; of so few that these are half, it is the median."""
    if len(seconds) <= 4:
        return median_low(seconds)
    return sum(sorted(seconds)[:-2]) / (len(seconds) - 2)


class Times:
    """Seconds by size of what was timed: what is typical of the last few; for a size not timed, what others suggest.

    It is asked more often than anything changes, and a window may take no more than a millisecond. So the answers are
    kept in a list, which is made anew where something has moved.
    """

    def __init__(self, largest: int, typical: Callable = median_low, recent: int = 9, keep: int = 20):
        self.typical, self.recent, self.keep = typical, recent, keep
        self.all_sizes = np.arange(largest + 1)
        self.seconds = [0.0] * (largest + 1)  # by size
        self.samples = {}  # {size: its last few seconds}
        self.typical_seconds = {}  # {size: what is typical of these, as of when the list was made}
        self.last_call = {}  # {size: the call in which it was timed last}
        self.calls, self.forget_at = 0, math.inf  # the first call in which a size may have to be forgotten
        self.slope = None  # seconds for one more, as last known

    def __call__(self, size: int) -> float:
        """0 where nothing was timed."""
        return self.seconds[size]

    def add(self, size: int, seconds: float) -> None:
        self.calls += 1
        samples = self.samples.setdefault(size, deque(maxlen=self.recent))
        samples.append(max(seconds, TICK))
        self.last_call[size] = self.calls
        before = self.typical_seconds.get(size, 0.0)
        if abs(self.typical(samples) - before) > MOVED * before or self.calls >= self.forget_at:
            self.update()

    def update(self) -> None:
        """Between the sizes that were timed on straight lines, above them on one through the smallest and the largest.

        Below them in proportion; above a single size too, unless the slope is known from sizes since forgotten.
        """
        # Contexts grow and machines get busy: a size not timed for long is forgotten, and so may be tried again, the
        # sooner the fewer samples it has. The smallest is not, as that which the others are compared with.
        forget_at = {n: self.last_call[n] + self.keep * len(samples) for n, samples in self.samples.items()}
        forget_at[min(self.samples)] = math.inf
        self.samples = {n: samples for n, samples in sorted(self.samples.items()) if self.calls < forget_at[n]}
        self.forget_at = min(forget_at[n] for n in self.samples)
        sizes = list(self.samples)
        self.typical_seconds = {n: self.typical(self.samples[n]) for n in sizes}
        # More takes no less. Where one or two samples say that it takes more than in proportion, they were interrupted.
        takes = list(accumulate(reversed(self.typical_seconds.values()), min))[::-1]
        one = takes[0] / sizes[0]
        most = [one * n if len(self.samples[n]) < 3 else math.inf for n in sizes]
        takes = list(map(min, takes, most))
        if len(sizes) > 1:
            self.slope = (takes[-1] - takes[0]) / (sizes[-1] - sizes[0])
        elif self.slope is not None:  # all others are forgotten: one more still counts for no more than in proportion
            self.slope = min(self.slope, one)
        largest = self.all_sizes[-1]
        above = takes[-1] + (one if self.slope is None else self.slope) * (largest - sizes[-1])
        self.seconds = np.interp(self.all_sizes, [0, *sizes, largest], [0.0, *takes, above]).tolist()
