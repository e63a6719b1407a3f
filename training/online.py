"""Online: the draft learns while it serves, from the target's distributions, which decoding computes anyway.

Each text is a line of JSON on standard output. The target's distributions enter a buffer of the newest texts. After
every few texts the draft takes a few steps on the buffer, and then drafts the next texts. It never changes within a
text, so the texts are the target's own. `--rate 0` serves the same prompts with a draft that never changes. One text in
five is held out; the draft that is accepted there more often, before or after learning, is saved.

Source: Liu et al. 2023, "Online Speculative Decoding".
"""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from speculative.drafters.model import model_drafter
from speculative.engines.choice import make_engine
from speculative.engines.model import Model as FilteredModel
from speculative.filters import Filters
from speculative.sampling import speculative_sampling
from speculative.support.errors import UserError
from speculative.support.texts import read_prompts
from training.distil import Lesson, acceptance_figures, divergence, mean, save_better
from training.files import checkpoint_of, convert_all, load_both
from training.loop import fit, say
from training.network import Model


class Lines(NamedTuple):
    """The lesson of a text that was served, as the rows of a Lesson: with zeros after the text."""

    x: Any  # [n_seq]
    q: Any  # [n_seq, n_vocab]
    counts: Any  # [n_seq]


@dataclass
class Totals:
    """The tokens and seconds of decoding so far."""

    n_tokens: int = 0
    n_tested: int = 0  # Σ (drafted + 1)
    seconds: float = 0.0

    @property
    def r(self) -> float:
        """The acceptance rate: tokens / Σ (drafted + 1)."""
        return self.n_tokens / max(1, self.n_tested)


class Server:
    """Serves the prompts in their order, and keeps the lessons of the newest texts."""

    def __init__(self, o, encoder, target: Model, draft: Model):
        """o: the flags of the command."""
        self.o = o
        self.encoder = encoder
        self.draft = draft
        self.prompts = read_prompts(o.prompts)
        [self.temperature] = o.temperature
        self.target_model = decoder(target, self.temperature)
        self.buffer: deque[Lines] = deque(maxlen=o.n_buffer)
        self.held_out: deque[Lines] = deque(maxlen=o.n_buffer)
        self.totals = Totals()

    def serve(self, first: int, last: int, params: dict) -> None:
        """Decode the prompts from first to last - 1, with the draft as it is now."""
        draft_model = decoder(self.draft._replace(params=params), self.temperature)
        for i in range(first, last):
            lines = self.decoded(i, draft_model)
            is_held_out = self.buffer and i % 5 == 1
            (self.held_out if is_held_out else self.buffer).append(lines)

    def decoded(self, i: int, draft_model: Callable) -> Lines:
        """Decode a prompt, and print its text."""
        o, totals = self.o, self.totals
        ids = self.encoder.encode(self.prompts[i]) or [self.encoder.eot]
        ids = ids[: o.n_prompt]
        rng = np.random.default_rng([o.seed, i])
        began = time.perf_counter()
        lines, n_tested = decode(ids, draft_model, self.target_model, o, rng)
        totals.seconds += time.perf_counter() - began
        totals.n_tokens += o.n_tokens
        totals.n_tested += n_tested
        n = len(ids)
        text = self.encoder.decode(lines.x[n : n + o.n_tokens].tolist())
        print(json.dumps({"prompt": self.prompts[i], "text": text}, ensure_ascii=False), flush=True)
        return lines

    def lesson(self, texts: Sequence[Lines]) -> Lesson:
        x, q, counts = map(np.stack, zip(*texts, strict=True))
        q = q.reshape(x.size, -1).astype(np.float32)  # [n, n_vocab]
        t = np.full(x.size, self.temperature, np.float32)  # [n]
        return Lesson(x, q, t, counts.ravel())

    def batch(self, step: int, params: dict) -> Lesson:
        """The lesson of a step of training. Before the first of an update, the next texts are served."""
        o = self.o
        update, i = divmod(step, o.n_steps)
        if i == 0:
            self.serve(update * o.every, (update + 1) * o.every, params)
        rng = np.random.default_rng([o.seed, step])
        chosen = rng.integers(len(self.buffer), size=o.n_batch)
        return self.lesson([self.buffer[i] for i in chosen])

    def figures(self, params: dict) -> dict[str, float]:
        return {"r so far": self.totals.r, "seconds of decoding": self.totals.seconds}

    def held_out_lessons(self) -> dict[float, list[Lesson]]:
        """{temperature: Lessons}, as distil.acceptance_figures takes them."""
        lessons = [self.lesson([lines]) for lines in self.held_out]
        return {self.temperature: lessons} if lessons else {}


def decoder(model: Model, temperature: float) -> Callable:
    """-> model(x, n_last), which decodes. The parameters are copied, because training reuses their memory."""
    engine = make_engine("c")
    params = convert_all(jax.tree.map(np.array, model.params), partial(engine.pack, "float32"))
    return FilteredModel(engine.network(params, model.hparams, "the model"), Filters(temperature))


def decode(ids: list[int], draft_model, target_model, o, rng) -> tuple[Lines, int]:
    """Speculative decoding that keeps q -> Lines, Σ (drafted + 1)."""
    draft = model_drafter(draft_model, rng)
    rows = []
    n_tested = 0
    x = np.array(ids, np.int32)
    for step in speculative_sampling(x, draft, target_model, o.n_tokens, o.K, rng):
        # The last of these rows is that of the resampled or bonus token; the rows after a rejection are dropped.
        scored = step.q[: len(step.tokens)]
        rows.extend(np.asarray(scored, np.float16))
        n_tested += len(step.proposal.tokens) + 1
        x = np.append(x, step.tokens).astype(np.int32)
    before = len(ids) - 1  # rows before the first that was scored
    after = o.n_prompt - len(ids)  # zeros after the text
    widths = (before, after + 1)
    q = np.pad(np.stack(rows), [widths, (0, 0)])  # [n_seq, n_vocab]
    counts = np.pad(np.ones(o.n_tokens, np.float32), widths)  # [n_seq]
    return Lines(np.pad(x, (0, after)), q, counts), n_tested


def main(o) -> None:
    if not o.draft_model_size or len(o.temperature) > 1:
        raise UserError("online needs --draft_model_size and one --temperature")
    encoder, target, draft = load_both(o, o.n_prompt + o.n_tokens)
    server = Server(o, encoder, target, draft)
    n_updates = len(server.prompts) // o.every
    steps = n_updates * o.n_steps
    rate = o.rate / draft.hparams["n_embd"]  # constant, because nobody knows how many texts follow
    loss = partial(mean, partial(divergence, o.divergence), draft.n_head)
    checkpoint = checkpoint_of(o)
    began = time.perf_counter()
    params = fit(draft.params, loss, server.batch, server.figures, steps, rate, checkpoint, str(o), o.n_steps)
    server.serve(n_updates * o.every, len(server.prompts), params)
    decoding = server.totals.seconds
    learning = time.perf_counter() - began - decoding
    say(f"r {server.totals.r:.3f}; {decoding:.1f} s decoding, {learning:.1f} s learning")
    save_better(o, draft, params, acceptance_figures(draft.n_head, server.held_out_lessons()), say)
