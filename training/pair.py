"""Trains a target GPT-2 on plain text and distils a draft from it: this made models/tiny-target and models/tiny-draft.

    python -m training pair FILES... [--out pair]

A file is UTF-8 text, paragraphs apart by an empty line, works by <|endoftext|>. Each model becomes a folder in the
official formats (encoder.json, vocab.bpe, hparams.json) with model.safetensors in float16; both have one vocabulary.
The network is gpt2.py itself, run by JAX. After an interruption the same command goes on from the last checkpoint.

The bundled pair took about 85 minutes on two busy cores, its parts added up. Its target saw 22.5 million tokens, the
books nine times over. Its loss on all held-out text is 3.37 nats a token, and a token is 3.2 bytes of text.
"""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from encoder import Encoder
from speculative.support.arguments import Parser
from speculative.support.errors import UserError
from training.divergences import kl
from training.files import as_float16, check_new, save_model, vocabulary_files, write
from training.fit import fit
from training.network import cross_entropy, init_params, load_gpt2, log_probs
from training.texts import encode, learn_vocabulary, read_works, split_works, windows
from training.writing import continuations

# Deep and narrow: for a model of this size NumPy's time goes by the number of layers more than by their width.
TARGET = {"n_vocab": 2048, "n_ctx": 256, "n_embd": 192, "n_head": 3, "n_layer": 12}
DRAFT = TARGET | {"n_layer": 1}
BATCH = 4  # windows of n_ctx tokens a step: so few that their arrays stay in the processor's cache


def save_held_out(folder, held_out, n_prompts=20, n_words=12):
    """Saves one whole passage of the held-out texts, and the first words of up to n_prompts others."""
    passage, *others = held_out
    openings = [text.split("\n\n")[0].split() for text in others]
    prompts = [" ".join(words[:n_words]) for words in openings if len(words) > 2 * n_words][:n_prompts]
    lines = [json.dumps({"id": f"held-out/{i}", "prompt": prompt}) for i, prompt in enumerate(prompts)]
    write(folder / "held_out.txt", passage + "\n")
    write(folder / "prompts.jsonl", "".join(line + "\n" for line in lines))


def train_pair(works, out, target=TARGET, draft=DRAFT, steps=22000, draft_steps=5000, n_rows=4096, seed=0):
    """Texts of works -> out/tiny-target and out/tiny-draft. Returns the history that fit gave for each."""
    for name in ("tiny-target", "tiny-draft"):
        check_new(out / name)
    gpt2 = load_gpt2()
    rng = np.random.default_rng(seed)
    n_ctx = target["n_ctx"]
    train, held_out = split_works(works)
    vocab, merges = learn_vocabulary(train, target["n_vocab"])
    tokens, held_out_tokens = (encode(texts, Encoder(vocab, merges)) for texts in (train, held_out))
    print(f"{len(tokens)} tokens to train on, {len(held_out_tokens)} held out", flush=True)
    tests = [windows(held_out_tokens, n_ctx, BATCH, np.random.default_rng(i)) for i in range(12)]

    def text(step, params):  # each step has its own random numbers, so a run that goes on meets the same
        return windows(tokens, n_ctx, BATCH, np.random.default_rng([seed, step]))

    loss = partial(cross_entropy, gpt2, target["n_head"])
    start = init_params(target, rng)
    evaluate = mean_loss(loss, tests)
    target_params, target_history = fit("target", start, loss, text, evaluate, steps, 1e-3, out / "target.npz")
    target_params = as_float16(target_params)
    draft_params, draft_history = distil(
        gpt2, target, target_params, draft, tokens, held_out_tokens, draft_steps, n_rows, rng, out / "draft.npz"
    )

    vocabulary = vocabulary_files(vocab, merges)
    save_model(out / "tiny-target", target, target_params, vocabulary)
    save_model(out / "tiny-draft", draft, as_float16(draft_params), vocabulary)
    save_held_out(out / "tiny-target", held_out)
    for name in ("target.npz", "draft.npz"):
        (out / name).unlink()
    return target_history, draft_history


def mean_loss(loss, tests):
    """-> evaluate(params), as fit takes it"""
    loss = jax.jit(loss)
    return lambda params: {"held out": float(np.mean([loss(params, x) for x in tests]))}


def own_text(gpt2, n_head, params, tokens, n_ctx, n_rows, temperatures, n_prompts, rng):  # -> [n_rows, n_ctx]
    """Texts that the target writes after stretches of the text, each cut to one of the lengths n_prompts, at one of
    the temperatures."""
    rounds = []
    for i in range(n_rows // 128):
        x = windows(tokens, n_ctx - 1, 128, rng)  # [128, n_ctx]
        n_prompt = rng.choice(n_prompts, 128)
        temperature = rng.choice(np.array(temperatures, np.float32), 128)
        rounds.append(np.asarray(continuations(gpt2, n_head, params, x, n_prompt, temperature, jax.random.key(i))))
    return np.concatenate(rounds)


def distil(gpt2, target, target_params, draft, tokens, held_out_tokens, steps, n_rows, rng, checkpoint):
    """A draft that says what the target would -> what fit gives. It starts as the target without its later layers.

    It learns from what the target writes, which at low temperatures differs from the books: the target's distributions,
    and its greedy choices after a short prompt. The first makes a good draft at temperature 1, the second at 0.
    """
    n_ctx = target["n_ctx"]
    short = 3 * target["n_ctx"] // 8
    n_head = target["n_head"]
    write_own = partial(own_text, gpt2, n_head, target_params)

    def both(tokens, n):  # -> [n, n_ctx], [2n, short]
        own = write_own(tokens, n_ctx, n, (0, 0, 0.5, 1), np.arange(n_ctx // 16, n_ctx), rng)
        return own, write_own(tokens, short, 2 * n, (0,), np.arange(short // 10, short // 2), rng)

    own, greedy = both(tokens, n_rows)

    def rows(step, params):
        rng = np.random.default_rng([1, step])
        return own[rng.integers(len(own), size=BATCH)], greedy[rng.integers(len(greedy), size=4 * BATCH)]

    def loss(params, x):
        own, greedy = x
        q = jnp.exp(log_probs(gpt2, target_params, n_head, own))  # [BATCH*n_ctx, n_vocab]
        return kl(log_probs(gpt2, params, n_head, own), q).mean() + cross_entropy(gpt2, n_head, params, greedy)

    held_out = [a.reshape(-1, n, a.shape[1]) for a, n in zip(both(held_out_tokens, 128), (8, 16), strict=True)]
    start = target_params | {"blocks": target_params["blocks"][: draft["n_layer"]]}
    evaluate = mean_loss(loss, list(zip(*held_out, strict=True)))
    return fit("draft", start, loss, rows, evaluate, steps, 2e-3, checkpoint)


def main(arguments: list[str]) -> None:
    parser = Parser(__doc__, prog="python -m training pair")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILES")
    parser.add_argument("--out", type=Path, default=Path("pair"), help="where the two folders go [pair]")
    args = parser.parse_args(arguments)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        train_pair(read_works(args.files), args.out)
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}") from error
