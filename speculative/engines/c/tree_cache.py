"""The part of a KV cache that trees need beyond a common prefix."""

import numpy as np

from speculative.engines.model import CachedNetwork, check_length
from speculative.engines.shared_cache import Slots, common_prefix
from speculative.trees import Tree


class TreeNetwork(CachedNetwork):
    """A CachedNetwork that scores a tree of drafts in one pass, if the pass takes a mask."""

    def n_kept(self, x, parents=None) -> int:  # [n] twice
        """The same, after keys and values, such as those of an accepted path, were moved to their places in x."""
        slots = self.slots
        if slots.parents is None and parents is None:
            return super().n_kept(x)
        n, elsewhere = match_cache(self.readable, slots.parents, x, parents)
        places = np.maximum.accumulate([*range(n), *elsewhere])  # [n_kept]
        lengths = np.searchsorted(places, slots.lengths)  # [n_ranks]
        slots.cut()  # an interruption of what follows leaves an empty cache and not a wrong one
        slots.parents = parents
        if elsewhere:
            self.forward.move(np.array(elsewhere), n)
        slots.tokens, slots.lengths = np.array(x[: len(places)]), lengths
        return len(places)

    def n_held(self, x, slots: Slots) -> int:  # [n]
        """The same, with the tokens that would be moved."""
        n, elsewhere = match_cache(slots.tokens[: slots.lengths[self.rank]], slots.parents, x, None)
        return n + len(elsewhere)

    def tree_logits(self, x, tree: Tree, nodes=None) -> np.ndarray:  # [n], [m] -> [m, n_vocab]
        """The same in one pass, in which a node sees the text and the path to itself, and no other node."""
        x = np.asarray(x)  # [n]
        if nodes is None:
            nodes = range(1 + len(tree.tokens))
        tokens = np.append(x, tree.tokens).astype(int)  # [n + n_nodes]; node i is at n - 1 + i
        tree_parents = np.add(tree.parents, len(x) - 1)  # [n_nodes]
        parents = np.append(chain_parents(len(x)), tree_parents).astype(int)  # [n + n_nodes]
        first = min(nodes)
        n_last = 1 + len(tree.tokens) - first
        check_length(len(tokens), n_last, self.n_ctx)
        rows = np.subtract(nodes, first)  # [m]
        with self.lock:
            n = min(self.n_kept(tokens, parents), len(tokens) - n_last)
            logits = self.feed(tokens, n, n_last, ancestor_mask(parents, n))  # [n_last, n_vocab]
            self.hidden = self.hidden[rows]  # [m, n_embd]
        return logits[rows]  # [m, n_vocab]


def chain_parents(n: int) -> np.ndarray:  # -> [n]
    """The parents of tokens that each follow the one before."""
    return np.arange(-1, n - 1)


def match_cache(held_tokens, held_parents, tokens, parents) -> tuple[int, list[int]]:  # [n_held] twice, [n] twice
    """The number of leading tokens that are cached in their places, and the places at which those after them are
    cached, up to the first that is not. Parents may be None, for a chain."""
    held_parents = chain_parents(len(held_tokens)) if held_parents is None else held_parents[: len(held_tokens)]
    parents = chain_parents(len(tokens)) if parents is None else parents
    same_tokens = common_prefix(held_tokens, tokens)
    same_parents = common_prefix(held_parents, parents)
    n = min(same_tokens, same_parents)
    place = [*range(n)]
    for token, parent in zip(tokens[n:], parents[n:], strict=True):
        held_parent = place[parent] if parent >= 0 else -1
        has_token = held_tokens == token  # [n_held]
        same = has_token & (held_parents == held_parent)  # [n_held]
        if not same.any():
            break
        place.append(int(same.argmax()))
    return n, place[n:]


def ancestor_mask(parents: np.ndarray, n: int = 0) -> np.ndarray:  # [m] -> [m - n, m] bool
    """Row i is true at token n + i and at all of its ancestors."""
    m = len(parents)
    sees = np.tri(m, dtype=bool)  # [m, m], which is right for the tokens that each follow the one before
    for i in range(common_prefix(parents, chain_parents(m)), m):
        sees[i] = sees[parents[i]]
        sees[i, i] = True
    return sees[n:]
