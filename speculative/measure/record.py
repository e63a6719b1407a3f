"""What is recorded of a run: an Iteration for each call of the target. docs/output.md explains every key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from speculative.rules import Rule
from speculative.sampling import Step

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


@dataclass
class Iteration:
    """One call of the target, as tokens, text and times, without its distributions, which are large.

    Times are in seconds, None if a loop on a device does not tell them. If a text ends in a part of a character, a last
    step without tokens has that part as its piece.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    drafting: float | None = 0.0  # seconds of Step 1
    scoring: float | None = 0.0  # seconds of the target's call
    seconds: float | None = 0.0  # in all
    calls: list[tuple] = field(default_factory=list)  # of the models: (role, seconds after the step began, seconds)
    draft_prefill: bool = False  # True if the draft model also read the prompt: not counted in t_draft
    prefill: bool = False  # True if the target also read the prompt: not counted in t_target
    alpha: list[float] = field(default_factory=list)  # chance of acceptance of each tested draft, in order
    source: list[str] = field(default_factory=list)  # name of the drafter that proposed each draft, if known
    levels: dict[str, list] = field(default_factory=dict)  # {drafter: [[tokens, drafted, accepted], ...] of its calls}
    tree: dict | None = None  # {"tokens", "parents", "path"}, if the proposal was a tree
    details: dict | None = None  # tests and draws, if they are recorded
    pieces: list[str] = field(default_factory=list)  # text of each token
    number: int = 0  # number of the text that the step belongs to, if there are several

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def origins(self) -> list[str]:
        """The origin of each token: "accepted", then "resampled", "bonus" or "autoregressive".

        A draft that the draft model did not propose is "accepted: " and the name of its drafter.
        """
        n_accepted = min(self.accepted, len(self.tokens))
        whole = self.accepted == self.drafted
        if self.tree:  # a path is whole if it ends in a leaf
            last_node = [0, *self.tree["path"]][-1]
            whole = last_node not in self.tree["parents"]
        last = "bonus" if whole else "resampled"
        if self.drafted == 0:
            last = "autoregressive"
        names = [*self.source, *["model"] * n_accepted][:n_accepted]
        accepted = ["accepted" if name == "model" else f"accepted: {name}" for name in names]
        return [*accepted, last][: len(self.tokens)]


def to_json(iteration: Iteration) -> dict[str, Any]:
    """Return the text, the counts and the times of an iteration."""
    origins = [origin.partition(":")[0] for origin in iteration.origins]
    found = {"text": iteration.text} | vars(iteration) | {"tokens": len(iteration.tokens), "origins": origins}
    return {name: value for name, value in found.items() if name != "number"}


def details(step: Step, rule: Rule, u: Sequence[float]) -> dict:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain: its drafts, the tests that decided about them,
    and the draw of the last token. u: the random numbers that the rule drew."""
    explained = rule.explain(step.proposal, step.q, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for token, test, p_i, q_i in zip(drafts, explained.tests, step.proposal.p, step.q, strict=False):  # p_i [n_vocab]
        numbers = {name: value for name, value in test._asdict().items() if value is not None}
        tested.append({"token": token, **numbers, "top": top(np.maximum(p_i, q_i), token, p_i, q_i)})
    q = explained.q  # [n_vocab]
    token = int(step.tokens[-1])
    residual = step.accepted < step.drafted and not np.may_share_memory(q, step.q)
    own = {"token": token, "from": "residual" if residual else "q", "u": explained.u, "top": top(q, token, q)}
    return {"drafts": drafts, "tested": tested, "own": own}


def top(order, token: int, *columns) -> list[list]:  # [n_vocab] each -> rows
    """Return the rows [id, its probabilities] of the N_TOP tokens that are the first by this order, without those of
    probability 0, and of this token."""
    n = min(N_TOP, len(order))
    first = np.argpartition(order, -n)[-n:]  # [n]
    ids = sorted({*first[order[first] > 0].tolist(), token}, key=lambda id: (-order[id], id))
    return [[id, *(float(f"{column[id]:.4g}") for column in columns)] for id in ids]
