"""Speculative sampling with a tree: several draft tokens for each position, all scored in one call of the target.

K drafts in a row are a chain: if the first one is rejected, the others are discarded. A tree has alternatives. Its
nodes are drafts, its root is the last token of the text; each path from the root is a continuation. The target
scores all nodes at once. Then the walk goes down from the root: at each node its children are tested in order, and the
first that is accepted is the next node. A chain is the tree in which every node has one child.

As in sampling.py, p is the draft's distribution and q the target's. p[i] is exactly what tokens[i] was drawn from,
given x, the path to its parent, and the siblings before it. So siblings that were drawn without replacement have
different p: each is normalised without the ones before it. A drafter that draws nothing gives a one-hot p.

Source: Miao et al. 2023, "SpecInfer" (a tree in one call; siblings tested in turn); Chen et al. 2024, "Sequoia",
section 3.2 (siblings without replacement, each tested against the remainder of q); Leviathan et al. 2023 (the chain).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

import numpy as np

from speculative.sampling import Step, ratio, sample


def n_nodes(widths: Sequence[int]) -> int:
    """The number of nodes, without the root, if each node of depth d has widths[d] children."""
    return sum(accumulate(widths, mul))


@dataclass
class Tree:
    """Nodes in the order in which they were added, so that a parent comes before its children. Node 0 is the root."""

    tokens: list[int]  # tokens[0] is the last token of the text
    parents: list[int] = field(default_factory=lambda: [-1])
    p: list = field(default_factory=lambda: [None])  # rows [n_vocab]
    children: list[list[int]] = field(default_factory=lambda: [[]])
    source: str = ""  # the name of the drafter

    def add(self, parent: int, token: int, p) -> int:
        """Add a node and return its number."""
        node = len(self.tokens)
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.p.append(p)
        self.children.append([])
        self.children[parent].append(node)
        return node

    def path(self, node: int) -> list[int]:
        """The nodes from below the root to this one."""
        return [*self.path(self.parents[node]), node] if node else []


class TreeStep(Step):
    """A Step whose proposal is a Tree, with q [1 + n_nodes, n_vocab]."""

    @property
    def drafted(self) -> int:
        """The number of nodes that were proposed."""
        return len(self.proposal.tokens) - 1

    @property
    def walk(self) -> list[int]:
        """The accepted nodes, from the root's child down."""
        tree = self.proposal
        nodes = [0]
        for token in self.tokens[: self.accepted]:
            nodes += [child for child in tree.children[nodes[-1]] if tree.tokens[child] == token]
        return nodes[1:]


def sibling_by_sibling(tree: Tree, q, rng, overlap: Callable, residual_fn: Callable) -> list[int]:
    """Steps 3 and 4 of a tree: token_by_token, with several children to test at each position.

    q: [1 + n_nodes, n_vocab]. overlap, residual_fn: the parts of the rule (rules.one_by_one). A rejected child leaves
    residual_fn(q, p) for its siblings.
    """
    tokens = []
    node = 0

    # Step 3: walk down from the root. A rejected child leaves less of q for its siblings.
    while tree.children[node]:
        remaining = q[node]  # [n_vocab]
        for child in tree.children[node]:
            j = tree.tokens[child]
            p = tree.p[child]  # [n_vocab]
            if rng.random() < ratio(overlap(remaining, p), p, j):
                tokens.append(j)
                break
            remaining = residual_fn(remaining, p)  # [n_vocab]
        else:  # every child was rejected: resample from the remainder of q
            return [*tokens, sample(remaining, rng)]
        node = child

    # Step 4: the walk came to a leaf, whose row gives a bonus token.
    return [*tokens, sample(q[node], rng)]


def tree_speculative_sampling(
    x, draft: Callable, target_model: Callable, N: int, widths: Sequence[int], rng, accept: Callable
) -> Iterator[TreeStep]:
    """Generate exactly N tokens with the target's distribution. Any tree will do, if each token was drawn from its p.

    draft(x, widths) -> Tree, whose nodes of depth d have up to widths[d] children; target_model(x, tree) ->
    [1 + n_nodes, n_vocab], the distributions after the root and each node. accept: a rule for trees.
    """
    x = list(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        # Step 1: the draft proposes a tree. The target adds one token of its own, so leave room for it.
        tree = draft(x, widths[: T - n - 1])  # depth <= T - n - 1

        # Step 2: the target scores all nodes in one call; q[i] is the distribution of the token after node i.
        q = target_model(x, tree)  # [1 + n_nodes, n_vocab]

        # Steps 3 and 4: the rule walks down the tree, and adds a token of the target's own.
        tokens = accept(tree, q, rng)
        x = [*x, *tokens]  # [n + len(tokens)]
        n = len(x)
        yield TreeStep(tokens, tree, q)


def acceptance_by_depth(step: TreeStep, overlap: Callable, residual_fn: Callable) -> list[float]:
    """The chance that one of the children is accepted, for each node of the walk that has any.

    overlap, residual_fn: the parts of the rule. The last child counts with Σ overlap. Each child before it counts with
    the ratio of the token that was drawn, because the p of its later siblings depends on that token.
    """
    tree = step.proposal
    chances = []
    for node in [node for node in [0, *step.walk] if tree.children[node]]:
        *others, last = tree.children[node]
        remaining = step.q[node]  # [n_vocab]
        all_rejected = 1.0
        for child in others:
            p = tree.p[child]  # [n_vocab]
            all_rejected *= 1 - ratio(overlap(remaining, p), p, tree.tokens[child])
            remaining = residual_fn(remaining, p)  # [n_vocab]
        chances.append(1 - all_rejected * (1 - float(np.sum(overlap(remaining, tree.p[last])))))
    return chances


def by_paths(model: Callable) -> Callable:
    """The plain form of an engine's tree: model(x, n_last) -> model(x, tree, nodes), one call for each node's path.

    It is slow. The engines' trees are tested against it.
    """

    def scored(x, tree, nodes=None):
        if nodes is None:
            nodes = range(len(tree.tokens))
        texts = [[*x, *(tree.tokens[i] for i in tree.path(node))] for node in nodes]
        return np.concatenate([model(text, 1) for text in texts])  # [len(nodes), n_vocab]

    return scored
