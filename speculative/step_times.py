"""The times of a step: by the clock around the loop, and by the logs that the models keep of their calls."""

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from speculative.engines.model import Call
from speculative.steps import TextStep


class RoleCall(NamedTuple):
    """A call of the model of a role."""

    role: str
    call: Call

    @property
    def order(self) -> tuple[float, bool]:
        return self.call.began, self.role == "target"  # drafts whose derived time is 0 come first, too


class StepTimes:
    """The times of steps, by the clock and by the models' logs."""

    def __init__(self, logs: Mapping[str, deque[Call]]):
        self.logs = logs
        self.last: dict[str, Call | None] = {}  # by role, the last call before the step
        self.began = 0.0
        self.waited = 0.0  # seconds of the decoder that are in no step yet

    def begin(self) -> None:
        self.last = {role: log[-1] if log else None for role, log in self.logs.items()}
        self.began = time.perf_counter()

    def end(self) -> None:
        self.waited += time.perf_counter() - self.began

    def calls(self) -> list[RoleCall]:
        """The calls made since begin(). A log may also hold calls of another thread that uses the model: a call that
        began earlier is not of this step."""
        made = []
        for role, log in self.logs.items():
            for call in reversed(log.copy()):
                if call is self.last[role]:
                    break
                if call.derived or call.began >= self.began:
                    made.append(RoleCall(role, call))
        return sorted(made, key=lambda role_call: role_call.order)

    def write(self, step: TextStep, is_last: bool) -> None:
        """Write the times into a step. is_last: True to count all that was waited for, as with a loop on a device the
        calls after the stop text."""
        calls = self.calls()
        of_target = [call for role, call in calls if role == "target"]
        of_drafts = [call for role, call in calls if role != "target"]
        began = self.began
        step.seconds = self.waited
        step.derived = of_target[-1].derived
        if step.derived:  # the program on the device has made several steps in the time of this call
            began = calls[0].call.began
            if not is_last:
                step.seconds = sum(call.seconds for _, call in calls)
        self.waited -= step.seconds
        step.drafting = of_target[0].began - began if step.drafted else 0.0
        step.scoring = sum(call.seconds for call in of_target)
        step.calls = [(role, call.began - began, call.seconds) for role, call in calls]
        step.draft_prefill = any(call.prefill for call in of_drafts)
        step.prefill = any(call.prefill for call in of_target)
