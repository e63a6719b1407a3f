"""The observer of a decode, and its notes in the steps: the chances of acceptance, and the tests of the drafts, rebuilt
from the random numbers that were drawn for them. A decode has an observer only if somebody reads these.

Which numbers belong to the rule: in a step the drafter draws first, then the rule, both from the decoder's one
generator. The rule draws one number for each test and one more for the last token of the step. So the last numbers are
the rule's, and from them, p and q, Rule.judge gives the same tests once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from speculative.rules import Judgement, Rule, papers_chances
from speculative.run.steps import TextStep
from speculative.sampling import Step
from speculative.trees import Tree

N_TOP = 10  # number of the likeliest tokens that are recorded of a distribution


class RecordedRandom(np.random.Generator):
    """A random generator that remembers its draws: the tests of a step can be rebuilt from them."""

    def __init__(self, rng: np.random.Generator):
        super().__init__(rng.bit_generator)
        self.u: list[float] = []  # the numbers of the step that is being made

    def random(self, *args, **options):
        drawn = super().random(*args, **options)
        self.u += np.ravel(drawn).tolist()
        return drawn

    def take(self) -> list[float]:
        """Take the numbers that were drawn since this was last called."""
        u, self.u = self.u, []
        return u


@dataclass(frozen=True)
class Observer:
    """Adds to each step of a text its chances of acceptance and, if they are wanted, its tests."""

    rule: Rule
    with_tests: bool = False

    def watched(self, rng: np.random.Generator) -> np.random.Generator:
        """Return the generator for a text, which records its numbers if the tests are wanted."""
        return RecordedRandom(rng) if self.with_tests else rng

    def add_to(
        self, text_step: TextStep, step: Step, rng: np.random.Generator, chances: Sequence[float] | None
    ) -> None:
        """Add the chances by the rule, and by the paper's rule if this one changes its test, and the tests. rng: from
        watched. chances: those that a loop on a device, which keeps no p and q, has computed."""
        n = len(text_step.tokens)
        if chances is not None:
            text_step.alpha = [*chances[:n]]
            return
        text_step.alpha = self.rule.chances(step)[:n]
        text_step.alpha_token = papers_chances(step, self.rule)[:n]
        u = rng.take() if isinstance(rng, RecordedRandom) else []
        if isinstance(step.proposal, Tree):
            return
        for row, token in zip(step.q, text_step.tokens, strict=False):
            text_step.q_of_tokens.append(float(row[token]))
        if self.with_tests:
            text_step.details = explain_step(step, self.rule, u, n)


def rebuilt_tests(step: Step, rule: Rule, u: Sequence[float]) -> Judgement:
    """Judge a step once more. u: all random numbers that were drawn for it."""
    n_tests = step.n_drafted if rule.blocks else min(len(step.tokens), step.n_drafted)
    own = u[-1 - n_tests :]  # the rule's: the drafter's come before them
    return rule.judge(step.proposal, step.q, iter(own))


def explain_step(step: Step, rule: Rule, u: Sequence[float], n_tokens: int) -> dict | None:
    """Return {"drafts", "tested", "own"} of a step that drafted a chain: its drafts, the tests that decided about them,
    and the draw of the last token. None if the rule's tests are unknown. n_tokens: those that belong to the text; a
    stop text has cut the others."""
    if not rule.explains:
        return None
    again = rebuilt_tests(step, rule, u)
    drafts = [int(token) for token in step.proposal.tokens]
    tested = []
    for i, test in enumerate(again.tests[:n_tokens]):
        p = step.proposal.p[i]  # [n_vocab]
        q = step.q[i]  # [n_vocab]
        figures = {name: value for name, value in test._asdict().items() if value is not None}
        top = likeliest_rows(np.maximum(p, q), drafts[i], p, q)
        tested.append({"token": drafts[i], **figures, "top": top})
    own = None  # the draw of the last token from again.rest
    if n_tokens == len(step.tokens):
        last = int(step.tokens[-1])
        own = {"token": last, "from": again.origin, "u": u[-1], "top": likeliest_rows(again.rest, last, again.rest)}
    return {"drafts": drafts, "tested": tested, "own": own}


def likeliest_rows(order, token: int, *columns) -> list[list]:  # [n_vocab] each -> rows
    """Return the rows [id, its probabilities] of the N_TOP tokens that are the first by this order, without those of
    probability 0, and of this token."""
    n = min(N_TOP, len(order))
    candidates = np.flatnonzero(order >= np.partition(order, -n)[-n])  # [n or more], some equal, the lowest id first
    first = candidates[np.argsort(-order[candidates], kind="stable")][:n]  # [n]
    possible = first[order[first] > 0]  # [n_possible]
    ids = sorted({*possible.tolist(), token}, key=lambda id: (-order[id], id))
    rows = []
    for id in ids:
        rounded = [float(f"{column[id]:.4g}") for column in columns]
        rows.append([id, *rounded])
    return rows
