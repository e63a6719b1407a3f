"""From tokens to logits: a network, and one with a KV cache that cannot go stale."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from speculative.blog.encoder import Encoder
from speculative.engines.formats import n_bytes
from speculative.support.errors import UserError
from speculative.support.process import taken_at_forks
from speculative.trees import Tree, by_paths

LOCK = taken_at_forks(threading.RLock())  # held around a forward pass: all models share the engine's threads
NO_TOKENS = np.empty(0, int)


class TextRows(NamedTuple):
    """The arguments of a forward pass: rows of one text, which it computes beside those of other texts."""

    tokens: np.ndarray  # [n]
    n_last: int  # the number of rows, from the last one up, whose logits are wanted
    n_past: int  # tokens of the text before them, which the cache holds
    cache: Any
    sees: np.ndarray | None = None  # [n, n_past + n or more]: in a tree, the tokens that each row sees


class Rows(NamedTuple):
    """The result of a network, or of a forward pass, for the last tokens of a text."""

    logits: np.ndarray  # [n, n_vocab]
    hidden: np.ndarray | None = None  # [n, n_embd], the last block's output, if the pass keeps it
    waited: float = 0.0  # seconds in which only other texts of a batch were served
    n_read: int = 0  # tokens that the network had to read for them


class Network:
    """A function from tokens to logits without a cache, such as n-gram counts."""

    weight_bytes = 0  # bytes of its weights, if it has any

    def __init__(self, logits: Callable):
        """logits(x, n_last) -> [n_last, n_vocab]"""
        self.function = logits

    def logits(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """The logits of the tokens that follow each of the last n_last tokens of x."""
        return self.rows(x, n_last).logits

    def rows(self, x, n_last: int = 1) -> Rows:  # [n]
        """The same with the values that the report and heads ask for."""
        return Rows(self.function(x, n_last))

    def tree_rows(self, x, tree: Tree, nodes: Sequence[int]) -> Rows:  # [n], [m]
        """The rows after these nodes, path by path. Raises as rows does."""
        return Rows(by_paths(self.logits)(x, tree, nodes))

    def forget(self) -> None:
        """It has no cache."""


class CacheContents:
    """The tokens whose keys and values a network has written to its cache."""

    tokens = NO_TOKENS  # [n]
    writer: object = None  # the shared_cache.SharedCache that wrote last; None: a network by itself


class CachedNetwork(Network):
    """logits(x, n_last) -> [n_last, n_vocab], computing only the rows that the previous call did not.

    A call keeps the longest prefix that the cache's tokens share with x, forgets the rest by moving a length, and feeds
    the missing tokens. A rejected draft, another prompt and a draft that is one token behind need no case of their own:
    each is one more x.
    """

    lock: AbstractContextManager = LOCK  # held around a call

    def __init__(self, params: dict, hparams: dict, forward: Any, name: str = "the model"):
        """forward: the pass of an engine over these parameters. name: the model's name in messages."""
        self.params = params
        self.hparams = hparams
        self.name = name
        self.n_ctx = hparams["n_ctx"]
        self.vocabulary_map = hparams.get("vocabulary_map")  # for a draft that does not share all ids with its target
        self.weight_bytes = n_bytes(params)
        self.forward = forward
        self.contents = CacheContents()

    @cached_property
    def cache(self) -> Any:
        """The keys and values, made when they are first needed: a copy that shares its target's needs none."""
        return self.forward.new_cache()

    def with_own_cache(self, forward: Callable) -> "CachedNetwork":
        """The same weights with an empty cache, for a text of a batch. forward: computes its rows beside those of the
        other texts, for which it waits: so no lock is held meanwhile."""
        own = copy(self)
        vars(own).pop("cache", None)
        own.lock = nullcontext()
        own.forward = forward
        own.contents = CacheContents()
        return own

    def warm_up(self) -> None:
        """Compute a row: the first call allocates memory and starts threads. Raises UserError as rows does."""
        self.rows(np.zeros(1, int))
        self.forget()

    def forget(self) -> None:
        """Empty the cache."""
        self.contents.tokens = NO_TOKENS
        self.contents.writer = None

    def rows(self, x, n_last: int = 1) -> Rows:  # [n]
        """Compute the rows of the last n_last tokens of x.

        Raises ValueError if x does not fit into the context or has fewer than n_last tokens, and UserError if a row has
        no largest logit, because the weights are damaged.
        """
        x = np.array(x)  # [n], a copy: the caller may change x
        check_length(len(x), n_last, self.n_ctx)
        with self.lock:
            # The last n_last tokens are fed again, also if the cache holds them: their rows are asked for.
            n = min(common_prefix(self.contents.tokens, x), len(x) - n_last)
            self.forget()  # so that an interrupted pass leaves an empty cache and not a wrong one
            rows = self.feed(x, n, n_last)
            self.contents.tokens = x
        return rows

    def feed(self, x, n: int, n_last: int, *sees) -> Rows:  # [n_x]
        """Feed x[n:] after the first n tokens of the cache. sees: the mask of a tree, if the pass takes one."""
        tokens = x[n:]
        if self.vocabulary_map:
            tokens = to_draft(tokens, self.vocabulary_map)
        rows: Rows = self.forward(tokens, n_last, n, self.cache, *sees)
        logits = rows.logits  # [n_last, n_vocab]
        if self.vocabulary_map:
            logits = to_target(logits, self.vocabulary_map)
        check_finite(logits, self.name, len(x) - n_last + 1)
        return Rows(logits, rows.hidden, rows.waited, len(x) - n)

    def output(self, h, first: int) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The logits of rows that the last block might have given, as heads guess them. first: the position of the
        first row's token. Raises UserError as above."""
        with LOCK:
            logits = self.forward.output(h)  # [n, n_vocab]
        check_finite(logits, f"{self.name}, with its heads,", first)
        return logits


def common_prefix(a, b) -> int:  # [n_a], [n_b] -> the number of leading tokens that are the same
    n = min(len(a), len(b))
    differ = np.append(np.not_equal(a[:n], b[:n]), True)  # [n + 1], at the end of the shorter one they differ
    return int(differ.argmax())


def check_length(n: int, n_last: int, n_ctx: int) -> None:
    """Raise ValueError if a text of n tokens does not fit, or has fewer than are asked for."""
    if n == 0:
        raise ValueError("there is no token to continue: an empty text begins with <|endoftext|>, the encoder's eot")
    if not n_last <= n <= n_ctx:
        raise ValueError(f"{n} tokens: the context holds {n_ctx}, and {n_last} rows were asked for")


def check_finite(logits, name: str, first: int) -> None:  # [n, n_vocab]
    """Raise UserError if a row holds NaN or +inf. (-inf is a probability of 0.) first: the position of the first row's
    token."""
    if math.isfinite(np.maximum.reduce(logits, axis=None)):  # max() takes twice as long on a short row
        return
    row = int(np.argmin(np.isfinite(logits.max(axis=-1))))
    fault = f"gives logits that are not finite, at position {first + row}"
    raise UserError(f"{name} {fault}: its weights are damaged, or too large to compute with")


# ---- A draft model with another vocabulary ---------------------------------------------------------------------------
# It is the target's except for its end: padding there, or other tokens added to it. The draft is given the target's
# ids and gives logits for the target's ids. A token that it lacks has the probability 0 as a draft, so nothing is lost;
# if the text holds such a token, the draft reads another one.


class VocabularyMap(NamedTuple):
    """The ids that a draft shares with its target, and the one that it reads for others: its
    hparams["vocabulary_map"]."""

    n_shared: int  # the ids below it
    n_vocab: int  # the target's
    unknown: int  # the id that the draft reads in place of all others


def map_vocabulary(target: Encoder, draft: Encoder) -> VocabularyMap | None:
    """None if the vocabularies differ in more than padding and tokens added at the end."""
    n_shared = 0
    most = min(target.n_vocab, draft.n_vocab)
    while n_shared < most and target.id_to_bytes[n_shared] == draft.id_to_bytes[n_shared]:
        n_shared += 1
    if has_words_from(n_shared, target) or has_words_from(n_shared, draft) or target.merges != draft.merges:
        return None
    has_eot = 0 <= draft.eot < n_shared
    return VocabularyMap(n_shared, target.n_vocab, draft.eot if has_eot else 0)


def has_words_from(first: int, encoder: Encoder) -> bool:
    """Return whether a token from this id on is neither padding nor added."""
    return any(encoder.id_to_bytes[i] and i not in encoder.added for i in range(first, encoder.n_vocab))


def to_draft(tokens, by: VocabularyMap, np: ModuleType = np):  # [n] -> [n]
    """The target's ids as the draft reads them. np: numpy, or jax.numpy."""
    return np.where(np.asarray(tokens) < by.n_shared, tokens, by.unknown)


def to_target(logits, by: VocabularyMap, np: ModuleType = np):  # [n, the draft's n_vocab] -> [n, n_vocab]
    n_more = by.n_vocab - by.n_shared
    return np.pad(logits[:, : by.n_shared], ((0, 0), (0, n_more)), constant_values=-np.inf)
