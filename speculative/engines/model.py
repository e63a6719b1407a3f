"""From a network to model(x, n_last) -> distributions, with a log of its calls."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from speculative.engines.network import CachedNetwork, Network, Rows
from speculative.trees import Tree

N_CALLS = 4096  # entries that a log keeps: more than a step has


class Call(NamedTuple):
    """An entry of a model's log."""

    began: float  # time.perf_counter() at its beginning
    seconds: float
    n_read: int  # tokens that the model had to read
    n_rows: int  # rows of logits that it gave
    derived: bool = False  # True if it is one of equal calls in a loop on a device, and its time their mean
    n_texts: int = 1  # texts of which it computed rows

    @property
    def prefill(self) -> bool:
        """True if the call read a prompt. A draft model may be two tokens behind, so up to two tokens more than rows
        are no prompt."""
        return self.n_read > self.n_rows + 2 * self.n_texts


new_log: Callable[[], deque[Call]] = partial(deque, maxlen=N_CALLS)


class LastCall(NamedTuple):
    """The text that a model read last, and the rows of its network."""

    x: np.ndarray  # [n]
    rows: Rows
    tree: Tree | None = None  # the tree of drafts after x
    nodes: Sequence[int] = ()  # [n_rows], the node of the tree that each row follows

    def text_before(self, row: int) -> np.ndarray:  # -> [n]
        """The text that a row follows."""
        if self.tree is None:
            return self.x[: len(self.x) - len(self.rows.logits) + 1 + row]
        return np.append(self.x, self.tree.path(self.nodes[row]))


class Model:
    """model(x, n_last) -> [n_last, n_vocab]: a network, then temperature and filters. Each decode has its own, and its
    log has the calls of that decode."""

    def __init__(self, network: Network, to_probs: Callable[..., np.ndarray], role: str = "target"):
        """to_probs: logits [n, n_vocab] -> distributions [n, n_vocab]. role: among the models of a decode."""
        self.role = role
        self.network = network
        self.to_probs = to_probs
        self.log = new_log()
        self.last: LastCall | None = None

    @property
    def last_logits(self) -> np.ndarray:  # [m, n_vocab]
        """The logits of the last call. Raises AttributeError before the first."""
        if self.last is None:
            raise AttributeError("the model was not called yet")
        return self.last.rows.logits

    def __call__(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        x = np.array(x)  # a copy: the caller may change x
        began = time.perf_counter()
        rows = self.network.rows(x, n_last)
        return self.distributions(began, LastCall(x, rows))

    def score_tree(self, x, tree: Tree, nodes=None) -> np.ndarray:  # [n], [m] -> [m, n_vocab]
        """The distributions after these nodes (default: all) of a tree of drafts, whose root is the last token of x."""
        x = np.array(x)
        if nodes is None:
            nodes = range(1 + len(tree.tokens))
        began = time.perf_counter()
        rows = self.network.tree_rows(x, tree, nodes)
        return self.distributions(began, LastCall(x, rows, tree, nodes))

    def distributions(self, began: float, last: LastCall) -> np.ndarray:  # -> [m, n_vocab]
        """Apply the temperature and the filters to the logits of a call, and log the call."""
        rows = last.rows
        self.last = last
        probs = self.to_probs(rows.logits)  # [m, n_vocab]
        seconds = time.perf_counter() - began - rows.waited
        self.log.append(Call(began, seconds, rows.n_read, len(probs)))
        return probs

    def hidden_after(self, x) -> np.ndarray | None:  # [n] -> [n_embd]
        """The last block's output for the last token of x; None if that is not among the rows of this model's last
        call."""
        last = self.last
        if last is None or not isinstance(self.network, CachedNetwork):
            return None
        for row in range(len(last.rows.logits)):
            if np.array_equal(last.text_before(row), x):
                hidden = last.rows.hidden
                return self.network.forward.last_block(x) if hidden is None else hidden[row]
        return None
