"""The costs by which K is chosen, level by level of a drafter: seconds of a draft token, and of a window of the target.

Of the drafter a/b, the level a drafts for the target, and the level b inside it drafts for a's model. A token that a
drafts costs what the level inside takes for it, so the innermost level is measured first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from speculative.drafters.base import Drafter, DrafterSpec
from speculative.lookahead import WINDOW_ROWS, AutoK
from speculative.plan import Plan
from speculative.support.progress import working

N_COST_TOKENS = 8  # tokens at the end of a prompt: costs are measured with them as the text
N_DRAFTS = 4  # draft tokens that are timed together


class MeasuredLoops(Protocol):
    """What is asked of loops whose levels are measured: see loops.PythonLoops."""

    plan: Plan
    lookaheads: list[Any]  # of each level, from the outermost in
    n_ctx: int
    n_texts: int  # whose rows a call has

    def drafter(self, rng: Any, depth: int = 0) -> Drafter:
        """The levels of the drafter from this depth on."""

    def call_seconds(self, role: str, x, n_rows: int) -> float:  # x [n]
        """The seconds of a call of a model."""


def measure_levels(loops: MeasuredLoops, x) -> None:  # [n]
    """Measure, after the text x, the costs of each level whose K is chosen by them, unless they are known."""
    n = min(N_COST_TOKENS, max(1, loops.n_ctx - max(WINDOW_ROWS)))  # which leaves room for windows
    x = np.asarray(x)[-n:]  # [n]
    unknown = [depth for depth, K in enumerate(loops.lookaheads) if isinstance(K, AutoK) and not K.is_measured]
    with working("timing calls, from which K is chosen", len(unknown), "level", not unknown, delay=1) as bar:
        for depth in reversed(unknown):
            measure_level(loops, depth, x)
            bar.update(1)


def measure_level(loops: MeasuredLoops, depth: int, x) -> None:  # [n]
    """Measure the costs of the level of this depth, in a small part of the time that a decode takes."""
    rng = np.random.default_rng(0)
    drafter = loops.drafter(rng, depth)
    specs = loops.plan.levels[depth]
    token_seconds = []
    for spec, draft in zip(specs, drafter.parts, strict=True):
        timed = partial(seconds_of_a_token, loops, depth, spec, draft, x)
        token_seconds.append(timed)
    target = role_of_target(loops.plan, depth)
    window_seconds = partial(loops.call_seconds, target, x)
    loops.lookaheads[depth].measure(window_seconds, token_seconds, loops.n_ctx - len(x))


def role_of_target(plan: Plan, depth: int) -> str:
    """The role of the model for which a level drafts: the target, or the model of the level before."""
    if depth == 0:
        return "target"
    [spec] = plan.levels[depth - 1]
    return spec.roles[0]


def seconds_of_a_token(loops: MeasuredLoops, depth: int, spec: DrafterSpec, draft: Callable, x) -> float:  # x [n]
    """The seconds of a token that a drafter of this level drafts."""
    is_innermost = depth == len(loops.lookaheads) - 1
    if not is_innermost:
        inside = loops.lookaheads[depth + 1]
        if isinstance(inside, AutoK):  # it has been measured, and expects this for each token
            return inside.token_worth
    elif spec.has_model and spec.roles[0] in loops.plan.networks:  # a call for each token
        return loops.call_seconds(spec.roles[0], x, 1)
    n = min(N_DRAFTS, loops.n_ctx - len(x))
    return loops.n_texts * timed_drafts(draft, x, n, loops.lookaheads[depth].clock)


def timed_drafts(draft: Callable, x, n: int, clock: Callable[[], float]) -> float:  # x [n_text]
    """The seconds of each of n drafts in a row, of a drafter that has read the text."""
    draft(x, 1)  # which reads it
    began = clock()
    draft(x, n)
    return (clock() - began) / n
