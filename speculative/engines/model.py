"""From a network to model(x, n_last) -> distributions, with a KV cache that cannot go stale and a log of its calls."""

import contextlib
import math
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from speculative.engines.plain import PlainPass
from speculative.engines.shared_cache import CacheOfDecode, Held, Slots
from speculative.engines.vocabulary import to_draft, to_target
from speculative.support.errors import UserError
from speculative.support.forks import taken_at_forks
from speculative.trees import Tree, by_paths

N_CALLS = 4096  # the calls that a log keeps: more than one step takes
LOCK = taken_at_forks(threading.RLock())  # held around a forward pass: all models share the engine's threads


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
        """True if the call read a prompt, or more of the text than the two tokens by which a draft may be behind."""
        return self.n_read > self.n_rows + 2 * self.n_texts


class Network:
    """What a Model calls, with the figures of its last call: here a function without a cache, such as n-gram counts."""

    lock: Any = LOCK  # held around a call
    slots: Slots | None = None  # of its cache
    n_read = 0  # tokens that the call had to read
    seconds_for_others = 0.0  # of the call, in which only other texts of a batch were served
    hidden: np.ndarray | None = None  # [n_rows, n_embd], the last block's output for the rows, if it is kept

    def __init__(self, logits: Callable):
        """logits(x, n_last) -> [n_last, n_vocab]"""
        self.logits = logits
        self.log: deque[Call] = deque(maxlen=N_CALLS)

    def with_probs(self, to_probs: Callable) -> "Model":
        """The model that turns logits into distributions in this way."""
        return Model(self, to_probs)

    def tree_logits(self, x, tree: Tree, nodes=None):  # [n], [m] -> [m, n_vocab]
        """The logits after these nodes (default: all), path by path. Raises as logits does."""
        return by_paths(self.logits)(x, tree, nodes)

    def forget(self) -> None:
        """It has no cache."""


class CachedNetwork(Network):
    """logits(x, n_last) -> [n_last, n_vocab], computing only the rows that the previous call did not.

    A call keeps the longest prefix that the cache's tokens share with x, forgets the rest by moving a length, and feeds
    the missing tokens. A rejected draft, another prompt and a draft that is one token behind need no case of their own:
    each is one more x.
    """

    rank = 0  # 0 for a target, and for any network that shares no cache; a rounded copy has a higher one

    def __init__(self, params: dict, hparams: dict, new_pass: Callable = PlainPass, name: str = "the model"):
        """new_pass(params, hparams): a PlainPass or the compiled one. name: the model's name in messages."""
        self.params = params
        self.hparams = hparams
        self.name = name
        self.n_ctx = hparams["n_ctx"]
        self.vocabulary_map = hparams.get("vocabulary_map")  # of a draft that does not share all ids with its target
        self.weight_bytes = n_bytes(params)
        self.forward = new_pass(params, hparams)
        self.batch_network = self  # of a text of a batch: the network that computes for all, whose weights these are
        self.log = deque(maxlen=N_CALLS)
        self.slots = Slots()

    def share_cache(self, target: "CachedNetwork", rank: int) -> None:
        """Use the cache of a target, of which this network is a copy in another format."""
        self.rank = rank
        self.slots = target.slots
        self.forward.cache = target.forward.cache

    def of_another_text(self, ask: Callable) -> "CachedNetwork":
        """The same weights with a cache of their own. ask(network, rows): computes rows of this text beside those of
        other texts, each of which waits in the meantime: so it holds no lock."""
        other = copy(self)
        other.batch_network = self
        other.lock = contextlib.nullcontext()
        other.log = deque(maxlen=N_CALLS)
        other.slots = Slots()
        other.forward = self.forward.of_another_text(partial(ask, other))
        return other

    def together(self, rows_of_texts: Sequence[Any]) -> list:
        """Compute rows of several texts in one call, with an entry in the log -> the result of each."""
        with self.lock:
            began = time.perf_counter()
            results = self.forward.together(rows_of_texts)
            n_read = sum(len(rows.tokens) for rows in rows_of_texts)
            n_rows = sum(rows.n_last for rows in rows_of_texts)
            seconds = time.perf_counter() - began
            self.log.append(Call(began, seconds, n_read, n_rows, n_texts=len(rows_of_texts)))
        return results

    def warm_up(self) -> None:
        """Compute a row: the first call allocates memory and starts threads. Raises UserError as logits does."""
        self.logits(np.zeros(1, int))
        self.forget()

    def forget(self) -> None:
        """Empty the cache. The log stays: another decode may be under way."""
        self.slots.forget()

    def logits(self, x, n_last: int = 1):  # [n] -> [n_last, n_vocab]
        """The logits of the tokens that follow each of the last n_last tokens of x.

        Raises ValueError if x does not fit into the context or has fewer than n_last tokens, and UserError if a row has
        no largest logit, because the weights are damaged.
        """
        x = np.asarray(x)  # [n]
        check_length(len(x), n_last, self.n_ctx)
        with self.lock:
            return self.feed(x, min(self.n_kept(x), len(x) - n_last), n_last)

    def n_kept(self, x) -> int:  # [n]
        """The number of leading tokens of x that the cache holds."""
        return self.slots.held.match(self.rank, x)[0]

    def hold(self, x) -> None:  # [n]
        """Make the cache hold exactly x for this network: read what is missing, drop what comes later. A copy that
        reads these entries then gives the same rows, whatever was decoded before."""
        held = self.slots.held
        n, _ = held.match(self.rank, x)
        if n < len(x):
            self.logits(x)
        elif n < held.lengths[self.rank]:
            self.slots.cut(n)

    def feed(self, x, n: int, n_last: int, *sees):  # [n_x] -> [n_last, n_vocab]
        """Feed x[n:] after the first n tokens of the cache. sees: the mask of a tree, if the pass takes one."""
        held = self.slots.held
        self.slots.forget()  # so that an interrupted pass leaves an empty cache and not a wrong one
        inputs = to_draft(x[n:], self.vocabulary_map) if self.vocabulary_map else x[n:]
        logits = self.forward(inputs, n_last, n, *sees)  # [n_last, n_vocab]
        if self.vocabulary_map:
            logits = to_target(logits, self.vocabulary_map)
        check_finite(logits, self.name, len(x) - n_last + 1)
        lengths = np.minimum(held.lengths, n)  # [n_ranks]
        lengths[self.rank :] = len(x)
        self.slots.held = Held(x.copy(), lengths, held.parents)  # a copy: the caller may change x
        self.n_read = len(x) - n
        self.hidden = self.forward.hidden
        return logits

    def tree_logits(self, x, tree: Tree, nodes=None):  # [n], [m] -> [m, n_vocab]
        x = np.asarray(x)  # [n]
        with self.lock:
            n_read = len(x) - min(self.n_kept(x), len(x) - 1)
            logits = super().tree_logits(x, tree, nodes)  # [m, n_vocab]
            self.n_read = n_read + len(logits) - 1  # as if a node that several paths share were read once
        return logits

    def last_block(self, x):  # [n] -> [n_embd]
        """The last block's output for the last token of x, for a network that keeps no hidden rows."""
        return self.forward.last_block(x)

    def output(self, h, first: int):  # [n, n_embd] -> [n, n_vocab]
        """The logits of rows that the last block might have given, as heads guess them. first: the position of the
        first row's token. Raises UserError as above."""
        with LOCK:
            logits = self.forward.output(h)  # [n, n_vocab]
        check_finite(logits, f"{self.name}, with its heads,", first)
        return logits


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
        self.cache_of_decode = CacheOfDecode([network])

    def __call__(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        x = np.array(x)  # a copy: the caller may change x
        with self.network.lock:
            self.cache_of_decode.restore(self.network, x[: max(0, len(x) - n_last)])
            return self.call(self.network.logits, LastCall(x), n_last)

    def score_tree(self, x, tree: Tree, nodes=None) -> np.ndarray:  # [n], [m] -> [m, n_vocab]
        """The distributions after these nodes (default: all) of a tree of drafts, whose root is the last token of x."""
        x = np.array(x)
        if nodes is None:
            nodes = range(1 + len(tree.tokens))
        last = LastCall(x, tree=tree, nodes=nodes)
        has_root = min(nodes) == 0
        with self.network.lock:
            before = x[:-1] if has_root else x  # the root's row is that of x's last token
            self.cache_of_decode.restore(self.network, before)
            return self.call(self.network.tree_logits, last, tree, nodes)

    def call(self, logits_of: Callable, last: LastCall, *args):  # -> [m, n_vocab]
        """Call the network, whose lock is held until its entry is in the log too: another thread's call changes the
        figures. last: the text of this call."""
        network = self.network
        began = time.perf_counter()
        network.seconds_for_others = 0.0
        self.last_logits = logits_of(last.x, *args)  # [m, n_vocab]
        rows = self.to_probs(self.last_logits)  # [m, n_vocab]
        self.cache_of_decode.leave(network)
        self.last = LastCall(last.x, len(rows), network.hidden, last.tree, last.nodes)
        seconds = time.perf_counter() - began - network.seconds_for_others
        self.log.append(Call(began, seconds, network.n_read, len(rows)))
        return rows

    def hidden_after(self, x) -> np.ndarray | None:  # [n] -> [n_embd]
        """The last block's output for the last token of x; None if that is not among the rows of the last call of this
        model. (Other decodes with the same network have models of their own.)"""
        for row in range(self.last.n_rows):
            if np.array_equal(self.last.text_before(row), x):
                return self.network.last_block(x) if self.last.hidden is None else self.last.hidden[row]
        return None


def join_decode(models: Iterable[Any]) -> None:
    """Let these models belong to one decode, so that each may read what the others have written to a shared cache."""
    cached = [model for model in models if isinstance(model, Model)]
    cache = CacheOfDecode([model.network for model in cached])
    for model in cached:
        model.cache_of_decode = cache


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


def leaves(params) -> Iterator:
    """Yield every array and packed weight in a nested dict of parameters."""
    if hasattr(params, "nbytes"):
        yield params
        return
    for part in params.values() if isinstance(params, dict) else params:
        yield from leaves(part)


def is_mapped(params) -> bool:
    """Return True if some weights lie in a file that is mapped."""
    for leaf in leaves(params):
        memory = getattr(leaf, "tiles", leaf)
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap):
            return True
    return False


def n_bytes(params) -> int:
    return sum(leaf.nbytes for leaf in leaves(params))
