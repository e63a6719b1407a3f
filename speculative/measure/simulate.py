"""A decode of a text that is known, on a clock of prices: the loop, the lookahead and the look-ups are the real ones.

The target's rows are the text, and its calls move the clock by the seconds of their rows. The draft model's token is
the text's or not, by the chance that a run has told. So a text is decoded once more with another setting in a
millisecond, without a model.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from speculative.drafters.base import DrafterSpec, always, until_unsure
from speculative.engines.model import Call
from speculative.filters import one_hot
from speculative.lookahead import WINDOW_ROWS, AutoK, FixedK
from speculative.sampling import Proposal, speculative_sampling


class Clock:
    """A clock that moves only if it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> float:
        """Move by these seconds -> the time before."""
        began = self.now
        self.now += seconds
        return began


class KnownText(NamedTuple):
    """A text, and what is known of the draft model at each place of a new token."""

    x: Sequence[int]  # [n], the prompt
    new: Sequence[int]  # [N]
    chances: Sequence[float] = ()  # [N], that the draft model's token is accepted; none if there is no such model
    margins: Sequence[float] = ()  # [N], of that token


class Prices(NamedTuple):
    """The seconds of the calls."""

    window: Callable[[int], float]  # rows -> seconds of a call of the target
    draft: float  # of a token of the draft model
    by_text: float  # of a proposal of a drafter without a model


class SimulatedText:
    """A text whose tokens are numbered anew, so that rows are short; and the drafts of drafters that read it alone."""

    def __init__(self, given: KnownText):
        self.given = given
        self.n = len(given.x)
        self.N = len(given.new)
        numbers = np.unique([*given.x, *given.new], return_inverse=True)[1]  # [n + N]
        self.tokens = numbers.tolist()
        self.wrong = max(self.tokens) + 1  # in the place of all tokens that the text has not
        self.n_vocab = self.wrong + 1
        self.drafts = cache(self.drafts_by)  # each place is asked once for all settings

    def rows(self, tokens: Sequence[int]) -> np.ndarray:  # [m] -> [m, n_vocab]
        return one_hot(tokens, self.n_vocab)

    def drafts_by(self, spec: DrafterSpec, n: int) -> Proposal:
        """The longest proposal of a drafter after the first n tokens."""
        draft = spec.by_text(self.n_vocab)  # type: ignore[misc]  # it has one
        return draft(np.array(self.tokens[:n]), AutoK.K_max)


class Simulation:
    """A target that knows its text, and drafters, on one clock."""

    def __init__(self, text: SimulatedText, prices: Prices, shift: float = 0.0, clock: Clock | None = None):
        """shift: of the random numbers that decide where the draft model's token is the text's."""
        self.text = text
        self.prices = prices
        self.clock = clock or Clock()
        self.log: deque[Call] = deque(maxlen=1)
        given = text.given
        numbers = np.random.default_rng(0).random(len(given.chances)) + shift  # [N]
        is_right = numbers % 1 < given.chances  # [N]
        self.wrong_places = [*np.flatnonzero(~is_right).tolist(), text.N]
        margins = np.array(given.margins)  # [N]
        self.margins = margins.tolist()
        self.right_margins = AutoK.K_max * margins[is_right].tolist()  # as many as are asked for, if there are any
        self.tokens = text.tokens + AutoK.K_max * text.tokens[-1:]  # for rows after the last token

    def __call__(self, x, n_last: int) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The target's call."""
        began = self.clock.wait(self.prices.window(n_last))
        self.log.append(Call(began, self.clock.now - began, n_last, n_last))
        first = len(x) - n_last + 1
        return self.text.rows(self.tokens[first : first + n_last])

    def drafter(self, spec: DrafterSpec) -> Callable:
        """draft(x, k, go_on) of this drafter."""
        if spec.by_text is None:
            return self.by_model

        def draft(x, k: int, go_on: Callable = always) -> Proposal:  # [n]
            self.clock.wait(self.prices.by_text)
            longest = self.text.drafts(spec, len(x))
            margins = longest.margins[:k]
            m = until_unsure(margins, go_on)
            return Proposal(longest.tokens[:m], longest.p[:m], margins=margins[:m])

        return draft

    def by_model(self, x, k: int, go_on: Callable = always) -> Proposal:  # [n]
        """The draft model. After a token that is not the text's it goes on with a text of its own, and is about as sure
        of that as it is where it agrees with the target."""
        text = self.text
        n = len(x)
        place = n - text.n
        next_wrong = self.wrong_places[bisect_left(self.wrong_places, place)]
        margins = self.margins[place : next_wrong + 1]  # the model's own, up to its first token that is not the text's
        margins += self.right_margins[place : place + k]  # after it, those of places where both agree
        margins += k * [0.0]  # there are no more: it is unsure
        m = until_unsure(margins[:k], go_on)
        self.clock.wait(m * self.prices.draft)
        n_right = min(next_wrong - place, m)
        tokens = text.tokens[n : n + n_right]
        tokens += (m - n_right) * [text.wrong]
        return Proposal(tokens, text.rows(tokens), margins=margins[:m])

    def draft_seconds(self, spec: DrafterSpec) -> float:
        return self.prices.draft if spec.by_text is None else self.prices.by_text

    def decode(self, specs: Sequence[DrafterSpec], K: int | str) -> tuple[float, int]:
        """Decode the text with the first of these drafters that proposes anything -> seconds, calls of the target."""
        text = self.text
        x = text.tokens[: text.n]  # [n]
        drafts = [self.drafter(spec) for spec in specs]
        lookahead: Any = FixedK(K)  # type: ignore[arg-type]  # if it is a number
        if K == "auto":
            lookahead = AutoK([spec.scale for spec in specs], self.clock)
            draft_seconds = [partial(self.draft_seconds, spec) for spec in specs]
            lookahead.measure(self.prices.window, draft_seconds, max(WINDOW_ROWS))
        draft = lookahead.drafter_of(drafts, self)
        rng = np.random.default_rng(0)
        steps = [*speculative_sampling(x, draft, self, text.N, lookahead.K_max, rng)]
        return self.clock.now, len(steps)
