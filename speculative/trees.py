"""Speculative sampling with a tree: several draft tokens for each position, all scored in one call of the target.

A window of K drafts is a chain: if its first draft is rejected, the rest is discarded. A tree has alternatives. Its
nodes are drafts, its root is the last token of the text; each path from the root is a continuation. The target
scores all nodes at once. Then the walk goes down from the root: at each node its children are tested in order, and the
first that is accepted is the next node. A chain is the tree in which every node has one child.

As in sampling.py, p is the draft's distribution and q the target's. p[i] is exactly what tokens[i] was drawn from,
given x, the path to its parent, and the siblings before it. So siblings that were drawn without replacement have
different p: each has what the ones before it left. A drafter that draws nothing gives a one-hot p.

Source: Miao et al. 2023, "SpecInfer" (a tree in one call; siblings tested in turn); Chen et al. 2024, "Sequoia",
section 3.2 (siblings without replacement, each tested against what is left of q); Leviathan et al. 2023 (the chain).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle
from operator import mul
from typing import NamedTuple

import numpy as np

from speculative.drafters import earlier_ends
from speculative.one_hot import OneHot
from speculative.sampling import max_fn, sample

MOST_NODES = 64

Shape = tuple["Shape", ...]  # a node's shape is the tuple of its children's shapes; () is a leaf


def regular(widths: Sequence[int]) -> Shape:
    """The root has widths[0] children, each of those widths[1], and so on."""
    return (regular(widths[1:]),) * widths[0] if widths else ()


def n_nodes(widths: Sequence[int]) -> int:
    """Of a regular tree, without the root."""
    return sum(accumulate(widths, mul))


def pruned(shape: Shape, depth: int) -> Shape:
    """What is left of a shape where no path may be longer than depth."""
    return tuple(pruned(child, depth - 1) for child in shape) if depth > 0 else ()


@dataclass
class Tree:
    """Nodes in the order in which they were added, so that a parent comes before its children. Node 0 is the root."""

    tokens: list[int]  # tokens[0] is the last token of the text
    parents: list[int] = field(default_factory=lambda: [-1])
    p: list = field(default_factory=lambda: [None])  # rows [n_vocab]
    children: list[list[int]] = field(default_factory=lambda: [[]])

    def add(self, parent: int, token: int, p) -> int:
        """-> the new node."""
        node = len(self.tokens)
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.p.append(p)
        self.children.append([])
        self.children[parent].append(node)
        return node

    def __iter__(self):
        """tokens, p = tree, as of a drafter that proposes a chain; without the root."""
        return iter((self.tokens[1:], self.p[1:]))

    def path(self, node: int) -> list[int]:
        """The nodes from below the root to this one."""
        return [*self.path(self.parents[node]), node] if node else []


class TreeStep(NamedTuple):
    """Step, for a tree: one call of the target."""

    tokens: list[int]
    drafted: int  # nodes but for the root
    accepted: int
    path: list[int]  # the nodes that were accepted
    bonus: bool  # whether the walk ended at a leaf, so that the last token is not a resampled one


def tree_speculative_sampling(
    x,
    draft: Callable,
    target_model: Callable,
    N: int,
    shape: Shape | Callable[[], Shape],
    rng: np.random.Generator,
    lenience: float = 1.0,
) -> Iterator[TreeStep]:
    """Exactly N tokens, distributed as the target's own, whatever the tree.

    draft(x, shape) -> Tree; target_model(x, tree) -> [1 + n_nodes, n_vocab], what follows the root and each node.
    shape may be a function that chooses that of the next tree; lenience is that of speculative_sampling.
    """
    next_shape = shape if callable(shape) else lambda: shape
    x = np.asarray(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        # Step 1: the draft proposes a tree. The target adds one token of its own, so leave room for it.
        tree = draft(x, pruned(next_shape(), T - n - 1))

        # Step 2: the target scores all nodes in one call; q[i] is the distribution of what follows node i.
        q = target_model(x, tree)  # [1 + n_nodes, n_vocab]

        # Step 3: walk down from the root. A rejected child leaves less of q for its siblings; after the last of them,
        # resample from what is left.
        tokens, node = [], 0
        while tree.children[node]:
            left = q[node]  # [n_vocab]
            for child in tree.children[node]:
                j, p = tree.tokens[child], tree.p[child]
                u = rng.random() * lenience
                if u * float(p[j]) < float(left[j]):
                    tokens.append(j)
                    break
                residual = max_fn(left - p)  # [n_vocab]; empty only where p and what is left differ by rounding
                left = residual if residual.any() else left
            else:
                tokens.append(sample(left, rng))
                break
            node = child

        # Step 4: if the walk came to a leaf, its row gives a bonus token.
        else:
            tokens.append(sample(q[node], rng))

        x = np.append(x, tokens)  # [n + len(tokens)]
        n += len(tokens)
        yield TreeStep(tokens, len(tree.tokens) - 1, len(tokens) - 1, tree.path(node), not tree.children[node])


def chances(tree: Tree, q, path: Sequence[int], lenience: float = 1.0) -> list[float]:  # q [1 + n_nodes, n_vocab]
    """At each node of a walk that has children: the chance that one of them is accepted."""
    found = []
    for walked in [0, *path]:
        rest, all_rejected = q[walked], 1.0  # [n_vocab]; what is left of q, and the chance of being there
        for p in (tree.p[child] for child in tree.children[walked]):
            all_rejected *= 1 - float(np.sum(np.minimum(p, rest / lenience)))
            rest = less if (less := max_fn(rest - p)).any() else rest
        if tree.children[walked]:
            found.append(1 - all_rejected)
    return found


# ---- Who proposes ----------------------------------------------------------------------------------------------------


def model_tree(model: Callable, rng: np.random.Generator, greedy: bool = False) -> Callable:
    """A draft model, level by level: one call scores all nodes of a level.

    model(x, tree, nodes) -> [len(nodes), n_vocab], what follows these nodes. Siblings are drawn without replacement; if
    greedy, they are the likeliest tokens instead, the lowest id first on a tie, and nothing is drawn.
    """

    def draft(x, shape):
        tree = Tree([int(x[-1])])
        level = [(0, shape)]  # nodes, and the shapes below them
        while level := [(node, below) for node, below in level if below]:
            rows = model(x, tree, [node for node, _ in level])  # [len(level), n_vocab]
            below_level = []
            for (node, below), row in zip(level, rows, strict=True):
                siblings = likeliest(row, len(below)) if greedy else drawn(row, len(below), rng)
                for (token, p), shape_below in zip(siblings, below, strict=False):
                    below_level.append((tree.add(node, token, p), shape_below))
            level = below_level
        return tree

    return draft


def head_tree(heads: Callable, rng: np.random.Generator, greedy: bool = False) -> Callable:
    """drafters.head_drafter with several guesses for each token: all nodes of a level have children from one head."""

    def draft(x, shape):
        p = heads(x)  # [n_heads or 0, n_vocab]
        level = lambda x, tree, nodes: p[[len(tree.path(node)) for node in nodes]]  # noqa: E731
        return model_tree(level, rng, greedy)(x, pruned(shape, len(p)))

    return draft


def drawn(p, width: int, rng: np.random.Generator):  # [n_vocab] -> up to width of (token, what it was drawn from)
    """Without replacement: each comes from what the ones before it left, if anything."""
    for _ in range(width):
        token = sample(p, rng)
        yield token, p
        p = max_fn(np.where(np.arange(len(p)) == token, 0, p))  # [n_vocab]
        if not p.any():
            return


def likeliest(p, width: int):  # [n_vocab] -> up to width of (token, one-hot)
    p = np.asarray(p)  # [n_vocab]
    width = min(width, len(p))
    ids = np.flatnonzero(p >= np.partition(p, len(p) - width)[len(p) - width])  # more than width where some are equal
    order = ids[np.argsort(-p[ids], kind="stable")][:width]  # [width]
    return [(token, one_hot(token, len(p))) for token in order if p[token] > 0]


def lookup_tree(n_vocab: int, n_max: int = 3) -> Callable:
    """drafters.prompt_lookup with several continuations: those of the longest match first, the last place first."""

    def draft(x, shape):
        x = np.asarray(x)  # [n]
        tree = Tree([int(x[-1])])
        for ends in [*earlier_ends(x, n_max)][::-1]:
            for end in ends[::-1]:
                node, below = 0, shape
                for token in cycle(x[end + 1 :]):
                    same = [i for i, child in enumerate(tree.children[node]) if tree.tokens[child] == token]
                    if not same and len(tree.children[node]) == len(below):
                        break
                    i = same[0] if same else len(tree.children[node])
                    child = tree.children[node][i] if same else tree.add(node, token, one_hot(token, n_vocab))
                    node, below = child, below[i]
        return tree

    return draft


def first_tree_of(*drafters: Callable) -> Callable:
    """The tree of the first drafter that proposes anything."""

    def draft(x, shape):
        trees = (drafter(x, shape) for drafter in drafters)
        return next((tree for tree in trees if len(tree.tokens) > 1), Tree([int(x[-1])]))

    return draft


def by_paths(model: Callable) -> Callable:
    """model(x, n_last) as model(x, tree, nodes): each node's path is a text of its own. The engines' reference."""

    def scored(x, tree, nodes=None):
        nodes = range(len(tree.tokens)) if nodes is None else nodes
        texts = [np.append(x, [tree.tokens[i] for i in tree.path(node)]).astype(int) for node in nodes]
        return np.concatenate([model(text, 1) for text in texts])  # [len(nodes), n_vocab]

    return scored


def one_hot(token: int, n_vocab: int) -> OneHot:  # -> [n_vocab]
    return OneHot(int(token), n_vocab)
