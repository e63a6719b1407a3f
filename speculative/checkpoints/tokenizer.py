"""Hugging Face's files of a byte-level BPE: tokenizer.json, or vocab.json and merges.txt, and the tokens added to them.

Some settings of such a tokenizer would give other ids than encoder.py. They are refused in a line that names them.
"""

import json
import re
from itertools import chain
from pathlib import Path

from encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from speculative.checkpoints.added import MOST_LETTERS, Added, Finder
from speculative.checkpoints.config import read_object
from speculative.checkpoints.tensors import bad_file
from speculative.support.errors import UserError
from speculative.support.files import read_small

MOST_ID = 2**20
MOST_ADDED = 2**14
ALPHABET = set(BYTE_TO_CHAR.values())
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")

# {setting: the values with which the ids are those of encoder.py}. None stands for a setting that is missing.
CONFIG_MUST_BE = {
    "tokenizer_class": CLASSES,
    "add_bos_token": (None, False),
    "add_eos_token": (None, False),
    "add_prefix_space": (None, False, True),
}
TOKENIZER_MUST_BE = {
    "normalizer": (None,),
    "pre_tokenizer.type": ("ByteLevel",),
    "pre_tokenizer.use_regex": (None, True),
    "pre_tokenizer.add_prefix_space": (None, False, True),
    "model.type": (None, "BPE"),
    "model.dropout": (None, 0),
    "model.continuing_subword_prefix": (None, ""),
    "model.end_of_word_suffix": (None, ""),
    "model.ignore_merges": (None, False),
    "post_processor.type": (None, "ByteLevel", "TemplateProcessing"),
    "post_processor.special_tokens": (None, {}),
    "decoder.type": (None, "ByteLevel"),
}


class AddedTokensEncoder(Encoder):
    """An Encoder with tokens that were added to its vocabulary, and ids that stand for no text.

    Added tokens are found wherever the text has them; <|endoftext|> where allowed_special says so, as ever.
    """

    def __init__(self, vocab, pairs, added, n_vocab, eot, prefix_space=False):
        """vocab {token: id} and pairs as for Encoder; added {text: Added}. n_vocab: the model's, which may be more.

        eot: the text of the token that ends a text. prefix_space: whether a text that begins without one gets a space.
        """
        in_bytes = {token: i for token, i in vocab.items() if ALPHABET.issuperset(token)}
        made = [pair for pair in pairs if in_bytes.keys() >= {*pair, "".join(pair)}]  # no text leads to the others
        super().__init__({**in_bytes, END_OF_TEXT: added[eot].id}, made)
        self.n_vocab = n_vocab
        self.prefix_space = prefix_space
        as_they_are = {token: i for token, i in vocab.items() if token not in in_bytes}
        as_they_are |= {text: token.id for text, token in added.items()}
        self.id_to_bytes = {i: self.id_to_bytes.get(i, b"") for i in range(n_vocab)}  # also ids that nothing has
        self.id_to_bytes |= {i: text.encode("utf-8", "replace") for text, i in as_they_are.items()}
        self.tokens = {END_OF_TEXT: added[eot], **added}
        self.added = {token.id for token in added.values()}
        first = {text: token for text, token in self.tokens.items() if not token.normalized}
        then = {text: token for text, token in self.tokens.items() if token.normalized}
        self.finders = [Finder(tokens) for tokens in (first, then) if tokens]

    def encode(self, text, allowed_special=False):
        skipped = set() if allowed_special else {END_OF_TEXT}
        ids = []
        for part in self.cut(text, skipped):
            if isinstance(part, int):
                ids.append(part)
            elif part:
                ids += super().encode(" " * (self.prefix_space and part[0] != " ") + part)
        return ids

    def cut(self, text, skipped):
        """The ids of the added tokens in a text and the pieces of text between them, in order."""
        parts = [text]
        for finder in self.finders:
            cut = [[part] if isinstance(part, int) else finder.cut(part, skipped) for part in parts]
            parts = [*chain(*cut)]
        return parts


def read_encoder(folder: str | Path, n_vocab: int) -> AddedTokensEncoder:
    """The Encoder of a folder with Hugging Face's files, for a model of n_vocab ids. Raises UserError."""
    path = Path(folder, "tokenizer.json")
    config_path = Path(folder, "tokenizer_config.json")
    config = {}
    for source in (Path(folder, "special_tokens_map.json"), config_path):
        config |= read_object(source) if source.exists() else {}
    check_settings(config_path, config, CONFIG_MUST_BE)
    prefix_space = False
    added = {}
    if path.exists():
        tokenizer = read_object(path)
        check_settings(path, tokenizer, TOKENIZER_MUST_BE)
        prefix_space = setting(tokenizer, "pre_tokenizer.add_prefix_space")
        vocab = checked_vocabulary(path, setting(tokenizer, "model.vocab"))
        pairs = checked_merges(path, setting(tokenizer, "model.merges"), vocab)
    else:
        tokenizer = {}
        path = Path(folder, "vocab.json")
        vocab = checked_vocabulary(path, read_object(path))
        pairs = read_merges(Path(folder, "merges.txt"), vocab)
    for source, entries in added_entries(Path(folder), config_path, config, path, tokenizer):
        added |= checked_added(source, entries, vocab)
    names = [text_of(config.get(name)) for name in NAMED]
    added = {text: Added(vocab[text]) for text in (END_OF_TEXT, *names) if text in vocab} | added
    if most := [text for text, i in vocab.items() if i >= n_vocab and text not in added]:
        raise bad_file(path, f"gives {most[0]!r:.50} the id {vocab[most[0]]}, and the model has {n_vocab} ids")
    vocab = checked_vocabulary(path, {text: i for text, i in vocab.items() if i < n_vocab})
    added = {text: token for text, token in added.items() if token.id < n_vocab}  # the model was not made larger
    eot = END_OF_TEXT if END_OF_TEXT in added else text_of(config.get("eos_token"))
    if eot not in added:
        raise bad_file(path, f"has no token {END_OF_TEXT}, and tokenizer_config.json names no other as eos_token")
    return AddedTokensEncoder(vocab, pairs, added, n_vocab, eot, bool(config.get("add_prefix_space", prefix_space)))


def added_entries(folder, config_path, config, path, tokenizer):
    """(file, the added tokens that it lists) for all files that may list some. A later one overrides an earlier one."""
    if (old := folder / "added_tokens.json").exists():
        yield old, [{"content": text, "id": i, "normalized": True} for text, i in read_object(old).items()]
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(isinstance(entry, dict) for entry in decoder.values()):
        raise bad_file(config_path, "added_tokens_decoder is no object of objects")
    ids = {i: int(i) if re.fullmatch("[0-9]{1,7}", i) else None for i in decoder}
    yield config_path, [{**entry, "id": ids[i]} for i, entry in decoder.items()]
    yield path, tokenizer.get("added_tokens") or []


def text_of(token):
    """A token of the settings, which is a text or an object that has it -> the text; None for anything else."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def checked_added(path, entries, vocab):
    """[{"content": text, "id": i, ...}] -> {text: Added}"""
    if not isinstance(entries, list) or len(entries) > MOST_ADDED:
        raise bad_file(path, f"added tokens should be a list of at most {MOST_ADDED}")
    added = {}
    for entry in entries:
        entry = entry if isinstance(entry, dict) else {}
        text = entry.get("content")
        token = Added(**{name: entry.get(name) for name in Added._fields})
        if not text or not isinstance(text, str) or type(token.id) is not int or not 0 <= token.id < MOST_ID:
            raise bad_file(path, f"should give each added token a text and an id from 0 to {MOST_ID - 1}")
        if len(text) > MOST_LETTERS:
            raise bad_file(path, f"adds a token of {len(text):,} characters, and {MOST_LETTERS:,} are the most")
        if vocab.get(text, token.id) != token.id:
            raise bad_file(path, f"gives {text!r:.50} the id {token.id}, and the vocabulary {vocab[text]}")
        added[text] = token
    return added


def checked_vocabulary(path, vocab):
    """{token: id}, the 256 bytes among them."""
    ids = list(vocab.values()) if isinstance(vocab, dict) else [None]
    if any(type(i) is not int or not 0 <= i < MOST_ID for i in ids) or len(set(ids)) < len(ids):
        raise bad_file(path, f"should give each token another id, from 0 to {MOST_ID - 1}")
    if missing := [byte for byte, char in BYTE_TO_CHAR.items() if char not in vocab]:
        raise bad_file(path, f"has no token for the byte {missing[0]}, so not every text has an encoding")
    return vocab


def checked_merges(path, merges, vocab):
    """["left right"] or [["left", "right"]] -> [(left, right)]"""
    if not isinstance(merges, list):
        raise bad_file(path, "lacks the merges of a byte-level BPE")
    pairs = []
    for number, merge in enumerate(merges, start=1):
        pair = tuple(merge.split(" ") if isinstance(merge, str) else merge if isinstance(merge, list) else ())
        if (
            len(pair) != 2
            or not all(isinstance(token, str) for token in pair)
            or not vocab.keys() >= {*pair, "".join(pair)}
        ):
            raise bad_file(path, f"merge {number} should be two tokens that make a third, not {merge!r:.40}")
        pairs.append(pair)
    return pairs


def read_merges(path, vocab):
    """merges.txt: one merge a line. Some files begin with a line "#version: ..."."""
    try:
        lines = read_small(path).rstrip("\n").split("\n")
    except ValueError as error:
        raise bad_file(path, str(error)) from error
    return checked_merges(path, [line for line in lines if not line.startswith("#version")], vocab)


def setting(tokenizer, name):
    """ "model.type" of {"model": {"type": "BPE"}} is "BPE"; None where there is none."""
    for key in name.split("."):
        tokenizer = tokenizer.get(key) if isinstance(tokenizer, dict) else None
    return tokenizer


def check_settings(path, settings, must_be):
    for name, allowed in must_be.items():
        if (value := setting(settings, name)) not in allowed:
            known = " or ".join(json.dumps(value) for value in allowed if value is not None) or "null"
            raise UserError(f"{path}: {name} is {json.dumps(value)[:60]}, and is supported only as {known}")
