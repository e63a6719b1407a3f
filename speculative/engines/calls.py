"""A model's log: an entry for each of its calls."""

from collections import deque
from typing import NamedTuple

N_CALLS = 4096  # entries that a log keeps: more than a step has


class Call(NamedTuple):
    """An entry of a model's log."""

    began: float  # by time.perf_counter
    seconds: float
    n_read: int  # tokens that the model had to read
    n_rows: int  # rows of logits that it gave
    derived: bool = False  # True if it is one of equal calls in a loop on a device, and its time their mean
    n_texts: int = 1  # of which it computed rows

    @property
    def prefill(self) -> bool:
        """True if the call read a prompt. A draft model may be two tokens behind, so up to two tokens more than rows
        are no prompt."""
        return self.n_read > self.n_rows + 2 * self.n_texts


def new_log() -> deque[Call]:
    return deque(maxlen=N_CALLS)
