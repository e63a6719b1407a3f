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

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np

from speculative.sampling import Accepted, Own, Step, Test, residual, token_at
from speculative.support.arguments import Flag

MOST_NODES = 64

Shape = tuple["Shape", ...]  # a node's shape is the tuple of its children's shapes; () is a leaf


def regular(widths: Sequence[int]) -> Shape:
    """The root has widths[0] children, each of those widths[1], and so on."""
    return (regular(widths[1:]),) * widths[0] if widths else ()


def n_nodes(widths: Sequence[int]) -> int:
    """The number of nodes of a regular tree, without the root."""
    return sum(accumulate(widths, mul))


def pruned(shape: Shape, depth: int) -> Shape:
    """The shape without the nodes that lie deeper than depth."""
    return tuple(pruned(child, depth - 1) for child in shape) if depth > 0 else ()


@dataclass
class Tree:
    """Nodes in the order in which they were added, so that a parent comes before its children. Node 0 is the root."""

    tokens: list[int]  # tokens[0] is the last token of the text
    parents: list[int] = field(default_factory=lambda: [-1])
    p: list = field(default_factory=lambda: [None])  # rows [n_vocab]
    children: list[list[int]] = field(default_factory=lambda: [[]])
    by: str = ""  # the name of who proposed it

    def add(self, parent: int, token: int, p) -> int:
        """-> the new node."""
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


class TreeTest(NamedTuple):
    """A sampling.Test of one node."""

    u: float
    p: float
    q: float  # its share of what the rejected siblings before it have left of q
    passed: bool
    node: int


class TreeStep(Step):
    """A Step whose proposal is a Tree, with q [1 + n_nodes, n_vocab]."""

    @property
    def drafted(self) -> int:
        """The number of nodes that were proposed."""
        return len(self.proposal.tokens) - 1


def by_ratio(u: float, p: float, q: float) -> Test:
    """The paper's test of a draft."""
    return Test(u, p, q, u * p < q)


def sibling_by_sibling(
    tree: Tree, q, rng: np.random.Generator, test: Callable = by_ratio, rest: Callable = residual
) -> Accepted:  # q [1 + n_nodes, n_vocab]
    """The rule of acceptance of a tree: token_by_token, with several children to test at each position.

    rest(left, p) is what a rejected child leaves of q for its siblings. Other rules have another test or another rest.
    """
    tokens = []
    tests = []
    node = 0

    # Step 3: walk down from the root. A rejected child leaves less of q for its siblings; after the last of them,
    # resample from what is left.
    while tree.children[node]:
        left = q[node]  # [n_vocab]
        for child in tree.children[node]:
            j = tree.tokens[child]
            p = tree.p[child]  # [n_vocab]
            tested = TreeTest(*test(rng.random(), float(p[j]), float(left[j])), child)
            tests.append(tested)
            if tested.passed:
                tokens.append(j)
                break
            left = rest(left, p)  # [n_vocab]
        else:  # every child was rejected
            break
        node = child

    # Step 4: if the walk came to a leaf, its row gives a bonus token.
    else:
        left = q[node]  # [n_vocab]

    own = Own(rng.random(), left)
    tokens.append(token_at(*own))
    return Accepted(tokens, tests, own)


def tree_speculative_sampling(
    x,
    draft: Callable,
    target_model: Callable,
    N: int,
    shape: Shape | Callable[[], Shape],
    rng: np.random.Generator,
    accept: Callable = sibling_by_sibling,
) -> Iterator[Step]:
    """Exactly N tokens, distributed as the target's own, whatever the tree, if its tokens were drawn from its p.

    draft(x, shape) -> Tree; target_model(x, tree) -> [1 + n_nodes, n_vocab], what follows the root and each node.
    shape may be a function that chooses that of the next tree. accept: another rule for trees.
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

        # Steps 3 and 4: the rule walks down the tree, and adds a token of the target's own.
        tokens, tests, own = accept(tree, q, rng)
        x = np.append(x, tokens)  # [n + len(tokens)]
        n += len(tokens)
        yield TreeStep(tokens, tree, q, tests, own)


def cut_tree(step: TreeStep, n: int) -> TreeStep:
    """The step's first n tokens, all of them accepted drafts, as if the tree had been n deep."""
    tree = step.proposal
    nodes = [node for node in range(len(tree.tokens)) if len(tree.path(node)) <= n]
    place = {node: i for i, node in enumerate(nodes)}
    kept = Tree(tree.tokens[:1], by=tree.by)
    for node in nodes[1:]:
        kept.add(place[tree.parents[node]], tree.tokens[node], tree.p[node])
    tests = [test._replace(node=place[test.node]) for test in step.tests if test.node in place]
    return TreeStep(step.tokens[:n], kept, step.q[nodes], tests, stopped=True)


def acceptance_by_depth(step: TreeStep, chance: Callable, rest: Callable = residual) -> list[float]:
    """The chance that one of the children is accepted, for each node of the walk that has any.

    chance(p, left): the chance of a child that was drawn from p; rest: the rule's.
    """
    tree = step.proposal
    chances = []
    for node in [0, *(test.node for test in step.tests if test.passed)]:
        left = step.q[node]  # [n_vocab], what is left of q
        all_rejected = 1.0
        for child in tree.children[node]:
            p = tree.p[child]  # [n_vocab]
            all_rejected *= 1 - chance(p, left)
            left = rest(left, p)  # [n_vocab]
        if tree.children[node]:
            chances.append(1 - all_rejected)
    return chances


def by_paths(model: Callable) -> Callable:
    """The plain form of an engine's tree: model(x, n_last) -> model(x, tree, nodes), one call for each node's path.

    It is slow. The engines' trees are tested against it.
    """

    def scored(x, tree, nodes=None):
        if nodes is None:
            nodes = range(len(tree.tokens))
        texts = [np.append(x, [tree.tokens[i] for i in tree.path(node)]).astype(int) for node in nodes]
        return np.concatenate([model(text, 1) for text in texts])  # [len(nodes), n_vocab]

    return scored


def widths(value: str) -> tuple[int, ...] | str:
    """The value of --tree: "2,2,1" -> (2, 2, 1), children by depth."""
    if value == "auto":
        return value
    if value.startswith("(") and value.endswith(")"):  # as Python writes a tuple
        value = value[1:-1].removesuffix(",").replace(", ", ",")
    parts = value.split(",")
    if not all(re.fullmatch("[1-9][0-9]?", part) for part in parts) or n_nodes(list(map(int, parts))) > MOST_NODES:
        raise ValueError(f"children by depth, as 2,2,1, of at most {MOST_NODES} nodes in all, or auto")
    return tuple(map(int, parts))


FLAGS = (
    Flag(
        "tree",
        widths,
        "draft a tree: children per node at each depth, as 2,2,1,1, or auto; in place of --K",
        excludes=("K",),
        only_engine="numpy",
        why="JAX's loop drafts chains",
        live=True,
        joined_by=",",
    ),
)
