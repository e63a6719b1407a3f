"""The checks of --verify that sample: whether the tokens of both decoders, and the drafts, follow their distributions.

Each token has another distribution. So it is mapped to a place between 0 and 1, which is uniform if the token was drawn
from that distribution (the probability integral transform). All places are counted in one histogram; a chi-square test
says how far it is from flat. The vocabulary is taken in two orders: by falling q, which shows tokens of another
context, and by falling p / q, which shows whether the draft's favourites come too often.

In the first texts, the rows of the target that the decoder read are compared with those of the text alone.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from speculative.loops import DECODERS
from speculative.session import Session
from speculative.support.progress import working
from speculative.trees import children_of, path_of

BINS = 20  # of the histogram of places
LEVEL = 1e-4  # a check fails below this p-value: by chance in one verification of 3,000
POWER = 0.95  # with which the smallest detectable difference would have been seen
MIN_DRAWS = 25  # however slow the models are
DRAFTS = "drafts against the drafter's p"


class Check(NamedTuple):
    name: str
    passed: bool
    detail: str  # the object, the number of comparisons, the finding
    shift: float | None = None  # of a sampled check: the total variation distance that would have shown


def check_sampled(
    session: Session, prompts: Sequence[np.ndarray], K: int, draws: int = 10_000, seconds: float = 60
) -> Iterator[Check]:
    """Check both decoders against the target, over about two windows of tokens; and the drafts against the drafter's
    p. As many texts are drawn as there is time for, at most `draws`: four times as many show half the shift."""
    N = 2 * (K + 1)
    *streams, rng = np.random.default_rng(session.options.seed).spawn(3)  # one for each decoder, one for the places
    places: dict[str, list] = {name: [] for name in (*reversed(DECODERS), DRAFTS)}  # [n, order] each
    gaps: list[float] = []  # between the rows of a text that were read, and those that were computed one by one
    n_draws = 0
    start = time.perf_counter()
    with working(f"drawing texts for {seconds:.0f} s", None, "draw", miniters=0) as bar:
        while n_draws < draws and (n_draws < MIN_DRAWS or time.perf_counter() - start < seconds):
            x = prompts[n_draws % len(prompts)]
            alone = session.exact and n_draws < len(prompts)
            for name, stream in zip(DECODERS, streams, strict=True):
                steps = [*session.steps(name, x, N, stream)]
                tokens = tokens_of(steps)
                q = rows_of(session, x, tokens, alone)  # [N, n_vocab]
                if alone:
                    read = np.concatenate([np.asarray(step.q)[path_of(step)] for step in steps])  # [N, n_vocab]
                    gaps.append(float(np.max(np.abs(read - q))))
                places[name] += places_of_tokens(session, x, tokens, q, rng)
                places[DRAFTS] += [one for step in steps for one in places_of_drafts(step.proposal, rng)]
            n_draws += 1
            bar.set_postfix_str(f"a shift of {detectable(N * n_draws):.1%} would show", refresh=False)
            bar.update(1)

    if gaps:
        detail = f"{N * len(gaps)} rows of windows equal to the bit those computed one by one"
        if any(gaps):
            detail = f"other rows than one by one, by up to {max(gaps):.2g}"
        yield Check("rows", not any(gaps), detail)
    for name, found in places.items():
        if found:  # a loop on the device shows no drafts
            yield sampled_check(name if name == DRAFTS else f"{name} against the target", found)


def tokens_of(steps: Iterable) -> list[int]:
    return [int(token) for step in steps for token in step.tokens]


def rows_of(session: Session, x, tokens: list[int], alone: bool) -> np.ndarray:  # [n], [N] -> [N, n_vocab]
    """The target's rows of the tokens after x, from an empty cache. alone: computed one by one."""
    session.models["target"].forget()
    model = session.model("target")
    text = np.array([*x, *tokens[:-1]])  # [n + N - 1]
    if alone:
        return np.concatenate([model(text[:end], 1) for end in range(len(x), len(text) + 1)])
    return model(text, len(tokens))


def places_of_tokens(session: Session, x, tokens: list[int], q, rng) -> Iterator[tuple[float, float]]:
    """Yield the places of the tokens that were decoded after x, in both orders. q: their rows [N, n_vocab]."""
    draft = session.drafter(rng, target=session.model("target")).chain
    tiny = np.finfo(q.dtype).tiny
    for i, token in enumerate(tokens):
        text = np.array([*x, *tokens[:i]])
        p = draft(text, 1).p  # [0 or 1, n_vocab]
        q_i = q[i]  # [n_vocab]
        ratio = q_i
        if len(p):
            ratio = p[0] / np.maximum(q_i, tiny)  # [n_vocab]
        yield place(token, q_i, q_i, rng), place(token, q_i, ratio, rng)


def places_of_drafts(proposal, rng) -> Iterator[tuple[float]]:
    """Yield the place of each draft of a Proposal or a Tree in its own p. (A loop on the device has no p.)"""
    for siblings in children_of(proposal) if len(proposal.p) else ():
        nodes = [node - 1 for node in siblings]
        for i, node in enumerate(nodes):
            p = np.asarray(proposal.p[node])  # [n_vocab]
            order = p.copy()  # [n_vocab]
            # The siblings before it come first: a p that still has them would leave a gap.
            order[[proposal.tokens[sibling] for sibling in nodes[:i]]] = 1
            yield (place(proposal.tokens[node], p, order, rng),)


def place(token: int, q: np.ndarray, order: np.ndarray, rng) -> float:  # q, order [n_vocab] -> between 0 and 1
    """The place of a token drawn from q, in the vocabulary by falling order, ties by id. 1 if q excludes it."""
    if q[token] == 0:
        return 1.0
    before = order > order[token]  # [n_vocab]
    before[:token] |= order[:token] == order[token]
    below = float(q[before].sum(dtype=np.float64))
    whole = float(q.sum(dtype=np.float64))
    return (below + rng.random() * float(q[token])) / whole


def sampled_check(name: str, places: Sequence) -> Check:  # [n, order]
    from scipy.stats import chisquare

    histograms = [np.histogram(column, BINS, (0, 1))[0] for column in np.transpose(places)]  # [order, BINS]
    # Any order can fail (Bonferroni).
    p_value = min(1.0, len(histograms) * min(chisquare(histogram).pvalue for histogram in histograms))
    shift = detectable(len(places))
    detail = f"p = {p_value:.2g} (fails below {LEVEL:.4f}) over {len(places)} tokens; "
    detail += f"a shift of {shift:.1%} (total variation) would have shown"
    return Check(name, p_value >= LEVEL, detail, shift)


def detectable(n: float) -> float:
    """The smallest total variation distance of the places from uniform that n draws show with POWER at LEVEL.

    A shift by total variation d adds at least n (2d)^2 to the statistic: the least if it is spread evenly over the
    bins. LEVEL is halved, as there are two orders.
    """
    from scipy.special import chdtri, chndtrinc

    noncentrality = chndtrinc(chdtri(BINS - 1, LEVEL / 2), BINS - 1, 1 - POWER)
    return float(np.sqrt(noncentrality / n) / 2)
