"""Train a target GPT-2 on plain text, and distil a draft from its first layer: models of the kind of the bundled pair.

The draft learns by `distil` from rows that the target writes after beginnings of the text, at temperatures 0 and 1.
"""

import json
from argparse import Namespace
from functools import partial
from pathlib import Path

import jax
import numpy as np
from speculative.blog.encoder import END_OF_TEXT, Encoder

from speculative.support.errors import UserError
from speculative.support.texts import read_text
from training import distil
from training.files import check_new, save_model
from training.loop import fit, say, schedule
from training.network import Model, cross_entropy, init_params

N_PARAGRAPHS = 10  # paragraphs in a chunk of text
HELD_OUT = 50  # every so many chunks, one is held out
BATCH = 4  # rows of n_ctx tokens in a step: few enough that their arrays stay in the processor's cache


def split_works(works: list[str]) -> tuple[list[str], list[str]]:
    """-> (texts to train on, texts held out)"""
    train = []
    held_out = []
    n_chunks = 0
    for work in works:
        lines = work.replace("\r\n", "\n")  # as books of other systems have them
        paragraphs = [p.strip() for p in lines.split("\n\n") if p.strip()]
        for i in range(0, len(paragraphs), N_PARAGRAPHS):
            chunk = "\n\n".join(paragraphs[i : i + N_PARAGRAPHS])
            n_chunks += 1
            if n_chunks % HELD_OUT == 0:
                held_out.append(chunk)
            else:
                train += [chunk, "\n\n"]
        train.append(END_OF_TEXT)
    if not held_out:
        raise UserError(f"the text is too short: it has {n_chunks * N_PARAGRAPHS} paragraphs, fewer than 500")
    return train, held_out


def learn_vocabulary(texts: list[str], n_vocab: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte-level byte-pair encoding (Sennrich et al. 2016) -> ({token: id}, [(left, right)] in order of merging).

    Ids are ranked as in the official vocabulary: the 256 bytes, the result of each merge, and <|endoftext|> last.
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
        raise UserError(f"the text is too short: it gives {len(tokens)} tokens, and the vocabulary has {n_vocab}")
    return {token: i for i, token in enumerate(tokens)}, merges


def encode(texts: list[str], encoder) -> np.ndarray:  # -> [n_tokens]
    ids = [[encoder.eot] if text == END_OF_TEXT else encoder.encode(text) for text in texts]
    return np.concatenate([np.array(i, np.int32) for i in ids])


def windows(tokens, n: int, n_batch: int, rng) -> np.ndarray:  # [n_tokens] -> [n_batch, n]
    """Stretches of n tokens from anywhere in the text."""
    starts = rng.integers(len(tokens) - n + 1, size=n_batch)
    return np.stack([tokens[i : i + n] for i in starts])


def fit_target(o, hparams: dict, tokens, held_out) -> Model:
    n = hparams["n_ctx"] + 1

    def batch(step, params):  # each step has its own random numbers, so that a run that continues sees the same text
        return windows(tokens, n, BATCH, np.random.default_rng([o.seed, step]))

    def figures(params):
        return {"held-out loss": float(np.mean([held_out_loss(params, x) for x in tests]))}

    loss = partial(cross_entropy, hparams["n_head"])
    held_out_loss = jax.jit(loss)
    tests = [windows(held_out, n, BATCH, np.random.default_rng(i)) for i in range(12)]
    start = init_params(hparams, np.random.default_rng(o.seed))
    rate = schedule(o.steps, 0.2 / hparams["n_embd"])
    checkpoint = Path(o.out, "tiny-target.npz")
    return Model(fit(start, loss, batch, figures, o.steps, rate, checkpoint, str(o), min(500, o.steps)), hparams)


def openings(texts: list[str]) -> str:
    """The first 12 words of every paragraph that has twice as many: prompts, one a line."""
    paragraphs = [paragraph.split() for text in texts for paragraph in text.split("\n\n")]
    return "".join(" ".join(words[:12]) + "\n" for words in paragraphs if len(words) > 24)


def save_target(folder: Path, target: Model, vocab: dict, merges: list, held_out: list[str]) -> None:
    """Write the target's folder, with one whole passage of the held-out text and the openings of the others."""
    passage, *others = held_out
    pairs = "".join(f"{left} {right}\n" for left, right in merges)
    files = {"encoder.json": json.dumps(vocab), "vocab.bpe": f"#version: 0.2\n{pairs}"}
    files |= {"held_out.txt": f"{passage}\n", "prompts.txt": openings(others)}
    save_model(folder, target, {name: text.encode() for name, text in files.items()})


def main(o) -> None:
    out = Path(o.out)
    if not (out / "tiny-target.npz").exists():  # it is kept until the draft has been trained as well
        check_new(out / "tiny-target")
    hparams = dict(zip(("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer"), o.target, strict=True))
    train, held_out = split_works([work for path in o.files for work in read_text(path, "text").split(END_OF_TEXT)])
    vocab, merges = learn_vocabulary(train, hparams["n_vocab"])
    tokens, held_out_tokens = (encode(texts, Encoder(vocab, merges)) for texts in (train, held_out))
    say(f"{len(tokens)} tokens to train on, {len(held_out_tokens)} held out")
    target = fit_target(o, hparams, tokens, held_out_tokens)
    if not (out / "tiny-target").exists():
        save_target(out / "tiny-target", target, vocab, merges, held_out)
    prompts = out / "openings.txt"
    prompts.write_text(openings(train), encoding="utf-8")
    models = {"models_dir": out, "target_model_size": "tiny-target", "draft_model_size": "", "first_layers": 1}
    rows = {"prompts": str(prompts), "text": "target", "temperature": [0.0, 1.0], "n_rows": o.n_rows}
    rows |= {"n_batch": 16, "n_seq": min(128, hparams["n_ctx"])}
    learning = {"divergence": "jsd", "rate": 0.4, "steps": o.draft_steps, "seed": o.seed}
    distil.main(Namespace(**models, **rows, **learning, out="tiny-draft"))
    (out / "tiny-target.npz").unlink()
    say(f"the pair is --models_dir {out} --target_model_size tiny-target --draft_model_size tiny-draft")
