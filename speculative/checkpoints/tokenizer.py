"""Hugging Face's tokenizers: tokenizer.json, or vocab.json and merges.txt. Their own library applies them.

OpenAI's form, encoder.json and vocab.bpe, is read by encoder.py. Both give an Encoder.
"""

import json
import os

from speculative.blog.encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from speculative.checkpoints.config import read_object
from speculative.checkpoints.tensors import bad_file
from speculative.support.errors import UserError, first_line

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


class LibraryEncoder(Encoder):
    """An Encoder whose ids are those of a tokenizers.Tokenizer. Ids without a token have no bytes."""

    def __init__(self, tokenizer, about: dict, n_vocab: int, eot: str):
        """about: the tokenizer as JSON. n_vocab: the model's. eot: the token that ends a text."""
        vocab = about["model"]["vocab"]
        char_to_byte = {char: byte for byte, char in BYTE_TO_CHAR.items()}
        self.tokenizer = tokenizer
        self.eot_text = eot
        self.n_vocab = n_vocab
        self.eot = tokenizer.token_to_id(eot)
        self.added = {token["id"] for token in about["added_tokens"]}
        self.id_to_bytes = dict.fromkeys(range(n_vocab), b"")
        for token, i in vocab.items():
            in_bytes = char_to_byte.keys() >= {*token}
            self.id_to_bytes[i] = bytes(char_to_byte[char] for char in token) if in_bytes else token.encode()
        self.id_to_bytes |= {token["id"]: token["content"].encode() for token in about["added_tokens"]}
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in about["model"]["merges"]]
        self.merges = {
            (vocab[left], vocab[right]): (rank, vocab[left + right]) for rank, (left, right) in enumerate(pairs)
        }

    def encode(self, text, allowed_special=False):
        """Return the ids of a text. Added tokens are found in it, but <|endoftext|> only if allowed_special."""
        self.tokenizer.encode_special_tokens = not allowed_special and END_OF_TEXT in text
        if allowed_special:
            text = text.replace(END_OF_TEXT, self.eot_text)
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def read_encoder(folder: str, n_vocab: int) -> LibraryEncoder:
    """Return the Encoder of a folder, for a model of n_vocab ids. Raises UserError."""
    from tokenizers import Tokenizer

    path = os.path.join(folder, "tokenizer.json")
    config = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config |= read_if_there(os.path.join(folder, name))
    try:
        about = read_object(path) if os.path.isfile(path) else from_vocab_and_merges(folder)
        kinds = about["model"].get("type", "BPE"), about["decoder"]["type"], about["pre_tokenizer"]["type"]
        if kinds != ("BPE", "ByteLevel", "ByteLevel"):
            raise ValueError(f"its model, decoder and pre_tokenizer are {', '.join(kinds)}, not a byte-level BPE")
        add_tokens(about, config, read_if_there(os.path.join(folder, "added_tokens.json")), n_vocab)
        if "add_prefix_space" in config:
            about["pre_tokenizer"]["add_prefix_space"] = config["add_prefix_space"]
        tokenizer = Tokenizer.from_str(json.dumps(about))
        check(about, config, tokenizer, n_vocab)
        eos = config.get("eos_token")
        eos = eos["content"] if isinstance(eos, dict) else eos
        eot = END_OF_TEXT if tokenizer.token_to_id(END_OF_TEXT) is not None else eos
        if eot is None or tokenizer.token_to_id(eot) is None:
            raise ValueError(f"it has no token {END_OF_TEXT}, and tokenizer_config.json names no other as eos_token")
        return LibraryEncoder(tokenizer, about, n_vocab, eot)
    except UserError:
        raise
    except Exception as error:  # its kind depends on the fault, and the library raises plain ones
        raise bad_file(path, f"cannot be used as a tokenizer ({first_line(error)})") from None


def read_if_there(path: str) -> dict:
    return read_object(path) if os.path.isfile(path) else {}


def from_vocab_and_merges(folder: str) -> dict:
    """Return vocab.json and merges.txt as tokenizer.json would have them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    files = (os.path.join(folder, name) for name in ("vocab.json", "merges.txt"))
    tokenizer = Tokenizer(models.BPE.from_file(*files))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return json.loads(tokenizer.to_str())


def add_tokens(about: dict, config: dict, old: dict, n_vocab: int) -> None:
    """Put the added tokens of all files into a tokenizer's list. Leaves out those for which the model has no row.

    old: added_tokens.json. A later file overrides an earlier one. <|endoftext|> of a vocabulary is always one.
    """
    vocab = about["model"]["vocab"]
    tokens = {text: FLAGS | {"id": i, "content": text, "normalized": True} for text, i in old.items()}
    if END_OF_TEXT in vocab:
        tokens[END_OF_TEXT] = FLAGS | {"id": vocab[END_OF_TEXT], "content": END_OF_TEXT, "special": True}
    listed = [about_it | {"id": int(i)} for i, about_it in config.get("added_tokens_decoder", {}).items()]
    for token in [*listed, *(about.get("added_tokens") or [])]:
        tokens[token["content"]] = FLAGS | token
    fitting = [token for token in tokens.values() if token["id"] < n_vocab]
    about["added_tokens"] = sorted(fitting, key=lambda token: token["id"])


def check(about: dict, config: dict, tokenizer, n_vocab: int) -> None:
    """Raise ValueError if a tokenizer does more than this product can follow, or its ids are not those of the model."""
    if tokenizer.num_special_tokens_to_add(False) or config.get("add_bos_token") or about["model"].get("dropout"):
        raise ValueError("it adds tokens to each text, or drops merges at random")
    vocab = about["model"]["vocab"]
    for text, i in vocab.items():
        if i >= n_vocab:
            raise ValueError(f"it gives {text!r:.50} the id {i}, and the model has {n_vocab} ids")
    if missing := [byte for byte, char in BYTE_TO_CHAR.items() if char not in vocab]:
        raise ValueError(f"it has no token for the byte {missing[0]}")
    for token in about["added_tokens"]:
        found = tokenizer.token_to_id(token["content"])
        if found != token["id"]:
            raise ValueError(f"it gives {token['content']!r:.50} the id {token['id']}, and the library {found}")
