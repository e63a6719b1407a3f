"""The decoders of a session as compiled loops, and the places where two greedy texts differ."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import jax
import numpy as np

from speculative.engines.jax.loop import CALLS, DeviceDecoder, Output, State
from speculative.engines.jax.model import SMALL, JaxModel, power_of_two
from speculative.engines.model import common_prefix, margin, not_finite
from speculative.sampling import Proposal

ROUND = 64  # tokens: a capacity is a multiple of it, so that texts of similar length share a program


class Shape(NamedTuple):
    """The sizes that a program is compiled for, beside K."""

    n_batch: int  # prompts that are decoded together
    n_prompt: int  # tokens that a prompt is padded to
    capacity: int  # tokens that the text and the caches have room for


class Row(NamedTuple):
    """The result of a call of the target for one prompt, on the host: a Step without p and q."""

    text_index: int  # of the prompt, the first being 0
    tokens: list[int]
    proposal: Proposal
    alpha: list[float]  # for each draft that was tested, in order: the rule's chance of acceptance
    prefill: float = 0.0  # seconds of the prefill before this call; of several prompts, the first row has them

    @property
    def drafted(self) -> int:
        return len(self.proposal.tokens)

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1


class DeviceLoop:
    """Both decoders of a target and a draft model, for a number K."""

    def __init__(self, decoder: DeviceDecoder, K: int, batch: int = 1, quiet: bool = False):
        """batch: the number of prompts that are decoded together. quiet: print nothing about compiling."""
        self.decoder = decoder
        self.K = K
        self.batch = batch
        self.quiet = quiet
        self.t_draft: float | None = None  # seconds of a draft token
        self.t_target: dict[int, float] = {}  # {rows: seconds of a call of the target}

    def window(self, N: int) -> int:
        """K, or N - 1 if that is less: more drafts could not be accepted, and here all K are always made."""
        return min(self.K, max(1, N - 1))

    def logs(self) -> dict:
        """No logs: a loop on the device does not tell its calls apart."""
        return {}

    def part_times(self, name: str) -> dict:
        """The fields of a Recorder that stand for the logs of the decoder `name`."""
        t_draft = self.t_draft if name == "speculative" else None
        return {"prefill": 0.0, "t_draft": t_draft, "t_target": self.t_target}

    def ready(self, prompts: Sequence, N: int) -> None:
        """Compile both loops for these prompts [n_prompts][n]. Time their parts, which a decode cannot tell apart."""
        began = time.perf_counter()
        K = self.window(N)
        for k in (0, K):
            for _ in self.group([[0]], 0, 1, k, 0, shape_of(prompts, N, k, self.batch)):
                pass
        if not self.quiet:
            print(f"compiled both loops in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        n = max(map(len, prompts)) + N // 2
        seconds = self.part_seconds(n, K, shape_of(prompts, N, K, self.batch))
        self.t_draft = seconds.pop("draft")
        self.t_target = seconds

    def calls(self, name: str, prompts: Sequence, N: int, rng, stopped: Callable) -> Iterator[list[Row]]:
        """The rows of the decoder `name` for these prompts: see rows."""
        return self.rows(prompts, N, self.window(N) if name == "speculative" else 0, rng, self.batch, stopped)

    def steps(self, x, N: int, K: int, rng) -> Iterator[Row]:
        """The steps of one prompt; K = 0 is autoregressive decoding."""
        return (row for [row] in self.rows([x], N, K, rng))

    def rows(
        self, prompts: Sequence, N: int, K: int, rng, batch: int = 1, stopped: Callable = lambda text_index: False
    ) -> Iterator[list[Row]]:
        """Decode N tokens for each of the prompts. Yield for each call of the target the Rows of the prompts it served.

        `batch` of them are decoded together, until all of them are done. The tokens of a prompt depend on its number,
        not on its neighbours. stopped(text_index): True if the caller needs no more tokens of this prompt.
        """
        shape = shape_of(prompts, N, K, batch)
        seed = int(rng.integers(2**32))
        for first in range(0, len(prompts), batch):
            yield from self.group(prompts[first : first + batch], first, N, K, seed, shape, stopped)

    def group(
        self, prompts, first: int, N: int, K: int, seed: int, shape: Shape, stopped: Callable = lambda text_index: False
    ) -> Iterator[list[Row]]:
        """The same for prompts that are decoded together. first: the number of the first."""
        began = time.perf_counter()
        state = jax.block_until_ready(self.start(prompts, first, N, K, shape))
        prefill = time.perf_counter() - began
        slots = [*range(len(prompts))]
        while slots:
            state, calls, output, done = self.decoder.run(self.decoder.params, state, np.uint32(seed), K=K)
            output, done = jax.tree.map(np.array, (output, done))  # [CALLS, n_batch, ...], [n_batch]
            for i in range(int(calls)):
                slots = [slot for slot in slots if not stopped(first + slot)]
                rows = [row_of(first + slot, output, i, slot) for slot in slots if output.n_tokens[i, slot]]
                if not rows:
                    break
                rows[0] = rows[0]._replace(prefill=prefill)
                prefill = 0.0
                yield rows
            slots = [slot for slot in slots if not done[slot]]

    def start(self, prompts, first: int, N: int, K: int, shape: Shape) -> State:
        """Feed the prompts to both models; with K = 0, to the target alone."""
        x = np.zeros((shape.n_batch, shape.capacity), np.int32)
        n = np.ones(shape.n_batch, np.int32)
        T = np.ones(shape.n_batch, np.int32)  # a row without a prompt is complete from the start
        for i, prompt in enumerate(prompts):
            x[i, : len(prompt)] = prompt
            n[i] = len(prompt)
            T[i] = len(prompt) + N
        number = np.arange(first, first + shape.n_batch, dtype=np.int32)
        decoder = self.decoder
        x, n, T, number, tokens = jax.device_put((x, n, T, number, x[:, : shape.n_prompt]), decoder.by_row)
        draft_cache, target_cache = (
            decoder.prefill[role](decoder.params[role], tokens, capacity=shape.capacity)
            if K or role == "target"
            else []
            for role in ("draft", "target")
        )
        return State(x, n, T, number, draft_cache, target_cache)

    def part_seconds(self, n: int, K: int, shape: Shape) -> dict:
        """Time the parts of a decode after n tokens -> {"draft": seconds of a draft token, 1 and K + 1: of the target's
        call with so many rows}; each for all prompts of a group together. The medians of three times."""
        decoder = self.decoder
        state = self.start([], 0, N=0, K=K, shape=shape)
        caches = {"draft": state.draft_cache, "target": state.target_cache}
        seconds = {}
        for role, n_rows in (("draft", 1), ("target", 1), ("target", K + 1)):
            tokens = jax.device_put(np.zeros((shape.n_batch, n_rows), np.int32), decoder.by_row)
            times = []
            for _ in range(4):
                began = time.perf_counter()
                caches[role] = decoder.repeat[role](decoder.params[role], tokens, np.int32(n), caches[role])
                jax.block_until_ready(caches[role])
                times.append((time.perf_counter() - began) / CALLS)
            seconds["draft" if role == "draft" else n_rows] = median(times[1:])  # the first one compiles
        return seconds


def shape_of(prompts: Sequence, N: int, K: int, n_batch: int) -> Shape:
    """The sizes for these prompts and N more tokens. A window may begin at the last token and end K after it."""
    longest = max(map(len, prompts))
    capacity = -(-(longest + N + K) // ROUND) * ROUND
    return Shape(n_batch, min(max(SMALL, power_of_two(longest)), capacity), capacity)


def row_of(text_index: int, output: Output, i: int, slot: int) -> Row:
    """One call's result for one prompt. Raises UserError if the logits of a model are not finite."""
    one = Output(*(field[i, slot].tolist() for field in output))
    for name, position in (("the draft model", one.draft_fault), ("the target", one.target_fault)):
        if position >= 0:
            raise not_finite(name, position)
    proposal = Proposal(one.x_draft[: one.drafted], ())  # p and q stay on the device
    return Row(text_index, one.tokens[: one.n_tokens], proposal, one.alpha[: min(one.n_tokens, one.drafted)])


def greedy_differences(
    prompts: Sequence, target_model: JaxModel, autoregressive: list, speculative: list, tolerance: float
) -> list[str]:
    """A line for each prompt whose two greedy texts differ: the first difference, and the margin between the two best
    logits there. If it is larger than the tolerance (formats.OnJax), rounding does not explain it.

    autoregressive and speculative: the new tokens of each prompt.
    """
    lines = []
    for number, (x, a, b) in enumerate(zip(prompts, autoregressive, speculative, strict=True), start=1):
        at = common_prefix(a, b)
        if at == min(len(a), len(b)):
            continue
        text = [*x, *a[:at]]
        apart = margin(target_model, text)
        which = f"for prompt {number}, " if len(prompts) > 1 else ""
        verdict = "rounding can change their order"
        if apart > tolerance:
            verdict = f"a defect, as rounding changes the order of logits that are at most {tolerance:g} apart"
        lines.append(
            f"{which}first difference at position {len(text)}: token {a[at]} or {b[at]}, "
            f"where the two best logits are {apart:.2g} apart: {verdict}."
        )
    return lines
