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
CHARS = {*BYTE_TO_CHAR.values()}
SAMPLE = "It's 12 days,\nor so!"


class LibraryEncoder(Encoder):
    """An Encoder whose ids are those of a tokenizers.Tokenizer. Ids without a token have no bytes."""

    def __init__(self, tokenizer, about: dict, n_vocab: int, eot: str):
        """about: the tokenizer as tokenizer.json has it. n_vocab: the model's. eot: the token that ends a text."""
        vocab = {text: i for text, i in about["model"]["vocab"].items() if CHARS.issuperset(text)}
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in about["model"]["merges"]]
        super().__init__({END_OF_TEXT: tokenizer.token_to_id(eot)} | vocab, pairs)
        self.tokenizer = tokenizer
        self.eot_text = eot
        self.n_vocab = n_vocab
        added = {token["id"]: token["content"].encode() for token in about["added_tokens"]}
        self.added = {*added}
        self.id_to_bytes: dict[int, bytes] = dict.fromkeys(range(n_vocab), b"") | self.id_to_bytes | added

    def encode(self, text, allowed_special=False):
        """Return the ids of a text. Added tokens are found in it, special ones too, as transformers has it.

        allowed_special: <|endoftext|> becomes the token that ends a text, whatever that is called here.
        """
        if allowed_special:
            text = text.replace(END_OF_TEXT, self.eot_text)
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def read_encoder(folder: str, n_vocab: int) -> LibraryEncoder:
    """Return the Encoder of a folder, for a model of n_vocab ids. Raises UserError.

    The library gives the ids of a text, whatever its settings. The bytes of each id have to be those that it decodes.
    """
    from tokenizers import Tokenizer

    path = os.path.join(folder, "tokenizer.json")
    config = read_if_there(folder, "tokenizer_config.json")
    try:
        about = read_object(path) if os.path.isfile(path) else from_vocab_and_merges(folder, config)
        about |= {"truncation": None, "padding": None}  # of the texts that it was trained with
        about["model"]["dropout"] = None
        # Some models were not made larger for their added tokens: they have no rows for them.
        about["added_tokens"] = [token for token in about["added_tokens"] if token["id"] < n_vocab]
        if "add_prefix_space" in config:
            about["pre_tokenizer"]["add_prefix_space"] = config["add_prefix_space"]
        tokenizer = Tokenizer.from_str(json.dumps(about))
        tokenizer.encode_special_tokens = config.get("split_special_tokens", False)
        eos = config.get("eos_token") or END_OF_TEXT
        eos = eos["content"] if isinstance(eos, dict) else eos
        eot = eos if tokenizer.token_to_id(END_OF_TEXT) is None else END_OF_TEXT
        if tokenizer.token_to_id(eot) is None:
            raise ValueError(f"it has no token {END_OF_TEXT}, and tokenizer_config.json names no other as eos_token")
        if tokenizer.num_special_tokens_to_add(False) or config.get("add_bos_token"):
            raise ValueError("it adds tokens to each text")
        encoder = LibraryEncoder(tokenizer, about, n_vocab, eot)
        ids = encoder.encode(SAMPLE)
        if encoder.decode(ids) != tokenizer.decode(ids, skip_special_tokens=False):
            raise ValueError("its tokens are not the bytes of a text")
        if any(tokenizer.token_to_id(token["content"]) != token["id"] for token in about["added_tokens"]):
            raise ValueError("the library gives its added tokens other ids")
        if len(encoder.id_to_bytes) > n_vocab:
            raise ValueError(f"it has ids up to {max(encoder.id_to_bytes)}, and the model has {n_vocab} ids")
        return encoder
    except UserError:
        raise
    except Exception as error:  # its kind depends on the fault, and the library raises plain ones
        raise bad_file(path, f"cannot be used as a byte-level BPE ({first_line(error)})") from None


def read_if_there(folder: str, name: str) -> dict:
    path = os.path.join(folder, name)
    return read_object(path) if os.path.isfile(path) else {}


def from_vocab_and_merges(folder: str, config: dict) -> dict:
    """Return vocab.json and merges.txt as tokenizer.json would have them, with the added tokens of other files."""
    from tokenizers import ByteLevelBPETokenizer

    files = (os.path.join(folder, name) for name in ("vocab.json", "merges.txt"))
    tokenizer = ByteLevelBPETokenizer.from_file(*files)
    tokens = {i: {"content": text} for text, i in read_if_there(folder, "added_tokens.json").items()}
    if (eot := tokenizer.token_to_id(END_OF_TEXT)) is not None:
        tokens[eot] = {"content": END_OF_TEXT, "special": True}
    tokens |= {int(i): token for i, token in config.get("added_tokens_decoder", {}).items()}
    added = [FLAGS | token | {"id": i} for i, token in sorted(tokens.items())]
    return json.loads(tokenizer.to_str()) | {"added_tokens": added}
