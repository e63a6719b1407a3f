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
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SAMPLE = "It's 12 days,\nor so!"


class LibraryEncoder(Encoder):
    """An Encoder whose ids are those of a tokenizers.Tokenizer. Ids without a token have no bytes.

    Its vocabulary may lack bytes, which the library leaves out of a text.
    """

    def __init__(self, tokenizer, about: dict, n_vocab: int, eot: str | None):
        """about: the tokenizer as tokenizer.json has it. n_vocab: the model's. eot: the token that ends a text."""
        vocab = {text: i for text, i in about["model"]["vocab"].items() if CHAR_TO_BYTE.keys() >= {*text}}
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in about["model"]["merges"]]
        self.tokenizer = tokenizer
        self.eot_text = eot or END_OF_TEXT
        self.eot = -1 if eot is None else tokenizer.token_to_id(eot)  # -1 is no token's id
        self.n_vocab = n_vocab
        added = {token["id"]: token["content"].encode() for token in about["added_tokens"]}
        self.added = {*added}
        spelled = {i: bytes(CHAR_TO_BYTE[char] for char in token) for token, i in vocab.items()}
        self.id_to_bytes: dict[int, bytes] = dict.fromkeys(range(n_vocab), b"") | spelled | added
        self.merges = {(vocab[a], vocab[b]): (rank, vocab[a + b]) for rank, (a, b) in enumerate(pairs)}

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
    config = read_if_there(folder, "special_tokens_map.json") | read_if_there(folder, "tokenizer_config.json")
    try:
        if os.path.isfile(path):
            about = read_object(path)
        else:
            path = os.path.join(folder, "vocab.json")
            about = from_vocab_and_merges(folder, config)
        if (kind := about["model"].get("type", "BPE")) != "BPE":
            raise ValueError(f"it is a {kind}")
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):  # the library panics, or drops characters
            if about["model"].get(name):
                raise ValueError(f"{name} is {about['model'][name]!r}")
        about |= {"truncation": None, "padding": None}  # of the texts that it was trained with
        about["model"]["dropout"] = None
        about["added_tokens"] += special_tokens(config, about)
        # Some models were not made larger for their added tokens: they have no rows for them.
        about["added_tokens"] = [token for token in about["added_tokens"] if token["id"] < n_vocab]
        if "add_prefix_space" in config:
            about["pre_tokenizer"]["add_prefix_space"] = config["add_prefix_space"]
        tokenizer = Tokenizer.from_str(json.dumps(about))
        tokenizer.encode_special_tokens = config.get("split_special_tokens", False)
        if tokenizer.num_special_tokens_to_add(False):
            raise ValueError("it adds tokens to each text")
        encoder = LibraryEncoder(tokenizer, about, n_vocab, end_token(folder, config, tokenizer, n_vocab))
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


def text_of(token) -> str | None:
    """Return the text of a token, which some files store with its flags."""
    return token.get("content") if isinstance(token, dict) else token


def end_token(folder: str, config: dict, tokenizer, n_vocab: int) -> str | None:
    """Return the token that ends a text, <|endoftext|> or the first that the files name. None if the model has none."""
    named = [END_OF_TEXT, text_of(config.get("eos_token"))]
    for name in ("generation_config.json", "config.json"):
        ids = read_if_there(folder, name).get("eos_token_id")
        for i in ids if isinstance(ids, list) else [ids]:
            named += [tokenizer.id_to_token(i)] if type(i) is int and 0 <= i < n_vocab else []
    found = (text for text in named if isinstance(text, str) and tokenizer.token_to_id(text) is not None)
    return next(found, None)


def special_tokens(config: dict, about: dict) -> list[dict]:
    """Return the tokens of the vocabulary that the settings name, which transformers then finds in any text."""
    ids = about["model"]["vocab"]
    there = {token["content"] for token in about["added_tokens"]}
    named = dict.fromkeys(text for name in SPECIAL if isinstance(text := text_of(config.get(name)), str))
    return [FLAGS | {"content": text, "id": ids[text], "special": True} for text in named if text in ids.keys() - there]


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
