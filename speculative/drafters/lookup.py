"""Prompt lookup: the tokens that followed the last few tokens at an earlier place of the text.

It needs no model and costs next to nothing. It pays where a text repeats itself: code, summaries, lists.

Source: Saxena 2023, "Prompt Lookup Decoding".
"""

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from speculative.drafters.base import DrafterSpec
from speculative.filters import one_hot
from speculative.sampling import Proposal
from speculative.trees import Tree

NAME = "prompt_lookup"


def earlier_ends(x: np.ndarray, n_max: int) -> Iterator[np.ndarray]:  # [n] -> [n_1], [n_2], ..., n_max at most
    """The earlier places of the last token of x, then of the last two tokens, and so on, while there are any.

    A position is where the match ends: what followed stands at position + 1.
    """
    ends = np.arange(len(x) - 1)  # [n - 1]
    for n in range(1, n_max + 1):
        ends = ends[ends >= n - 1]
        ends = ends[x[ends - (n - 1)] == x[len(x) - n]]  # [n_n]
        if not len(ends):
            return
        yield ends


def prompt_lookup(n_vocab: int, n_max: int = 3) -> Callable:
    """Proposes what followed the last n tokens where they stood before: n_max of them, or if need be fewer, down to 1.

    Of several such places it takes the last. Where x ends before k tokens have followed, what followed is repeated
    (as LZ77 copies): after a b c a b c come, for k = 5, a b c a b. Where no place is found, nothing is proposed.
    """

    def draft(x, k):  # [n], k -> [k] or [0], [k, n_vocab] or [0, n_vocab]
        x = np.asarray(x)  # [n]
        tokens = []
        for ends in earlier_ends(x, n_max):  # the longest match comes last, and stays
            tokens = np.resize(x[ends[-1] + 1 :], k).tolist()  # [k], cut or repeated
        return Proposal(tokens, one_hot(tokens, n_vocab), [NAME] * len(tokens))

    return draft


def lookup_tree(n_vocab: int, n_max: int = 3) -> Callable:
    """The same with several continuations: the longest matches come first, and of equally long ones the last place."""

    def draft(x, shape):
        x = np.asarray(x)  # [n]
        tree = Tree([int(x[-1])], source=NAME)
        for ends in [*earlier_ends(x, n_max)][::-1]:
            for end in ends[::-1]:
                add_path(tree, shape, cycle(x[end + 1 :]), n_vocab)
        return tree

    return draft


def add_path(tree: Tree, shape, tokens: Iterator[int], n_vocab: int) -> None:
    """Adds a continuation to a tree, as far as the shape has room. Where it begins as another one does, they share
    nodes."""
    node = 0
    below = shape  # of the node
    for token in tokens:
        same = [i for i, child in enumerate(tree.children[node]) if tree.tokens[child] == token]
        if same:
            i = same[0]
        elif len(tree.children[node]) < len(below):
            i = len(tree.children[node])
            tree.add(node, token, one_hot([token], n_vocab)[0])
        else:
            return
        node = tree.children[node][i]
        below = below[i]


SPEC = DrafterSpec(
    name=NAME,
    help="the tokens that followed the same words before; pays if text repeats itself",
    words="prompt lookup",
    chain=lambda context: prompt_lookup(context.n_vocab),
    tree=lambda context: lookup_tree(context.n_vocab),
    draws=False,
)
