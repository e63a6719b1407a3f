"""The costs by which K auto chooses: those of a draft token and of a window, level by level, before a decode."""

from collections.abc import Callable
from functools import partial

import numpy as np

from speculative.decode_parts import DecodeParts
from speculative.drafters.base import DrafterSpec
from speculative.lookahead import WINDOW_ROWS, AutoK
from speculative.support.progress import working

N_TEXT = 8  # tokens at the end of a prompt, which are the text of the calls that are timed


class LevelCosts:
    """Measures the costs of the levels of a drafter whose K is auto. In a batch, they are those of all its texts."""

    def __init__(self, parts: DecodeParts):
        self.parts = parts
        self.plan = parts.plan
        self.models = parts.models
        self.n_ctx = self.models.smallest_context(self.plan).n_ctx

    def measure(self, x) -> None:  # [n]
        """Measure what is unknown, in a small part of the time that a decode takes. The innermost level comes first: a
        token that the level around it drafts costs what it takes."""
        unknown: dict[int, AutoK] = {}
        for level, lookahead in enumerate(self.parts.lookaheads):
            if isinstance(lookahead, AutoK) and not lookahead.is_measured:
                unknown[level] = lookahead
        most_text = max(1, self.n_ctx - max(WINDOW_ROWS))  # tokens; the rest of the context is for windows
        x = np.asarray(x)[-min(N_TEXT, most_text) :]  # [n]
        with working("timing calls, from which K is chosen", len(unknown), "level", quiet=not unknown, delay=1) as bar:
            for level in reversed(unknown):
                self.measure_level(level, unknown[level], x)
                bar.update(1)

    def measure_level(self, level: int, lookahead: AutoK, x) -> None:  # [n]
        rng = np.random.default_rng(0)  # not the decoder's, whose numbers decide the text
        context = self.parts.new_context(rng, self.models)
        drafts = self.parts.drafts_of_level(level, context)
        timers = []
        for spec, draft in zip(self.plan.levels[level], drafts, strict=True):
            timers.append(partial(self.time_draft, level, spec, draft, x, lookahead.clock))
        time_window = partial(self.time_call, self.plan.target_of(level), x)
        most_rows = self.n_ctx - len(x)
        lookahead.measure(time_window, timers, most_rows)

    def time_draft(self, level: int, spec: DrafterSpec, draft: Callable, x, clock: Callable) -> float:  # [n]
        """Return the seconds of a token that a drafter of this level drafts: those of a call of its model; or if an
        inner level drafts for that by a K auto, those that were measured for it; else those of a draft now."""
        is_innermost = level == len(self.plan.levels) - 1
        if is_innermost and spec.has_model:
            return self.time_call(spec.role, x, 1)
        inner = None if is_innermost else self.parts.lookaheads[level + 1]
        if isinstance(inner, AutoK):
            return inner.token_seconds
        draft(x, 1)  # the first draft also reads the text
        began = clock()
        draft(x, 1)
        return self.plan.batch * (clock() - began)  # in a batch its texts draft one after the other

    def time_call(self, role: str, x, n_rows: int) -> float:  # [n]
        """Return the seconds of a call of a model for so many rows of each text after x."""
        return self.models.engine.window_seconds(self.models[role], x, n_rows * self.plan.batch)
