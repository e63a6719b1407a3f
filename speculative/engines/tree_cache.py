"""The part of a KV cache that trees and heads need beyond a common prefix."""

import numpy as np

from speculative.engines.model import LOCK, CachedNetwork, check_length, common_prefix


class TreeNetwork(CachedNetwork):
    """A CachedNetwork that also scores trees of drafts. parents [n] are those of the tokens that the cache holds."""

    def forget(self) -> None:
        super().forget()
        self.parents = None  # None: each token follows the one before it

    def n_kept(self, x) -> int:  # [n]
        n = self.realign(x, None)
        self.parents = None
        return n

    def tree_logits(self, x, tree, nodes=None) -> np.ndarray:  # [n], trees.Tree, [m] -> [m, n_vocab]
        """The logits after these nodes (default: all). Each node sees the text and the path to itself, and no other
        node. Raises ValueError and UserError as logits does."""
        x = np.asarray(x)  # [n]
        if nodes is None:
            nodes = range(len(tree.tokens))
        tokens = np.append(x, tree.tokens[1:]).astype(int)  # [n + n_nodes - 1]; node i is at n - 1 + i
        parents = np.append(chain_parents(len(x)), np.add(tree.parents[1:], len(x) - 1)).astype(int)
        first = min(nodes)
        n_last = len(tree.tokens) - first
        check_length(len(tokens), n_last, self.n_ctx)
        with LOCK:
            n = min(self.realign(tokens, parents), len(tokens) - n_last)
            self.parents = None
            sees = ancestor_mask(parents, n)  # [len(tokens) - n, len(tokens)]
            logits = self.feed(tokens, n, n_last, sees)
            self.parents = parents
        return logits[np.subtract(nodes, first)]  # [m, n_vocab]

    def realign(self, tokens, parents) -> int:  # [n] twice
        """Move cached keys and values, such as those of an accepted path of a tree, to their places in tokens. Return
        the number of leading tokens that the cache then holds."""
        n, elsewhere = match_cache(self.tokens, self.parents, tokens, parents)
        if elsewhere:
            self.forward.move(np.array(elsewhere), n)
        return n + len(elsewhere)

    def hidden(self, x) -> np.ndarray | None:  # [n] -> [n_embd]
        """The last block's output for the last token of x; None if that was not among the last call's rows."""
        n, elsewhere = match_cache(self.tokens, self.parents, np.asarray(x), None)
        if not len(x) or n + len(elsewhere) < len(x):
            return None
        last = elsewhere[-1] if elsewhere else n - 1
        first = len(self.tokens) - len(self.forward.hidden)  # the position of the last call's first row
        return self.forward.hidden[last - first] if last >= first else None


def chain_parents(n: int) -> np.ndarray:  # -> [n]
    """The parents of tokens that each follow the one before."""
    return np.arange(-1, n - 1)


def match_cache(held_tokens, held_parents, tokens, parents) -> tuple[int, list[int]]:  # [n_held] twice, [n] twice
    """The number of leading tokens that are cached in their places, and the places at which those after them are
    cached, up to the first that is not. Parents may be None, for a chain."""
    n = common_prefix(held_tokens, tokens)
    if held_parents is None and parents is None:
        return n, []
    held_parents = chain_parents(len(held_tokens)) if held_parents is None else held_parents
    parents = chain_parents(len(tokens)) if parents is None else parents
    n = min(n, common_prefix(held_parents, parents))
    place = [*range(n)]
    for token, parent in zip(tokens[n:], parents[n:], strict=True):
        held_parent = place[parent] if parent >= 0 else -1
        same = (held_tokens == token) & (held_parents == held_parent)  # [n_held]
        if not same.any():
            break
        place.append(int(same.argmax()))
    return n, place[n:]


def ancestor_mask(parents: np.ndarray, n: int = 0) -> np.ndarray:  # [m] -> [m - n, m] bool
    """Row i is true at token n + i and at all of its ancestors."""
    m = len(parents)
    straight = common_prefix(parents, chain_parents(m))  # tokens that each follow the one before
    first = min(n, straight)
    sees = np.tri(m - first, m, first, dtype=bool)  # [m - first, m]
    for i in range(straight, m):
        parent = parents[i]
        sees[i - first] = np.arange(m) <= parent if parent < straight else sees[parent - first]
        sees[i - first, i] = True
    return sees[n - first :]
