"""A model as the drafter: the blog's smaller model, or a copy of the target in fewer bytes. It is decoded
autoregressively as a chain, or depth by depth as a tree."""

from collections.abc import Callable, Iterator

import numpy as np

from speculative.drafters.base import Context, Draft, Drafter, DraftTree
from speculative.filters import largest, margins_of, one_hot
from speculative.sampling import Proposal, sample
from speculative.trees import Tree, without


def model_drafter(model: Callable, rng: np.random.Generator, name: str = "model") -> Draft:
    """Step 1 of the blog's loop: k tokens, one after the other, each drawn from p given the text so far.

    rng is the decoder's own. With a second generator of the same seed, a draft's random number would be used again in a
    test, and the output would no longer follow the target's distribution.
    """

    def draft(x, k, go_on=None):  # [n], k -> [m], [m, n_vocab], m <= k
        tokens: list[int] = []
        p = []
        margins = []
        for _ in range(k):
            [p_i] = model([*x, *tokens])  # [n_vocab]
            p.append(p_i)
            tokens.append(sample(p_i, rng))
            if go_on:  # go_on knows p alone, so a token that was drawn stays
                logits = getattr(model, "last_logits", p_i[None])  # [1, n_vocab]; of a function without logits, p
                margins += margins_of(logits)
                if not go_on(margins[-1]):
                    break
        return Proposal(tokens, p, [name] * len(tokens), margins=margins)

    return draft


def model_tree(model: Callable, rng: np.random.Generator, greedy: bool = False, name: str = "model") -> DraftTree:
    """A tree (trees.py), depth by depth: one call of the model scores all nodes of a depth.

    model(x, tree, nodes) -> [len(nodes), n_vocab], the distributions after these nodes. Siblings are drawn without
    replacement; if greedy, they are the likeliest tokens instead, the lowest id first on a tie, and nothing is drawn.
    """

    def draft(x, widths):
        tree = Tree(name)
        parents = [0]
        for width in widths:
            rows = model(x, tree, parents)  # [len(parents), n_vocab]
            added = []
            for node, row in zip(parents, rows, strict=True):
                siblings = top_siblings(row, width) if greedy else drawn_siblings(row, width, rng)
                added += [tree.add(node, token, p) for token, p in siblings]
            parents = added
        return tree

    return draft


def drawn_siblings(p, width: int, rng: np.random.Generator) -> Iterator[tuple]:  # [n_vocab] -> (token, its p), ...
    """Draw up to width tokens without replacement: each from p without the ones before it, while any has a chance."""
    for _ in range(width):
        token = sample(p, rng)
        yield token, p
        p = without(p, token)  # [n_vocab]
        if not p.any():
            return


def top_siblings(p, width: int) -> list[tuple]:  # [n_vocab] -> [(token, one-hot), ...]
    """Return up to width tokens, the likeliest first and the lowest id first on a tie, and none of probability 0.

    Nothing is drawn, so each p is one-hot. Only the candidates are sorted: to sort the vocabulary takes long.
    """
    [likeliest] = largest(p[None], width)  # [n_vocab]; the others are -inf
    ids = np.flatnonzero(likeliest > 0)  # [n_ids]; more than width if some are equal
    order = np.argsort(-p[ids], kind="stable")  # [n_ids]
    ids = ids[order][:width]  # [width]
    rows = one_hot(ids, len(p))  # [width, n_vocab]
    return [*zip(ids.tolist(), rows, strict=True)]


class DraftModel(Drafter):
    """The draft model of the blog."""

    name = "model"
    phrase = "draft model"
    role = "draft"
    has_model = True

    def chain(self, context: Context) -> Draft:
        return model_drafter(context.models[self.role], context.rng, self.name)

    def tree(self, context: Context) -> DraftTree:
        return model_tree(context.models[self.role].score_tree, context.rng, context.greedy, self.name)


class Copy(DraftModel):
    """A quantized copy of the target: the target's own weights, rounded to fewer bytes.

    A copy in a quarter of the bytes takes about a quarter of the target's time for a token, nearly always makes the
    target's choice, and needs neither training nor a second download. As it is itself a large model, a small one may
    draft for it: int8/model.

    Source: Georganas et al. 2025, "ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts".
    """

    mark = "c"
    needs_weights = True
    scale = 0.04

    def __init__(self, format: str):
        """format: of its weights."""
        self.name = self.role = format
        self.phrase = f"{format} copy of the target"
