"""A Pair whose decoders are one compiled loop each, so that the device need not ask the host for each token."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from speculative.blog.encoder import END_OF_TEXT, StreamDecoder
from speculative.decoding import Pair
from speculative.engines.jax.loop import DeviceDecoder, first_difference
from speculative.engines.jax.model import JaxModel
from speculative.filters import Filters
from speculative.stop import read


@dataclass(frozen=True)
class DevicePair(Pair):
    """decoding.Pair for the loop on the device: a draft model, and a number for K.

    The device does not tell how long the parts of a decode took, so ready() measures them before it. Several prompts
    can be decoded together: see rows().
    """

    # What ready() measured: "draft", of a token; rows: of the target's call.
    seconds: dict = field(default_factory=dict)

    @cached_property
    def decoder(self) -> DeviceDecoder:
        """The loop, which is compiled once for these filters."""
        draft = next(model for need, model in self.models.items() if need != "target").network
        return DeviceDecoder(self.target.network, draft, self.filters, self.draft_filters, self.accept)

    def at(self, filters: Filters) -> "DevicePair":
        """The same weights with other filters: the loop is compiled anew."""
        return replace(super().at(filters), seconds={})

    def ready(self, prompts: Sequence, N: int, batch: int = 1, timed: bool = True, stop: str | None = None) -> None:
        """Compiles both loops for these prompts [n_prompts][n], `batch` of them at a time, and times their parts."""
        if stop == END_OF_TEXT:  # other texts are looked for on the host, and end a row a few calls later
            self.decoder.end = self.encoder.eot
        lengths = [len(ids) for ids in prompts]
        K = self.window(N)
        seconds = sum(self.decoder.warm_up(lengths, N, k, batch) for k in (0, K))
        print(f"compiled both loops in {seconds:.1f} s", file=sys.stderr)
        if timed:
            t_draft, t_target = self.decoder.probe(max(lengths), N, K, min(batch, len(prompts)))
            self.seconds.update(t_target, draft=t_draft)

    def window(self, N: int) -> int:
        """K, or N - 1 where that is less: more drafts could not be accepted, and here all K are always made."""
        return min(self.lookahead, max(1, N - 1))

    def samplers(self) -> tuple[Callable, Callable]:
        """Both loops as the device runs them. What they are handed they ignore: the models are compiled into them."""

        def autoregressive(x, model, N, rng):
            return self.steps(x, N, 0, rng)

        def speculative(x, drafter, model, N, K, rng, rule):
            return self.steps(x, N, K, rng)

        return autoregressive, speculative

    def autoregressive(
        self, x, N: int, rng: np.random.Generator, recorder=None, batch: int = 1, stop: str | None = None
    ) -> Iterator:
        """Pair.autoregressive. If batch > 1, x is a list of prompts and what comes are their rows()."""
        return self.steps(x, N, 0, rng, recorder, batch, stop)

    def speculative(
        self, x, N: int, rng: np.random.Generator, recorder=None, batch: int = 1, stop: str | None = None
    ) -> Iterator:
        """Pair.speculative, likewise."""
        return self.steps(x, N, self.window(N), rng, recorder, batch, stop)

    def steps(self, x, N: int, K: int, rng, recorder=None, batch: int = 1, stop: str | None = None) -> Iterator:
        if batch > 1:
            yield from self.rows(x, N, K, rng, recorder, batch, stop)
            return
        for [row] in self.rows([x], N, K, rng, recorder):
            if recorder:
                recorder.note(row.alpha, row.matching)
            yield row.step

    def rows(
        self, prompts, N: int, K: int, rng, recorder=None, batch: int = 1, stop: str | None = None
    ) -> Iterator[list]:
        """Decodes prompts together -> for each call of the target, the loop.Rows of those that it served.

        K = 0 is autoregressive decoding. With a stop text a prompt's decoding ends where that is completed.
        """
        texts = defaultdict(lambda: StreamDecoder(self.encoder, stop))

        def stops(number, step):
            step, _ = read(texts[number], step)
            return step if texts[number].stopped else None

        before = 0.0
        if recorder:
            before = recorder.prefill or 0.0
            recorder.t_draft = self.seconds.get("draft") if K else None
            recorder.t_target = {rows: s for rows, s in self.seconds.items() if rows in (1, K + 1)}
        seed = int(rng.integers(2**32))
        for rows in self.decoder.batch(prompts, N, K, seed, batch, stops if stop and batch > 1 else None):
            if recorder:
                recorder.prefill = before + self.decoder.prefill_seconds
            yield rows

    def forget(self) -> None:
        super().forget()
        self.decoder.forget()


def greedy_differences(
    prompts: list, target_model: JaxModel, autoregressive: list, speculative: list, tolerance: float
) -> list[str]:
    """The places where the two greedy texts of a prompt part, as rounding can bring about here: a line for each prompt.

    autoregressive and speculative: the new tokens of each prompt. tolerance: formats.base.OnJax.
    """
    model = target_model.with_probs(lambda logits: logits)
    lines = []
    for number, (x, *texts) in enumerate(zip(prompts, autoregressive, speculative, strict=True), start=1):
        difference = first_difference(x, *texts, model)
        if difference:
            where = f"for prompt {number}, " if len(prompts) > 1 else ""
            verdict = "as near as rounding can bring into another order"
            if difference.margin > tolerance:
                verdict = f"a defect, as rounding decides where they are at most {tolerance:g} apart"
            lines.append(f"{where}{difference}: {verdict}.")
    return lines
