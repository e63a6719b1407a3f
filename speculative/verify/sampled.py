"""The checks of --verify that sample: whether the tokens of both decoders, and the drafts, follow their distributions.

Each token has another distribution. So it is mapped to its quantile, a number from 0 to 1, which is uniform if the
token was drawn from that distribution (the probability integral transform). All quantiles are counted in one histogram;
a chi-square test says how far it is from flat. The vocabulary is taken in two orders: by falling q, which shows tokens
of another context, and by falling p / q, which shows whether the draft's favourites come too often.

In the first texts, and in a batch of a text for each prompt, the rows of the target that the decoder read are compared
with those that are computed one by one.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from speculative.run.batch import Batch
from speculative.run.decode import DECODERS
from speculative.run.session import Session
from speculative.sampling import Step
from speculative.support.progress import working
from speculative.trees import children_of, path_of

BINS = 20  # bins of the histogram of quantiles
LEVEL = 1e-4  # a check fails below this p-value: by chance in one verification of 3,000
POWER = 0.95  # the chance with which the smallest detectable difference would have been seen
MIN_DRAWS = 25  # however slow the models are
CHECKS = {name: f"{name} against the target" for name in reversed(DECODERS)}  # the check of each decoder's tokens
DRAFTS = "drafts against the drafter's p"


class Check(NamedTuple):
    name: str
    passed: bool
    detail: str  # the object, the number of comparisons, the finding
    shift: float | None = None  # the total variation distance that a sampled check would have shown


def check_sampled(
    session: Session, prompts: Sequence[np.ndarray], K: int, draws: int = 10_000, seconds: float = 60
) -> Iterator[Check]:
    """Check both decoders against the target, over about two windows of tokens; and the drafts against the drafter's
    p. As many texts are drawn as there is time for, at most `draws`: four times as many show half the shift."""
    drawn = Drawn(session, N=2 * (K + 1))
    n_draws = 0
    start = time.perf_counter()
    with working(f"drawing texts for {seconds:.0f} s", None, "draw", miniters=0) as bar:
        while n_draws < draws and (n_draws < MIN_DRAWS or time.perf_counter() - start < seconds):
            x = prompts[n_draws % len(prompts)]
            drawn.draw(x, alone=session.exact and n_draws < len(prompts))
            n_draws += 1
            bar.set_postfix_str(f"a shift of {detectable(drawn.N * n_draws):.1%} would show", refresh=False)
            bar.update(1)
    if session.exact:
        drawn.draw_together(prompts)
        gap = max(drawn.gaps)
        equal = f"{drawn.N * len(drawn.gaps)} rows of windows, alone and beside other texts, equal to the bit those "
        equal += "computed one by one"
        yield Check("rows", not gap, f"rows differ by up to {gap:.2g} from those computed one by one" if gap else equal)
    for name, quantiles in drawn.quantiles.items():
        if quantiles:  # a loop on the device shows no drafts
            yield sampled_check(name, quantiles)


class Drawn:
    """The quantiles of all tokens that were drawn so far, and of their drafts."""

    def __init__(self, session: Session, N: int):
        """N: tokens of a text."""
        self.session = session
        self.N = N
        seed = session.options.seed
        *streams, self.rng = np.random.default_rng(seed).spawn(3)  # the last draws the quantiles
        self.streams = dict(zip(DECODERS, streams, strict=True))
        self.quantiles: dict[str, list] = {name: [] for name in (*CHECKS.values(), DRAFTS)}  # [n, order] each
        self.gaps: list[float] = []  # between the rows of a text that were read, and those computed one by one

    def draw(self, x, alone: bool) -> None:  # [n]
        """Draw a text after x with each decoder. alone: True to compare its rows with those computed one by one."""
        session, rng = self.session, self.rng
        for name, stream in self.streams.items():
            of_tokens = self.quantiles[CHECKS[name]]
            of_drafts = self.quantiles[DRAFTS]
            steps = [*session.steps(name, x, self.N, stream)]
            tokens = tokens_of(steps)  # [N]
            q = self.rows_alone(x, steps) if alone else rows_of(session, x, tokens)  # [N, n_vocab]
            of_tokens += quantiles_of_tokens(session, x, tokens, q, rng)
            for step in steps:
                of_drafts += quantiles_of_drafts(step.proposal, rng)

    def draw_together(self, prompts: Sequence[np.ndarray]) -> None:
        """Draw a text after each prompt, all in one batch, and compare their rows with those computed one by one."""
        setup = self.session.setup_for(len(prompts))
        self.session.ready(prompts, self.N, setup)
        rngs = self.streams["speculative"].spawn(len(prompts))
        steps: list[list[Step]] = [[] for _ in prompts]
        batch = setup.device or Batch(setup, len(prompts))
        for served in batch.rounds("speculative", prompts, self.N, rngs, lambda place: False):
            for place, step, _ in served:
                steps[place].append(step)
        for x, of_text in zip(prompts, steps, strict=True):
            self.rows_alone(x, of_text)

    def rows_alone(self, x, steps: Sequence[Step]) -> np.ndarray:  # [n] -> [N, n_vocab]
        """The target's rows of the tokens after x, computed one by one. The largest difference to those that the steps
        have is noted."""
        session = self.session
        session.models["target"].forget()
        model = session.model("target")
        text = np.array([*x, *tokens_of(steps)])  # [n + N]
        alone = [model(text[:end]) for end in range(len(x), len(text))]  # [N][1, n_vocab]
        read = [np.asarray(step.q)[path_of(step)] for step in steps]
        q = np.concatenate(alone)  # [N, n_vocab]
        gaps = np.abs(np.concatenate(read) - q)  # [N, n_vocab]
        self.gaps.append(float(gaps.max()))
        return q


def tokens_of(steps: Iterable) -> list[int]:
    return [int(token) for step in steps for token in step.tokens]


def rows_of(session: Session, x, tokens: list[int]) -> np.ndarray:  # [n], [m] -> [m, n_vocab]
    """The target's rows of the tokens after x, in one call with an empty cache."""
    session.models["target"].forget()
    text = np.array([*x, *tokens[:-1]])  # [n + m - 1]
    return session.model("target")(text, len(tokens))


def quantiles_of_tokens(session: Session, x, tokens: list[int], q, rng) -> Iterator[tuple[float, float]]:
    """Yield the quantiles of the tokens that were decoded after x, in both orders. q: their rows [N, n_vocab]."""
    target = session.model("target")
    draft = session.drafter(rng, target)
    text = np.array([*x, *tokens])  # [n + N]
    for i, token in enumerate(tokens):
        q_i = q[i]  # [n_vocab]
        p = draft(text[: len(x) + i], 1).p  # [m, n_vocab], with m = 0 if the drafter has no draft
        order = q_i  # [n_vocab]
        if len(p):
            least = np.finfo(q_i.dtype).tiny
            order = p[0] / np.maximum(q_i, least)  # [n_vocab]
        by_q = quantile(token, q_i, q_i, rng)
        by_ratio = quantile(token, q_i, order, rng)
        yield by_q, by_ratio


def quantiles_of_drafts(proposal, rng) -> Iterator[tuple[float]]:
    """Yield the quantile of each draft of a Proposal or a Tree in its own p. (A loop on the device has no p.)"""
    if not len(proposal.p):
        return
    for siblings in children_of(proposal):
        before: list[int] = []  # the siblings that were drafted before
        for node in siblings:
            token = proposal.tokens[node - 1]
            p = np.asarray(proposal.p[node - 1])  # [n_vocab]
            order = p.copy()  # [n_vocab]
            order[before] = 1  # they come first: a p that still has them would leave a gap
            yield (quantile(token, p, order, rng),)
            before.append(token)


def quantile(token: int, q: np.ndarray, order: np.ndarray, rng) -> float:  # q, order [n_vocab] -> between 0 and 1
    """The quantile of a token drawn from q, in the vocabulary by falling order, ties by id. 1 if q excludes it."""
    if q[token] == 0:
        return 1.0
    before = order > order[token]  # [n_vocab]
    before[:token] |= order[:token] == order[token]
    below = q[before].sum(dtype=np.float64)
    whole = q.sum(dtype=np.float64)
    within = rng.random() * float(q[token])
    return float((below + within) / whole)


def sampled_check(name: str, quantiles: Sequence) -> Check:  # [n, order]
    """Return whether the quantiles are spread evenly, in each order."""
    from scipy.stats import chisquare

    p_values = []
    for column in np.transpose(quantiles):  # [n]
        counts, _ = np.histogram(column, BINS, (0, 1))  # [BINS]
        p_values.append(chisquare(counts).pvalue)
    p_value = min(1.0, len(p_values) * min(p_values))  # any order can fail (Bonferroni)
    shift = detectable(len(quantiles))
    detail = f"p = {p_value:.2g} (fails below {LEVEL:.4f}) over {len(quantiles)} tokens; "
    detail += f"a shift of {shift:.1%} (total variation) would have shown"
    return Check(name, p_value >= LEVEL, detail, shift)


def detectable(n: float) -> float:
    """The smallest total variation distance of the quantiles from uniform that n draws show with POWER at LEVEL.

    A shift by total variation d adds at least n (2d)^2 to the statistic: the least if it is spread evenly over the
    bins. LEVEL is halved, as there are two orders.
    """
    from scipy.special import chdtri, chndtrinc

    noncentrality = chndtrinc(chdtri(BINS - 1, LEVEL / 2), BINS - 1, 1 - POWER)
    return float(np.sqrt(noncentrality / n) / 2)
