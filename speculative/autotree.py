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
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from speculative.costs import Cost
from speculative.lookahead import DISCOUNT, LEAN, STAKE, AutoK
from speculative.sampling import Step
from speculative.trees import Shape, Tree, tree_speculative_sampling

# The largest tree that is considered.
DEPTH = 10
RANKS = 4
NODES = 24


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
    # A child that is rarely right may stand before one that often is; so nodes go by the best chance from them on.
    promise = [[*accumulate(reversed(ranks), max)][::-1] for ranks in chances]  # [depth][rank]
    best = {(): 0}  # a tree is {path of ranks: number of children}
    best_speedup = 1.0
    for depth in range(1, len(chances) + 1):
        tree = {(): 0}
        tokens = 1.0
        drafting = 0.0
        levels = 0
        # (minus what it promises, its path, the chance to get to its parent)
        candidates = [(-promise[0][0], (0,), 1.0)]
        for n in range(1, most_nodes + 1):
            if not candidates:
                break
            promised, path, reached = heapq.heappop(candidates)
            if -promised <= best_speedup * (beta(n + 1) - beta(n)):
                break  # it brings less than it costs, and so do all that promise less
            parent = path[:-1]
            rank = path[-1]
            d = len(path)
            if not tree[parent]:  # the draft has to expand the parent: the first of a new level, or a further one
                drafting += level_cost if d > levels else expansion_cost
            levels = max(levels, d)
            tree[parent] += 1
            tree[path] = 0
            chance = reached * chances[d - 1][rank]
            tokens += chance
            speedup = tokens / (drafting + beta(n + 1))
            if speedup > best_speedup:
                best = tree.copy()
                best_speedup = speedup
            if rank + 1 < len(chances[d - 1]):  # its next sibling
                heapq.heappush(candidates, (-reached * promise[d - 1][rank + 1], (*parent, rank + 1), reached))
            if d < depth:  # its first child
                heapq.heappush(candidates, (-chance * promise[d][0], (*path, 0), chance))
        if levels < depth:
            break  # a deeper tree would be this one again
    return to_shape(best, ()), best_speedup


def to_shape(tree: dict, path: tuple) -> Shape:
    return tuple(to_shape(tree, (*path, rank)) for rank in range(tree[path]))


class AutoTree(AutoK):
    """Chooses the shape of a tree. decode() is tree_speculative_sampling with this object as its shape."""

    sampling = staticmethod(tree_speculative_sampling)
    nothing = staticmethod(lambda x: Tree([int(x[-1])]))

    def __init__(self, *args, **kwargs):
        super().__init__(DEPTH, *args, **kwargs)
        self.expansion = Cost()  # of a further node of a level; draft is a level of one node
        # Discounted counts by depth and rank, begun as if 2.5 of 3 first children had passed, and half of the others.
        self.tested = [[3.0] * RANKS] + [[0.0] * RANKS for _ in range(DEPTH - 1)]
        self.passed = [[2.5] + [1.5] * (RANKS - 1)] + [[0.0] * RANKS for _ in range(DEPTH - 1)]
        self.shape = ()
        self.keep_until = 0.0  # by the clock: until then the shape is not chosen anew

    def __call__(self) -> Shape:
        shape = super().__call__()
        return ((),) * shape if isinstance(shape, int) else shape  # AutoK's 0 or 1 is a tree of as many nodes

    def best(self) -> Shape:
        """The shape with the most expected tokens per second.

        The search takes time itself: there is none until the last one is no more than STAKE of the time since.
        """
        if max(self.windows) == 1:  # no tree has been timed yet
            return ((),)
        start = self.clock()
        if start >= self.keep_until:
            row = self.row()
            chances = [*self.chances(self.n_proposed / self.n_asked)]
            self.shape, _ = best_shape(chances, self.draft() / row, self.expansion() / row, self.beta())
            end = self.clock()
            self.keep_until = end + (end - start) / STAKE
        return self.shape

    def chances(self, share: float) -> Iterator[list[float]]:
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

    def time(self, shape: Shape, tree: Tree, step: Step, drafting: float, scoring: float) -> None:
        levels = depth(shape)
        expanded = sum(map(bool, tree.children))  # nodes that have children
        beside = max(0, expanded - levels)  # of them, those beside another of the same level
        if beside and not self.expansion.timed:  # once: later, a slow level could not be told from slow further nodes
            self.expansion.add(drafting - levels * self.draft(), beside)
        super().time(levels, tree, step, max(0.0, drafting - beside * self.expansion()), scoring)

    def count(self, tree: Tree, step: Step) -> None:
        """Counts which children were met and which were accepted."""
        self.n_asked = DISCOUNT * self.n_asked + 1
        self.n_proposed = DISCOUNT * self.n_proposed + (step.drafted > 0)
        if step.drafted:
            for counts in self.tested + self.passed:
                counts[:] = [DISCOUNT * count for count in counts]
        node = 0
        for d, child in enumerate([*tree.walk(step.tokens[: step.accepted]), None]):
            ranked = tree.children[node][:RANKS] if d < DEPTH else []
            for rank, met in enumerate(ranked):
                self.tested[d][rank] += 1
                self.passed[d][rank] += met == child
                if met == child:
                    break
            node = child or 0


def depth(shape: Shape) -> int:
    return 1 + max(map(depth, shape)) if shape else 0
