"""The decoders of a session as compiled loops."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from speculative.engines.jax.loop import CALLS, DeviceDecoder, Output, State
from speculative.engines.jax.model import SMALL, compiling, power_of_two
from speculative.engines.model import Call, check_finite
from speculative.sampling import Proposal, Step

ROUND = 64  # tokens: a capacity is a multiple of it, so that texts of similar length share a program
N_TIMED = 8  # calls of each kind that are timed before a decode: as many in each of several processes


class DeviceLoop:
    """Both decoders of a target and a draft model, for a number K: with the methods calls and ready of Session."""

    def __init__(self, decoder: DeviceDecoder, K: int, logs: Sequence[deque], batch: int = 1, quiet: bool = False):
        """logs: the target's, then the draft's. batch: the number of prompts that are decoded together. quiet: print
        nothing about compiling."""
        self.decoder = decoder
        self.K = K
        self.target_log, self.draft_log = logs
        self.batch = batch
        self.quiet = quiet
        self.drafting = 0.0  # time of a call's K drafts / time of the rest of the call, once a decode is prepared

    def window(self, name: str, N: int) -> int:
        """K, or N - 1 if that is less: more drafts could not be accepted, and here all K are always made."""
        return min(self.K, max(1, N - 1)) if name == "speculative" else 0

    def ready(self, prompts: Sequence, N: int) -> None:
        """Compile both loops for these prompts [n_prompts][n], and time the drafts of a call."""
        with compiling("both loops", self.quiet):
            for K in (0, self.window("speculative", N)):
                state, _ = self.start([], 0, 0, K, *lengths_of(prompts, N, K))
                state = self.run(state, 0, K)[0]
        self.drafting = self.time_drafts(state, K)

    def time_drafts(self, state: State, K: int) -> float:
        """Time calls of the speculative loop that draft, and calls that do not, as their text lacks a single token ->
        the share by which the former take longer. The smallest times count, as other programs only add to them."""
        times: dict[int, list[float]] = {1: [], 2: []}  # {missing tokens: seconds of a call}
        for missing in [1, 2] * N_TIMED:
            n = np.ones(len(state.n), np.int32)  # [n_batch]
            n, T = jax.device_put((n, n + missing), self.decoder.by_row)
            began = time.perf_counter()
            state = jax.block_until_ready(self.run(state._replace(n=n, T=T), 0, K, calls=1)[0])
            times[missing].append(time.perf_counter() - began)
        return max(0.0, min(times[2]) / min(times[1]) - 1)

    def calls(self, name: str, prompts: Sequence, N: int, rng, stopped: Callable) -> Iterator[list[tuple]]:
        """Decode N tokens for each of the prompts with the decoder `name`. Yield for each call of the target (the
        prompt's index, Step without distributions, the chances of its drafts) of each prompt that it served.

        `batch` of them are decoded together. The tokens of a prompt depend on its number, not on its neighbours.
        stopped(text_index): True if the caller needs no more tokens of this prompt.
        """
        K = self.window(name, N)
        n_prompt, capacity = lengths_of(prompts, N, K)
        seed = int(rng.integers(2**32))
        for first in range(0, len(prompts), self.batch):
            group = prompts[first : first + self.batch]
            slots = [*range(len(group))]
            began = time.perf_counter()
            state, prefill = self.start(group, first, N, K, n_prompt, capacity)
            while slots:
                waiting = time.perf_counter()
                state, calls, output = self.run(state, seed, K)
                output = jax.tree.map(np.array, output)  # [CALLS, n_batch, ...]
                seconds = time.perf_counter() - waiting
                drafts = output.drafted[: int(calls)].any(axis=1)  # [calls], whether a call drafted
                scoring = seconds / (len(drafts) + self.drafting * drafts.sum())
                drafting = [(self.draft_log, self.drafting * scoring / max(1, K), 1, 1)] * K
                for i, drafted in enumerate(drafts):
                    slots = [slot for slot in slots if not stopped(first + slot)]
                    steps = [step_of(first + slot, output, i, slot) for slot in slots if output.n_tokens[i, slot]]
                    if not steps:
                        break
                    made = [*prefill["draft"], *(drafting if drafted else []), *prefill["target"]]
                    began = log_calls(began, [*made, (self.target_log, scoring, K + 1, K + 1)])
                    prefill = {"draft": [], "target": []}
                    yield steps
                slots = [slot for slot in slots if output.n[len(drafts) - 1, slot] < len(group[slot]) + N]

    def start(self, prompts: Sequence, first: int, N: int, K: int, n_prompt: int, capacity: int) -> tuple[State, dict]:
        """Feed the prompts to both models; with K = 0, to the target alone -> the state, the calls of each as log_calls
        takes them. first: the number of the first prompt. n_prompt, capacity: see lengths_of."""
        x = np.zeros((self.batch, capacity), np.int32)
        n = np.ones(self.batch, np.int32)
        T = np.ones(self.batch, np.int32)  # a row without a prompt is complete from the start
        for i, prompt in enumerate(prompts):
            x[i, : len(prompt)] = prompt
            n[i] = len(prompt)
            T[i] = len(prompt) + N
        number = np.arange(first, first + self.batch, dtype=np.int32)
        decoder = self.decoder
        x, n, T, number, tokens = jax.device_put((x, n, T, number, x[:, :n_prompt]), decoder.by_row)
        caches: dict[str, list] = {"draft": [], "target": []}
        calls: dict[str, list] = {"draft": [], "target": []}
        for role, log in [("draft", self.draft_log)] * (K > 0) + [("target", self.target_log)]:
            began = time.perf_counter()
            caches[role] = decoder.prefill[role](decoder.params[role], tokens, capacity=capacity)
            jax.block_until_ready(caches[role])
            calls[role] = [(log, time.perf_counter() - began, n_prompt, 0)]
        return State(x, n, T, number, caches["draft"], caches["target"]), calls

    def run(self, state: State, seed: int, K: int, calls: int = CALLS) -> tuple:
        """Go on for a number of calls of the target at most: DeviceDecoder.run."""
        return self.decoder.run(self.decoder.params, state, np.uint32(seed), np.int32(calls), K=K)


def log_calls(began: float, calls: list[tuple]) -> float:
    """Log calls (log, seconds, tokens read, rows), the first of which began at that time -> the time of the end."""
    for log, seconds, n_read, n_rows in calls:
        log.append(Call(began, seconds, n_read, n_rows, derived=True))
        began += seconds
    return began


def lengths_of(prompts: Sequence, N: int, K: int) -> tuple[int, int]:
    """Return the tokens that each prompt is padded to, and those that the text and the caches have room for: programs
    are compiled for these lengths. The last window, and rows of padding, may end after the last token."""
    longest = max(map(len, prompts))
    capacity = -(-(longest + N + K + SMALL) // ROUND) * ROUND
    return min(max(SMALL, power_of_two(longest)), capacity), capacity


def step_of(text_index: int, output: Output, i: int, slot: int) -> tuple[int, Step, list[float]]:
    """One call's result for one prompt, as calls() gives it. Raises UserError if a model's logits are not finite."""
    one = Output(*(field[i, slot] for field in output))
    m = int(one.drafted)
    first = one.n - one.n_tokens  # the position of the first row
    if m:
        check_finite(one.draft_peaks[:m, None], "the draft model", first)
    check_finite(one.peaks[: m + 1, None], "the target", first)
    step = Step(one.tokens[: one.n_tokens].tolist(), Proposal(one.x_draft[:m].tolist(), ()), ())
    return text_index, step, one.alpha[: min(one.n_tokens, m)].tolist()
