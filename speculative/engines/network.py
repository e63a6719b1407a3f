"""From tokens to logits: a network, with the figures of its last call; here one without a cache."""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from speculative.engines.calls import new_log
from speculative.engines.model import Model
from speculative.engines.shared_cache import CacheContents
from speculative.support.errors import UserError
from speculative.support.forks import taken_at_forks
from speculative.trees import Tree, by_paths

LOCK = taken_at_forks(threading.RLock())  # held around a forward pass: all models share the engine's threads


class Network:
    """A function from tokens to logits, such as n-gram counts, with the figures of its last call."""

    lock: Any = LOCK  # held around a call
    contents: CacheContents | None = None  # of its cache
    weight_bytes = 0  # of its weights, if it has any
    n_read = 0  # tokens that the call had to read
    seconds_for_others = 0.0  # of the call, in which only other texts of a batch were served
    hidden: np.ndarray | None = None  # [n_rows, n_embd], the last block's output for the rows, if it is kept

    def __init__(self, logits: Callable):
        """logits(x, n_last) -> [n_last, n_vocab]"""
        self.logits = logits
        self.log = new_log()

    def with_probs(self, to_probs: Callable) -> Model:
        """The model that turns logits into distributions in this way."""
        return Model(self, to_probs)

    def tree_logits(self, x, tree: Tree, nodes):  # [n], [m] -> [m, n_vocab]
        """The logits after these nodes, path by path. Raises as logits does."""
        return by_paths(self.logits)(x, tree, nodes)

    def forget(self) -> None:
        """It has no cache."""


def check_length(n: int, n_last: int, n_ctx: int) -> None:
    """Raises ValueError if a text of n tokens does not fit, or has fewer than are asked for."""
    if n == 0:
        raise ValueError("there is no token to continue: an empty text begins with <|endoftext|>, the encoder's eot")
    if not n_last <= n <= n_ctx:
        raise ValueError(f"{n} tokens: the context holds {n_ctx}, and {n_last} rows were asked for")


def check_finite(logits, name: str, first: int) -> None:  # [n, n_vocab]
    """Raises UserError if a row holds NaN or +inf. (-inf is a probability of 0.) first: the position of the first row's
    token."""
    if math.isfinite(np.maximum.reduce(logits, axis=None)):  # max() takes twice as long on a short row
        return
    row = int(np.argmin(np.isfinite(logits.max(axis=-1))))
    fault = f"gives logits that are not finite, at position {first + row}"
    raise UserError(f"{name} {fault}: its weights are damaged, or too large to compute with")
