"""What a KV cache holds, if a target and its copies share it, and if several decodes use it in turn."""

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np

from speculative.engines.formats import FORMATS


class Slots:
    """The tokens whose keys and values a cache holds, and how many of them, from the first on, each network may read.

    A target, of rank 0, and its rounded copies share one cache. A network reads what its own rank or a lower one wrote:
    a copy goes on after the target's text, and the target writes its own over the drafts of its copies:

                                                   tokens     lengths of the target and of the copy
        the target reads a b                       a b        2  2
        the copy reads b and c, drafts c and d     a b c      1  3
        the target reads b c d                     a b c d    4  4
        d is rejected for e, which the copy reads  a b c e    3  4
    """

    def __init__(self):
        self.tokens = np.empty(0, int)  # [n]
        self.lengths = np.zeros(1 + len(FORMATS), int)  # [n_ranks], of the part that each rank may read
        self.parents: np.ndarray | None = None  # [n], of a tree's tokens; None: each follows the one before it
        self.user: Decode | None = None  # the decode that used it last; None if something was forgotten since

    def cut(self, n: int = 0) -> None:
        """Forget all tokens but the first n."""
        self.lengths = np.minimum(self.lengths, n)
        self.user = None


class Decode:
    """What the shared cache of some networks held when a decode left it: if another decode has used the cache since,
    this is restored. So the rows of a copy, which reads what its target has written, do not depend on other decodes."""

    def __init__(self, networks: Iterable[Any]):
        self.networks = sorted((one for one in networks if hasattr(one, "slots")), key=lambda one: one.rank)
        self.left: dict[int, Slots] = {}  # by the identity of the cache's slots

    def restore(self, reader: Any, x) -> None:  # [n]
        """Let the cache hold what networks of a lower rank than the reader's have read of the text x in this decode."""
        slots = getattr(reader, "slots", None)
        if slots is None or slots.user is self:
            return
        left = self.left.get(id(slots), Slots())
        n = 0
        for network in self.networks:
            if network.slots is slots and network.rank < reader.rank:
                n = max(n, network.n_held(x, left))
                network.hold(x[:n])

    def leave(self, network: Any) -> None:
        """Remember what the cache holds after a call of this network."""
        slots = getattr(network, "slots", None)
        if slots is not None:
            slots.user = self
            self.left[id(slots)] = copy(slots)


def common_prefix(a, b) -> int:  # [n_a], [n_b] -> the number of leading tokens that are the same
    n = min(len(a), len(b))
    differ = np.asarray(a[:n]) != np.asarray(b[:n])  # [n]
    return int(differ.argmax()) if differ.any() else n
