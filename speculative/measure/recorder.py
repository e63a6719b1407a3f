"""The record of a decoder: a TextStep for each call of the target, and in it the tests and draws of its drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from speculative.rules import TOKEN, Rule
from speculative.sampling import Step
from speculative.texts import TextStep

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


@dataclass
class Recorder:
    """The record of one decoder's texts. Only the decoder's own time is counted."""

    name: str = ""  # "autoregressive" or "speculative"
    inputs: Sequence = ()  # the tokens of each text's prompt
    rule: Rule = TOKEN
    samples: list[list[TextStep]] = field(default_factory=list)  # the iterations of each text
    seconds: float = 0.0
    waited: float = 0.0  # seconds in which threads were ready and had no core
    runs: int = 1  # number of repeats; this is the median run

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

    def add(self, i: TextStep) -> None:
        """Add a step of a text."""
        self.samples += [[] for _ in range(i.text_index + 1 - len(self.samples))]
        sample = self.samples[i.text_index]
        self.seconds += i.seconds
        if i.tokens:
            sample.append(i)
        else:  # the rest of a character: it belongs to the last token, of a step that was given out already
            *before, last = sample[-1].pieces
            sample[-1] = replace(sample[-1], pieces=[*before, last + i.text])


def explain_step(step: Step, rule: Rule, u: Sequence[float], n: int) -> dict:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain: its drafts, the tests that decided about them,
    and the draw of the last token. u: random numbers, of which the last are the rule's. n: the tokens that are shown; a
    stop text has cut the others."""
    tests, q = rule.explain(step, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for token, test, p_i, q_i in zip(drafts[:n], tests, step.proposal.p, step.q, strict=False):
        tested.append({"token": token, **test, "top": likeliest_rows(np.maximum(p_i, q_i), token, p_i, q_i)})
    if n < len(step.tokens):
        return {"drafts": drafts, "tested": tested, "own": None}
    token = int(step.tokens[-1])
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    own = {
        "token": token,
        "from": "residual" if residual else "q",
        "u": u[-1],
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
