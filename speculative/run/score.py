"""The score of a given text: each model reads it once, and nothing is sampled.

Log-probabilities are the models' own, as a perplexity is: at temperature 1, without filters. The chances of acceptance
are of p and q after temperature and filters, as a decode would have them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from speculative.checkpoints.disk import check_files_in_use
from speculative.engines.model import Model
from speculative.filters import margins_of
from speculative.rules import Rule
from speculative.run.session import Session
from speculative.run.values import as_text, checked
from speculative.sampling import Proposal, Step
from speculative.support.errors import UserError
from speculative.support.progress import working

BLOCK = 64  # rows of a model in one call, as those of a long text take much memory


@dataclass
class TokenScores:
    """The scores of a model for each token of a text after the first: [n - 1] each."""

    log_probs: list[float] = field(default_factory=list)  # nats, of the token after all before it
    likeliest: list[int] = field(default_factory=list)  # the token that the model itself would take
    margins: list[float] = field(default_factory=list)  # the distance of the two largest logits
    chances: list[float] = field(default_factory=list)  # chance that its draft is accepted there; [] for the target


class Excerpt(NamedTuple):
    """A part of a text that fits into the context. The tokens x[first:end] are scored after x[start:first]."""

    start: int
    first: int
    end: int


def excerpts(n: int, n_ctx: int) -> Iterator[Excerpt]:
    """Yield the excerpts that score tokens 1 to n - 1 of a text. The first excerpt has n_ctx tokens; a later one begins
    with n_ctx / 2 tokens that were scored before, so that all tokens have as many before them."""
    excerpt = Excerpt(0, 1, min(n, n_ctx))
    yield excerpt
    while excerpt.end < n:
        start = excerpt.end - n_ctx // 2
        excerpt = Excerpt(start, excerpt.end, min(n, start + n_ctx))
        yield excerpt


def text_ids(session: Session, text: str) -> list[int]:
    """Return the ids of a text, which may be longer than the context. Raises UserError if there is nothing to score."""
    ids = session.encoder.encode(checked("the text", as_text, text), session.plan.special)
    if len(ids) < 2:
        raise UserError("the text should have two tokens or more: the first has nothing before it, and no score")
    return ids


def score_tokens(session: Session, x: Sequence[int]) -> dict[str, TokenScores]:
    """Return the scores of a text by each model of the session, by role, the target first. x: [n], n >= 2. Raises
    UserError."""
    check_files_in_use(session.models.files_in_use)
    models = scoring_models(session)
    scores = {role: TokenScores() for role in models}
    with working("scoring", len(x) - 1, "token") as bar:
        for excerpt in excerpts(len(x), session.n_ctx):
            for first in range(excerpt.first, excerpt.end, BLOCK):
                end = min(first + BLOCK, excerpt.end)
                score_block(models, np.array(x[excerpt.start : end]), end - first, session.plan.rule, scores)
                bar.update(end - first)
    return scores


def scoring_models(session: Session) -> dict[str, Model]:
    """Return the models by role, with their temperature and filters. A copy of the target has a cache of its own here,
    so that its scores are those of a model in its format."""
    models = {}
    for role, filters in session.plan.filters.items():
        models[role] = session.setup.new_model(session.models[role], filters, role)
    return models


def score_block(models: dict[str, Model], x: np.ndarray, n: int, rule: Rule, scores: dict[str, TokenScores]) -> None:
    """Add the scores of the last n tokens of x [n_x]."""
    before = x[:-1]
    q = models["target"](before, n)  # [n, n_vocab]
    for role, model in models.items():
        of_model = scores[role]
        if role != "target":
            p = model(before, n)  # [n, n_vocab]
            of_model.chances += chances_of(rule, p, q)
        logits = model.last_logits  # [n, n_vocab]
        likeliest = np.argmax(logits, axis=-1)  # [n]
        of_model.likeliest += likeliest.tolist()
        of_model.log_probs += log_probs_of(logits, x[-n:])
        of_model.margins += margins_of(logits)


def log_probs_of(logits: np.ndarray, tokens: np.ndarray) -> list[float]:  # [n, n_vocab], [n] -> [n]
    """Return the logarithm of each token's probability, softmax(logits), summed in float64."""
    largest = np.max(logits, axis=-1, keepdims=True)  # [n, 1]
    shifted = logits.astype(np.float64) - largest  # [n, n_vocab]
    rows = np.arange(len(tokens))  # [n]
    own = shifted[rows, tokens]  # [n]
    sums = np.sum(np.exp(shifted), axis=-1)  # [n]
    log_probs = own - np.log(sums)  # [n]
    return log_probs.tolist()


def chances_of(rule: Rule, p: np.ndarray, q: np.ndarray) -> list[float]:  # [n, n_vocab] twice -> [n]
    """Return the chance, at each place, that a draft from p is accepted; [] if the rule does not tell."""
    chances: list[float] = []
    for p_i, q_i in zip(p, q, strict=True):
        draft = int(np.argmax(p_i))  # the chance is the mean over all drafts, and a step names one
        step = Step([draft], Proposal([draft], p_i[None]), q_i[None])
        chances += [min(1.0, chance) for chance in rule.chances(step)]  # a sum of float32 may be above 1
    return chances
