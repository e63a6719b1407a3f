"""Hugging Face's tokenizers: tokenizer.json, or vocab.json and merges.txt. Their own library applies them.

OpenAI's form, encoder.json and vocab.bpe, is read by encoder.py. Both give an Encoder. Which files count, and which
tokens they add to the vocabulary in which order, is as in transformers 5: so are the ids.
"""

import json
import os
from typing import Any

from speculative.blog.encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from speculative.checkpoints.config import read_object
from speculative.checkpoints.disk import bad_file
from speculative.support.errors import UserError, first_line

# The classes of tokenizer_class that are read here. The first one has a pre-tokenizer of its own and takes the
# vocabulary, the merges and the post-processor alone from a tokenizer.json; the others take all of it.
GPT2 = "GPT2Tokenizer"
CLASSES = (GPT2, "PreTrainedTokenizer", "TokenizersBackend", "LlamaTokenizer")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}
# With a prefix or a suffix their library panics, or drops characters.
USUAL = {"type": "BPE", "continuing_subword_prefix": "", "end_of_word_suffix": ""}
SAMPLE = "It's 12 days,\nor so!"


class LibraryEncoder(Encoder):
    """An Encoder whose ids are those of a tokenizers.Tokenizer. Ids without a token have no bytes.

    Its vocabulary may lack bytes, which the library leaves out of a text.
    """

    def __init__(self, tokenizer: Any, model: dict, n_vocab: int, eot: int):
        """model: the vocabulary and the merges. n_vocab: the model's. eot: the id that ends a text, -1 if none does."""
        vocab = model["vocab"]
        added = {i: token.content.encode() for i, token in tokenizer.get_added_tokens_decoder().items() if i < n_vocab}
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        self.tokenizer = tokenizer
        self.eot = eot
        self.n_vocab = n_vocab
        self.added = {*added}
        self.id_to_bytes = dict.fromkeys(range(n_vocab), b"") | {i: to_bytes(token) for token, i in vocab.items()}
        self.id_to_bytes |= added
        self.merges = {(vocab[a], vocab[b]): (rank, vocab[a + b]) for rank, (a, b) in enumerate(pairs)}

    def encode(self, text, allowed_special=False):
        """Return the ids of a text, with those that the tokenizer puts around each. All added tokens are found in it.
        Raises UserError if the model was not made larger for one of them.

        allowed_special: <|endoftext|> becomes the token that ends a text, if that has another name here.
        """
        if allowed_special and self.eot >= 0 and END_OF_TEXT.encode() not in self.id_to_bytes.values():
            text = text.replace(END_OF_TEXT, self.tokenizer.id_to_token(self.eot))
        ids = self.tokenizer.encode(text).ids
        if unknown := [self.tokenizer.id_to_token(i) for i in ids if i >= self.n_vocab]:
            raise UserError(f"the text has the token {unknown[0]!r}, and the model only the ids below {self.n_vocab}")
        return ids


def to_bytes(token: str) -> bytes:
    """Return the bytes of a token: one for each character if all of them stand for bytes, else those of UTF-8."""
    return bytes(CHAR_TO_BYTE[char] for char in token) if CHAR_TO_BYTE.keys() >= {*token} else token.encode()


def read_encoder(folder: str, n_vocab: int) -> LibraryEncoder:
    """Return the Encoder of a folder, for a model of n_vocab ids. Raises UserError.

    The library gives the ids of a text, whatever its settings. The bytes of each id have to be those that it decodes.
    """
    from tokenizers import Tokenizer, processors

    config = read_if_there(folder, "tokenizer_config.json")
    whole = read_if_there(folder, "tokenizer.json")
    path = os.path.join(folder, "tokenizer.json" if whole else "vocab.json")
    try:
        about = whole or from_vocab_and_merges(folder)
        model = about["model"] | {"dropout": None}
        for name, usual in USUAL.items():
            if (model.get(name) or usual) != usual:
                raise ValueError(f"its {name} is {model[name]!r}")
        if (last := max(model["vocab"].values())) >= n_vocab:
            raise ValueError(f"it has ids up to {last}, and the model has {n_vocab} ids")
        numbered, special = tokens_to_add(folder, config, about["added_tokens"])
        about |= {"model": model, "truncation": None, "padding": None}  # of the texts that it was trained with
        if class_of(folder, config) == GPT2 or not whole:
            spaces = {"add_prefix_space": config.get("add_prefix_space", False)}
            about |= {"normalizer": None, "pre_tokenizer": BYTE_LEVEL | spaces, "decoder": BYTE_LEVEL}
            about |= {"added_tokens": [], "model": {key: model[key] for key in ("type", "vocab", "merges")}}
            special = dict.fromkeys(NAMED[:3], END_OF_TEXT) | special
        named = {text_of(token) for token in special.values()}
        known = {text_of(token) for token in [*about["added_tokens"], *numbered]}
        new = {repr(token): token for token in special.values()}  # with other flags it is another one: the last counts
        tokenizer = Tokenizer.from_str(json.dumps(about))
        tokens = [*numbered, *(token for token in new.values() if text_of(token) not in known)]
        tokenizer.add_tokens([added_token(token, text_of(token) in named) for token in tokens])
        tokenizer.encode_special_tokens = config.get("split_special_tokens", False)
        if config.get("add_bos_token") and not whole:  # else its post-processor decides
            bos = text_of(special["bos_token"])
            pairs = [(bos, tokenizer.token_to_id(bos))]
            tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=pairs)
        encoder = LibraryEncoder(tokenizer, model, n_vocab, end_token(folder, special, tokenizer, n_vocab))
        ids = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
        if encoder.decode(ids) != tokenizer.decode(ids, skip_special_tokens=False):
            raise ValueError("its tokens are not the bytes of a text")
        return encoder
    except UserError:
        raise
    except Exception as error:  # its kind depends on the fault, and the library raises plain ones
        raise bad_file(path, f"cannot be used as a byte-level BPE ({first_line(error)})") from None


def class_of(folder: str, config: dict) -> str:
    """Return the class of transformers that reads the tokenizer. Raises ValueError for one with rules of its own."""
    settings = read_if_there(folder, "config.json")
    name = str(config.get("tokenizer_class") or settings.get("tokenizer_class") or GPT2).removesuffix("Fast")
    if name not in CLASSES:
        raise ValueError(f"its tokenizer_class is {name[:50]}, not {', '.join(CLASSES)}")
    return name


def tokens_to_add(folder: str, config: dict, in_file: list[dict]) -> tuple[list[dict], dict[str, Any]]:
    """Return the tokens that the files number, in their order, and those that they name: {"eos_token": "</s>", ...}."""
    more: dict[str, int] = {}
    if "added_tokens_decoder" in config:
        numbered = {int(i): token for i, token in config["added_tokens_decoder"].items()}
    else:  # a folder of an older version
        config |= read_if_there(folder, "special_tokens_map.json")
        more = read_if_there(folder, "added_tokens.json")
        numbered = {i: {"content": text} for text, i in more.items()} | {token["id"]: token for token in in_file}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    names = [*NAMED, *(name for name in config if name.endswith("_token") and name not in NAMED)]
    texts = {name: text for name in names if isinstance(text := text_of(config.get(name)), str)}
    special = {name: text if text in more else config[name] for name, text in texts.items()}
    special |= extra if isinstance(extra, dict) else {text_of(token): token for token in extra}
    return [numbered[i] for i in sorted(numbered)], special


def added_token(token: Any, is_special: bool) -> Any:
    """Return a token, a text or an object with flags, as the library takes it."""
    from tokenizers import AddedToken

    flags = {name: token[name] for name in FLAGS if name in token} if isinstance(token, dict) else {}
    return AddedToken(text_of(token), **flags | ({"special": True} if is_special else {}))


def text_of(token: Any) -> Any:
    """Return the text of a token, which some files store with its flags."""
    return token.get("content") if isinstance(token, dict) else token


def end_token(folder: str, special: dict[str, Any], tokenizer: Any, n_vocab: int) -> int:
    """Return the id of the token that ends a text, of the first that the files name. -1 if the model has none."""
    ids = [tokenizer.token_to_id(text_of(special.get("eos_token", "")))]
    for name in ("generation_config.json", "config.json"):
        named = read_if_there(folder, name).get("eos_token_id")
        ids += named if isinstance(named, list) else [named]
    ids += [tokenizer.token_to_id(END_OF_TEXT)]
    there = (i for i in ids if type(i) is int and 0 <= i < n_vocab and tokenizer.id_to_token(i) is not None)
    return next(there, -1)


def read_if_there(folder: str, name: str) -> dict:
    path = os.path.join(folder, name)
    return read_object(path) if os.path.isfile(path) else {}


def from_vocab_and_merges(folder: str) -> dict:
    """Return vocab.json and merges.txt as tokenizer.json would have them."""
    from tokenizers import ByteLevelBPETokenizer

    files = (os.path.join(folder, name) for name in ("vocab.json", "merges.txt"))
    return json.loads(ByteLevelBPETokenizer.from_file(*files).to_str())
