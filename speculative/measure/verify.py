"""Checks that nothing is lost, here and now: for the models, the engine and the flags that were given.

Three checks, each of which sees a kind of mistake that the others may miss:

- greedy: at temperature 0 the speculative tokens are the autoregressive ones, for every prompt and K;
- rows: a row of the target is the same to the bit, whatever rows are computed with it and whatever the cache held;
  an engine that does not promise this says by how much the best logits may differ where greedy texts part, instead;
- sampled: the tokens of both decoders are distributed as the target's, which is computed directly.

For the third, each token drawn gets a place between 0 and 1: lay the target's probabilities, given the very tokens
before it, side by side in any fixed order; the place is a random point within the token's own stretch. If the token was
drawn from the target, its place is uniform, whatever the prompt, the position and the order (the probability integral
transform). So all draws at all positions go into one histogram, and a chi-square test says how far it is from flat, or
the two decoders' from one another. Two orders are used: by falling q, where tokens of another context would show, and
by falling p / q, where it would show if the draft's favourites were taken too often or not often enough.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from speculative.decoding import Lookahead, decode
from speculative.sampling import autoregressive_sampling

BINS = 20  # of the histogram of places
FEWEST = 25  # draws, however slow the models
LEVEL = 1e-4  # a sampled check fails below this p-value: by chance in one verification of 3,000
POWER = 0.95  # with which the smallest detectable difference would have been seen

PROMPTS = (
    "The lighthouse keeper had not spoken to anyone for a week when",
    'def median(numbers):\n    """The middle of the sorted numbers."""\n',
    "one two three one two three one two three one two",
    "Crème brûlée, 東京, naïve, 3.14159, and then",
)


class Check(NamedTuple):
    name: str
    passed: bool
    detail: str  # what was checked, how often, and what was found


class Choice(NamedTuple):
    """A lookahead that is not a number: each decode makes its own, which knows nothing yet."""

    name: str
    make: Callable[[], Lookahead]


class Decoders(NamedTuple):
    """What is verified, at one temperature."""

    target_model: Callable  # model(x, n_last) -> [n_last, n_vocab]; if it has a cache, with forget()
    make_drafter: Callable  # rng -> drafters.Drafter
    speculative: Callable = decode  # (x, drafter, target_model, N, lookahead, rng, lenience) -> Steps
    lenience: float = 1.0
    autoregressive: Callable = autoregressive_sampling
    logits: Callable | None = None  # the target's logits, where its rows are not promised to be the same to the bit
    scoring: Callable | None = None  # the target as the speculative decoder takes it, where that is not as it is
    rounding: float = 0.0  # then greedy texts may part where the two best logits are no further apart

    def decode(self, x, N: int, K: int | Choice | None, rng) -> list[int]:
        """K None is the autoregressive decoder."""
        if K is None:
            steps = self.autoregressive(x, self.target_model, N, rng)
        else:
            lookahead = K.make() if isinstance(K, Choice) else K
            target = self.scoring or self.target_model
            steps = self.speculative(x, self.make_drafter(rng), target, N, lookahead, rng, self.lenience)
        return [int(token) for step in steps for token in step.tokens]

    def direct(self, x, n_last: int) -> np.ndarray:  # -> [n_last, n_vocab]
        """The target, from an empty cache."""
        getattr(self.target_model, "forget", lambda: None)()
        return np.asarray(self.target_model(x, n_last))


def verify(
    decoders: Callable[[float], Decoders],
    temperature: float,
    prompts: Sequence[Sequence[int]],
    K,
    N: int = 40,
    seed: int = 0,
    draws: int = 10_000,
    seconds: float = 60,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Check]:
    """The three checks, each when it is done.

    decoders: temperature -> Decoders, with the models and flags of the run in all else; asked for 0, and then for the
    run's temperature, or 1 where that is 0. prompts: token ids; greedy decoding adds N tokens to each. K: a number, or
    a Choice. The sampled check takes as many draws from each decoder as fit into `seconds`, at most
    `draws`, at least FEWEST.
    """
    lookaheads = list(dict.fromkeys([1, 2, 4, 8, K]))
    yield check_greedy(decoders(0.0), prompts, lookaheads, N)
    sampled = decoders(temperature or 1.0)
    if not sampled.logits:
        yield check_rows(sampled, prompts, max(k for k in lookaheads if isinstance(k, int)) + 1)
    yield from check_sampled(sampled, prompts, K, seed, draws, seconds, clock)


def most_new(K) -> int:
    """The most tokens that verify adds to a prompt; K is a value of --K."""
    outer = K[0] if isinstance(K, tuple) else K
    return max(40, 2 * (1 + (outer if isinstance(outer, int) else 4)))


def check_greedy(decoders: Decoders, prompts, lookaheads: Iterable, N: int) -> Check:
    """Token for token, at temperature 0, where the random numbers decide nothing."""
    lookaheads, n_tokens, margins = list(lookaheads), 0, []
    rng = np.random.default_rng(0)
    for number, x in enumerate(prompts, start=1):
        expected = decoders.decode(x, N, None, rng)
        for K in lookaheads:
            actual = decoders.decode(x, N, K, rng)
            at = next((i for i, (a, b) in enumerate(zip(actual, expected, strict=False)) if a != b), len(actual))
            n_tokens += at
            if actual == expected:
                continue
            found = f"prompt {number}, K = {lookahead_name(K)}: the first difference is at new token {at + 1}"
            if not decoders.logits or at == min(len(actual), len(expected)):
                return Check("greedy", False, found)
            second, best = np.partition(decoders.logits([*x, *expected[:at]])[0], -2)[-2:]
            margins.append(float(best - second))
            if margins[-1] > decoders.rounding:
                return Check("greedy", False, f"{found}, where the two best logits are {margins[-1]:.2g} apart")
    names = ", ".join(map(lookahead_name, lookaheads))
    detail = f"{n_tokens} speculative tokens equal the autoregressive ones ({len(prompts)} prompts, K = {names})"
    if margins:
        detail += f"; {len(margins)} texts part, where the two best logits are {max(margins):.2g} apart at most"
    return Check("greedy", True, detail)


def lookahead_name(K) -> str:
    return K.name if isinstance(K, Choice) else str(K)


def check_rows(decoders: Decoders, prompts, most: int) -> Check:
    """For each prompt: its last rows one by one, against windows of 1 to `most` rows, after a rejected draft too."""
    model, compared = decoders.target_model, 0
    for number, x in enumerate(prompts, start=1):
        x = np.asarray(x)  # [n]
        most_here = min(most, len(x) - 1)
        first = len(x) - most_here
        alone = [decoders.direct(x[: first + 1], 1)[0]]
        alone += [np.asarray(model(x[: end + 1], 1))[0] for end in range(first + 1, len(x))]  # [most_here][n_vocab]
        for n_rows in range(1, most_here + 1):
            right = np.stack(alone[most_here - n_rows :])  # [n_rows, n_vocab]
            wrong = (x[len(x) - n_rows :] + 1) % right.shape[1]  # [n_rows]
            for case in ("cached", "after a rejected window", "from an empty cache"):
                if case == "after a rejected window":  # of which nothing may be left
                    model(np.append(x[: len(x) - n_rows], wrong), n_rows)
                if case == "from an empty cache" and n_rows < most_here:
                    continue  # once is enough
                rows = (decoders.direct if case == "from an empty cache" else model)(x, n_rows)  # [n_rows, n_vocab]
                compared += n_rows
                if not np.array_equal(rows, right):
                    gap = float(np.max(np.abs(np.asarray(rows) - right)))
                    found = f"prompt {number}, {n_rows} rows, {case}: they differ from single rows, by up to {gap:.2g}"
                    return Check("rows", False, found)
    return Check("rows", True, f"{compared} rows, in windows of 1 to {most}, equal to the bit those computed alone")


def check_nodes(decoders: Decoders, prompts, shape) -> Check:
    """For each prompt: the rows of a tree that are scored in one call, against each path as a text."""
    model, compared = decoders.target_model, 0
    for number, x in enumerate(prompts, start=1):
        decoders.direct(x[:-1], 1)  # heads go by what the target gave for the text
        tree = decoders.make_drafter(np.random.default_rng(0)).tree(x, shape)
        rows = np.asarray(model.tree(x, tree))  # [n_nodes, n_vocab]
        for node, row in enumerate(rows):
            path = [tree.tokens[i] for i in tree.path(node)]
            compared += 1
            if not np.array_equal(row, decoders.direct([*x, *path], 1)[0]):
                return Check(
                    "nodes", False, f"prompt {number}, node {node}: its row differs from that of its path alone"
                )
    return Check("nodes", True, f"{compared} rows of trees equal to the bit those of their paths")


def check_sampled(decoders: Decoders, prompts, K, seed, draws, seconds, clock) -> list[Check]:
    """Both decoders against the target, and against each other; over the first tokens, two windows of them or so."""
    N = 2 * ((K if isinstance(K, int) else 4) + 1)
    *streams, rng = np.random.default_rng(seed).spawn(3)  # one for each decoder, one for the places
    draft = decoders.make_drafter(rng).chain
    counts = np.zeros((2, 2, BINS), int)  # [autoregressive and speculative, order, BINS]
    start, n_draws = clock(), 0
    while n_draws < draws and (n_draws < FEWEST or clock() - start < seconds):
        x = prompts[n_draws % len(prompts)]
        for histograms, lookahead, stream in zip(counts, (None, K), streams, strict=True):
            tokens = decoders.decode(x, N, lookahead, stream)
            q = decoders.direct([*x, *tokens[:-1]], len(tokens))  # [N, n_vocab]
            for i, token in enumerate(tokens):
                p = draft([*x, *tokens[:i]], 1).p  # [0 or 1, n_vocab]
                ratio = p[0] / np.maximum(q[i], np.finfo(q.dtype).tiny) if len(p) else q[i]  # [n_vocab]
                for histogram, order in zip(histograms, (q[i], ratio), strict=True):
                    histogram[min(int(place(token, q[i], order, rng) * BINS), BINS - 1)] += 1
        n_draws += 1

    autoregressive, speculative = counts  # [order, BINS] each
    n, how = int(speculative[0].sum()), f"{n_draws} draws of {N} tokens"
    return [
        verdict("speculative against the target", map(flat, speculative), n, how),
        verdict("autoregressive against the target", map(flat, autoregressive), n, how),
        verdict("speculative against autoregressive", map(alike, speculative, autoregressive), n / 2, how),
    ]


def place(token: int, q: np.ndarray, order: np.ndarray, rng) -> float:  # q, order [n_vocab] -> between 0 and 1
    """Where a token drawn from q stands, q laid out by falling order, ties by id. 1 for a token that q excludes."""
    if q[token] == 0:
        return 1.0
    before = order > order[token]  # [n_vocab]
    before[:token] |= order[:token] == order[token]
    return (float(q[before].sum(dtype=np.float64)) + rng.random() * float(q[token])) / float(q.sum(dtype=np.float64))


def flat(counts: np.ndarray) -> float:  # [n_bins] -> p-value
    """The chance of counts at least this far from equal, if all bins are equally probable (Pearson 1900)."""
    from scipy.special import chdtrc

    expected = counts.sum() / len(counts)
    return float(chdtrc(len(counts) - 1, np.sum((counts - expected) ** 2) / expected))


def alike(a: np.ndarray, b: np.ndarray) -> float:  # [n_bins] twice -> p-value
    """The same for two histograms of equally many draws: whether they can come from one distribution."""
    from scipy.special import chdtrc

    return float(chdtrc(len(a) - 1, np.sum((a - b) ** 2 / np.maximum(a + b, 1))))


def detectable(n: float) -> float:
    """The smallest total variation distance of the places from uniform that n draws show with POWER at LEVEL.

    A shift by total variation d adds at least n (2d)^2 to the statistic: its sum of squares is least where it is spread
    evenly over the bins. (For two samples of n each, n / 2. LEVEL is halved, as there are two orders.)
    """
    from scipy.special import chdtri, chndtrinc

    noncentrality = chndtrinc(chdtri(BINS - 1, LEVEL / 2), BINS - 1, 1 - POWER)
    return float(np.sqrt(noncentrality / n) / 2)


def verdict(name: str, p_values: Iterable[float], n: float, how: str) -> Check:
    p_value = min(1.0, 2 * min(p_values))  # either of two orders would do to fail (Bonferroni)
    detail = f"p = {p_value:.2g} over {how}; a shift of {detectable(n):.1%} (total variation) would have shown"
    return Check(name, p_value >= LEVEL, detail)


def show(checks: Iterable[Check], print=print) -> bool:
    """Prints each check as it comes, then the verdict. -> whether all passed."""
    passed = True
    print("Verify\n------")
    for check in checks:
        print(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}")
        passed = passed and check.passed
    print("Verdict: nothing is lost." if passed else "Verdict: NOT lossless, for the reasons above.")
    return passed
