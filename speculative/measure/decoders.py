"""Both decoders of a pair at one temperature, which --verify checks; and the result of a check."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speculative.accept import TOKEN, Rule
from speculative.decoding import Lookahead, decode
from speculative.sampling import autoregressive_sampling


class Check(NamedTuple):
    name: str
    passed: bool
    detail: str  # what was checked, how often, and what was found
    shift: float | None = None  # of a sampled check: the total variation that would have shown


class Choice(NamedTuple):
    """A lookahead that is not a number: each decode makes its own, which knows nothing yet."""

    name: str
    make: Callable[[], Lookahead]


class Decoders(NamedTuple):
    """The decoders that are verified, at one temperature."""

    target_model: Callable  # model(x, n_last) -> [n_last, n_vocab]; if it has a cache, with forget()
    make_drafter: Callable  # rng -> drafters.Drafter
    speculative: Callable = decode  # (x, drafter, target_model, N, lookahead, rng, rule) -> Steps
    rule: Rule = TOKEN
    autoregressive: Callable = autoregressive_sampling
    # Where rows are not promised to be the same to the bit: the target's logits, and how far apart the two best may be
    # where greedy texts part.
    logits: Callable | None = None
    rounding: float = 0.0

    def decode(
        self,
        x,
        N: int,
        K: int | Choice | None,
        rng: np.random.Generator,
        tick: Callable = lambda n: None,
        note: Callable = lambda proposal: None,
    ) -> list[int]:
        """N tokens; where K is None, of the autoregressive decoder.

        tick(n) is called after n new tokens, note(proposal) with what was proposed for them.
        """
        if K is None:
            steps = self.autoregressive(x, self.target_model, N, rng)
        else:
            lookahead = K.make() if isinstance(K, Choice) else K
            drafter = self.make_drafter(rng)
            steps = self.speculative(x, drafter, self.target_model, N, lookahead, rng, self.rule)
        tokens = []
        for step in steps:
            tokens += [int(token) for token in step.tokens]
            tick(len(step.tokens))
            note(step.proposal)
        return tokens

    def direct(self, x, n_last: int) -> np.ndarray:  # -> [n_last, n_vocab]
        """The target, from an empty cache."""
        getattr(self.target_model, "forget", lambda: None)()
        return np.asarray(self.target_model(x, n_last))
