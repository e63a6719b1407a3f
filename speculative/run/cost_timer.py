"""Times the calls by which K auto chooses: a draft token and a window of each level, before a decode."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.base import Draft, Drafter
from speculative.engines.contract import Engine
from speculative.engines.network import CachedNetwork
from speculative.lookahead.learned import WINDOW_ROWS
from speculative.run.decode import Setup, drafters_of, new_context, new_models
from speculative.support.progress import working

N_TEXT = 8  # tokens at the end of a prompt, which are the text of the calls that are timed


class CostTimer:
    """Times the levels of a drafter whose K is auto. In a batch, the costs are those of all its texts."""

    def __init__(self, setup: Setup, engine: Engine, n_ctx: int):
        """n_ctx: the smallest context of the models."""
        self.setup = setup
        self.plan = setup.plan
        self.engine = engine
        self.n_ctx = n_ctx

    def time_levels(self, x) -> None:  # [n]
        """Time the levels whose costs are unknown, in a small part of the time that a decode takes. The innermost comes
        first, because the level around it drafts at its cost. x: a text, whose end is the text of the calls."""
        unknown = self.setup.unmeasured
        self.prompt = np.asarray(x)  # [n], for functions: they are asked for no text that a decode would not ask for
        most_text = max(1, self.n_ctx - max(WINDOW_ROWS))  # tokens; the rest of the context is for windows
        x = np.asarray(x)[-min(N_TEXT, most_text) :]  # [n]
        with working("timing calls, from which K is chosen", len(unknown), "level", quiet=not unknown, delay=1) as bar:
            for level in reversed(unknown):
                self.time_level(level, x)
                bar.update(1)

    def time_level(self, level: int, x) -> None:  # [n]
        learned = self.setup.learned[level]
        rng = np.random.default_rng(0)  # not the decoder's, whose numbers decide the text
        context = new_context(self.setup, new_models(self.setup, self.setup.loaded), rng)
        drafters = drafters_of(self.setup, context, level)
        timers = []
        for spec, drafter in zip(self.plan.levels[level], drafters, strict=True):
            timers.append(self.timer_of(level, spec, drafter, x, learned.clock))
        time_window = partial(self.time_call, self.plan.target_of(level), x)
        learned.learn_costs(time_window, timers, most_rows=self.n_ctx - len(x))

    def timer_of(self, level: int, spec: Drafter, drafter: Draft, x, clock: Callable) -> Callable:  # [n]
        """Return the function that gives the seconds of a draft token of this drafter."""
        inner = self.setup.learned.get(level + 1)
        if inner:  # it was timed before, and knows the seconds of a token of its target
            return lambda: inner.token_seconds
        if level == len(self.plan.levels) - 1 and spec.has_model:  # a draft is a call
            return partial(self.time_call, spec.role, x, 1)
        # A look-up, or a level inside which K is a number; a function is asked for the whole prompt.
        return partial(self.time_draft, drafter, x if spec.name in DRAFTERS else self.prompt, clock)

    def time_draft(self, drafter: Draft, x, clock: Callable) -> float:  # [n]
        """Return the seconds of a draft after a text that the drafter has read."""
        drafter(x, 1)
        began = clock()
        drafter(x, 1)
        return self.plan.batch * (clock() - began)  # in a batch its texts draft one after the other

    def time_call(self, role: str, x, n_rows: int) -> float:  # [n]
        """Return the seconds of a call of a model for so many rows of each text: for as many rows after x alone, or if
        these are more than the context has room for, in proportion."""
        network = self.setup.loaded[role]
        if role == "target" and not isinstance(network, CachedNetwork):
            began = time.perf_counter()
            network.logits(self.prompt, min(n_rows, len(self.prompt)))
            return time.perf_counter() - began
        n_all = n_rows * self.plan.batch
        n_timed = min(n_all, self.n_ctx - len(x))
        return self.engine.window_seconds(network, x, n_timed) * n_all / n_timed
