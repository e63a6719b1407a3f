"""From plain text to tokens: works, a vocabulary, windows to train on."""

import json

import numpy as np

from encoder import END_OF_TEXT
from speculative.support.errors import UserError
from speculative.support.texts import read_text


def read_works(files):  # -> [text of a work]
    return [work for path in files for work in read_text(str(path), "text").split(END_OF_TEXT)]


def split_works(works, n_paragraphs=10, every=50):
    """Cuts the works into chunks of n_paragraphs and holds out every 50th. -> (texts to train on, texts held out)"""
    train = []
    held_out = []
    n_chunks = 0
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


def encode(texts, encoder):  # -> [n_tokens] int32
    ids = [[encoder.eot] if text == END_OF_TEXT else encoder.encode(text) for text in texts]
    return np.concatenate([np.array(i, np.int32) for i in ids])


def windows(tokens, n_ctx, n_batch, rng):  # -> [n_batch, n_ctx + 1]
    """Stretches from anywhere in the text, each with one more token, as the last target."""
    starts = rng.integers(len(tokens) - n_ctx, size=n_batch)
    return np.stack([tokens[i : i + n_ctx + 1] for i in starts])


# ---- Where rows of text begin: begin(n_rows, n_seq, rng) -> x [n_rows, n_seq], n_prompt [n_rows] ---------------------


def from_corpus(tokens):
    """Rows are stretches of a text [n_tokens]; the first 1/16 to 1/4 of each is the prompt."""

    def begin(n_rows, n_seq, rng):
        return windows(tokens, n_seq - 1, n_rows, rng), rng.integers(max(1, n_seq // 16), n_seq // 4 + 1, n_rows)

    return begin


def from_prompts(prompts):
    """Rows begin with one of the prompts [n][n_ids], cut to half of the row at most; 0 from there on."""

    def begin(n_rows, n_seq, rng):
        x = np.zeros((n_rows, n_seq), np.int32)
        n_prompt = np.zeros(n_rows, int)
        for row, i in enumerate(rng.integers(len(prompts), size=n_rows)):
            ids = prompts[i][: n_seq // 2]
            x[row, : len(ids)] = ids
            n_prompt[row] = len(ids)
        return x, n_prompt

    return begin
