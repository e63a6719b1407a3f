"""The times of the calls in a compiled loop, in which no clock runs: derived from the time of the whole loop."""

import time
from collections import deque
from typing import NamedTuple

import numpy as np

from speculative.engines.model import Call


class Prefill(NamedTuple):
    """Seconds in which each model read the prompts."""

    draft: float
    target: float


class DerivedTimes:
    """Logs the calls of a decode of K drafts at a time, from now on one after the other.

    drafting_ratio: the time of a call's K drafts over that of the rest of the call.
    """

    def __init__(self, target_log: deque, draft_log: deque, K: int, n_prompt: int, drafting_ratio: float):
        self.target_log = target_log
        self.draft_log = draft_log
        self.K = K
        self.n_prompt = n_prompt  # tokens of each prompt, with its padding
        self.drafting_ratio = drafting_ratio
        self.prefill: Prefill | None = None  # it is logged with the first call
        self.now = time.perf_counter()

    def seconds_without_drafts(self, seconds: float, has_drafts: np.ndarray) -> float:  # [n_calls]
        """The seconds of a call without its drafts, if all calls took so many: those with drafts take 1 +
        drafting_ratio times as long."""
        return seconds / (len(has_drafts) + self.drafting_ratio * has_drafts.sum())

    def log_call(self, scoring: float, has_drafts: bool) -> None:
        """Log a call of the target that took so many seconds, with those of the draft model before it. As in a loop in
        Python, the target reads the prompt after the first drafts."""
        K = self.K
        if self.prefill and K:
            self.log(self.draft_log, self.prefill.draft, self.n_prompt, 0)
        for _ in range(K if has_drafts else 0):
            self.log(self.draft_log, self.drafting_ratio * scoring / K, 1, 1)
        if self.prefill:
            self.log(self.target_log, self.prefill.target, self.n_prompt, 0)
        self.prefill = None
        self.log(self.target_log, scoring, K + 1, K + 1)

    def log(self, log: deque, seconds: float, n_read: int, n_rows: int) -> None:
        log.append(Call(self.now, seconds, n_read, n_rows, derived=True))
        self.now += seconds
