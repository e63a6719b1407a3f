"""Many prompts at once: the loops of sampling.py for several texts at a time, to the bit those of each alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from speculative.decoding import PythonLoops
from speculative.engines.together import Meeting
from speculative.steps import Served


class BatchLoops:
    """Both decoders for a batch: see decoding.Loops. Each text has its own loop, caches and random numbers, and a call
    of a model computes the rows of all texts that wait for it. A text that ends makes room for the next prompt."""

    def __init__(self, alone: PythonLoops, batch: int):
        """batch: texts that are decoded together."""
        self.alone = alone
        self.batch = batch
        self.measure = alone.measure
        self.ready = alone.ready

    def calls(
        self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable[[int], bool]
    ) -> Iterator[list[Served]]:
        networks = {role: self.alone.networks[role] for role in self.alone.plan.roles}
        meeting = Meeting(networks, min(self.batch, len(prompts)))

        def loop_of(x: Sequence, rng: Any) -> Callable[[Mapping], Iterator]:
            return lambda networks: self.alone.over(networks).steps(name, x, N, rng)

        for steps in meeting.steps(map(loop_of, prompts, rngs), stopped):
            yield [Served(text_index, step) for text_index, step in steps]
