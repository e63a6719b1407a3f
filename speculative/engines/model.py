"""From a network to model(x, n_last) -> distributions, with a log of its calls."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from speculative.engines.calls import Call
from speculative.engines.shared_cache import DecodeMemory
from speculative.trees import Tree


class LastCall(NamedTuple):
    """The rows that a model gave last, and the text that it had read."""

    x: np.ndarray = np.empty(0, int)  # [n]
    n_rows: int = 0
    hidden: np.ndarray | None = None  # [n_rows, n_embd], the last block's output, if the network keeps it
    tree: Tree | None = None  # of drafts after x
    nodes: Sequence[int] = ()  # [n_rows], the node of the tree that each row follows

    def text_before(self, row: int):  # -> [n]
        """The text that a row follows."""
        if self.tree is None:
            return self.x[: len(self.x) - self.n_rows + 1 + row]
        return [*self.x, *self.tree.path(self.nodes[row])]


class Model:
    """model(x, n_last) -> [n_last, n_vocab]: a network, then temperature and filters. Each decode has its own."""

    def __init__(self, network: Any, to_probs: Callable):
        """to_probs: logits [n, n_vocab] -> distributions [n, n_vocab]."""
        self.network = network
        self.to_probs = to_probs
        self.log = network.log
        self.last = LastCall()
        self.memory = DecodeMemory([network])

    def __call__(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        x = np.array(x)  # a copy: the caller may change x
        before = x[: max(0, len(x) - n_last)]
        with self.network.lock:
            began = self.begin(before)
            logits = self.network.logits(x, n_last)  # [n_last, n_vocab]
            return self.end(began, logits, LastCall(x))

    def score_tree(self, x, tree: Tree, nodes=None) -> np.ndarray:  # [n], [m] -> [m, n_vocab]
        """The distributions after these nodes (default: all) of a tree of drafts, whose root is the last token of x."""
        x = np.array(x)
        if nodes is None:
            nodes = range(1 + len(tree.tokens))
        has_root = min(nodes) == 0
        before = x[:-1] if has_root else x  # the root's row is that of x's last token
        with self.network.lock:
            began = self.begin(before)
            logits = self.network.tree_logits(x, tree, nodes)  # [m, n_vocab]
            return self.end(began, logits, LastCall(x, tree=tree, nodes=nodes))

    def begin(self, before) -> float:  # [n]
        """Begin a call of the network, whose rows follow this text or a longer one -> the time. The network's lock is
        held until the end, as another thread's call changes the figures."""
        self.memory.restore(self.network, before)
        self.network.seconds_for_others = 0.0
        return time.perf_counter()

    def end(self, began: float, logits, last: LastCall) -> np.ndarray:  # [m, n_vocab] -> [m, n_vocab]
        """End a call with an entry in the log. last: the text of this call."""
        network = self.network
        self.last_logits = logits  # [m, n_vocab]
        rows = self.to_probs(logits)  # [m, n_vocab]
        self.memory.leave(network)
        self.last = last._replace(n_rows=len(rows), hidden=network.hidden)
        seconds = time.perf_counter() - began - network.seconds_for_others
        self.log.append(Call(began, seconds, network.n_read, len(rows)))
        return rows

    def hidden_after(self, x) -> np.ndarray | None:  # [n] -> [n_embd]
        """The last block's output for the last token of x; None if that is not among the rows of the last call of this
        model. (Other decodes with the same network have models of their own.)"""
        for row in range(self.last.n_rows):
            if np.array_equal(self.last.text_before(row), x):
                return self.network.forward.last_block(x) if self.last.hidden is None else self.last.hidden[row]
        return None


def join_decode(models: Iterable[Any]) -> None:
    """Let these models belong to one decode, so that each may read what the others have written to a shared cache."""
    cached = [model for model in models if isinstance(model, Model)]
    memory = DecodeMemory([model.network for model in cached])
    for model in cached:
        model.memory = memory
