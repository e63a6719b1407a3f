"""Many prompts at once: the loops of sampling.py for several texts at a time, to the bit those of each alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from speculative.engines.together import Meeting
from speculative.loops import PythonLoops, new_lookaheads
from speculative.sampling import Step
from speculative.steps import Served


class TextLoop(NamedTuple):
    """The loop of one text: loop(networks) -> its steps."""

    loops: PythonLoops
    name: str  # of the decoder
    x: Sequence[int]  # [n], the prompt
    N: int
    rng: Any

    def __call__(self, networks: Mapping[str, Any]) -> Iterator[Step]:
        return self.loops.over(networks).steps(self.name, self.x, self.N, self.rng)


class BatchLoops:
    """Both decoders for a batch: see loops.Loops. Each text has its own loop, caches and random numbers, and a call
    of a model computes the rows of all texts that wait for it. A text that ends makes room for the next prompt."""

    def __init__(self, alone: PythonLoops, batch: int):
        """batch: texts that are decoded together."""
        self.loops = copy(alone)
        self.loops.n_texts = batch
        self.loops.lookaheads = new_lookaheads(alone.plan)  # beside other texts a row costs more, so K is chosen anew
        self.measure = self.loops.measure
        self.ready = self.loops.ready

    def meeting(self, n_texts: int) -> Meeting:
        roles = self.loops.plan.roles
        return Meeting({role: self.loops.networks[role] for role in roles}, min(n_texts, self.loops.n_texts))

    def calls(
        self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable[[int], bool]
    ) -> Iterator[list[Served]]:
        loops = []
        for x, rng in zip(prompts, rngs, strict=True):
            loops.append(TextLoop(self.loops, name, x, N, rng))
        meeting = self.meeting(len(loops))
        for steps in meeting.steps(loops, stopped):
            yield [Served(*numbered) for numbered in steps]
