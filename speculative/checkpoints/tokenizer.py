"""Hugging Face's tokenizers: tokenizer.json, or vocab.json and merges.txt. Their own library applies them.

OpenAI's form, encoder.json and vocab.bpe, is read by encoder.py. Both give an Encoder. Which files count, and which
tokens they add to the vocabulary in which order, is as in transformers 5: so are the ids.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING

from speculative.blog.encoder import CHAR_TO_BYTE, END_OF_TEXT, Encoder, ranked
from speculative.checkpoints.disk import bad_file, other_file
from speculative.checkpoints.tokenizer_files import (
    AddedTokens,
    TokenizerFiles,
    added_tokens,
    check_model,
    end_tokens,
    from_vocab_and_merges,
    read_files,
    text_of,
    tokens_to_add,
)
from speculative.support.errors import UserError, first_line
from speculative.support.process import taken_at_forks
from speculative.support.terminal import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
UNUSABLE = "cannot be used as a byte-level BPE"
SAMPLE = "It's 12 days,\nor so!"


class LibraryEncoder(Encoder):
    """An Encoder whose ids are those of a tokenizers.Tokenizer. Ids without a token have no bytes.

    Its vocabulary may lack bytes, which the library leaves out of a text: a line says so, once for each character.
    """

    def __init__(self, path: str, tokenizer: "Tokenizer", model: dict, n_vocab: int, ends: list[int]):
        """path: of the file, for messages. model: the vocabulary and the merges. n_vocab: the model's. ends: the ids
        that end a text."""
        vocab = model["vocab"]
        self.path = path
        self.tokenizer = tokenizer
        self.n_vocab = n_vocab
        self.eot = ends[0] if ends else -1
        self.ends = {*ends}
        self.id_to_bytes = dict.fromkeys(range(n_vocab), b"")
        for token, i in vocab.items():
            self.id_to_bytes[i] = to_bytes(token)
        added = tokenizer.get_added_tokens_decoder()
        self.added = added.keys() & self.id_to_bytes.keys()
        for i in self.added:
            self.id_to_bytes[i] = added[i].content.encode()
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        self.merges = ranked(pairs, vocab)
        self.lacking = {byte for char, byte in CHAR_TO_BYTE.items() if char not in vocab}
        self.said: set[str] = set()  # characters that were left out

    def encode(self, text, allowed_special=False):
        """Return the ids of a text, with those that the tokenizer puts around each. All added tokens are found in it.
        Raises UserError if the model was not made larger for one of them, and if the library fails.

        allowed_special: <|endoftext|> becomes the token that ends a text, if that has another name here.
        """
        if allowed_special and self.eot >= 0 and END_OF_TEXT.encode() not in self.id_to_bytes.values():
            text = text.replace(END_OF_TEXT, self.tokenizer.id_to_token(self.eot))
        try:
            with without_panic():
                ids = self.tokenizer.encode(text).ids
        except ValueError as error:
            raise UserError(f"{self.path}: the text cannot be encoded ({first_line(error)})") from None
        for i in ids:
            if i >= self.n_vocab:
                token = self.tokenizer.id_to_token(i)
                raise UserError(f"the text has the token {token!r}, and the model only the ids below {self.n_vocab}")
        self.say_what_is_unseen(text, ids)
        return ids

    def say_what_is_unseen(self, text: str, ids: list[int]) -> None:
        """Print the characters of a text for which the vocabulary lacks bytes, each once. An added token may hold them
        all the same."""
        seen = self.said.union(self.decode(ids))
        new = [char for char in dict.fromkeys(text) if char not in seen and self.lacking.intersection(char.encode())]
        if new:
            self.said.update(new)
            line = f"the vocabulary has no bytes for these characters, so the model does not see them: {' '.join(new)}"
            print(one_line(line), file=sys.stderr)


def to_bytes(token: str) -> bytes:
    """Return the bytes of a token: one for each character if all of them stand for bytes, else those of UTF-8."""
    return bytes(CHAR_TO_BYTE[char] for char in token) if CHAR_TO_BYTE.keys() >= {*token} else token.encode()


# ---- From the files to the encoder -----------------------------------------------------------------------------------


def read_encoder(folder: str, n_vocab: int) -> LibraryEncoder:
    """Return the Encoder of a folder, for a model of n_vocab ids. Raises UserError.

    The library gives the ids of a text, whatever its settings. The bytes of each id have to be those that it decodes.
    """
    files = read_files(folder)
    path = os.path.join(folder, "tokenizer.json" if files.whole else "vocab.json")
    try:
        with without_panic():
            about = files.whole or from_vocab_and_merges(folder)
            model = {"type": "BPE"} | about["model"] | {"dropout": None}  # tokenizers before 0.9 wrote no type
            check_model(model, n_vocab)
            tokens = tokens_to_add(files, about["added_tokens"])
            tokenizer = make_tokenizer(files, about, model, tokens)
            ends = end_tokens(files, tokens.named, tokenizer, n_vocab)
            encoder = LibraryEncoder(path, tokenizer, model, n_vocab, ends)
            check_bytes(encoder, tokenizer)
            return encoder
    except (LookupError, TypeError, AttributeError):
        raise bad_file(path, f"{UNUSABLE} (it lacks a part, or a part is not what it should be)") from None
    except Exception as error:  # the library raises plain ones
        merges = os.path.join(folder, "merges.txt")
        if not files.whole and other_file(merges):
            path = merges
        raise bad_file(path, f"{UNUSABLE} ({first_line(error)})") from None


def check_bytes(encoder: LibraryEncoder, tokenizer: "Tokenizer") -> None:
    ids = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    if encoder.decode(ids) != tokenizer.decode(ids, skip_special_tokens=False):
        raise ValueError("its tokens are not the bytes of a text")


def make_tokenizer(files: TokenizerFiles, about: dict, model: dict, tokens: AddedTokens) -> "Tokenizer":
    """Return a Tokenizer as transformers makes it. about: a tokenizer.json."""
    from tokenizers import Tokenizer

    config = files.config
    about = about | {"model": model, "truncation": None, "padding": None}  # settings of its training texts
    if files.is_gpt2s:
        about = with_gpt2s_parts(about, config.get("add_prefix_space", False))
    tokenizer = Tokenizer.from_str(json.dumps(about))
    tokenizer.add_tokens(added_tokens(about["added_tokens"], tokens))
    tokenizer.encode_special_tokens = config.get("split_special_tokens", False)
    if config.get("add_bos_token") and not files.whole:  # else its post-processor decides
        begin_with(tokenizer, text_of(tokens.named["bos_token"]))
    return tokenizer


def with_gpt2s_parts(about: dict, add_prefix_space: bool) -> dict:
    """Return a tokenizer.json with the vocabulary and the merges of this one, and the parts of GPT-2's."""
    spaces = BYTE_LEVEL | {"add_prefix_space": add_prefix_space}
    model = {name: about["model"][name] for name in ("type", "vocab", "merges")}
    parts: dict = {"normalizer": None, "pre_tokenizer": spaces, "decoder": BYTE_LEVEL, "added_tokens": []}
    return about | parts | {"model": model}


def begin_with(tokenizer: "Tokenizer", bos: str) -> None:
    """Let each text begin with the token bos."""
    from tokenizers import processors

    tokens = [(bos, tokenizer.token_to_id(bos))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=tokens)


# ---- Panics of their library, which is written in Rust ---------------------------------------------------------------


redirecting = taken_at_forks(Lock())


@contextlib.contextmanager
def without_panic() -> Iterator[None]:
    """Raise ValueError in place of the exception by which the library ends a thread, which no `except Exception`
    catches, and without the lines that it prints of it. The body of the `with` calls the library."""
    with redirecting, quiet_if_it_fails():
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a class that cannot be imported
                raise
            raise ValueError(f"the library tokenizers panics: {first_line(error)}") from None


@contextlib.contextmanager
def quiet_if_it_fails() -> Iterator[None]:
    """Hold back the lines that the body of the `with` writes to the system's standard error, and print them if the
    body succeeds: other threads write there too."""
    try:
        terminal = os.dup(2)
    except OSError:  # it was closed
        yield
        return
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
        held_back.seek(0)
        os.write(2, held_back.read())
