"""The check of --verify that samples: whether the tokens of both decoders, and the drafts, follow their distributions.

It draws as many texts as there is time for. Four times as many show a shift that is half as large.
"""

import time
from collections.abc import Sequence

import numpy as np

from speculative.measure.decoders import OWN, Check, Decoders
from speculative.measure.goodness_of_fit import BINS, LEVEL, count_place, detectable, p_flat
from speculative.support.progress import working
from speculative.trees import Tree

MIN_DRAWS = 25  # however slow the models are


def check_sampled(
    decoders: Decoders, prompts: Sequence[Sequence[int]], K, seed: int, draws: int, seconds: float
) -> list[Check]:
    """Check both decoders against the target, over about two windows of tokens; and the drafts against the drafter's
    p."""
    N = 2 * ((K if isinstance(K, int) else 4) + 1)
    *streams, rng = np.random.default_rng(seed).spawn(3)  # one for each decoder, one for the places
    counts = np.zeros((2, 2, BINS), int)  # [autoregressive and speculative, order, BINS]
    draft_counts = np.zeros(BINS, int)
    n_draws = 0
    start = time.perf_counter()
    with working(f"drawing texts for {seconds:.0f} s", None, "draw", miniters=0) as bar:
        while n_draws < draws and (n_draws < MIN_DRAWS or time.perf_counter() - start < seconds):
            x = prompts[n_draws % len(prompts)]
            for histograms, lookahead, stream in zip(counts, (None, OWN), streams, strict=True):
                steps = []
                tokens = decoders.decode(x, N, lookahead, stream, steps.append)
                count_tokens(histograms, decoders, x, tokens, rng)
                for step in steps:
                    count_drafts(draft_counts, step.proposal, rng)
            n_draws += 1
            bar.set_postfix_str(f"a shift of {detectable(counts[1, 0].sum()):.1%} would show", refresh=False)
            bar.update(1)

    n = int(counts[1, 0].sum())
    how = f"{n_draws} draws of {N} tokens"
    checks = [
        sampled_check(f"{name} against the target", [*map(p_flat, histograms)], n, how)
        for name, histograms in zip(("autoregressive", "speculative"), counts, strict=True)
    ][::-1]
    n_drafts = int(draft_counts.sum())
    if n_drafts:  # a loop on the device shows none
        name = "drafts against the drafter's p"
        checks.append(sampled_check(name, [p_flat(draft_counts)], n_drafts, f"{n_drafts} drafts"))
    return checks


def count_tokens(histograms, decoders: Decoders, x, tokens: list[int], rng) -> None:  # [order, BINS]
    """Count the tokens that were decoded after x, in the histograms of both orders."""
    q = decoders.direct([*x, *tokens[:-1]], len(tokens))  # [N, n_vocab]
    draft = decoders.make_drafter(rng).chain
    for i, token in enumerate(tokens):
        p = draft([*x, *tokens[:i]], 1).p  # [0 or 1, n_vocab]
        ratio = p[0] / np.maximum(q[i], np.finfo(q.dtype).tiny) if len(p) else q[i]  # [n_vocab]
        for histogram, order in zip(histograms, (q[i], ratio), strict=True):
            count_place(histogram, token, q[i], order, rng)


def count_drafts(histogram, proposal, rng) -> None:  # [BINS]
    """Count the drafts of a Proposal or a Tree, each at its place in its own p."""
    if isinstance(proposal, Tree):
        for siblings in proposal.children:
            for i, node in enumerate(siblings):
                p = np.asarray(proposal.p[node])  # [n_vocab]
                order = p.copy()
                # The siblings before it come first: a p that still has them would leave a gap.
                order[[proposal.tokens[sibling] for sibling in siblings[:i]]] = 1
                count_place(histogram, proposal.tokens[node], p, order, rng)
        return
    for token, p in zip(proposal.tokens, proposal.p, strict=False):  # a loop on the device has no p
        count_place(histogram, token, np.asarray(p), np.asarray(p), rng)


def sampled_check(name: str, p_values: Sequence[float], n: float, how: str) -> Check:
    p_value = min(1.0, len(p_values) * min(p_values))  # any of several orders can fail (Bonferroni)
    shift = detectable(n)
    detail = f"p = {p_value:.2g} over {how}; a shift of {shift:.1%} (total variation) would have shown"
    return Check(name, p_value >= LEVEL, detail, shift)
