"""A cache that a target shares with its rounded copies, or that holds a tree of drafts. It is made only for a decode
that has copies or trees: other networks keep their tokens and the common prefix (network.py)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from speculative.engines.formats import FORMATS
from speculative.engines.network import NO_TOKENS, CachedNetwork, Network, Rows, check_length, common_prefix
from speculative.trees import Tree


class Entries(NamedTuple):
    """The tokens whose keys and values a cache holds, and how many of them, from the first on, each network may read.

    A target, of rank 0, and its rounded copies share one cache. A network reads the tokens that its own rank or a lower
    one wrote: a copy goes on after the target's text, and the target writes its own over the drafts of its copies:

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
        cached_parents = parents_or_chain(self.parents, self.tokens)[:n_readable]
        parents = parents_or_chain(parents, x)  # [n]
        n = min(n, common_prefix(cached_parents, parents))
        places = [*range(n)]  # places in the cache of the tokens of x so far
        for token, parent in zip(x[n:], parents[n:], strict=True):
            cached_parent = places[parent] if parent >= 0 else -1
            is_there = (tokens == token) & (cached_parents == cached_parent)  # [n_readable]
            if not is_there.any():
                break
            places.append(int(is_there.argmax()))
        return n, places[n:]

    def of_target(self) -> np.ndarray:  # -> [n]
        """The tokens that the target itself has written, up to the first that does not follow the one before it."""
        tokens = self.tokens[: self.lengths[0]]  # [n_readable]
        if self.parents is None:
            return tokens
        return tokens[: common_prefix(self.parents, parents_or_chain(None, tokens))]


def entries_of_target(tokens) -> Entries:  # [n]
    """The contents of a cache whose tokens were all written by the target. Its copies are to read them in this
    decode."""
    lengths = np.zeros(1 + len(FORMATS), int)  # [n_ranks]
    lengths[0] = len(tokens)
    return Entries(tokens, lengths)


class SharedCache:
    """The contents of a cache for the networks of one decode: a target and its copies, or a network that scores trees.

    If another decode has used the cache since, the contents that this decode left are restored. So the rows of a copy,
    which reads what its target has written, do not depend on other decodes:

                                                          tokens
        the target reads a b c                            a b c
        another decode reads x y z                        x y z
        the copy is asked for d: the target reads again   a b c
        the copy reads d                                  a b c d

    Else the copy would read a b c itself, by its own rounded weights.
    """

    def __init__(self, owner: CachedNetwork):
        self.cache = owner.cache
        self.contents = owner.contents
        self.networks: list[SharedNetwork] = []  # in the order of their ranks
        self.entries = entries_of_target(NO_TOKENS)

    def restore(self, reader: "SharedNetwork", x) -> None:  # [n]
        """Let the cache hold the tokens of x that networks of a lower rank than the reader's have read in this
        decode."""
        if self.contents.writer is self:
            return
        left = self.entries
        self.entries = entries_of_target(self.contents.tokens)
        self.contents.writer = self
        n = 0
        for network in self.networks:
            if network.rank < reader.rank:
                in_place, elsewhere = left.match(network.rank, x)
                n = max(n, in_place + len(elsewhere))
                network.read_exactly(x[:n])

    def forget(self) -> None:
        """Forget all tokens, so that an interruption of the pass leaves an empty cache and not a wrong one."""
        self.entries = entries_of_target(NO_TOKENS)
        self.contents.tokens = NO_TOKENS

    def hold(self, entries: Entries) -> None:
        """Note what the cache has now."""
        self.entries = entries
        self.contents.tokens = entries.of_target()


class SharedNetwork(CachedNetwork):
    """A CachedNetwork over a SharedCache. It scores a tree of drafts in one pass, if the pass takes a mask."""

    def __init__(self, network: CachedNetwork, shared: SharedCache, rank: int):
        """rank: 0 for a target; a rounded copy has a higher one, and reads the entries of lower ranks."""
        vars(self).update(vars(network))  # the same weights and pass: only the cache and its contents are others
        self.shared = shared
        self.cache = shared.cache
        self.contents = shared.contents
        self.rank = rank
        shared.networks.append(self)
        shared.networks.sort(key=lambda network: network.rank)

    def rows(self, x, n_last: int = 1) -> Rows:  # [n]
        x = np.array(x)  # [n]
        check_length(len(x), n_last, self.n_ctx)
        with self.lock:
            self.shared.restore(self, x[: len(x) - n_last])
            n = min(self.put_in_place(x), len(x) - n_last)
            return self.feed_shared(x, n, n_last)

    def feed_shared(self, x, n: int, n_last: int, parents=None) -> Rows:  # [n_x], [n_x] if x is a tree
        """Feed x[n:] after the first n tokens of the cache, and note its contents."""
        entries = self.shared.entries
        self.shared.forget()
        sees = [] if parents is None else [ancestor_mask(parents, n)]
        rows = self.feed(x, n, n_last, *sees)
        lengths = np.minimum(entries.lengths, n)  # [n_ranks]
        lengths[self.rank :] = len(x)
        self.shared.hold(Entries(x, lengths, parents))
        return rows

    def read_exactly(self, x) -> None:  # [n]
        """Make the cache hold exactly x for this network: read the missing tokens, drop the later ones. A copy that
        reads these entries then gives the same rows, whatever was decoded before."""
        entries = self.shared.entries
        n, _ = entries.match(self.rank, x)
        if n < len(x):
            self.rows(x)
            return
        lengths = np.minimum(entries.lengths, n)  # [n_ranks]
        lengths[self.rank :] = n
        self.shared.hold(entries._replace(lengths=lengths))

    def put_in_place(self, x, parents=None) -> int:  # [n] twice
        """Move keys and values, such as those of an accepted path, to their places in x. Return the number of leading
        tokens of x that the cache then has."""
        entries = self.shared.entries
        n, elsewhere = entries.match(self.rank, x, parents)
        if entries.parents is None and parents is None:
            return n
        places = np.maximum.accumulate([*range(n), *elsewhere]).astype(int)  # [n_kept]
        lengths = np.searchsorted(places, entries.lengths)  # [n_ranks]
        self.shared.forget()
        if elsewhere:
            self.cache.move(np.array(elsewhere), n)
        self.shared.hold(Entries(np.array(x[: len(places)]), lengths, parents))
        return len(places)

    def tree_rows(self, x, tree: Tree, nodes: Sequence[int]) -> Rows:  # [n], [m]
        """The rows after these nodes in one pass, in which a node sees the text and the path to itself, and no other
        node."""
        x = np.asarray(x)  # [n]
        if not self.forward.takes_trees:
            return self.rows_by_paths(x, tree, nodes)
        tokens = np.append(x, tree.tokens).astype(int)  # [n + n_nodes]; node i is at n - 1 + i
        tree_parents = np.add(tree.parents, len(x) - 1)  # [n_nodes]
        parents = np.append(parents_or_chain(None, x), tree_parents).astype(int)  # [n + n_nodes]
        first = min(nodes)
        n_last = 1 + len(tree.tokens) - first
        check_length(len(tokens), n_last, self.n_ctx)
        at = np.subtract(nodes, first)  # [m]
        with self.lock:
            self.shared.restore(self, x[:-1] if first == 0 else x)  # the root's row is that of x's last token
            n = min(self.put_in_place(tokens, parents), len(tokens) - n_last)
            rows = self.feed_shared(tokens, n, n_last, parents)
        hidden = None if rows.hidden is None else rows.hidden[at]  # [m, n_embd]
        return rows._replace(logits=rows.logits[at], hidden=hidden)

    def rows_by_paths(self, x, tree: Tree, nodes: Sequence[int]) -> Rows:  # [n], [m]
        """The same by a call for each path, as if a node that several paths share were read once."""
        with self.lock:
            before_nodes = x[:-1] if min(nodes) == 0 else x
            self.shared.restore(self, before_nodes)
            n_kept = min(self.put_in_place(x), len(x) - 1)
            rows = super().tree_rows(x, tree, nodes)
        n_read = len(x) - n_kept + len(rows.logits) - 1
        return rows._replace(n_read=n_read)


def with_shared_caches(networks: Mapping[str, Network], copies: Sequence[str]) -> dict[str, Network]:
    """Return these networks, by role, for one decode that has copies or trees. copies: the roles of those that share
    the target's cache."""
    shared = dict(networks)
    target = networks["target"]
    of_target: SharedCache | None = None
    if isinstance(target, SharedNetwork):  # of a model that somebody decodes with: its cache is this decode's, too
        of_target = target.shared
    elif isinstance(target, CachedNetwork):
        of_target = SharedCache(target)
    for role, network in networks.items():
        if not isinstance(network, CachedNetwork) or isinstance(network, SharedNetwork):
            continue
        is_copy = role in copies
        rank = [*FORMATS].index(role) if is_copy else 0  # a copy reads entries of more exact copies
        of_role = of_target if is_copy or role == "target" else SharedCache(network)
        if of_role:
            shared[role] = SharedNetwork(network, of_role, rank)
    return shared


def ancestor_mask(parents, n: int = 0) -> np.ndarray:  # [m] -> [m - n, m] bool
    """Row i is true at token n + i and at all of its ancestors."""
    m = len(parents)
    sees = np.tri(m, dtype=bool)  # [m, m], which is right for the tokens that each follow the one before
    for i in range(common_prefix(parents, np.arange(-1, m)), m):
        sees[i] = sees[parents[i]]
        sees[i, i] = True
    return sees[n:]


def parents_or_chain(parents, tokens) -> np.ndarray:  # [n] or None, [n] -> [n]
    """The parents of a tree's tokens; of a chain, in which each follows the one before."""
    return np.arange(-1, len(tokens) - 1) if parents is None else parents
