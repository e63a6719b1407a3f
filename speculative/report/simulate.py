"""A decode of a text that is known, on a clock of prices: the loop, the lookahead and the look-ups are the real ones.

The target's rows are the text, and its calls move the clock by the seconds of their rows. The draft model's token is
the text's or not, by the chance that a run has told. So a text is decoded once more with another setting in a
millisecond, without a model.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from speculative.drafters import first_of
from speculative.drafters.base import Draft, Drafter, until_unsure
from speculative.engines.model import Call
from speculative.filters import one_hot
from speculative.lookahead.auto import AutoDrafter
from speculative.lookahead.learned import K_MAX, WINDOW_ROWS, Learned
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


class Prices(NamedTuple):
    """The seconds of the calls."""

    window: Callable[[int], float]  # rows -> seconds of a call of the target
    draft: float  # seconds of a token of the draft model
    by_text: float  # seconds of a proposal of a drafter without a model

    def of(self, spec: Drafter) -> float:
        return self.by_text if spec.by_text else self.draft


class KnownText:
    """A text, and the facts of its drafts. Its tokens are numbered anew, so that rows are short."""

    def __init__(self, x: Sequence[int], new: Sequence[int], chances: Sequence = (), margins: Sequence = ()):
        """x: [n], the prompt. new: [N]. chances: [N], that the draft model's token is accepted at each new position.
        margins: [N], of that token. Both are empty if there is no such model."""
        self.n = len(x)
        self.N = len(new)
        self.chances = chances
        self.margins = margins
        numbers = np.unique([*x, *new], return_inverse=True)[1]  # [n + N]
        self.tokens = numbers.tolist()
        self.wrong = max(self.tokens) + 1  # stands for all tokens that the text does not have
        self.n_vocab = self.wrong + 1
        self.drafts = cache(self.drafts_by)  # each position is asked once for all settings

    def rows(self, tokens: Sequence[int]) -> np.ndarray:  # [m] -> [m, n_vocab]
        return one_hot(tokens, self.n_vocab)

    def drafts_by(self, drafter: Callable[[int], Draft], n: int) -> Proposal:
        """The longest proposal of a drafter that reads the text alone (by_text), after the first n tokens."""
        draft = drafter(self.n_vocab)
        return draft(np.array(self.tokens[:n]), K_MAX)


class SimulatedModel:
    """The draft model, whose tokens are the text's with the chances that a run has told."""

    def __init__(self, text: KnownText, shift: float):
        """shift: of the random numbers that decide where its token is the text's. Several shifts from 0 to 1 together
        spread these numbers evenly."""
        self.text = text
        numbers = np.random.default_rng(0).random(len(text.chances))  # [N]
        is_right = (numbers + shift) % 1 < text.chances  # [N]
        self.wrong_positions = [*np.flatnonzero(~is_right).tolist(), text.N]
        self.margins = list(text.margins)  # [N]
        where_right = np.array(text.margins)[is_right]
        self.margins_where_right = K_MAX * where_right.tolist()  # as many as are asked for, if any

    def propose(self, x, k: int, go_on: Callable | None = None) -> Proposal:  # [n]
        """Draft the text up to the next wrong token, and then go on with a text of its own."""
        text = self.text
        n = len(x)
        position = n - text.n
        next_wrong = self.wrong_positions[bisect_left(self.wrong_positions, position)]
        n_right = next_wrong - position
        margins = self.margins_from(position, next_wrong, k)
        m = until_unsure(margins, go_on)
        tokens = text.tokens[n : n + min(n_right, m)]
        tokens += (m - len(tokens)) * [text.wrong]
        rows = text.rows(tokens)  # [m, n_vocab]
        return Proposal(tokens, rows, margins=margins[:m])

    def margins_from(self, position: int, next_wrong: int, k: int) -> list[float]:
        """The margins of k drafts. Nobody has asked the model about its own text after a wrong token: it is about as
        sure there as it is where it is right, and unsure if it is never right."""
        asked = self.margins[position : next_wrong + 1]  # the margin of the wrong token, too
        margins = asked + self.margins_where_right[position : position + k] + k * [0.0]
        return margins[:k]


class Simulation:
    """A target that knows its text, and drafters, on one clock."""

    def __init__(self, text: KnownText, prices: Prices, shift: float = 0.0, clock: Clock | None = None):
        """shift: see SimulatedModel."""
        self.text = text
        self.prices = prices
        self.clock = clock or Clock()
        self.log: deque[Call] = deque(maxlen=1)
        self.draft_model = SimulatedModel(text, shift)
        beyond = K_MAX * text.tokens[-1:]  # rows after the last token
        self.tokens = text.tokens + beyond

    def __call__(self, x, n_last: int) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The target's call."""
        began = self.clock.wait(self.prices.window(n_last))
        self.log.append(Call(began, self.clock.now - began, n_last, n_last))
        first = len(x) - n_last + 1
        return self.text.rows(self.tokens[first : first + n_last])

    def by_text(self, drafter: Callable[[int], Draft], x, k: int, go_on: Callable | None = None) -> Proposal:  # [n]
        """A drafter that reads the text alone."""
        self.clock.wait(self.prices.by_text)
        longest = self.text.drafts(drafter, len(x))
        m = until_unsure(longest.margins[:k], go_on)
        return Proposal(longest.tokens[:m], longest.p[:m], margins=longest.margins[:m])

    def by_model(self, x, k: int, go_on: Callable | None = None) -> Proposal:  # [n]
        """The draft model."""
        proposal = self.draft_model.propose(x, k, go_on)
        self.clock.wait(len(proposal.tokens) * self.prices.draft)
        return proposal

    def decode(self, specs: Sequence[Drafter], K: int | str) -> tuple[float, int]:
        """Decode the text with the first of these drafters that proposes anything, and a K, which may be "auto" ->
        seconds, calls of the target."""
        text = self.text
        drafters = [partial(self.by_text, spec.by_text) if spec.by_text else self.by_model for spec in specs]
        draft = first_of(drafters)
        if K == "auto":
            learned = Learned([spec.scale for spec in specs], self.clock)
            seconds = [partial(self.prices.of, spec) for spec in specs]
            learned.learn_costs(self.prices.window, seconds, max(WINDOW_ROWS))
            draft = AutoDrafter(learned, drafters, self)
            K = K_MAX
        x = text.tokens[: text.n]  # [n]
        rng = np.random.default_rng(0)
        n_calls = 0
        for _ in speculative_sampling(x, draft, self, text.N, K, rng):
            n_calls += 1
        return self.clock.now, n_calls
