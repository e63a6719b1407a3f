"""Online: the draft learns while it serves, from the target's distributions, which decoding computes anyway.

    python -m training online --target_model_size 1558M --draft_model_size 124M --prompts my.jsonl --out my-draft
    python main.py --target_model_size 1558M --draft_model_size my-draft

The prompts (.jsonl, an object with "prompt" on each line, or a prompt a line) are continued one after another by
speculative decoding. Each text is a line of JSON on standard output. The target's distribution of every token goes into
a buffer of fixed size. After every few texts the draft takes a few steps on what the buffer holds, and then drafts the
next texts. So it never changes within a text: each p is what its token was drawn from, and the texts are the target's
own. After an interruption the same command goes on, with the draft as it was and an empty buffer.

Source: Liu et al. 2023, "Online Speculative Decoding".
"""

import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculative import load_pair
from speculative.checkpoints.folders import model_folder
from speculative.checkpoints.tensors import parameter_count
from speculative.drafters.model import model_drafter
from speculative.engines.jax.model import keep_compiled
from speculative.engines.models import create_model_fn
from speculative.engines.packed import pack, packer
from speculative.filters import to_distribution
from speculative.measure.record import Counted
from speculative.measure.recorder import counted
from speculative.sampling import speculative_sampling
from speculative.support import arguments as values
from speculative.support.arguments import Parser
from speculative.support.errors import UserError
from speculative.support.texts import read_prompts
from training.common import add_models, add_recipe, check_fits, count, load_on_device, of_layers, want_both
from training.files import as_float16, read_vocabulary, save_model
from training.fit import load_checkpoint, make_train_step, save_checkpoint
from training.network import load_gpt2
from training.recipe import Lesson, Model, make_loss

RATE = 0.05  # divided by the width; a quarter of distillation's, as it does not fall, and the draft has learned before


class Text(NamedTuple):
    """A text of the target, and the distributions that its tokens were drawn from."""

    x: np.ndarray  # [n], the prompt and N tokens
    q: np.ndarray  # [N, n_vocab] float16, for each of the N tokens


class Learner:
    """A draft, and the texts of the target that it learns from."""

    def __init__(self, draft: Model, n_seq: int, o):
        """n_seq: the longest text. o: has divergence, temperature, rate, n_buffer (texts), n_batch and n_steps."""
        self.o = o
        self.n_seq = n_seq
        self.buffer = deque(maxlen=o.n_buffer)
        loss = make_loss(load_gpt2(), draft.n_head, o.divergence)
        optimizer, self.step = make_train_step(loss, None, o.rate)
        params = jax.tree.map(jnp.array, draft.params)  # a copy, as each step gives its state away
        self.state = params, optimizer.init(params)

    @property
    def params(self):
        return self.state[0]

    def lesson(self, texts: list[Text]) -> Lesson:
        n_vocab = texts[0].q.shape[1]
        x = np.zeros((len(texts), self.n_seq), np.int32)
        q = np.zeros((len(texts), self.n_seq, n_vocab), np.float32)
        counts = np.zeros(x.shape, np.float32)
        for i, text in enumerate(texts):
            n = len(text.x)
            N = len(text.q)
            x[i, :n] = text.x
            q[i, n - N - 1 : n - 1] = text.q
            counts[i, n - N - 1 : n - 1] = 1
        temperature = np.full(len(texts), self.o.temperature, np.float32)
        return Lesson(x, q.reshape(-1, n_vocab), temperature, counts)

    def learn(self, rng: np.random.Generator, n_steps: int | None = None) -> float:
        """Takes steps on batches from the buffer. -> their mean loss. Raises UserError if it is not a number."""
        losses = []
        for _ in range(n_steps or self.o.n_steps):
            chosen = rng.integers(len(self.buffer), size=self.o.n_batch)
            self.state, loss = self.step(self.state, self.lesson([self.buffer[i] for i in chosen]))
            losses.append(float(loss))
        if not math.isfinite(sum(losses)) or not all(jnp.isfinite(a).all() for a in jax.tree.leaves(self.state[0])):
            kept = f"the last checkpoint stays, and a --rate below {self.o.rate:g} may go on from it"
            raise UserError(f"the loss is not a number after {len(losses)} steps: {kept}")
        return float(np.mean(losses))


class Served(NamedTuple):
    """One text, how it was decoded, and what was learned after it."""

    x: np.ndarray  # [n]
    steps: list[Counted]
    seconds: float  # of decoding
    learning: float  # seconds
    loss: float | None  # where the draft learned after this text


def decode_and_keep(x, draft_model, target_model, N: int, K: int, rng) -> tuple[Text, list[Counted]]:
    """Speculative decoding of N tokens that keeps q for each of them: of each step the rows up to its last token,
    resampled or bonus. What comes after a rejected draft belongs to no text, so those rows are left out."""
    rows = []
    steps = []
    for step in speculative_sampling(x, model_drafter(draft_model, rng), target_model, N, K, rng):
        rows.append(step.q[: len(step.tokens)].astype(np.float16))
        steps.append(counted(step))
    x = np.append(x, [token for step in steps for token in step.tokens]).astype(np.int32)  # [n]
    return Text(x, np.concatenate(rows)), steps


def serve(prompts: Iterable, rngs: Iterable, draft_model, target_model, o, learner=None, to_model=None, number=0):
    """Decodes the prompts [n_ids], each with its generator, and lets the draft learn after every o.every of them.

    learner: None for a draft that does not learn. to_model(params) makes the draft that has learned. number: how many
    texts there were before. o: has n_tokens, K and every.
    """
    for i, (x, rng) in enumerate(zip(prompts, rngs, strict=False), number + 1):
        start = time.perf_counter()
        loss = None
        text, steps = decode_and_keep(x, draft_model, target_model, o.n_tokens, o.K, rng)
        decoded = time.perf_counter()
        if learner:
            learner.buffer.append(text)
            if i % o.every == 0:
                loss = learner.learn(np.random.default_rng([o.seed, i]))
                draft_model = to_model(learner.params)
        yield Served(text.x, steps, decoded - start, time.perf_counter() - decoded, loss)


def numpy_model(params, hparams: dict, temperature: float, dtype: str = "float32") -> Callable:
    """Parameters of JAX -> a model that decodes. They are copied: the next training step reuses their memory."""
    params = pack(jax.tree.map(np.array, params), packer(dtype))
    return create_model_fn(params, hparams, partial(to_distribution, temperature=temperature))


def acceptance_rate(served: Iterable[Served]) -> float:
    """r = tokens / Σ (drafted + 1)"""
    steps = [step for one in served for step in one.steps]
    return sum(len(step.tokens) for step in steps) / sum(step.drafted + 1 for step in steps)


# ---- The command -----------------------------------------------------------------------------------------------------


def add_online(parser: Parser) -> None:
    """The arguments that say how it decodes, and how often it learns."""
    add = parser.add_argument
    add("--n_tokens", type=count, default=64, help="to decode from each prompt")
    add("--n_prompt", type=count, default=48, help="a longer prompt is cut to so many tokens")
    add("--K", type=count, default=4, help="the lookahead")
    add("--temperature", type=values.argument(values.temperature), default=1.0, help="0 is greedy")
    add("--every", type=count, default=8, help="texts from one update of the draft to the next")
    add("--n_steps", type=count, default=8, help="steps of training in an update")
    add("--n_buffer", type=count, default=64, help="how many of the newest texts are kept")


def check_memory(o, target: dict, draft: dict) -> None:
    """Raises UserError if it would not fit into memory: the models in both engines, the buffer, a step of training."""
    weights = parameter_count(target) + 6 * parameter_count(draft)
    rows = target["n_vocab"] * (2 * o.n_buffer * o.n_tokens + 4 * 7 * o.n_batch * o.n_seq)
    check_fits(4 * weights, rows + 4 * of_layers(draft, o), "--n_buffer or --n_batch")


def arguments_of_online(arguments: list[str]):
    parser = Parser(__doc__, prog="python -m training online")
    add_models(parser, "the draft as it is in the end")
    parser.add_argument("--prompts", required=True, help="a file of prompts; - is the standard input")
    add_online(parser)
    add_recipe(parser, RATE, n_seq=False)
    o = parser.parse_args(arguments)
    if o.draft_model_size is None:
        raise UserError("--draft_model_size is missing: the draft to begin with")
    if o.divergence == "reverse_kl" and o.temperature == 0:
        raise UserError("--divergence reverse_kl needs a temperature above 0: at 0 it is infinite")
    o.n_seq = o.n_prompt + o.n_tokens
    return o


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    o = arguments_of_online(arguments)
    wanted, wanted_draft = want_both(o, RATE, flags="--n_prompt and --n_tokens make")
    encoder = wanted.encoder
    draft_hparams = wanted_draft.hparams
    texts = read_prompts(o.prompts)
    if len(texts) < o.every:
        raise UserError(f"{o.prompts} has {len(texts)} prompts, and the draft learns after every {o.every}: give more")
    check_memory(o, wanted.hparams, draft_hparams)
    keep_compiled()
    prompts = [(encoder.encode(text) or [encoder.eot])[: o.n_prompt] for text in texts]
    of_target = {name: getattr(o, name) for name in ("target_model_size", "models_dir", "source", "temperature")}
    target_model = load_pair(**of_target, drafter="prompt_lookup", engine="numpy").pair.target
    learner = Learner(load_on_device(wanted_draft, o), o.n_seq, o)
    folder = Path(model_folder(o.out, o.models_dir))
    identity = f"online {sorted((name, value) for name, value in vars(o).items() if name != 'rate')}"
    checkpoint = folder.with_name(f"{o.out}.npz")
    number = 0
    recent = []
    if checkpoint.exists():
        learner.state, number, _ = load_checkpoint(checkpoint, learner.state, identity, say)
    to_model = partial(numpy_model, hparams=draft_hparams, temperature=o.temperature)
    rngs = (np.random.default_rng([o.seed, i]) for i in range(number, len(prompts)))
    draft_model = to_model(learner.params)
    for one in serve(prompts[number:], rngs, draft_model, target_model, o, learner, to_model, number):
        text = encoder.decode(one.x[len(prompts[number]) :].tolist())
        print(json.dumps({"prompt": texts[number], "text": text}, ensure_ascii=False), flush=True)
        number += 1
        recent.append(one)
        if one.loss is not None:
            shown = f"r {acceptance_rate(recent):.3f}, {sum(s.seconds for s in recent):.1f} s decoding"
            say(f"text {number}/{len(prompts)}: {shown}, {one.learning:.1f} s learning: loss {one.loss:.4f}")
            recent = []
            save_checkpoint(checkpoint, learner.state, number, (), identity)
    vocabulary = read_vocabulary(model_folder(o.target_model_size, o.models_dir))
    save_model(folder, draft_hparams, as_float16(learner.params), vocabulary)
    checkpoint.unlink(missing_ok=True)
    say(f"{folder} is the new draft: --draft_model_size {o.out}")
