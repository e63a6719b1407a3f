"""The record of a run: a TextStep for each call of the target, with the chances and the tests of its drafts.
docs/output.md explains every key."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from speculative.rules import TOKEN, Rule
from speculative.sampling import Step
from speculative.session import Session
from speculative.texts import TextStep

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


@dataclass
class Recorder:
    """The record of one decoder's texts. Only the decoder's own time is counted."""

    name: str = ""  # "autoregressive" or "speculative"
    inputs: Sequence = ()  # the tokens of each text's prompt
    rule: Rule = TOKEN
    levels: Sequence[str] = ()  # the drafters that have a drafter of their own, the outermost first
    with_details: bool = False  # True to record the tests and draws of each step
    samples: list[list[TextStep]] = field(default_factory=list)  # the iterations of each text
    seconds: float = 0.0
    runs: int = 1  # number of repeats; this is the median run
    # Of a loop on a device, which cannot time each call:
    prefill: float | None = None  # seconds
    t_draft: float | None = None  # seconds of a draft token
    t_target: dict[int, float] = field(default_factory=dict)  # {rows: seconds of a call}

    @property
    def iterations(self) -> list[TextStep]:
        return [iteration for sample in self.samples for iteration in sample]

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each text."""
        return [[token for i in sample for token in i.tokens] for sample in self.samples]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))

    @classmethod
    def of(cls, session: Session, name: str, inputs: Sequence, with_details: bool) -> "Recorder":
        """Return the empty record of a decoder."""
        levels = [specs[0].name for specs in session.levels[:-1]]
        return cls(name, inputs, session.rule, levels, with_details, **session.decoders.part_times(name))

    def add(self, i: TextStep) -> TextStep:
        """Add a step, with the chances of its drafts and without its distributions -> the step as it is recorded."""
        self.samples += [[] for _ in range(i.text_index + 1 - len(self.samples))]
        sample = self.samples[i.text_index]
        if not i.tokens:  # the rest of a character: it belongs to the last token, of a step that was given out already
            *before, last = sample[-1].pieces
            sample[-1] = replace(sample[-1], pieces=[*before, last + i.text])
            return i
        self.seconds += i.seconds or 0.0
        if self.prefill is None:
            known = self.of_step(i)
        else:
            self.prefill += i.step.prefill
            known = {"seconds": None, "alpha": i.step.alpha}
        sample.append(replace(i, step=None, u=(), **known))
        return sample[-1]

    def of_step(self, i: TextStep) -> dict[str, Any]:
        """Return the fields that are computed from the distributions of a step."""
        step = i.step
        n = len(i.tokens)
        fields = {"alpha": self.rule.chances(step)}
        if i.tree:
            return fields
        fields["q"] = [float(row[token]) for row, token in zip(step.q, i.tokens, strict=False)]
        inner = step.proposal.inner
        fields["levels"] = {}
        for name in self.levels:
            fields["levels"][name] = [[len(one.tokens), one.drafted, one.accepted] for one in inner]
            inner = [deeper for one in inner for deeper in one.proposal.inner]
        if self.with_details and self.rule.explain:
            fields["details"] = explain_step(step, self.rule, i.u[-self.rule.n_draws(step) :])
        if n < len(step.tokens):  # the stop text has cut it
            fields["alpha"] = fields["alpha"][:n]
            if "details" in fields:
                fields["details"] |= {"tested": fields["details"]["tested"][:n], "own": None}
        return fields


# ---- As JSON ---------------------------------------------------------------------------------------------------------


def to_json(iteration: TextStep) -> dict[str, Any]:
    """Return the text, the counts and the times of an iteration."""
    origins = [origin.partition(":")[0] for origin in iteration.origins]
    found = {"text": iteration.text} | vars(iteration) | {"tokens": len(iteration.tokens), "origins": origins}
    return {name: value for name, value in found.items() if name not in ("text_index", "q", "step", "u")}


def explain_step(step: Step, rule: Rule, u: Sequence[float]) -> dict:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain: its drafts, the tests that decided about them,
    and the draw of the last token. u: the random numbers that the rule drew."""
    explained = rule.explain(step.proposal, step.q, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for token, test, p_i, q_i in zip(drafts, explained.tests, step.proposal.p, step.q, strict=False):  # p_i [n_vocab]
        numbers = {name: value for name, value in test._asdict().items() if value is not None}
        tested.append({"token": token, **numbers, "top": likeliest_rows(np.maximum(p_i, q_i), token, p_i, q_i)})
    q = explained.q  # [n_vocab]
    token = int(step.tokens[-1])
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    own = {
        "token": token,
        "from": "residual" if residual else "q",
        "u": explained.u,
        "top": likeliest_rows(q, token, q),
    }
    return {"drafts": drafts, "tested": tested, "own": own}


def likeliest_rows(order, token: int, *columns) -> list[list]:  # [n_vocab] each -> rows
    """Return the rows [id, its probabilities] of the N_TOP tokens that are the first by this order, without those of
    probability 0, and of this token."""
    n = min(N_TOP, len(order))
    first = np.argpartition(order, -n)[-n:]  # [n]
    ids = sorted({*first[order[first] > 0].tolist(), token}, key=lambda id: (-order[id], id))
    return [[id, *(float(f"{column[id]:.4g}") for column in columns)] for id in ids]
