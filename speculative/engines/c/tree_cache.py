"""The part of a KV cache that trees need beyond a common prefix."""

import numpy as np

from speculative.engines.cached_network import CachedNetwork
from speculative.engines.network import check_length
from speculative.engines.shared_cache import Held, common_prefix, parents_or_chain
from speculative.trees import Tree


class TreeNetwork(CachedNetwork):
    """A CachedNetwork that scores a tree of drafts in one pass, if the pass takes a mask."""

    def n_kept(self, x, parents=None) -> int:  # [n] twice
        """The same, after keys and values, such as those of an accepted path, were moved to their places in x."""
        held = self.contents.held
        n, elsewhere = held.match(self.rank, x, parents)
        if held.parents is None and parents is None:
            return n
        places = np.maximum.accumulate([*range(n), *elsewhere])  # [n_kept]
        lengths = np.searchsorted(places, held.lengths)  # [n_ranks]
        self.contents.forget()  # an interruption of what follows leaves an empty cache and not a wrong one
        if elsewhere:
            self.forward.cache.move(np.array(elsewhere), n)
        self.contents.held = Held(np.array(x[: len(places)]), lengths, parents)
        return len(places)

    def tree_logits(self, x, tree: Tree, nodes):  # [n], [m] -> [m, n_vocab]
        """The same in one pass, in which a node sees the text and the path to itself, and no other node."""
        x = np.asarray(x)  # [n]
        tokens = np.append(x, tree.tokens).astype(int)  # [n + n_nodes]; node i is at n - 1 + i
        tree_parents = np.add(tree.parents, len(x) - 1)  # [n_nodes]
        parents = np.append(parents_or_chain(None, x), tree_parents).astype(int)  # [n + n_nodes]
        first = min(nodes)
        n_last = 1 + len(tree.tokens) - first
        check_length(len(tokens), n_last, self.n_ctx)
        rows = np.subtract(nodes, first)  # [m]
        with self.lock:
            n = min(self.n_kept(tokens, parents), len(tokens) - n_last)
            logits = self.feed(tokens, n, n_last, ancestor_mask(parents, n))  # [n_last, n_vocab]
            self.hidden = self.hidden[rows]  # [m, n_embd]
        return logits[rows]  # [m, n_vocab]


def ancestor_mask(parents, n: int = 0):  # [m] -> [m - n, m] bool
    """Row i is true at token n + i and at all of its ancestors."""
    m = len(parents)
    sees = np.tri(m, dtype=bool)  # [m, m], which is right for the tokens that each follow the one before
    for i in range(common_prefix(parents, np.arange(-1, m)), m):
        sees[i] = sees[parents[i]]
        sees[i, i] = True
    return sees[n:]
