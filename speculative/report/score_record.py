"""A text that was scored, as one typed record: its words, its page and its JSON are functions of the record alone.

The fields are the keys of --json. A line of --json FILE.jsonl names its numbers by role: log_prob_target, chance_draft.
"""

from dataclasses import dataclass

from speculative.report.record import Machine, Model, RuleUsed
from speculative.run.options import Options


@dataclass(frozen=True)
class ScoredModel:
    """What a model gives to a text."""

    role: str  # `target`, `draft`, the weight format of a copy of the target, or `ngram`
    size: str  # its name
    dtype: str  # its weight format
    drafter: str | None  # its name for --drafter
    nats: float | None  # the mean of -log p, in nats a token; none if a token has probability 0
    perplexity: float | None  # e to the power of `nats`
    alpha: float | None  # α, the mean of `chances`; not for the target
    c: float | None  # seconds of its token / of the target's
    log_probs: list[float | None]  # log p of each token after the first; `null` if p is 0
    likeliest: list[int]  # the model's own likeliest token at each of these places
    chances: list[float]  # chances of acceptance of its draft there; empty for the target


@dataclass(frozen=True)
class Expected:
    """A drafter with a K on the text."""

    tokens_a_call: float  # tokens of a call of the target
    leviathan_tokens: float | None  # the same by Leviathan's formula; not for look-ups and K `auto`
    speedup: float | None  # over autoregressive decoding, without reading a prompt


@dataclass(frozen=True)
class ScoreRecord:
    """A text and its score."""

    options: Options  # this, the machine and the rule have the keys of a run: docs/output.md
    machine: Machine
    rule: RuleUsed  # of acceptance
    networks: list[Model]  # those that have read the text, as `models` of a run
    n_ctx: int  # tokens of a window
    tokens: list[int]  # the ids of the text's tokens
    pieces: list[str]  # the text of each token
    models: list[ScoredModel]  # the target first, then the model that drafts for it
    beta: dict[str, float]  # {K: β}; empty if withheld
    expected: dict[str, dict[str, Expected]]  # {drafter: {K: what it should bring}}; K may be `auto`
    withheld: str | None  # why there are no speedups
    names: dict[int, str]  # {token: its text} for `likeliest`, as in `vocabulary` of a run

    @property
    def target(self) -> ScoredModel:
        return self.models[0]

    @property
    def draft(self) -> ScoredModel | None:
        """The model that drafts for the target; None if the drafter is not a model."""
        return self.models[1] if len(self.models) > 1 else None
