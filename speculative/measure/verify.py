"""Checks that nothing is lost, here and now: for the models, the engine and the options that were given.

Four checks, each of which sees a kind of mistake that the others may miss:

- greedy: at temperature 0 the speculative tokens are the autoregressive ones, for every prompt and K;
- rows: a row of the target is the same to the bit, whatever rows are computed with it and whatever the cache held (for
  an engine without this promise, the first check says how close the best logits are at the places where texts part);
- sampled: the tokens of both decoders follow the target's distribution, which is computed directly;
- drafts: drafted tokens follow the p that the drafter reports.

The last two test places in distributions (goodness_of_fit.py), with the vocabulary in two orders: by falling q, which
shows tokens of another context, and by falling p / q, which shows whether the draft's favourites come too often.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from speculative.engines.model import common_prefix
from speculative.measure.check_sampling import check_sampled
from speculative.measure.decoders import OWN, Check, Decoders
from speculative.support.progress import working

PROMPTS = (
    "The lighthouse keeper had not spoken to anyone for a week when",
    'def median(numbers):\n    """The middle of the sorted numbers."""\n',
    "one two three one two three one two three one two",
    "Crème brûlée, 東京, naïve, 3.14159, and then",
)


def verify(
    decoders: Callable[[float], Decoders],
    temperature: float,
    prompts: Sequence[Sequence[int]],
    K,
    N: int = 40,
    seed: int = 0,
    draws: int = 10_000,
    seconds: float = 60,
) -> Iterator[Check]:
    """Yield each check when it is done.

    decoders: temperature -> Decoders; asked for 0, and then for the run's temperature, or 1 if that is 0. prompts:
    token ids; greedy decoding adds N tokens to each. K: the run's, a number or a name. The sampled check draws as many
    texts as fit into `seconds`, at most `draws`.
    """
    lookaheads = [1, 2, 4, 8] if K in (1, 2, 4, 8) else [1, 2, 4, 8, OWN]
    yield check_greedy(decoders(0.0), prompts, lookaheads, N)
    sampled = decoders(temperature or 1.0)
    if not sampled.logits:
        yield check_rows(sampled, prompts, max([8, *([K] if isinstance(K, int) else [])]) + 1)
    yield from check_sampled(sampled, prompts, K, seed, draws, seconds)


def most_new(N: int, K) -> int:
    """The most tokens that verify adds to a prompt: N if greedy, two windows if sampled. K is a value of --K."""
    outer = K[0] if isinstance(K, tuple) else K
    return max(N, 2 * (1 + (outer if isinstance(outer, int) else 4)))


def check_greedy(decoders: Decoders, prompts, lookaheads: Sequence, N: int) -> Check:
    """Compare the texts of both decoders at temperature 0, token for token."""
    names = [decoders.own_name if K == OWN else str(K) for K in lookaheads]
    n_tokens = 0
    margins = []
    rng = np.random.default_rng(0)
    with working("comparing greedy texts", len(prompts) * (1 + len(names)) * N, "token") as bar:
        for number, x in enumerate(prompts, start=1):
            expected = decoders.decode(x, N, None, rng, lambda step: bar.update(len(step.tokens)))
            for name, K in zip(names, lookaheads, strict=True):
                actual = decoders.decode(x, N, K, rng, lambda step: bar.update(len(step.tokens)))
                at = common_prefix(np.array(actual), np.array(expected))
                n_tokens += at
                if actual == expected:
                    continue
                difference = f"prompt {number}, K = {name}: the first difference is at new token {at + 1}"
                if not decoders.logits or at == min(len(actual), len(expected)):
                    return Check("greedy", False, difference)
                second, best = np.partition(decoders.logits([*x, *expected[:at]])[0], -2)[-2:]
                margins.append(float(best - second))
                if margins[-1] > decoders.rounding:
                    difference += f", where the two best logits are {margins[-1]:.2g} apart"
                    return Check("greedy", False, difference)
    detail = f"{n_tokens} speculative tokens equal the autoregressive ones ({len(prompts)} prompts, "
    detail += f"K = {', '.join(names)})"
    if margins:
        detail += f"; {len(margins)} texts part, where the two best logits are {max(margins):.2g} apart at most"
    return Check("greedy", True, detail)


def check_rows(decoders: Decoders, prompts, most: int) -> Check:
    """Compare the last rows of each prompt, one by one, with windows of 1 to `most` rows, also after a rejection."""
    n_compared = 0
    with working("comparing rows", None, "row") as bar:
        for number, x in enumerate(prompts, start=1):
            for n_rows, difference in compare_rows(decoders, np.asarray(x), min(most, len(x) - 1)):
                n_compared += n_rows
                bar.update(n_rows)
                if difference:
                    return Check("rows", False, f"prompt {number}, {difference}")
    return Check("rows", True, f"{n_compared} rows, in windows of 1 to {most}, equal to the bit those computed alone")


def compare_rows(decoders: Decoders, x: np.ndarray, most: int) -> Iterator[tuple[int, str]]:  # [n]
    """Yield the number of rows of each comparison, and the difference, "" if there is none."""
    model = decoders.target_model
    alone = [decoders.direct(x[: len(x) - most + 1], 1)[0]]
    alone += [np.asarray(model(x[: end + 1], 1))[0] for end in range(len(x) - most + 1, len(x))]  # [most][n_vocab]
    for n_rows in range(1, most + 1):
        right = np.stack(alone[most - n_rows :])  # [n_rows, n_vocab]
        wrong = (x[len(x) - n_rows :] + 1) % right.shape[1]  # [n_rows]
        cases = {"cached": model, "after a rejected window": model}
        if n_rows == most:  # once is enough
            cases["from an empty cache"] = decoders.direct
        for case, compute in cases.items():
            if case == "after a rejected window":
                model(np.append(x[: len(x) - n_rows], wrong), n_rows)
            rows = np.asarray(compute(x, n_rows))  # [n_rows, n_vocab]
            gap = float(np.max(np.abs(rows - right)))
            equal = np.array_equal(rows, right)
            yield n_rows, "" if equal else f"{n_rows} rows, {case}: they differ from single rows, by up to {gap:.2g}"


def check_nodes(decoders: Decoders, prompts, shape) -> Check:
    """Compare the rows of a tree, scored in one call, with each path as a text."""
    n_compared = 0
    with working("comparing rows of trees", None, "node") as bar:
        for number, x in enumerate(prompts, start=1):
            decoders.direct(x[:-1], 1)  # heads draft from the target's last state
            tree = decoders.make_drafter(np.random.default_rng(0)).tree(x, shape)
            rows = np.asarray(decoders.target_model.tree(x, tree))  # [n_nodes, n_vocab]
            for node, row in enumerate(rows):
                path = [tree.tokens[i] for i in tree.path(node)]
                n_compared += 1
                bar.update(1)
                if not np.array_equal(row, decoders.direct([*x, *path], 1)[0]):
                    difference = f"prompt {number}, node {node}: its row differs from that of its path alone"
                    return Check("nodes", False, difference)
    return Check("nodes", True, f"{n_compared} rows of trees equal to the bit those of their paths")


ABOUT = (
    "Both decoders are compared with the target itself, in about a minute. Texts are drawn as long as there is time:\n"
    "the more there are, the smaller the shift of a distribution that would show."
)


def show(checks: Iterable[Check], print=print) -> bool:
    """Print each check when it is done, then a summary -> True if all passed."""
    passed = True
    shift = None
    print(f"Verify\n------\n{ABOUT}")
    for check in checks:
        print(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}")
        passed = passed and check.passed
        shift = shift or check.shift  # that of the speculative tokens, which come first
    if not passed:
        print("Summary: NOT lossless, for the reasons above.")
    elif shift is None:
        print("Summary: no loss found.")
    else:
        print(f"Summary: no loss found; a shift above {shift:.1%} would have shown.")
    return passed
