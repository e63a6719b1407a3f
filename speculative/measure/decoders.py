"""Both decoders of a session at one temperature, for --verify; and the result of a check."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

OWN = "own"  # the lookahead, or the tree, of the run itself


class Check(NamedTuple):
    name: str
    passed: bool
    detail: str  # the object, the number of comparisons, the finding
    shift: float | None = None  # of a sampled check: the total variation distance that would have shown


class Decoders(NamedTuple):
    target_model: Callable  # model(x, n_last) -> [n_last, n_vocab]
    make_drafter: Callable  # rng -> drafters.Drafter
    autoregressive: Callable  # (x, N, rng) -> Steps
    speculative: Callable  # (x, N, K, rng) -> Steps; K is a number, or OWN
    own_name: str = OWN  # the run's lookahead, in words
    # If an engine's rows depend on rounding: the target's logits, and the largest gap between nearly tied ones.
    logits: Callable | None = None
    rounding: float = 0.0

    def decode(self, x, N: int, K, rng, watch: Callable = lambda step: None) -> list[int]:
        """N tokens; if K is None, of the autoregressive decoder. watch(step) is called for each step."""
        tokens = []
        for step in self.autoregressive(x, N, rng) if K is None else self.speculative(x, N, K, rng):
            tokens += [int(token) for token in step.tokens]
            watch(step)
        return tokens

    def direct(self, x, n_last: int) -> np.ndarray:  # -> [n_last, n_vocab]
        """The target's rows, from an empty cache."""
        getattr(self.target_model, "forget", lambda: None)()
        return np.asarray(self.target_model(x, n_last))
