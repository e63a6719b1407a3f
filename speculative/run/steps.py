"""A step of a decoder with its text and its times: the screen, the page and the figures are made from it."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from speculative.engines.model import Call, Model
from speculative.sampling import Step
from speculative.trees import children_of, path_of


@dataclass
class TextStep:
    """A Step of the loop, with its text and its times: the result of one call of the target.

    Times are in seconds. If texts are decoded together, the first step of a round has the times of all. A text ends
    with the token that completes the stop text; the drafts after it count as rejected. An incomplete last character is
    yielded as one more step, which has no tokens. The names of fields are those of the JSON.
    """

    # ---- Its tokens --------------------------------------------------------------------------------------------------

    tokens: list[int]  # its tokens; in JSON their number, as the sample has their ids
    drafted: int = 0  # number of drafts
    accepted: int = 0  # number of accepted drafts
    pieces: list[str] = field(default_factory=list)  # text of each token
    origins: list[str] = field(default_factory=list)  # each token is accepted, resampled, bonus or autoregressive
    text_index: int = field(default=0, compare=False)  # the place of its text among several. Not in JSON

    # ---- Its times ---------------------------------------------------------------------------------------------------

    drafting: float = 0.0  # seconds of Step 1
    scoring: float = 0.0  # seconds of the target's call
    seconds: float = 0.0  # seconds in all
    derived: bool = False  # whether the times are means over a loop on a device
    # calls of the models, as in their logs: (role, seconds after the step began, seconds)
    calls: list[tuple] = field(default_factory=list)
    draft_prefill: bool = False  # whether the draft model also read the prompt: not counted in t_draft
    prefill: bool = False  # whether the target also read the prompt: not counted in t_target

    # ---- Its chances and where they come from ------------------------------------------------------------------------

    alpha: list[float] = field(default_factory=list)  # chance of acceptance of each tested draft
    alpha_token: list[float] = field(default_factory=list)  # the same by the paper's rule, if the rule changes its test
    # the target's probability of each token, except of a tree. Not in JSON
    q_of_tokens: list[float] = field(default_factory=list, compare=False)
    source: list[str] = field(default_factory=list)  # the drafter of each draft, if its proposal names it
    # levels of a staged proposal, outermost first: {drafter: [[tokens, drafted, accepted], ...] of its model's calls}
    levels: dict[str, list] = field(default_factory=dict)
    # "tokens" and "parents" of a tree's nodes, except node 0, the text's last token; "path": the accepted nodes
    tree: dict | None = None
    details: dict | None = None  # the tests and draws, if they were wanted

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def proposers(self) -> list[str]:
        """The drafter of each accepted token, if known."""
        return self.source[: self.accepted]


def origins_of(step: Step) -> list[str]:
    """The origin of each token: "accepted", then "resampled", "bonus" or "autoregressive"."""
    if not step.n_drafted:
        return ["autoregressive"]
    rejected = children_of(step.proposal)[path_of(step)[-1]]  # a leaf has no children
    return ["accepted"] * step.n_accepted + ["resampled" if rejected else "bonus"]


# ---- The times of a step, from the logs of the models ----------------------------------------------------------------


@dataclass
class Times:
    """The times of a decode's steps.

    begin() and end() stand around the work for a round of steps, so that the time of the caller between them is not
    counted. write_to() gives the round's first step the calls that were logged in its work, and its seconds of that
    work. The rest of the sum goes to later rounds: on a device the work of several is done in the first.
    """

    logs: Mapping[str, deque[Call]]  # the logs of the decode, by role
    began: float = 0.0  # when the round began
    unassigned_seconds: float = 0.0  # seconds of the decoder that are in no step yet
    last_before: dict[str, Call | None] = field(default_factory=dict)  # {role: the last call before the round}

    @classmethod
    def of_models(cls, models: Mapping[str, Any]) -> "Times":
        return cls({role: model.log for role, model in models.items() if isinstance(model, Model)})

    def begin(self) -> None:
        self.last_before = {role: log[-1] if log else None for role, log in self.logs.items()}
        self.began = time.perf_counter()

    def end(self) -> None:
        self.unassigned_seconds += time.perf_counter() - self.began

    def calls_of_round(self) -> list[tuple[str, Call]]:
        """Return the models' calls of this round, in the order of time: (role, call)."""
        made = []
        for role, log in self.logs.items():
            is_target = role == "target"  # at equal times, as if drafts took none, they come before the target's call
            for call in reversed(log):
                if call is self.last_before[role]:
                    break
                made.append((call.began, is_target, role, call))
        return [(role, call) for _, _, role, call in sorted(made)]

    def write_to(self, step: TextStep, all_stopped: bool) -> None:
        """Write the times of the round into a step. all_stopped: whether it completes the last stop text."""
        calls = self.calls_of_round()
        step_began, step.seconds = self.take_span(calls, all_stopped)
        for role, call in calls:
            step.calls.append((role, call.began - step_began, call.seconds))
            if role != "target":
                step.draft_prefill |= call.prefill
                continue
            if step.drafted and not step.scoring:
                step.drafting = call.began - step_began  # the target's first call begins when all is drafted
            step.derived = call.derived
            step.scoring += call.seconds
            step.prefill |= call.prefill

    def take_span(self, calls: Sequence[tuple[str, Call]], all_stopped: bool) -> tuple[float, float]:
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
