"""Many prompts at once: the loops of sampling.py for several texts at a time, to the bit those of each alone."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from speculative.engines.together import Meeting
from speculative.loops import PythonLoops
from speculative.steps import TextCall


class BatchLoops(PythonLoops):
    """Both decoders for a batch: see loops.Loops. Each text has its own loop, caches and random numbers, and a call
    of a model computes the rows of all texts that wait for it. A text that ends makes room for the next prompt."""

    def calls(self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator:
        texts = []
        for x, rng in zip(prompts, rngs, strict=True):
            texts.append(partial(self.steps_over, name, x, N, rng))
        networks = {}
        for role in self.plan.roles:
            networks[role] = self.networks[role]
        n_seats = min(len(texts), self.plan.batch)
        meeting = Meeting(networks, n_seats)
        for steps in meeting.steps(texts, stopped):
            yield [TextCall(*numbered) for numbered in steps]
