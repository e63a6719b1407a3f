"""The decoders of a session as compiled loops."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from speculative.engines.contract import PlacedStep
from speculative.engines.jax.compilation import compiling
from speculative.engines.jax.device_decoder import CALLS, DeviceDecoder, Output, State
from speculative.engines.jax.forward import power_of_two
from speculative.engines.jax.model import SMALL
from speculative.engines.model import Call, new_log
from speculative.engines.network import check_finite
from speculative.sampling import Proposal, Step

MULTIPLE = 64  # tokens: a capacity is a multiple of it, so that texts of similar length share a program
N_TIMED = 8  # calls of each kind that are timed before a decode: as many in each of several processes


# ---- Times of calls inside a loop on the device ----------------------------------------------------------------------


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


# ---- The loops -------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Prompts that are decoded together. Programs are compiled for K and for the lengths."""

    prompts: Sequence  # [n_prompts][n]
    first: int  # number of the first of them
    N: int
    K: int  # 0 for the autoregressive decoder
    n_prompt: int  # tokens that each prompt is padded to
    capacity: int  # tokens that the text and the caches have room for


class DeviceLoops:
    """Both decoders of a target and a draft model, for a number K: see contract.DeviceLoops."""

    def __init__(self, decoder: DeviceDecoder, K: int, draft_role: str, batch: int = 1, quiet: bool = False):
        """draft_role: of the draft model. batch: the number of prompts that are decoded together. quiet: print nothing
        about compiling."""
        self.decoder = decoder
        self.K = K
        self.logs = {"target": new_log(), draft_role: new_log()}
        self.target_log, self.draft_log = self.logs.values()
        self.batch = batch
        self.quiet = quiet
        self.drafting_ratio = 0.0  # time of a call's K drafts / time of the rest of the call, once a decode is prepared

    def K_of(self, decoder: str, N: int) -> int:
        """K, or N - 1 if that is less: more drafts could not be accepted, and here all K are always made. The
        autoregressive decoder is the speculative one with K = 0."""
        return min(self.K, max(1, N - 1)) if decoder == "speculative" else 0

    # ---- Before a decode ---------------------------------------------------------------------------------------------

    def ready(self, prompts: Sequence, N: int) -> None:
        """Compile both loops for these prompts [n_prompts][n], and time the drafts of a call."""
        with compiling("both loops", self.quiet):
            self.run_empty(prompts, N, K=0)
            K = self.K_of("speculative", N)
            state = self.run_empty(prompts, N, K)
        self.drafting_ratio = self.time_drafts(state, K)

    def run_empty(self, prompts: Sequence, N: int, K: int) -> State:
        """Run the loop for K without a text, which compiles it for the lengths of these prompts."""
        nothing = Group([], 0, 0, K, *lengths_of(prompts, N, K))
        state, _ = self.start(nothing)
        state, *_ = self.run(state, 0, K)
        return state

    def time_drafts(self, state: State, K: int) -> float:
        """Time calls of the speculative loop that draft, and calls that do not, as their text lacks a single token ->
        the share by which the former take longer. The smallest times count, as other programs only add to them."""
        without_drafts = with_drafts = np.inf  # seconds of a call
        for _ in range(N_TIMED):
            state, seconds = self.time_call(state, K, n_missing=1)
            without_drafts = min(without_drafts, seconds)
            state, seconds = self.time_call(state, K, n_missing=2)
            with_drafts = min(with_drafts, seconds)
        return max(0.0, with_drafts / without_drafts - 1)

    def time_call(self, state: State, K: int, n_missing: int) -> tuple[State, float]:
        """Time one call of the target, for texts of a token that lack so many tokens."""
        length = np.ones(self.batch, np.int32)  # [batch]
        n, T = jax.device_put((length, length + n_missing), self.decoder.by_row)
        state = state._replace(n=n, T=T)
        began = time.perf_counter()
        results = self.run(state, 0, K, calls=1)
        state, *_ = jax.block_until_ready(results)
        seconds = time.perf_counter() - began
        return state, seconds

    # ---- A decode ----------------------------------------------------------------------------------------------------

    def rounds(
        self, decoder: str, prompts: Sequence, N: int, rngs: Sequence, is_stopped: Callable
    ) -> Iterator[list[PlacedStep]]:
        """Decode N tokens for each of the prompts with this decoder. Yield, for each call of the target, the step
        that it gave each prompt, without distributions.

        `batch` of them are decoded together. The tokens of a prompt depend on its number, not on its neighbours.
        rngs: the first gives the seed of all.
        is_stopped(place): True if the caller needs no more tokens of this prompt.
        """
        K = self.K_of(decoder, N)
        lengths = lengths_of(prompts, N, K)
        [rng, *_] = rngs
        seed = int(rng.integers(2**32))
        for first in range(0, len(prompts), self.batch):
            end = first + self.batch
            group = Group(prompts[first:end], first, N, K, *lengths)
            yield from self.rounds_of_group(group, seed, is_stopped)

    def rounds_of_group(self, group: Group, seed: int, is_stopped: Callable) -> Iterator[list[PlacedStep]]:
        """The same for prompts that are decoded together."""
        first = group.first
        slots = [*range(len(group.prompts))]  # the slots of the texts that are not complete
        times = DerivedTimes(self.target_log, self.draft_log, group.K, group.n_prompt, self.drafting_ratio)
        state, times.prefill = self.start(group)
        while slots:
            began = time.perf_counter()
            state, n_calls, output = self.run(state, seed, group.K)  # a number, [CALLS, n_batch, ...]
            n_calls, output = jax.tree.map(np.array, (n_calls, output))
            seconds = time.perf_counter() - began
            has_drafts = output.n_allowed[:n_calls].any(axis=1)  # [n_calls]
            scoring = times.seconds_without_drafts(seconds, has_drafts)
            for i in range(n_calls):
                slots = [slot for slot in slots if not is_stopped(first + slot)]
                served = [step_of(first + slot, output, i, slot) for slot in slots if output.n_tokens[i, slot]]
                if not served:
                    break
                times.log_call(scoring, has_drafts[i])
                yield served
            lengths = output.n[n_calls - 1]  # [n_batch]
            slots = [slot for slot in slots if lengths[slot] < len(group.prompts[slot]) + group.N]

    def start(self, group: Group) -> tuple[State, Prefill]:
        """Feed the prompts to both models; with K = 0, to the target alone."""
        n_texts = len(group.prompts)
        x = np.zeros((self.batch, group.capacity), np.int32)
        n = np.ones(self.batch, np.int32)
        for i, prompt in enumerate(group.prompts):
            n[i] = len(prompt)
            x[i, : n[i]] = prompt
        T = n.copy()  # a row without a prompt is complete from the start
        T[:n_texts] += group.N
        number = np.arange(self.batch, dtype=np.int32) + group.first
        tokens = x[:, : group.n_prompt]  # [batch, n_prompt]
        x, n, T, number, tokens = jax.device_put((x, n, T, number, tokens), self.decoder.by_row)
        draft_cache: list = []
        began = time.perf_counter()
        if group.K:
            draft_cache = self.read("draft", tokens, group.capacity)
        drafts_end = time.perf_counter()
        target_cache = self.read("target", tokens, group.capacity)
        prefill = Prefill(drafts_end - began, time.perf_counter() - drafts_end)
        return State(x, n, T, number, draft_cache, target_cache), prefill

    def read(self, role: str, tokens, capacity: int) -> list:  # [batch, n_prompt]
        """Feed the prompts to a model -> its cache."""
        cache = self.decoder.prefill[role](self.decoder.params[role], tokens, capacity=capacity)
        return jax.block_until_ready(cache)

    def run(self, state: State, seed: int, K: int, calls: int = CALLS) -> tuple:
        """Go on for a number of calls of the target at most: DeviceDecoder.run."""
        return self.decoder.run(self.decoder.params, state, np.uint32(seed), np.int32(calls), K=K)


def lengths_of(prompts: Sequence, N: int, K: int) -> tuple[int, int]:
    """Return n_prompt and the capacity for these prompts. The last window, and rows of padding, may end after the last
    token."""
    longest = max(map(len, prompts))
    most = longest + N + K + SMALL
    capacity = most + -most % MULTIPLE
    n_prompt = max(SMALL, power_of_two(longest))
    return min(n_prompt, capacity), capacity


def step_of(place: int, output: Output, i: int, slot: int) -> PlacedStep:
    """The step that call i gave one prompt. Raises UserError if a model's logits are not finite."""
    own = jax.tree.map(lambda field: field[i, slot], output)
    m = int(own.n_allowed)
    n_tokens = int(own.n_tokens)
    first = own.n - n_tokens  # the position of the first row
    draft_peaks = own.draft_peaks[:m, None]  # [m, 1]
    peaks = own.peaks[: m + 1, None]  # [m + 1, 1]
    if m:
        check_finite(draft_peaks, "the draft model", first)
    check_finite(peaks, "the target", first)
    tokens = own.tokens[:n_tokens].tolist()
    drafts = own.drafts[:m].tolist()
    chances = own.alpha[:m][:n_tokens].tolist()
    return PlacedStep(place, Step(tokens, Proposal(drafts, ()), ()), chances)
