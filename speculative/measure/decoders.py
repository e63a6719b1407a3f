"""What --verify checks, both decoders of a pair at one temperature; and what a check gives."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speculative.decoding import Lookahead, decode
from speculative.drafters import Drafter
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
    """What is verified, at one temperature."""

    target_model: Callable  # model(x, n_last) -> [n_last, n_vocab]; if it has a cache, with forget()
    make_drafter: Callable  # rng -> drafters.Drafter
    speculative: Callable = decode  # (x, drafter, target_model, N, lookahead, rng, lenience) -> Steps
    lenience: float = 1.0
    autoregressive: Callable = autoregressive_sampling
    scoring: Callable | None = None  # the target as the speculative decoder takes it, where that is another function
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

        tick(n) is called after n new tokens, note(proposal) after each proposal.
        """
        if K is None:
            steps = self.autoregressive(x, self.target_model, N, rng)
        else:
            lookahead = K.make() if isinstance(K, Choice) else K
            target = self.scoring or self.target_model
            drafter = noted(self.make_drafter(rng), note)
            steps = self.speculative(x, drafter, target, N, lookahead, rng, self.lenience)
        tokens = []
        for step in steps:
            tokens += [int(token) for token in step.tokens]
            tick(len(step.tokens))
        return tokens

    def direct(self, x, n_last: int) -> np.ndarray:  # -> [n_last, n_vocab]
        """The target, from an empty cache."""
        getattr(self.target_model, "forget", lambda: None)()
        return np.asarray(self.target_model(x, n_last))


def noted(drafter: Drafter, note: Callable) -> Drafter:
    """The same drafter; note(proposal) is called with each chain or tree that it proposes."""

    def after(draft):
        def drafting(x, wanted):
            proposal = draft(x, wanted)
            note(proposal)
            return proposal

        return drafting

    tree = after(drafter.tree) if drafter.tree else None
    return Drafter(after(drafter.chain), tree)
