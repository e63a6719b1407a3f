"""Both decoders of a session at one temperature, which --verify checks; and the result of a check."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

OWN = "own"  # the lookahead, or the tree, of the run itself


class Check(NamedTuple):
    name: str
    passed: bool
    detail: str  # what was checked, how often, and what was found
    shift: float | None = None  # of a sampled check: the total variation distance that would have shown


class Decoders(NamedTuple):
    """The decoders that are verified, at one temperature."""

    target_model: Callable  # model(x, n_last) -> [n_last, n_vocab]
    make_drafter: Callable  # rng -> drafters.Drafter
    autoregressive: Callable  # (x, N, rng) -> Steps
    speculative: Callable  # (x, N, K, rng) -> Steps; K is a number, or OWN
    own_name: str = OWN  # the run's lookahead, in words
    # If rows are not promised to be the same to the bit: the target's logits, and how far apart the two best may be at
    # a place where greedy texts part.
    logits: Callable | None = None
    rounding: float = 0.0

    def name(self, K) -> str:
        return self.own_name if K == OWN else str(K)

    def decode(
        self, x, N: int, K, rng, tick: Callable = lambda n: None, note: Callable = lambda proposal: None
    ) -> list[int]:
        """N tokens; if K is None, of the autoregressive decoder.

        tick(n) is called after n new tokens, note(proposal) with what was proposed for them.
        """
        steps = self.autoregressive(x, N, rng) if K is None else self.speculative(x, N, K, rng)
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
