"""Prompt lookup: the tokens that followed the last few tokens at an earlier place of the text.

It needs no model and costs next to nothing. It pays where a text repeats itself: code, summaries, lists.

Source: Saxena 2023, "Prompt Lookup Decoding".
"""

from collections.abc import Iterator, Sequence

import numpy as np

from speculative.drafters.base import Context, Draft, Drafter, DraftTree, until_unsure
from speculative.filters import one_hot
from speculative.sampling import NOTHING, Proposal
from speculative.trees import Tree, draft_at

NAME = "prompt_lookup"
LONGEST = 3  # tokens of a match


def matches_in(text, ends, x) -> Iterator[np.ndarray]:  # [n_text], [n_ends], [n] -> [n_1], [n_2], [n_3]
    """The places of the last token of x in a text, then of the last two tokens, and so on, while there are any.

    A place is the position of the last token of a match: the tokens from position + 1 on followed it. ends: the
    positions that are looked at.
    """
    for n in range(1, min(LONGEST, len(x)) + 1):
        ends = ends[ends >= n - 1]
        ends = ends[text[ends - (n - 1)] == x[len(x) - n]]  # [n_matches]
        if not len(ends):
            return
        yield ends


def earlier_matches(x) -> Iterator[np.ndarray]:  # [n] -> [n_1], [n_2], [n_3]
    """The earlier places of the last tokens of x in x itself."""
    return matches_in(x, np.arange(len(x) - 1), x)


def prompt_lookup(n_vocab: int) -> Draft:
    """Propose the tokens that followed the longest match, at the last of its places; nothing if there is no match.

    If fewer than k tokens followed, they are repeated (as LZ77 copies): after a b c a b c come, for k = 5, a b c a b.
    """

    def draft(x, k, go_on=None):  # [n], k -> [m], [m, n_vocab], m <= k
        x = np.asarray(x)  # [n]
        matches = [*earlier_matches(x)]  # the longest comes last
        if not matches:
            return NOTHING
        n_more = len(matches) - 1  # tokens that match beside the first
        margins = [float(n_more + i) for i in range(k)]  # each draft that is accepted makes the match a token longer
        m = until_unsure(margins, go_on)
        end = matches[-1][-1]
        tokens = np.resize(x[end + 1 :], m).tolist()  # [m], cut or repeated
        return Proposal(tokens, one_hot(tokens, n_vocab), [NAME] * m, margins=margins[:m])

    return draft


def lookup_tree(n_vocab: int) -> DraftTree:
    """The same with several continuations: the longest matches come first, and of equally long ones the last place."""

    def draft(x, widths):
        x = np.asarray(x)  # [n]
        tree = Tree(NAME)
        for ends in reversed([*earlier_matches(x)]):
            for end in reversed(ends):
                tokens = np.resize(x[end + 1 :], len(widths))  # [depth]
                add_path(tree, widths, tokens.tolist(), n_vocab)
        return tree

    return draft


def add_path(tree: Tree, widths: Sequence[int], tokens: Sequence[int], n_vocab: int) -> None:
    """Add a continuation to a tree, as far as it has room. Continuations that begin alike share nodes."""
    node = 0
    for width, token in zip(widths, tokens, strict=True):
        children = tree.children[node]
        drafts = [draft_at(tree, child)[0] for child in children]
        if token in drafts:
            node = children[drafts.index(token)]
        elif len(children) < width:
            [p] = one_hot([token], n_vocab)  # [n_vocab]
            node = tree.add(node, token, p)
        else:
            return


class PromptLookup(Drafter):
    name = NAME
    phrase = "prompt lookup"
    mark = "l"
    scale = 1.0

    def chain(self, context: Context) -> Draft:
        return prompt_lookup(context.n_vocab)

    def tree(self, context: Context) -> DraftTree:
        return lookup_tree(context.n_vocab)

    def by_text(self, n_vocab: int) -> Draft:
        return prompt_lookup(n_vocab)
