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
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from speculative.drafters.model import model_drafter
from speculative.engines.choice import choose, make_engine
from speculative.engines.formats import convert_all
from speculative.filters import Filters
from speculative.sampling import speculative_sampling
from speculative.support.errors import UserError
from speculative.support.texts import read_prompts
from training.distil import Lesson, acceptance_figures, divergence, mean, save_better
from training.files import checkpoint_of, load_both
from training.loop import fit, say
from training.network import Model


def decoder(model: Model, temperature: float) -> Callable:
    """-> model(x, n_last), which decodes. The parameters are copied, because training reuses their memory."""
    engine = make_engine(choose("c"))
    params = convert_all(jax.tree.map(np.array, model.params), engine.converter("float32"))
    return engine.network(params, model.hparams, "the model").with_probs(Filters(temperature))


def decode(ids: list[int], draft_model, target_model, o, rng) -> tuple:
    """Speculative decoding that keeps q -> x [n_seq], q [n_seq, n_vocab], counts [n_seq] as in a Lesson (with zeros
    after the text), and Σ (drafted + 1)."""
    rows = []
    n_tested = 0
    x = np.array(ids, np.int32)
    for step in speculative_sampling(x, model_drafter(draft_model, rng), target_model, o.n_tokens, o.K, rng):
        # The last of these rows is that of the resampled or bonus token; the rows after a rejection are dropped.
        rows.extend(np.asarray(step.q[: len(step.tokens)], np.float16))
        n_tested += len(step.proposal.tokens) + 1
        x = np.append(x, step.tokens).astype(np.int32)
    after = o.n_prompt - len(ids)  # zeros after the text
    q = np.pad(np.stack(rows), [(len(ids) - 1, after + 1), (0, 0)])  # [n_seq, n_vocab]
    counts = np.pad(np.ones(o.n_tokens, np.float32), (len(ids) - 1, after + 1))  # [n_seq]
    return np.pad(x, (0, after)), q, counts, n_tested


def main(o) -> None:
    if not o.draft_model_size or len(o.temperature) > 1:
        raise UserError("online needs --draft_model_size and one --temperature")
    [temperature] = o.temperature
    encoder, target, draft = load_both(o, o.n_prompt + o.n_tokens)
    prompts = read_prompts(o.prompts)
    target_model = decoder(target, temperature)
    buffer, held_out = deque(maxlen=o.n_buffer), deque(maxlen=o.n_buffer)
    totals = dict.fromkeys(("tokens", "tested", "seconds"), 0)

    def serve(first: int, last: int, params) -> None:
        """Decode the prompts from first to last - 1, with the draft as it is now."""
        draft_model = decoder(draft._replace(params=params), temperature)
        for i in range(first, last):
            ids = (encoder.encode(prompts[i]) or [encoder.eot])[: o.n_prompt]
            began = time.perf_counter()
            x, q, counts, n_tested = decode(ids, draft_model, target_model, o, np.random.default_rng([o.seed, i]))
            totals["seconds"] += time.perf_counter() - began
            totals["tokens"] += o.n_tokens
            totals["tested"] += n_tested
            (held_out if buffer and i % 5 == 1 else buffer).append((x, q, counts))
            text = encoder.decode(x[len(ids) : len(ids) + o.n_tokens].tolist())
            print(json.dumps({"prompt": prompts[i], "text": text}, ensure_ascii=False), flush=True)

    def lesson(texts):
        x, q, counts = map(np.stack, zip(*texts, strict=True))
        t = np.full(x.size, temperature, np.float32)  # [n]
        return Lesson(x, q.reshape(x.size, -1).astype(np.float32), t, counts.ravel())

    def batch(step, params):
        number, i = divmod(step, o.n_steps)
        if i == 0:
            serve(number * o.every, (number + 1) * o.every, params)
        chosen = np.random.default_rng([o.seed, step]).integers(len(buffer), size=o.n_batch)
        return lesson([buffer[i] for i in chosen])

    def figures(params):
        r = totals["tokens"] / max(1, totals["tested"])  # tokens / Σ (drafted + 1)
        return {"r so far": r, "seconds of decoding": totals["seconds"]}

    steps = len(prompts) // o.every * o.n_steps
    rate = o.rate / draft.hparams["n_embd"]  # constant, because nobody knows how many texts follow
    loss = partial(mean, partial(divergence, o.divergence), draft.n_head)
    began = time.perf_counter()
    params = fit(draft.params, loss, batch, figures, steps, rate, checkpoint_of(o), str(o), o.n_steps)
    serve(len(prompts) // o.every * o.every, len(prompts), params)
    learning = time.perf_counter() - began - totals["seconds"]
    say(f"r {figures(params)['r so far']:.3f}; {totals['seconds']:.1f} s decoding, {learning:.1f} s learning")
    lessons = {temperature: [lesson([text]) for text in held_out]} if held_out else {}
    save_better(o, draft, params, acceptance_figures(draft.n_head, lessons), say)
