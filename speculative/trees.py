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
from typing import Any

import numpy as np

from speculative.sampling import ratio


@dataclass
class Tree:
    """Drafts in the order in which they were added, so that a parent comes before its children. Node 0 is the root, the
    last token of the text; node i is tokens[i - 1]."""

    name: str  # of the drafter
    tokens: list[int] = field(default_factory=list)  # [m]
    p: list = field(default_factory=list)  # [m, n_vocab]
    parents: list[int] = field(default_factory=list)  # [m]
    children: list[list[int]] = field(default_factory=lambda: [[]])  # [1 + m], of each node

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
        return [*self.path(self.parents[node - 1]), self.tokens[node - 1]] if node else []


def sibling_by_sibling(proposal: Any, q, u: Iterator[float], overlap: Callable, residual_fn: Callable) -> tuple:
    """Steps 3 and 4 of a tree: token_by_token, with several children to test at each position.

    proposal: a Tree, or a Proposal. q: [1 + m, n_vocab]. u: a random number for each test. overlap, residual_fn: the
    parts of the rule (rules.one_by_one). Returns what rules.Rule.judge does.
    """
    children = proposal.children  # [1 + m]
    tokens = []
    tests = []
    node = 0

    # Step 3: walk down from the root. A rejected child leaves less of q for its siblings.
    while children[node]:
        remaining = q[node]  # [n_vocab]
        for child in children[node]:
            j = proposal.tokens[child - 1]
            p = proposal.p[child - 1]  # [n_vocab]
            u_j = next(u)
            passed = u_j < ratio(overlap(remaining, p), p, j)
            tests.append({"u": u_j, "p": float(p[j]), "q": float(remaining[j]), "passed": passed})
            if passed:
                tokens.append(j)
                break
            remaining = residual_fn(remaining, p)  # [n_vocab]
        else:  # every child was rejected: resample from the remainder of q
            return tokens, remaining, tests
        node = child

    # Step 4: the walk came to a leaf, whose row gives a bonus token.
    return tokens, q[node], tests


def in_the_loop(draft: Callable, target_model: Callable, widths: Sequence[int]) -> tuple[Callable, Callable]:
    """A drafter of trees and its target, as sampling.speculative_sampling takes them, with the depth for K.

    draft(x, widths) -> Tree, whose nodes of depth d have up to widths[d] children; any will do, if each token was drawn
    from its p. target_model(x, tree) -> [1 + m, n_vocab], the distributions after the root and each node.
    """
    tree = Tree("")  # of this iteration

    def propose(x, k) -> Tree:
        nonlocal tree
        tree = draft(x, widths[:k])
        return tree

    return propose, lambda x_draft, n_last: target_model(x_draft[: 1 + len(x_draft) - n_last], tree)


def by_paths(model: Callable) -> Callable:
    """The plain form of an engine's tree: model(x, n_last) -> model(x, tree, nodes), one call for each node's path.

    It is slow. The engines' trees are tested against it.
    """

    def scored(x, tree, nodes=None):
        if nodes is None:
            nodes = range(1 + len(tree.tokens))
        return np.concatenate([model([*x, *tree.path(node)], 1) for node in nodes])  # [len(nodes), n_vocab]

    return scored
