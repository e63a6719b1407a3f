"""What a KV cache holds, if a target and its copies share it, and if several decodes use it in turn."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from speculative.engines.formats import FORMATS


class Held(NamedTuple):
    """The tokens whose keys and values a cache holds, and how many of them, from the first on, each network may read.

    A target, of rank 0, and its rounded copies share one cache. A network reads what its own rank or a lower one wrote:
    a copy goes on after the target's text, and the target writes its own over the drafts of its copies:

                                                   tokens     lengths of the target and of the copy
        the target reads a b                       a b        2  2
        the copy reads b and c, drafts c and d     a b c      1  3
        the target reads b c d                     a b c d    4  4
        d is rejected for e, which the copy reads  a b c e    3  4
    """

    tokens: np.ndarray  # [n]
    lengths: np.ndarray  # [n_ranks], of the part that each rank may read
    parents: np.ndarray | None = None  # [n], of a tree's tokens; None: each follows the one before it

    def match(self, rank: int, x, parents=None) -> tuple[int, list[int]]:  # [n], [n] or None: x is a chain
        """How much of x the cache has for a network of this rank. Returns n, the tokens that lie at their own places,
        and the places of the tokens after these, which a tree may have left elsewhere. parents: if x is a tree.

        A token is there if the cache has it after the same tokens. Of chains, only the common prefix is; after a tree,
        the tokens of an accepted path may lie anywhere behind that.
        """
        n_readable = self.lengths[rank]
        tokens = self.tokens[:n_readable]  # [n_readable]
        n = common_prefix(tokens, x)
        if self.parents is None and parents is None:
            return n, []
        held_parents = parents_or_chain(self.parents, self.tokens)[:n_readable]
        parents = parents_or_chain(parents, x)  # [n]
        n = min(n, common_prefix(held_parents, parents))
        places = [*range(n)]  # in the cache, of the tokens of x so far
        for token, parent in zip(x[n:], parents[n:], strict=True):
            held_parent = places[parent] if parent >= 0 else -1
            is_there = (tokens == token) & (held_parents == held_parent)  # [n_readable]
            if not is_there.any():
                break
            places.append(int(is_there.argmax()))
        return n, places[n:]


NOTHING = Held(np.empty(0, int), np.zeros(1 + len(FORMATS), int))


class CacheContents:
    """What a cache holds now, for all networks that share it."""

    def __init__(self):
        self.held = NOTHING
        self.last_decode: DecodeMemory | None = None  # that used it; None if something was forgotten since

    def forget(self) -> None:
        """Forget all tokens."""
        self.held = NOTHING
        self.last_decode = None

    def cut(self, n: int) -> None:
        """Forget all tokens but the first n."""
        self.held = self.held._replace(lengths=np.minimum(self.held.lengths, n))
        self.last_decode = None


class DecodeMemory:
    """What the shared cache held when this decode left it: if another decode has used the cache since, this is
    restored. So the rows of a copy, which reads what its target has written, do not depend on other decodes.

    If a decode's target has read a b c, and another decode has read x y z meanwhile, a copy that should read d would
    have to read a b c itself, by its own rounded weights. So the target reads a b c once more, and then the copy d.
    """

    def __init__(self, networks: Iterable[Any]):
        self.networks = sorted((network for network in networks if network.contents), key=lambda network: network.rank)
        self.left: dict[CacheContents, Held] = {}

    def restore(self, reader: Any, x) -> None:  # [n]
        """Let the cache hold what networks of a lower rank than the reader's have read of the text x in this decode."""
        contents = reader.contents
        if contents is None or contents.last_decode is self:
            return
        left = self.left.get(contents, NOTHING)
        n = 0
        for network in self.networks:
            if network.contents is contents and network.rank < reader.rank:
                in_place, elsewhere = left.match(network.rank, x)
                n = max(n, in_place + len(elsewhere))
                network.hold(x[:n])

    def leave(self, network: Any) -> None:
        """Remember what the cache holds after a call of this network."""
        contents = network.contents
        if contents is not None:
            contents.last_decode = self
            self.left[contents] = contents.held


def common_prefix(a, b) -> int:  # [n_a], [n_b] -> the number of leading tokens that are the same
    n = min(len(a), len(b))
    differ = np.append(np.not_equal(a[:n], b[:n]), True)  # [n + 1], at the end of the shorter one they differ
    return int(differ.argmax())


def parents_or_chain(parents, tokens):  # [n] or None, [n] -> [n]
    """The parents of a tree's tokens; of a chain, in which each follows the one before."""
    return np.arange(-1, len(tokens) - 1) if parents is None else parents
