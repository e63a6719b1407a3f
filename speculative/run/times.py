"""The times of a step: by the clock around the loop, and by the logs that the models keep of their calls."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from speculative.engines.model import Call, Model
from speculative.run.steps import TextStep

RoleCall = tuple[str, Call]  # the role of a model, and a call of it


def call_order(role_call: RoleCall) -> tuple[float, bool]:
    role, call = role_call
    return call.began, role == "target"  # at equal times, as if drafts took none, they come before the target's call


@dataclass
class Times:
    """The times of a decode's steps.

    begin() and end() stand around the work for a round of steps, so that the time of the caller between them is not
    counted. write_to() gives the round's first step the calls that were logged in its work, and its seconds of that
    work. What is left of the sum goes to later rounds: on a device the work of several is done in the first.
    """

    logs: Mapping[str, deque[Call]]  # of the decode, by role
    began: float = 0.0  # when the round began
    unassigned_seconds: float = 0.0  # of the decoder, that are in no step yet
    last_before: dict[str, Call | None] = field(default_factory=dict)  # by role, the last call before the round

    @classmethod
    def of_models(cls, models: Mapping[str, Any]) -> "Times":
        return cls({role: model.log for role, model in models.items() if isinstance(model, Model)})

    def begin(self) -> None:
        self.last_before = {role: log[-1] if log else None for role, log in self.logs.items()}
        self.began = time.perf_counter()

    def end(self) -> None:
        self.unassigned_seconds += time.perf_counter() - self.began

    def calls_of_round(self) -> list[RoleCall]:
        """Return the models' calls of this round, in the order of time."""
        made = []
        for role, log in self.logs.items():
            for call in reversed(log):
                if call is self.last_before[role]:
                    break
                made.append((role, call))
        return sorted(made, key=call_order)

    def write_to(self, step: TextStep, all_stopped: bool) -> None:
        """Write the times of the round into a step. all_stopped: whether it completes the last stop text."""
        calls = self.calls_of_round()
        step_began, step.seconds = self.take_span(calls, all_stopped)
        of_target = [call for role, call in calls if role == "target"]
        of_drafts = [call for role, call in calls if role != "target"]
        step.calls = [(role, call.began - step_began, call.seconds) for role, call in calls]
        step.derived = of_target[0].derived
        step.scoring = sum(call.seconds for call in of_target)
        step.prefill = any(call.prefill for call in of_target)
        step.draft_prefill = any(call.prefill for call in of_drafts)
        if step.drafted:
            step.drafting = of_target[0].began - step_began  # the target's first call begins when all is drafted

    def take_span(self, calls: Sequence[RoleCall], all_stopped: bool) -> tuple[float, float]:
        """Take the time of a step from the seconds that are in no step yet -> when it began, its seconds.

        calls: of the round, the target's among them. all_stopped: see write_to.
        """
        _, first = calls[0]
        if not first.derived:  # a loop in Python: all of the round's work was for this step
            seconds = self.unassigned_seconds
            self.unassigned_seconds = 0.0
            return self.began, seconds
        # A program on a device makes several steps in the time of one. Each has the time of its own calls; the last
        # has the rest, in which the program made calls beyond the stop texts.
        seconds = self.unassigned_seconds if all_stopped else sum(call.seconds for _, call in calls)
        self.unassigned_seconds -= seconds
        return first.began, seconds
