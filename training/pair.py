"""Trains a target GPT-2 on plain text and distils a draft from it: this made models/tiny-target and models/tiny-draft.

    python -m training pair FILES... [--out models]

A file is UTF-8 text, paragraphs apart by an empty line, works by <|endoftext|>. Each model becomes a folder in the
official formats (encoder.json, vocab.bpe, hparams.json) with model.safetensors in float16; both have one vocabulary.
The network is gpt2.py itself, run by JAX. Interrupted, the same command goes on from the last checkpoint.

The bundled pair took about 85 minutes on two busy cores, its parts added up. Its target saw 22.5 million tokens, the
books nine times over; its held-out loss is 3.37 nats per token, and a token is 3.2 bytes of text.
"""

import argparse
import json
import math
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from encoder import END_OF_TEXT
from speculative.errors import UserError

# Deep and narrow: for a model of this size NumPy's time goes by the number of layers more than by their width.
TARGET = {"n_vocab": 2048, "n_ctx": 256, "n_embd": 192, "n_head": 3, "n_layer": 12}
DRAFT = TARGET | {"n_layer": 1}
BATCH = 4  # windows of n_ctx tokens a step: their arrays stay in the processor's cache.


# ---- Text ------------------------------------------------------------------------------------------------------------


def read_works(files):  # -> [text of a work]
    try:
        texts = [path.read_text(encoding="utf-8") for path in files]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the text: {error}; FILES are UTF-8 text files") from error
    return [work for text in texts for work in text.split(END_OF_TEXT)]


def split_works(works, n_paragraphs=10, every=50):
    """Cuts the works into chunks of n_paragraphs and holds out every 50th. -> (texts to train on, texts held out)"""
    train, held_out, n_chunks = [], [], 0
    for work in works:
        paragraphs = [p.strip() for p in work.split("\n\n") if p.strip()]
        for i in range(0, len(paragraphs), n_paragraphs):
            chunk = "\n\n".join(paragraphs[i : i + n_paragraphs])
            n_chunks += 1
            if n_chunks % every == 0:
                held_out.append(chunk)
            else:
                train += [chunk, "\n\n"]
        train.append(END_OF_TEXT)
    if not held_out:
        raise UserError(f"the text is too short: {n_chunks} chunks of {n_paragraphs} paragraphs, not {every} or more")
    return train, held_out


def learn_vocabulary(texts, n_vocab):
    """Byte-level byte-pair encoding (Sennrich et al. 2016). -> ({token: id}, [(left, right)] in order of merging)

    Ids are ranked as in the official vocabulary: the 256 bytes, what each merge makes, and <|endoftext|> last.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=n_vocab - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    merges = [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = dict.fromkeys([*alphabet, *(left + right for left, right in merges), END_OF_TEXT])
    if len(tokens) != n_vocab:
        raise UserError(f"the text is too short: it gives {len(tokens)} tokens, not a vocabulary of {n_vocab}")
    return {token: i for i, token in enumerate(tokens)}, merges


def encode(texts, vocab, merges):  # -> [n_tokens] uint16
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = [[vocab[END_OF_TEXT]] if text == END_OF_TEXT else tokenizer.encode(text).ids for text in texts]
    return np.concatenate([np.array(i, np.uint16) for i in ids])


def windows(tokens, n_ctx, n_batch, rng):  # -> [n_batch, n_ctx + 1]
    """Stretches from anywhere in the text, so that no position is the start of anything; one more token as target."""
    starts = rng.integers(len(tokens) - n_ctx, size=n_batch)
    return np.stack([tokens[i : i + n_ctx + 1] for i in starts]).astype(np.int32)


# ---- The network -----------------------------------------------------------------------------------------------------


def init_params(hparams, rng):
    """GPT-2's: normal, 0.02 wide, and narrower where 2 * n_layer terms add up in the residual stream."""
    n_embd, n_layer = hparams["n_embd"], hparams["n_layer"]

    def normal(*shape, width=0.02):
        return (width * rng.standard_normal(shape)).astype(np.float32)

    def norm():
        return {"g": np.ones(n_embd, np.float32), "b": np.zeros(n_embd, np.float32)}

    def linear(n_in, n_out, width=0.02):
        return {"w": normal(n_in, n_out, width=width), "b": np.zeros(n_out, np.float32)}

    def block():
        narrow = 0.02 / math.sqrt(2 * n_layer)
        return {
            "ln_1": norm(),
            "attn": {"c_attn": linear(n_embd, 3 * n_embd), "c_proj": linear(n_embd, n_embd, narrow)},
            "ln_2": norm(),
            "mlp": {"c_fc": linear(n_embd, 4 * n_embd), "c_proj": linear(4 * n_embd, n_embd, narrow)},
        }

    return {
        "wte": normal(hparams["n_vocab"], n_embd),
        "wpe": normal(hparams["n_ctx"], n_embd),
        "blocks": [block() for _ in range(n_layer)],
        "ln_f": norm(),
    }


class EndToEnd:
    """Stands in gpt2's cache for a batch of windows laid end to end, each of which attends to itself alone.

    All but attention then sees one long row of tokens: this trains faster than jax.vmap over the windows.
    """

    def __init__(self, gpt2, n_layer, n_batch):
        def attend(q, k, v):  # [n_head, n_batch*n_ctx, d_head] -> the same
            n_head, n_tokens, d_head = q.shape
            q, k, v = (a.reshape(n_head, n_batch, n_tokens // n_batch, d_head) for a in (q, k, v))
            return gpt2.attention(q, k, v).reshape(n_head, n_tokens, d_head)

        self.length, self.layers = 0, [attend] * n_layer


def log_probs(gpt2, params, n_head, x):  # [n_batch, n_seq] -> [n_batch*n_seq, n_vocab]
    import jax

    n_batch, n_seq = x.shape
    wpe = jax.numpy.tile(params["wpe"][:n_seq], (n_batch, 1))  # [n_batch*n_seq, n_embd]
    cache = EndToEnd(gpt2, len(params["blocks"]), n_batch)
    return jax.nn.log_softmax(gpt2.gpt2(x.ravel(), **params | {"wpe": wpe}, n_head=n_head, cache=cache))


# ---- Training --------------------------------------------------------------------------------------------------------


def make_optimizer(steps, peak):
    """AdamW. The rate rises, stays, and falls over the last third, so that a run can be made longer while it stays."""
    import jax
    import optax

    warmup, decay = min(300, steps // 10), int(0.35 * steps)
    rate = optax.join_schedules(
        [
            optax.linear_schedule(0, peak, warmup),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, peak / 50, decay),
        ],
        [warmup, steps - decay],
    )
    adamw = optax.adamw(rate, b2=0.99, weight_decay=0.1, mask=partial(jax.tree.map, lambda a: a.ndim == 2))
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def fit(name, params, loss, batch, held_out, steps, peak, checkpoint):
    """Minimises loss(params, x) over x = batch(step). -> (params, [(step, held-out loss)])

    Prints the running mean of the loss every 100 steps, and that of the held-out batches every 500.
    """
    import jax
    import optax

    optimizer = make_optimizer(steps, peak)
    params = jax.tree.map(jax.numpy.array, params)  # a copy, as each step gives its state away
    state, start = (params, optimizer.init(params)), 0
    if checkpoint.exists():
        state, start = load_checkpoint(checkpoint, state)

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, x):
        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params, x)
        update, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, update), moments), value

    evaluate = jax.jit(loss)
    history, mean, began = [], None, time.time()
    for step in range(start, steps):
        state, value = train_step(state, batch(step))
        mean = float(value) if mean is None else 0.98 * mean + 0.02 * float(value)
        if step % 100 == 0:
            print(f"{name} step {step}/{steps}, {time.time() - began:.0f} s: loss {mean:.4f}", flush=True)
        if step == start or (step + 1) % 500 == 0 or step + 1 == steps:
            history.append((step + 1, float(np.mean([evaluate(state[0], x) for x in held_out]))))
            print(f"{name} step {step + 1}/{steps}: held-out loss {history[-1][1]:.4f}", flush=True)
            save_checkpoint(checkpoint, state, step + 1)
    return state[0], history


def save_checkpoint(path, state, step):
    import jax

    part = path.with_suffix(".part.npz")
    np.savez(part, step, *jax.tree.leaves(state))
    os.replace(part, path)  # so that an interruption leaves the old one whole


def load_checkpoint(path, state):
    import jax

    step, *leaves = np.load(path).values()
    if [a.shape for a in leaves] != [a.shape for a in jax.tree.leaves(state)]:
        raise UserError(f"{path} is of a model of another size: delete it to begin anew")
    print(f"going on from {path}, step {step}")
    return jax.tree.unflatten(jax.tree.structure(state), [jax.numpy.asarray(a) for a in leaves]), int(step)


def cross_entropy(gpt2, n_head, params, x):  # [n_batch, n_seq + 1] -> nats per token
    """How surprised the model is by each next token."""
    log_q = log_probs(gpt2, params, n_head, x[:, :-1])  # [n_batch*n_seq, n_vocab]
    return -log_q[np.arange(len(log_q)), x[:, 1:].ravel()].mean()


# ---- Distillation ----------------------------------------------------------------------------------------------------


class OneEach:
    """Stands in gpt2's cache for a batch of sequences that all grow by their token n: keys, values for each layer."""

    def __init__(self, gpt2, memory, n):  # memory: for each layer (keys, values) [n_head, n_batch, n_ctx, d_head]
        self.gpt2, self.memory, self.n = gpt2, list(memory), n
        self.length, self.layers = 0, [partial(self.attend, i) for i in range(len(memory))]

    def attend(self, i, q, k, v):  # [n_head, n_batch, d_head] -> the same
        import jax.numpy as jnp

        keys, values = self.memory[i]
        keys, values = self.memory[i] = keys.at[:, :, self.n].set(k), values.at[:, :, self.n].set(v)
        scores = q[:, :, None] @ jnp.swapaxes(keys, -1, -2) / math.sqrt(q.shape[-1])  # [n_head, n_batch, 1, n_ctx]
        scores = jnp.where(jnp.arange(keys.shape[2]) <= self.n, scores, -1e10)
        return (self.gpt2.softmax(scores) @ values)[:, :, 0]


def continuations(gpt2, hparams, params, x, n_prompt, temperature, key):  # [n_batch, n_ctx], [n_batch] twice -> like x
    """Replaces all but the first n_prompt tokens of a row by the model's own, drawn at that row's temperature."""
    import jax
    import jax.numpy as jnp

    n_batch, n_ctx = x.shape
    n_head, n_embd = hparams["n_head"], hparams["n_embd"]
    empty = jnp.zeros((n_head, n_batch, n_ctx, n_embd // n_head))

    def one_token(state, n):
        x, memory = state
        cache = OneEach(gpt2, memory, n)
        wpe = jnp.broadcast_to(params["wpe"][n], (n_batch, n_embd))  # each row's next token is its n-th
        logits = gpt2.gpt2(x[:, n], **params | {"wpe": wpe}, n_head=n_head, cache=cache)  # [n_batch, n_vocab]
        # Largest of the logits, each with Gumbel noise times the temperature: softmax's sample, argmax's at 0.
        noise = jax.random.gumbel(jax.random.fold_in(key, n), logits.shape)  # [n_batch, n_vocab]
        drawn = jnp.argmax(logits + temperature[:, None] * noise, axis=-1)  # [n_batch]
        x = x.at[:, n + 1].set(jnp.where(n + 1 < n_prompt, x[:, n + 1], drawn))
        return (x, cache.memory), None

    (x, _), _ = jax.lax.scan(one_token, (x, [(empty, empty)] * hparams["n_layer"]), jnp.arange(n_ctx - 1))
    return x


def own_text(gpt2, hparams, params, tokens, n_rows, temperatures, n_prompts, rng):  # -> [n_rows, n_ctx]
    """What the target makes of stretches of the text, each cut after some of n_prompts tokens, at some temperature."""
    import jax

    run, rounds = jax.jit(partial(continuations, gpt2, hparams)), []
    for i in range(n_rows // 128):
        x = windows(tokens, hparams["n_ctx"] - 1, 128, rng)  # [128, n_ctx]
        n_prompt, temperature = rng.choice(n_prompts, 128), rng.choice(np.array(temperatures, np.float32), 128)
        rounds.append(np.asarray(run(params, x, n_prompt, temperature, jax.random.key(i))))
    return np.concatenate(rounds)


def kl_divergence(gpt2, n_heads, target, params, x):  # [n_batch, n_seq] -> nats per token
    """From the target's distributions to the draft's, averaged over the tokens."""
    import jax

    log_q = log_probs(gpt2, target, n_heads[0], x)  # [n_batch*n_seq, n_vocab]
    log_p = log_probs(gpt2, params, n_heads[1], x)  # [n_batch*n_seq, n_vocab]
    return (jax.numpy.exp(log_q) * (log_q - log_p)).sum(-1).mean()


# ---- Files -----------------------------------------------------------------------------------------------------------

HUGGING_FACE = {"wte": "wte.weight", "wpe": "wpe.weight", "blocks": "h", "g": "weight", "w": "weight", "b": "bias"}


def named_tensors(params, path=()):
    """The leaves of params under Hugging Face's names: blocks[0]["ln_1"]["g"] is h.0.ln_1.weight."""
    for key, value in params.items() if isinstance(params, dict) else enumerate(params):
        name = (*path, HUGGING_FACE.get(key, str(key)))
        if isinstance(value, (dict, list)):
            yield from named_tensors(value, name)
        else:
            yield ".".join(name), value


def as_float16(params):
    """Rounded to what the file will hold, so that the draft learns from the target that is used."""
    import jax

    return jax.tree.map(lambda a: jax.numpy.asarray(a, np.float16).astype(np.float32), params)


def save_model(folder, hparams, params, vocab, merges):
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(a, np.float16) for name, a in named_tensors(params)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write(folder / "hparams.json", json.dumps(hparams))
    write(folder / "encoder.json", json.dumps(vocab))
    write(folder / "vocab.bpe", "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges))


def save_held_out(folder, held_out, n_prompts=20, n_words=12):
    """Of the held-out texts: one whole passage, and the first words of up to n_prompts others."""
    passage, *others = held_out
    openings = [text.split("\n\n")[0].split() for text in others]
    prompts = [" ".join(words[:n_words]) for words in openings if len(words) > 2 * n_words][:n_prompts]
    lines = [json.dumps({"id": f"held-out/{i}", "prompt": prompt}) for i, prompt in enumerate(prompts)]
    write(folder / "held_out.txt", passage + "\n")
    write(folder / "prompts.jsonl", "".join(line + "\n" for line in lines))


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="\n")


# ---- The whole of it -------------------------------------------------------------------------------------------------


def train_pair(works, out, target=TARGET, draft=DRAFT, steps=22000, draft_steps=5000, n_rows=4096, seed=0):
    """Texts of works -> out/tiny-target and out/tiny-draft. Returns the held-out losses that fit gave for each."""
    from speculative.engines.jax_engine import load_gpt2

    gpt2, rng, n_ctx = load_gpt2(), np.random.default_rng(seed), target["n_ctx"]
    train, held_out = split_works(works)
    vocab, merges = learn_vocabulary(train, target["n_vocab"])
    tokens, held_out_tokens = encode(train, vocab, merges), encode(held_out, vocab, merges)
    print(f"{len(tokens)} tokens to train on, {len(held_out_tokens)} held out", flush=True)
    tests = [windows(held_out_tokens, n_ctx, BATCH, np.random.default_rng(i)) for i in range(12)]

    def text(step):  # each step has its own random numbers, so that a run that goes on meets those it would have met
        return windows(tokens, n_ctx, BATCH, np.random.default_rng([seed, step]))

    loss = partial(cross_entropy, gpt2, target["n_head"])
    start = init_params(target, rng)
    target_params, target_history = fit("target", start, loss, text, tests, steps, 1e-3, out / "target.npz")
    target_params = as_float16(target_params)
    draft_params, draft_history = distil(
        gpt2, target, target_params, draft, tokens, held_out_tokens, draft_steps, n_rows, rng, out / "draft.npz"
    )

    save_model(out / "tiny-target", target, target_params, vocab, merges)
    save_model(out / "tiny-draft", draft, as_float16(draft_params), vocab, merges)
    save_held_out(out / "tiny-target", held_out)
    for name in ("target.npz", "draft.npz"):
        (out / name).unlink()
    return target_history, draft_history


def distil(gpt2, target, target_params, draft, tokens, held_out_tokens, steps, n_rows, rng, checkpoint):
    """A draft that says what the target would: it starts as the target without its later layers. -> as fit

    It learns from what the target writes, which at low temperatures is not what the books hold: the target's
    distributions, and of what it writes greedily in answer to a short prompt, its very words. The first alone would
    make the draft a good one at temperature 1, the second at 0.
    """
    n_ctx, n_head = target["n_ctx"], draft["n_head"]
    short = target | {"n_ctx": 3 * n_ctx // 8}

    def both(tokens, n):  # -> [n, n_ctx], [n, short n_ctx]
        own = own_text(gpt2, target, target_params, tokens, n, (0, 0, 0.5, 1), np.arange(n_ctx // 16, n_ctx), rng)
        prompts = np.arange(short["n_ctx"] // 10, short["n_ctx"] // 2)
        return own, own_text(gpt2, short, target_params, tokens, 2 * n, (0,), prompts, rng)

    own, greedy = both(tokens, n_rows)

    def rows(step):
        rng = np.random.default_rng([1, step])
        return own[rng.integers(len(own), size=BATCH)], greedy[rng.integers(len(greedy), size=4 * BATCH)]

    def loss(params, x):
        own, greedy = x
        distributions = kl_divergence(gpt2, (target["n_head"], n_head), target_params, params, own)
        return distributions + cross_entropy(gpt2, n_head, params, greedy)

    held_out = [a.reshape(-1, n, a.shape[1]) for a, n in zip(both(held_out_tokens, 128), (8, 16), strict=True)]
    start = target_params | {"blocks": target_params["blocks"][: draft["n_layer"]]}
    return fit("draft", start, loss, rows, list(zip(*held_out, strict=True)), steps, 2e-3, checkpoint)


def use_large_pages():
    """Starts this program anew with glibc told to keep freed memory, in pages of 2 MB: far faster.

    XLA allocates each step's arrays and frees them after it, and the kernel would hand out their pages again each time.
    """
    tunables = "hugetlb=1 mmap_max=0 arena_max=1 trim_threshold=100000000000 top_pad=1000000000"
    settings = ":".join(f"glibc.malloc.{tunable}" for tunable in tunables.split())
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"GLIBC_TUNABLES": settings})


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m training pair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILES")
    parser.add_argument("--out", type=Path, default=Path("models"), help="where the two folders go (default: models)")
    args = parser.parse_args(arguments)
    use_large_pages()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        train_pair(read_works(args.files), args.out)
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}") from error
