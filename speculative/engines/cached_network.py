"""A network with a KV cache that cannot go stale."""

import contextlib
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from speculative.engines.calls import Call, new_log
from speculative.engines.network import LOCK, Network, check_finite, check_length
from speculative.engines.parameters import n_bytes
from speculative.engines.plain import PlainPass
from speculative.engines.shared_cache import CacheContents, Held
from speculative.engines.vocabulary import to_draft, to_target
from speculative.trees import Tree


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
        self.log = new_log()
        self.contents = CacheContents()

    def share_cache(self, target: "CachedNetwork", rank: int) -> None:
        """Use the cache of a target, of which this network is a copy in another format."""
        self.rank = rank
        self.contents = target.contents
        self.forward.cache = target.forward.cache

    def of_another_text(self, ask: Callable) -> "CachedNetwork":
        """The same weights with a cache of their own. ask(network, rows): computes rows of this text beside those of
        other texts, each of which waits in the meantime: so it holds no lock."""
        other = copy(self)
        other.batch_network = self
        other.lock = contextlib.nullcontext()
        other.log = new_log()
        other.contents = CacheContents()
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
        self.contents.forget()

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
        return self.contents.held.match(self.rank, x)[0]

    def hold(self, x) -> None:  # [n]
        """Make the cache hold exactly x for this network: read what is missing, drop what comes later. A copy that
        reads these entries then gives the same rows, whatever was decoded before."""
        held = self.contents.held
        n, _ = held.match(self.rank, x)
        if n < len(x):
            self.logits(x)
        elif n < held.lengths[self.rank]:
            self.contents.cut(n)

    def feed(self, x, n: int, n_last: int, *sees):  # [n_x] -> [n_last, n_vocab]
        """Feed x[n:] after the first n tokens of the cache. sees: the mask of a tree, if the pass takes one."""
        held = self.contents.held
        self.contents.forget()  # so that an interrupted pass leaves an empty cache and not a wrong one
        inputs = to_draft(x[n:], self.vocabulary_map) if self.vocabulary_map else x[n:]
        logits = self.forward(inputs, n_last, n, *sees)  # [n_last, n_vocab]
        if self.vocabulary_map:
            logits = to_target(logits, self.vocabulary_map)
        check_finite(logits, self.name, len(x) - n_last + 1)
        lengths = np.minimum(held.lengths, n)  # [n_ranks]
        lengths[self.rank :] = len(x)
        self.contents.held = Held(x.copy(), lengths, held.parents)  # a copy: the caller may change x
        self.n_read = len(x) - n
        self.hidden = self.forward.hidden
        return logits

    def tree_logits(self, x, tree: Tree, nodes):  # [n], [m] -> [m, n_vocab]
        x = np.asarray(x)  # [n]
        with self.lock:
            n_read = len(x) - min(self.n_kept(x), len(x) - 1)
            logits = super().tree_logits(x, tree, nodes)  # [m, n_vocab]
            self.n_read = n_read + len(logits) - 1  # as if a node that several paths share were read once
        return logits

    def output(self, h, first: int):  # [n, n_embd] -> [n, n_vocab]
        """The logits of rows that the last block might have given, as heads guess them. first: the position of the
        first row's token. Raises UserError as above."""
        with LOCK:
            logits = self.forward.output(h)  # [n, n_vocab]
        check_finite(logits, f"{self.name}, with its heads,", first)
        return logits
