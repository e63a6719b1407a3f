"""The times of a step: by the clock around the loop, and by the logs that the models keep of their calls."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from speculative.engines.calls import Call
from speculative.steps import PlacedStep, TextStep

RoleCall = tuple[str, Call]  # the role of a model, and a call of it


def in_order(role_call: RoleCall) -> tuple:
    role, call = role_call
    return call.began, role == "target"  # drafts whose derived time is 0 come first, too


@dataclass
class StepTimes:
    """The times of steps, by the clock and by the models' logs.

    clocked() adds the seconds of each round's work to those that are in no step yet. write() gives the round's first
    step the calls that were logged in its work, and its seconds of that sum. What is left of the sum goes to later
    rounds: on a device the work of several is done in the first.
    """

    logs: Mapping[str, deque[Call]]  # by role
    last: dict[str, Call | None] = field(default_factory=dict)  # by role, the last call before the round
    began: float = 0.0  # when the round began
    unassigned_seconds: float = 0.0  # of the decoder, that are in no step yet

    def clocked(self, rounds: Iterator[Sequence[PlacedStep]]) -> Iterator[Sequence[PlacedStep]]:
        """Yield these rounds, up to an empty one. Only their own work is timed, not that of the caller between them."""
        while True:
            self.last = {role: log[-1] if log else None for role, log in self.logs.items()}
            self.began = time.perf_counter()
            served = next(rounds, None)
            self.unassigned_seconds += time.perf_counter() - self.began
            if not served:
                return
            yield served

    def calls(self) -> list[RoleCall]:
        """The models' calls of this round. A log may also hold calls of another thread that uses the model: a call that
        began earlier is not of this round."""
        made = []
        for role, log in self.logs.items():
            for call in reversed(log.copy()):
                if call is self.last[role]:
                    break
                if call.derived or call.began >= self.began:
                    made.append((role, call))
        return sorted(made, key=in_order)

    def write(self, step: TextStep, all_stopped: bool) -> None:
        """Write the times into a step. all_stopped: see take_span."""
        calls = self.calls()
        began, step.seconds = self.take_span(calls, all_stopped)
        for role, call in calls:
            offset = call.began - began
            step.calls.append((role, offset, call.seconds))
            if role != "target":
                step.draft_prefill |= call.prefill
                continue
            if step.drafted and not step.scoring:
                step.drafting = offset  # the target's first call begins when all is drafted
            step.scoring += call.seconds
            step.derived = call.derived
            step.prefill |= call.prefill

    def take_span(self, calls: Sequence[RoleCall], all_stopped: bool) -> tuple[float, float]:
        """Take the time of a step from the seconds that are in no step yet -> when it began, its seconds.

        A program on a device makes several steps in the time of one. Each has the time of its own calls. all_stopped:
        whether this step completes the last stop text; it has the rest, in which the program made calls after that.
        """
        began, seconds = self.began, self.unassigned_seconds
        _, first = calls[0]
        if first.derived:
            began = first.began
            if not all_stopped:
                seconds = sum(call.seconds for _, call in calls)
        self.unassigned_seconds -= seconds
        return began, seconds
