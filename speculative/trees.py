"""Speculative sampling with a tree: several draft tokens for each position, all scored in one call of the target.

K drafts in a row are a chain: if the first one is rejected, the others are discarded. A tree has alternatives. Its
nodes are drafts, its root is the last token of the text; each path from the root is a continuation. The target
scores all nodes at once. Then the walk goes down from the root: at each node its children are tested in order, and the
first that is accepted is the next node. A chain is the tree in which every node has one child.

As in sampling.py, p is the draft's distribution and q the target's. p[i] is exactly the distribution that tokens[i] was
drawn from, given x, the path to its parent, and the siblings before it. So siblings that were drawn without replacement
have different p: each is normalised without the ones before it. A drafter that draws nothing gives a one-hot p.

Source: Miao et al. 2023, "SpecInfer" (a tree in one call; siblings tested in turn); Chen et al. 2024, "Sequoia",
section 3.2 (siblings without replacement, each tested against the remainder of q); Leviathan et al. 2023 (the chain).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from speculative.sampling import Proposal, Step, max_fn


@dataclass
class Tree:
    """Drafts in the order in which they were added, so that a parent comes before its children. Node 0 is the root, the
    last token of the text; node i is tokens[i - 1]."""

    name: str  # the name of the drafter
    tokens: list[int] = field(default_factory=list)  # [m]
    p: list = field(default_factory=list)  # [m, n_vocab]
    parents: list[int] = field(default_factory=list)  # [m]
    children: list = field(default_factory=lambda: [[]])  # [1 + m], of each node

    def add(self, parent: int, token: int, p) -> int:
        """Add a node and return its number."""
        self.tokens.append(int(token))
        self.p.append(p)
        self.parents.append(parent)
        node = len(self.tokens)
        self.children[parent].append(node)
        self.children.append([])
        return node

    @property
    def source(self) -> list[str]:  # -> [m], as Proposal.source
        return [self.name] * len(self.tokens)

    def path(self, node: int) -> list[int]:
        """The tokens from below the root to this node."""
        tokens: list[int] = []
        while node:
            tokens.insert(0, self.tokens[node - 1])
            node = self.parents[node - 1]
        return tokens


Drafts = Proposal | Tree  # the drafts of a step


def draft_at(proposal: Drafts, node: int) -> tuple[int, np.ndarray]:  # -> id, [n_vocab]
    """The draft at a node below the root, and the p that it was drawn from."""
    return int(proposal.tokens[node - 1]), proposal.p[node - 1]


def children_of(proposal: Drafts) -> list:  # -> [1 + m]
    """The children of each node. The drafts of a Proposal are a chain: each is the only child of the one before."""
    if isinstance(proposal, Tree):
        return proposal.children
    m = len(proposal.tokens)
    return [[node] for node in range(1, m + 1)] + [[]]


def path_of(step: Step) -> list[int]:
    """The root, and the nodes of the accepted drafts from its child down."""
    children = children_of(step.proposal)
    nodes = [0]
    for token in step.tokens[: step.n_accepted]:
        for child in children[nodes[-1]]:
            if step.proposal.tokens[child - 1] == token:  # a loop on the device keeps no p
                nodes.append(child)
                break
    return nodes


def without(p, j: int):  # [n_vocab], id -> [n_vocab]
    """The distribution p if its token is not j. All zeros if p has no other."""
    return max_fn(np.where(np.arange(len(p)) == j, 0, p))  # [n_vocab]


@dataclass
class TreeAdapter:
    """A drafter of trees and its target, as sampling.speculative_sampling takes them, with the depth for K.

    draft_tree(x, widths) -> Tree: a node of depth d has up to widths[d] children, and each token was drawn from its p.
    score_tree(x, tree) -> [1 + m, n_vocab]: the target's distributions after the root and after each node.

    The loop hands only the tokens of a tree from one to the other, so the tree of the step is kept here.
    """

    draft_tree: Callable
    score_tree: Callable
    widths: Sequence[int]
    tree: Tree = field(default_factory=lambda: Tree(""))  # the tree of this step

    def draft(self, x, k: int) -> Tree:  # [n]
        self.tree = self.draft_tree(x, self.widths[:k])
        return self.tree

    def target_model(self, x_draft, n_last: int):  # [n + m], 1 + m -> [1 + m, n_vocab]
        n = len(x_draft) - n_last + 1
        return self.score_tree(x_draft[:n], self.tree)


def by_paths(model: Callable) -> Callable:
    """The plain form of an engine's tree: model(x, n_last) -> model(x, tree, nodes), one call for each node's path.

    It is slow. The engines' trees are tested against it.
    """

    def scored(x, tree, nodes=None):
        if nodes is None:
            nodes = range(1 + len(tree.tokens))
        rows = [model([*x, *tree.path(node)], 1) for node in nodes]  # len(nodes) times [1, n_vocab]
        return np.concatenate(rows)  # [len(nodes), n_vocab]

    return scored
