"""session.score(text), and --score: a text that is scored by each model, with the speedup to expect."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from speculative.blog.encoder import StreamDecoder
from speculative.report.document import lines_of_tokens, score_to_json, write_score
from speculative.report.expected import Timings, betas, drafters_with_models, expected, time_costs
from speculative.report.make_record import machine, models_of, names_of, public_options, rule_of
from speculative.report.record import ScoredModel, ScoreRecord
from speculative.report.run import Written
from speculative.report.score_page import score_page
from speculative.report.score_words import summary
from speculative.rules import TOKEN
from speculative.run.score import TokenScores, score_tokens, text_ids
from speculative.run.session import Session


@dataclass(frozen=True, repr=False)
class Score(Written):
    """A text that was scored. print(score) shows its figures."""

    record: ScoreRecord
    title = "The text and its score"

    @cached_property
    def document(self) -> dict:
        """The score as --json writes it: see docs/output.md."""
        return score_to_json(self.record)

    @property
    def nats(self) -> float | None:
        """The target's mean of -log q, in nats a token."""
        return self.record.target.nats

    @property
    def perplexity(self) -> float | None:
        """The target's perplexity, e to the power of nats."""
        return self.record.target.perplexity

    @property
    def alpha(self) -> float | None:
        """α, the mean of 1 - TVD(p, q); None if the drafter is not a model."""
        return self.record.draft.alpha if self.record.draft else None

    @property
    def tokens(self) -> list[dict]:
        """The tokens with their numbers: pandas.DataFrame(score.tokens)."""
        return [*lines_of_tokens(self.record)]

    def html(self) -> str:
        """Return the page of the text and its figures."""
        return score_page(self.record)

    def write(self, path: str) -> None:
        write_score(path, self.record)

    def __repr__(self) -> str:
        return "\n".join(summary(self.record))


def score(session: Session, text: str) -> Score:
    """Score a text without sampling: each model reads it once -> its log-probabilities, α, and the speedup to expect.

    Log-probabilities are the models' own, at temperature 1 and without filters; temperature, filters and rule decide α.
    The first token has nothing before it, and no score. Raises UserError.
    """
    x = text_ids(session, text)
    scores = score_tokens(session, x)
    timings = time_costs(session, x)
    models = [scored_model(session, "target", None, scores["target"], timings)]
    for spec in drafters_with_models(session):
        models.append(scored_model(session, spec.role, spec.name, scores[spec.role], timings))
    record = ScoreRecord(
        options=public_options(session),
        machine=machine(session),
        networks=models_of(session),
        rule=rule_of(TOKEN if session.plan.rule.blocks else session.plan.rule),  # a block of one draft is as a token
        n_ctx=session.n_ctx,
        tokens=x,
        pieces=pieces_of(session, x),
        models=models,
        beta=betas(session, timings),
        expected=expected(session, x, scores, timings),
        withheld=timings.withheld,
        names=names_of({*x}.union(*(model.likeliest for model in models)), session.encoder),
    )
    return Score(record)


def scored_model(
    session: Session, role: str, drafter: str | None, scores: TokenScores, timings: Timings
) -> ScoredModel:
    spec = session.models.spec(role) if role in session.plan.network_roles else None
    nats = -float(np.mean(scores.log_probs))
    return ScoredModel(
        role=role,
        size=spec.size if spec else role,
        dtype=spec.dtype if spec and spec.files else "",
        drafter=drafter,
        nats=finite(nats),
        perplexity=math.exp(min(nats, 700)) if math.isfinite(nats) else None,
        alpha=float(np.mean(scores.chances)) if scores.chances else None,
        c=timings.costs[role].c if role in timings.costs else None,
        log_probs=[finite(number) for number in scores.log_probs],
        likeliest=scores.likeliest,
        chances=scores.chances,
    )


def finite(number: float) -> float | None:
    """Return the number, None if it is infinite, which JSON does not have."""
    return number if math.isfinite(number) else None


def pieces_of(session: Session, x: Sequence[int]) -> list[str]:
    """Return the text that each token completes; an incomplete last character belongs to the last token."""
    stream = StreamDecoder(session.encoder)
    pieces = [stream.push([token]) for token in x]
    pieces[-1] += stream.flush()
    return pieces
