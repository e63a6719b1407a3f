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
from functools import partial
from pathlib import Path

import numpy as np

from speculative.engines.jax_engine import load_gpt2
from speculative.errors import UserError
from training.files import as_float16, save_model, write
from training.fit import fit
from training.network import cross_entropy, init_params, kl_divergence, own_text
from training.texts import encode, learn_vocabulary, read_works, split_works, windows

# Deep and narrow: for a model of this size NumPy's time goes by the number of layers more than by their width.
TARGET = {"n_vocab": 2048, "n_ctx": 256, "n_embd": 192, "n_head": 3, "n_layer": 12}
DRAFT = TARGET | {"n_layer": 1}
BATCH = 4  # windows of n_ctx tokens a step: their arrays stay in the processor's cache.


def save_held_out(folder, held_out, n_prompts=20, n_words=12):
    """Of the held-out texts: one whole passage, and the first words of up to n_prompts others."""
    passage, *others = held_out
    openings = [text.split("\n\n")[0].split() for text in others]
    prompts = [" ".join(words[:n_words]) for words in openings if len(words) > 2 * n_words][:n_prompts]
    lines = [json.dumps({"id": f"held-out/{i}", "prompt": prompt}) for i, prompt in enumerate(prompts)]
    write(folder / "held_out.txt", passage + "\n")
    write(folder / "prompts.jsonl", "".join(line + "\n" for line in lines))


def train_pair(works, out, target=TARGET, draft=DRAFT, steps=22000, draft_steps=5000, n_rows=4096, seed=0):
    """Texts of works -> out/tiny-target and out/tiny-draft. Returns the held-out losses that fit gave for each."""
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


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m training pair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILES")
    parser.add_argument("--out", type=Path, default=Path("models"), help="where the two folders go (default: models)")
    args = parser.parse_args(arguments)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        train_pair(read_works(args.files), args.out)
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}") from error
