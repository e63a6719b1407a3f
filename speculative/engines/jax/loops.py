"""The decoders of a session as compiled loops."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from speculative.engines.jax.loop import CALLS, DeviceDecoder, Output, State
from speculative.engines.jax.model import SMALL, compiling, power_of_two
from speculative.engines.model import Call, check_finite
from speculative.sampling import Proposal, Step
from speculative.steps import Served

ROUND = 64  # tokens: a capacity is a multiple of it, so that texts of similar length share a program
N_TIMED = 8  # calls of each kind that are timed before a decode: as many in each of several processes


class Lengths(NamedTuple):
    """The lengths for which programs are compiled."""

    n_prompt: int  # tokens that each prompt is padded to
    capacity: int  # tokens that the text and the caches have room for


class MadeCall(NamedTuple):
    """A call of a model on the device, whose time is derived from that of a whole loop."""

    log: deque
    seconds: float
    n_read: int
    n_rows: int


class Prefill(NamedTuple):
    """The calls that read the prompts."""

    draft: Sequence[MadeCall] = ()
    target: Sequence[MadeCall] = ()


class DeviceLoops:
    """Both decoders of a target and a draft model, for a number K: see loops.Loops."""

    def __init__(self, decoder: DeviceDecoder, K: int, logs: Sequence[deque], batch: int = 1, quiet: bool = False):
        """logs: the target's, then the draft's. batch: the number of prompts that are decoded together. quiet: print
        nothing about compiling."""
        self.decoder = decoder
        self.K = K
        self.target_log, self.draft_log = logs
        self.batch = batch
        self.quiet = quiet
        self.drafting = 0.0  # time of a call's K drafts / time of the rest of the call, once a decode is prepared

    def K_of(self, name: str, N: int) -> int:
        """K, or N - 1 if that is less: more drafts could not be accepted, and here all K are always made. The
        autoregressive decoder is the speculative one with K = 0."""
        return min(self.K, max(1, N - 1)) if name == "speculative" else 0

    # ---- Before a decode ---------------------------------------------------------------------------------------------

    def measure(self, x) -> None:  # [n]
        """Measure nothing: K is a number."""

    def ready(self, prompts: Sequence, N: int) -> None:
        """Compile both loops for these prompts [n_prompts][n], and time the drafts of a call."""
        with compiling("both loops", self.quiet):
            for K in (0, self.K_of("speculative", N)):
                state, _ = self.start([], 0, 0, K, lengths_of(prompts, N, K))
                state = self.run(state, 0, K)[0]
        self.drafting = self.time_drafts(state, K)

    def time_drafts(self, state: State, K: int) -> float:
        """Time calls of the speculative loop that draft, and calls that do not, as their text lacks a single token ->
        the share by which the former take longer. The smallest times count, as other programs only add to them."""
        without_drafts, with_drafts = np.inf, np.inf  # seconds of a call
        for _ in range(N_TIMED):
            state, seconds = self.time_call(state, K, n_missing=1)
            without_drafts = min(without_drafts, seconds)
            state, seconds = self.time_call(state, K, n_missing=2)
            with_drafts = min(with_drafts, seconds)
        return max(0.0, with_drafts / without_drafts - 1)

    def time_call(self, state: State, K: int, n_missing: int) -> tuple[State, float]:
        """Time one call of the target, for texts that lack so many tokens."""
        n = np.ones(len(state.n), np.int32)  # [n_batch]
        T = n + n_missing  # [n_batch]
        n, T = jax.device_put((n, T), self.decoder.by_row)
        state = state._replace(n=n, T=T)
        began = time.perf_counter()
        state, *others = self.run(state, 0, K, calls=1)
        jax.block_until_ready((state, others))
        seconds = time.perf_counter() - began
        return state, seconds

    # ---- A decode ----------------------------------------------------------------------------------------------------

    def calls(self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator[list[Served]]:
        """Decode N tokens for each of the prompts with the decoder `name`. Yield for each call of the target a Served,
        whose Step has no distributions, for each prompt that it served.

        `batch` of them are decoded together. The tokens of a prompt depend on its number, not on its neighbours.
        rngs: the first gives the seed of all.
        stopped(text_index): True if the caller needs no more tokens of this prompt.
        """
        K = self.K_of(name, N)
        lengths = lengths_of(prompts, N, K)
        seed = int(rngs[0].integers(2**32))
        for first in range(0, len(prompts), self.batch):
            group = prompts[first : first + self.batch]
            yield from self.calls_of_group(group, first, N, K, lengths, seed, stopped)

    def calls_of_group(
        self, group: Sequence, first: int, N: int, K: int, lengths: Lengths, seed: int, stopped: Callable
    ) -> Iterator[list[Served]]:
        """The same for prompts that are decoded together. first: the number of the first of them."""
        slots = [*range(len(group))]  # of the texts that are not complete
        began = time.perf_counter()
        state, prefill = self.start(group, first, N, K, lengths)
        while slots:
            waiting = time.perf_counter()
            state, n_calls, output = self.run(state, seed, K)
            output = jax.tree.map(np.array, output)  # [CALLS, n_batch, ...]
            seconds = time.perf_counter() - waiting
            drafts = output.drafted[: int(n_calls)].any(axis=1)  # [n_calls], whether a call drafted
            scoring = seconds / (len(drafts) + self.drafting * drafts.sum())
            for i, has_drafts in enumerate(drafts):
                slots = [slot for slot in slots if not stopped(first + slot)]
                served = [served_by(first + slot, output, i, slot) for slot in slots if output.n_tokens[i, slot]]
                if not served:
                    break
                drafting = self.draft_calls(K, scoring) if has_drafts else []
                scored = MadeCall(self.target_log, scoring, K + 1, K + 1)
                began = log_calls(began, [*prefill.draft, *drafting, *prefill.target, scored])
                prefill = Prefill()
                yield served
            lengths_now = output.n[len(drafts) - 1]  # [n_batch]
            slots = [slot for slot in slots if lengths_now[slot] < len(group[slot]) + N]

    def draft_calls(self, K: int, scoring: float) -> list[MadeCall]:
        """The calls of the draft model before one of the target that took so many seconds."""
        seconds = self.drafting * scoring / max(1, K)
        return [MadeCall(self.draft_log, seconds, 1, 1)] * K

    def start(self, prompts: Sequence, first: int, N: int, K: int, lengths: Lengths) -> tuple[State, Prefill]:
        """Feed the prompts to both models; with K = 0, to the target alone -> the state, and the calls. first: the
        number of the first prompt."""
        x = np.zeros((self.batch, lengths.capacity), np.int32)
        n = np.ones(self.batch, np.int32)
        T = np.ones(self.batch, np.int32)  # a row without a prompt is complete from the start
        for i, prompt in enumerate(prompts):
            x[i, : len(prompt)] = prompt
            n[i] = len(prompt)
            T[i] = len(prompt) + N
        number = np.arange(first, first + self.batch, dtype=np.int32)
        tokens = x[:, : lengths.n_prompt]  # [batch, n_prompt]
        x, n, T, number, tokens = jax.device_put((x, n, T, number, tokens), self.decoder.by_row)
        prefill = Prefill()
        draft_cache: list = []
        if K:
            draft_cache, call = self.read("draft", self.draft_log, tokens, lengths)
            prefill = prefill._replace(draft=[call])
        target_cache, call = self.read("target", self.target_log, tokens, lengths)
        prefill = prefill._replace(target=[call])
        return State(x, n, T, number, draft_cache, target_cache), prefill

    def read(self, role: str, log: deque, tokens, lengths: Lengths) -> tuple[list, MadeCall]:  # [batch, n_prompt]
        """Feed the prompts to a model -> its cache, and the call."""
        prefill = self.decoder.prefill[role]
        params = self.decoder.params[role]
        began = time.perf_counter()
        cache = prefill(params, tokens, capacity=lengths.capacity)
        jax.block_until_ready(cache)
        seconds = time.perf_counter() - began
        return cache, MadeCall(log, seconds, lengths.n_prompt, 0)

    def run(self, state: State, seed: int, K: int, calls: int = CALLS) -> tuple:
        """Go on for a number of calls of the target at most: DeviceDecoder.run."""
        return self.decoder.run(self.decoder.params, state, np.uint32(seed), np.int32(calls), K=K)


def log_calls(began: float, calls: Sequence[MadeCall]) -> float:
    """Log calls, the first of which began at that time -> the time of the end."""
    for log, seconds, n_read, n_rows in calls:
        log.append(Call(began, seconds, n_read, n_rows, derived=True))
        began += seconds
    return began


def lengths_of(prompts: Sequence, N: int, K: int) -> Lengths:
    """Return the lengths for these prompts. The last window, and rows of padding, may end after the last token."""
    longest = max(map(len, prompts))
    n_rounds = -(-(longest + N + K + SMALL) // ROUND)
    capacity = n_rounds * ROUND
    n_prompt = max(SMALL, power_of_two(longest))
    return Lengths(min(n_prompt, capacity), capacity)


def served_by(text_index: int, output: Output, i: int, slot: int) -> Served:
    """The result of call i for one prompt. Raises UserError if a model's logits are not finite."""
    own = Output(*(field[i, slot] for field in output))
    m = int(own.drafted)
    n_tokens = int(own.n_tokens)
    first = own.n - n_tokens  # the position of the first row
    if m:
        check_finite(own.draft_peaks[:m, None], "the draft model", first)
    check_finite(own.peaks[: m + 1, None], "the target", first)
    drafts = own.x_draft[:m].tolist()
    chances = own.alpha[: min(n_tokens, m)].tolist()
    return Served(text_index, Step(own.tokens[:n_tokens].tolist(), Proposal(drafts, ()), ()), chances)
