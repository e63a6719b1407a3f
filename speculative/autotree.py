"""A tree that chooses its shape, again and again, from what the run has measured so far.

With a chance for each depth and rank that the child is accepted, a node is reached with the product of the
chances along its path. The expected tokens of a tree are 1 and the sum of these over its nodes. So the best tree of n
nodes and a depth holds the n likeliest, and as a child is never likelier than its parent, they are found one by one,
from the root outwards, until one costs more than it brings. (The draft's cost of a further node in a level is
included, but not optimised for: it is small.) Of the best trees of every depth and size, the one with the most expected
tokens per second is taken. The chain is among them, and the tree without nodes, which is autoregressive decoding.

Source: Chen et al. 2024, "Sequoia", section 3.1, whose dynamic program finds the same trees, and section 3.3, which
chooses among depths and sizes by measured times. Theirs depends on the rank alone; depth matters where text repeats.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from speculative.costs import Cost
from speculative.lookahead import DISCOUNT, LEAN, STAKE, Auto
from speculative.sampling import Step
from speculative.trees import Shape, Tree, TreeStep, tree_speculative_sampling

# The largest tree that is considered.
DEPTH = 10
RANKS = 4
NODES = 24


class Growing:
    """The tree of n nodes with the most expected tokens, no path of it longer than depth: grow() adds the next node.

    No child is likelier than its parent, so the likeliest node outside the tree is the child of one inside. But a child
    that is rarely right may stand before a sibling that often is. So nodes go by what they promise: the best chance of
    their rank or a later one.
    """

    def __init__(self, chances: Sequence[Sequence[float]], depth: int):
        self.chances = chances  # [depth][rank]: that this child is the one walked to
        self.promises = [[*accumulate(reversed(ranks), max)][::-1] for ranks in chances]  # [depth][rank]
        self.depth = depth
        self.children = {(): 0}  # {path of ranks: number of children}
        self.tokens = 1.0  # expected
        self.levels = 0
        self.expanded = 0  # nodes that have children
        self.candidates = []  # (minus what it promises, its path, the chance to get to its parent)
        self.offer((0,), 1.0)

    @property
    def n_nodes(self) -> int:
        """Without the root."""
        return len(self.children) - 1

    @property
    def promised(self) -> float:
        """The tokens that the next node may bring."""
        return -self.candidates[0][0]

    def offer(self, path: tuple[int, ...], reached: float) -> None:
        """Makes a node a candidate, if there is such a depth and rank."""
        d = len(path) - 1
        if d < self.depth and path[-1] < len(self.chances[d]):
            heapq.heappush(self.candidates, (-reached * self.promises[d][path[-1]], path, reached))

    def grow(self) -> None:
        _, path, reached = heapq.heappop(self.candidates)
        *parent, rank = path
        chance = reached * self.chances[len(parent)][rank]
        self.tokens += chance
        self.levels = max(self.levels, len(path))
        self.expanded += rank == 0
        self.children[tuple(parent)] += 1
        self.children[path] = 0
        self.offer((*parent, rank + 1), reached)  # its next sibling
        self.offer((*path, 0), chance)  # its first child


def best_shape(
    chances: Sequence[Sequence[float]],  # [depth][rank]: that this child is the one walked to
    level_cost: float,
    expansion_cost: float,
    beta: Callable[[int], float],
    most_nodes: int = NODES,
) -> tuple[Shape, float]:
    """(shape, speedup) of the most expected tokens per second; of equal ones, the shallowest and smallest.

    Costs are multiples of one row of the target. A level of the tree costs level_cost, and expansion_cost for each node
    but the first that is expanded there; the target's pass costs beta(1 + nodes), where no row is cheaper than the one
    before.
    """
    best = {(): 0}
    best_speedup = 1.0
    for depth in range(1, len(chances) + 1):
        tree = Growing(chances, depth)
        while tree.candidates and tree.n_nodes < most_nodes:
            row = beta(tree.n_nodes + 2) - beta(tree.n_nodes + 1)
            if tree.promised <= best_speedup * row:
                break  # it brings less than it costs, and so do all that promise less
            tree.grow()
            drafting = tree.levels * level_cost + (tree.expanded - tree.levels) * expansion_cost
            speedup = tree.tokens / (drafting + beta(tree.n_nodes + 1))
            if speedup > best_speedup:
                best = tree.children.copy()
                best_speedup = speedup
        if tree.levels < depth:
            break  # a deeper tree would be this one again
    return to_shape(best, ()), best_speedup


def to_shape(tree: dict, path: tuple) -> Shape:
    return tuple(to_shape(tree, (*path, rank)) for rank in range(tree[path]))


class AutoTree(Auto):
    """Chooses the shape of a tree. decode() is tree_speculative_sampling with this object as its shape."""

    sampling = staticmethod(tree_speculative_sampling)
    nothing = staticmethod(lambda x: Tree([int(x[-1])]))

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        super().__init__(clock)
        self.expansion = Cost()  # of a further node of a level; draft is a level of one node
        # Discounted counts by depth and rank, begun as if 2.5 of 3 first children had passed, and half of the others.
        self.tested = [[3.0] * RANKS] + [[0.0] * RANKS for _ in range(DEPTH - 1)]
        self.passed = [[2.5] + [1.5] * (RANKS - 1)] + [[0.0] * RANKS for _ in range(DEPTH - 1)]
        self.shape = ()
        self.keep_until = 0.0  # by the clock: until then the shape is not chosen anew

    def __call__(self) -> Shape:
        shape = super().__call__()
        return ((),) * shape if isinstance(shape, int) else shape  # 0 or 1 is a tree of as many nodes

    def best(self) -> Shape:
        """The shape with the most expected tokens per second.

        The search takes time itself: there is none until the last one is no more than STAKE of the time since.
        """
        if max(self.windows) == 1:  # no tree has been timed yet
            return ((),)
        start = self.clock()
        if start >= self.keep_until:
            row = self.row()
            chances = [*self.chances_by_rank(self.n_proposed / self.n_asked)]
            self.shape, _ = best_shape(chances, self.draft() / row, self.expansion() / row, self.beta())
            end = self.clock()
            self.keep_until = end + (end - start) / STAKE
        return self.shape

    def chances_by_rank(self, share: float) -> Iterator[list[float]]:
        """For each depth, the chance of each rank that it is the child walked to. Later depths lean on those before."""
        a = [0.0] * RANKS
        lean = 0
        for passed, tested in zip(self.passed, self.tested, strict=True):
            a = [(p + lean * above) / (n + lean) for p, n, above in zip(passed, tested, a, strict=True)]
            chances = []
            left = share
            for chance in a:
                chances.append(left * chance)
                left -= chances[-1]
            yield chances
            lean = LEAN
            share = 1.0

    def file_times(self, shape: Shape, step: Step, drafting: float, scoring: float) -> None:
        levels = depth(shape)
        expanded = sum(map(bool, step.proposal.children))  # nodes that have children
        beside = max(0, expanded - levels)  # of them, those beside another of the same level
        if beside and not self.expansion.timed:  # once: later, a slow level could not be told from slow further nodes
            self.expansion.add(drafting - levels * self.draft(), beside)
        super().file_times(levels, step, max(0.0, drafting - beside * self.expansion()), scoring)

    def count(self, step: TreeStep) -> None:
        """Counts which children were tested and which were accepted."""
        tree = step.proposal
        self.n_asked = DISCOUNT * self.n_asked + 1
        self.n_proposed = DISCOUNT * self.n_proposed + (step.drafted > 0)
        if step.drafted:
            for counts in self.tested + self.passed:
                counts[:] = [DISCOUNT * count for count in counts]
        d = 0
        for test in step.tests:
            rank = tree.children[tree.parents[test.node]].index(test.node)
            if d < DEPTH and rank < RANKS:
                self.tested[d][rank] += 1
                self.passed[d][rank] += test.passed
            d += test.passed


def depth(shape: Shape) -> int:
    return 1 + max(map(depth, shape)) if shape else 0
