"""The decoders of a session as compiled loops, so that the device need not ask the host for each token."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from speculative.blog.encoder import END_OF_TEXT, StreamDecoder
from speculative.engines.jax.loop import DeviceDecoder, Row, first_difference
from speculative.engines.jax.model import JaxModel
from speculative.filters import Filters
from speculative.measure.record import Iteration
from speculative.rules import Rule
from speculative.sampling import Step


class DeviceLoop:
    """Both decoders of a target and a draft model, for a number K.

    The device does not tell how long the parts of a decode took, so ready() measures them before it. Several prompts
    can be decoded together: see rows().
    """

    def __init__(
        self,
        target: JaxModel,
        draft: JaxModel,
        filters: Filters,
        draft_filters: Filters,
        rule: Rule,
        K: int,
        encoder: Any,
    ):
        self.decoder = DeviceDecoder(target.network, draft.network, filters, draft_filters, rule)
        self.K = K
        self.encoder = encoder
        self.seconds = {}  # of a draft token, under "draft", and of the target's call, by its rows
        self.row = None  # the last Row of a decode of one prompt

    def ready(self, prompts: Sequence, N: int, batch: int, timed: bool, stop: str | None) -> None:
        """Compile both loops for these prompts [n_prompts][n], `batch` of them at a time, and time their parts."""
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
        """K, or N - 1 if that is less: more drafts could not be accepted, and here all K are always made."""
        return min(self.K, max(1, N - 1))

    def steps(self, x, N: int, K: int, rng) -> Iterator[Step]:
        """The Steps of one prompt; K = 0 is autoregressive decoding."""
        for [row] in self.rows([x], N, K, rng):
            self.row = row
            yield row.step

    def rows(self, prompts, N: int, K: int, rng, batch: int = 1, stop: str | None = None) -> Iterator[list[Row]]:
        """Decode prompts together -> for each call of the target, the Rows of those that it served.

        With a stop text a prompt's decoding ends when that is completed.
        """
        texts = defaultdict(lambda: StreamDecoder(self.encoder, stop))

        def stops(number, step):
            for i, token in enumerate(step.tokens):
                texts[number].push([token])
                if texts[number].stopped:
                    return step._replace(tokens=step.tokens[: i + 1])
            return None

        self.K_now = K
        seed = int(rng.integers(2**32))
        yield from self.decoder.batch(prompts, N, K, seed, batch, stops if stop and batch > 1 else None)

    def iteration(self, recorder: Any, seconds: float | None, row: Row | None = None) -> Iteration:
        """What is known of a step, in place of its times; and of the run, written into the recorder."""
        row = row or self.row
        K = self.K_now
        recorder.t_draft = self.seconds.get("draft") if K else None
        recorder.t_target = {rows: s for rows, s in self.seconds.items() if rows in (1, K + 1)}
        recorder.prefill = self.decoder.prefill_seconds
        return Iteration(None, None, None, None, alpha=row.alpha)

    def forget(self) -> None:
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
