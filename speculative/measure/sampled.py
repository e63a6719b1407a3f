"""The check of --verify that draws: whether tokens of both decoders, and drafts, are distributed as they should be.

It takes as many draws as there is time for. Four times as many show a shift that is half as large.
"""

from collections.abc import Callable, Sequence

import numpy as np

from speculative.measure.decoders import OWN, Check, Decoders
from speculative.measure.uniform import BINS, LEVEL, alike, count_place, detectable, flat
from speculative.support.progress import working
from speculative.trees import Tree

FEWEST = 25  # draws, however slow the models
SHIFT = 0.1  # that the draws should be able to show, if that takes no more than LONGEST times the time
LONGEST = 5


def check_sampled(
    decoders: Decoders,
    prompts: Sequence[Sequence[int]],
    K,
    seed: int,
    draws: int,
    seconds: float,
    clock: Callable[[], float],
) -> list[Check]:
    """Both decoders against the target, and against each other; over the first tokens, two windows of them or so. And
    the drafts against what the drafter says of them."""
    N = 2 * ((K if isinstance(K, int) else 4) + 1)
    *streams, rng = np.random.default_rng(seed).spawn(3)  # one for each decoder, one for the places
    counts = np.zeros((2, 2, BINS), int)  # [autoregressive and speculative, order, BINS]
    of_drafts = np.zeros(BINS, int)
    n_draws = 0
    start = clock()
    with working(f"drawing texts for {seconds:.0f} s", None, "draw", miniters=0) as bar:
        while n_draws < draws and (n_draws < FEWEST or goes_on(clock() - start, seconds, counts)):
            x = prompts[n_draws % len(prompts)]
            for histograms, lookahead, stream in zip(counts, (None, OWN), streams, strict=True):
                proposals = []
                tokens = decoders.decode(x, N, lookahead, stream, lambda n: bar.update(0), proposals.append)
                count_tokens(histograms, decoders, x, tokens, rng)
                for proposal in proposals:
                    count_drafts(of_drafts, proposal, rng)
            n_draws += 1
            bar.set_postfix_str(f"a shift of {detectable(counts[1, 0].sum()):.1%} would show", refresh=False)
            bar.update(1)

    autoregressive, speculative = counts  # [order, BINS] each
    n = int(speculative[0].sum())
    how = f"{n_draws} draws of {N} tokens"
    checks = [
        verdict("speculative against the target", [*map(flat, speculative)], n, how),
        verdict("autoregressive against the target", [*map(flat, autoregressive)], n, how),
        verdict("speculative against autoregressive", [*map(alike, speculative, autoregressive)], n / 2, how),
    ]
    if of_drafts.any():  # a loop on the device shows none
        n = int(of_drafts.sum())
        checks.append(verdict("drafts against the drafter's p", [flat(of_drafts)], n, f"{n} drafts"))
    return checks


def goes_on(elapsed: float, seconds: float, counts: np.ndarray) -> bool:
    """True if there is time for more draws; or, up to LONGEST times as long, if they are needed."""
    return elapsed < seconds or (elapsed < LONGEST * seconds and detectable(counts[1, 0].sum()) > SHIFT)


def count_tokens(histograms, decoders: Decoders, x, tokens: list[int], rng) -> None:  # [order, BINS]
    """Counts the tokens that were decoded after x in the histograms of both orders."""
    q = decoders.direct([*x, *tokens[:-1]], len(tokens))  # [N, n_vocab]
    draft = decoders.make_drafter(rng).chain
    for i, token in enumerate(tokens):
        p = draft([*x, *tokens[:i]], 1).p  # [0 or 1, n_vocab]
        ratio = q[i]  # [n_vocab], where nothing is proposed
        if len(p):
            ratio = p[0] / np.maximum(q[i], np.finfo(q.dtype).tiny)  # [n_vocab]
        for histogram, order in zip(histograms, (q[i], ratio), strict=True):
            count_place(histogram, token, q[i], order, rng)


def count_drafts(histogram, proposal, rng) -> None:  # [BINS]
    """Counts the drafts of a Proposal or a Tree, each at its place in the p that it comes with."""
    if not len(proposal.p):  # nothing was proposed, or a loop on the device keeps p to itself
        return
    if not isinstance(proposal, Tree):
        for token, p in zip(proposal.tokens, proposal.p, strict=True):
            p = np.asarray(p)  # [n_vocab]
            count_place(histogram, token, p, p, rng)
        return
    for siblings in proposal.children:
        drawn = [proposal.tokens[node] for node in siblings]
        for i, node in enumerate(siblings):
            p = np.asarray(proposal.p[node])  # [n_vocab]
            order = p.copy()
            order[drawn[:i]] = 1  # the siblings before it first, where a p that still has them would leave a gap
            count_place(histogram, drawn[i], p, order, rng)


def verdict(name: str, p_values: Sequence[float], n: float, how: str) -> Check:
    p_value = min(1.0, len(p_values) * min(p_values))  # any of several orders would do to fail (Bonferroni)
    shift = detectable(n)
    detail = f"p = {p_value:.2g} over {how}; a shift of {shift:.1%} (total variation) would have shown"
    return Check(name, p_value >= LEVEL, detail, shift)
