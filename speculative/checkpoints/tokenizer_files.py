"""The files of a folder that decide the tokens: a vocabulary, its merges, and the tokens that they name or
number beside those that merges make: which are added, and which end a text."""

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from speculative.blog.encoder import END_OF_TEXT
from speculative.checkpoints.config import read_object

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

Token = dict | str  # with its flags, or its text alone

# The classes of tokenizer_class that are read here. The first one has a pre-tokenizer of its own and takes the
# vocabulary, the merges and the post-processor alone from a tokenizer.json; the others take all of it.
GPT2 = "GPT2Tokenizer"
CLASSES = (GPT2, "PreTrainedTokenizer", "TokenizersBackend", "LlamaTokenizer")
# With a prefix or a suffix their library panics, or drops characters.
USUAL = {"type": "BPE", "continuing_subword_prefix": "", "end_of_word_suffix": ""}


class TokenizerFiles(NamedTuple):
    """The files of a folder that decide the tokens. Those that are not there are empty."""

    config: dict  # tokenizer_config.json
    whole: dict  # tokenizer.json
    names: dict  # special_tokens_map.json
    added: dict  # added_tokens.json
    settings: dict  # config.json
    generation: dict  # generation_config.json

    @property
    def is_gpt2s(self) -> bool:
        """True if transformers takes the vocabulary and the merges alone. Raises ValueError if the class that reads the
        tokenizer has rules of its own."""
        name = self.config.get("tokenizer_class") or self.settings.get("tokenizer_class") or GPT2
        name = str(name).removesuffix("Fast")
        if name not in CLASSES:
            raise ValueError(f"its tokenizer_class is {name[:50]}, not {', '.join(CLASSES)}")
        return name == GPT2 or not self.whole


def read_files(folder: str) -> TokenizerFiles:
    contents = []
    for name in ("tokenizer_config", "tokenizer", "special_tokens_map", "added_tokens", "config", "generation_config"):
        path = os.path.join(folder, f"{name}.json")
        contents.append(read_object(path) if os.path.isfile(path) else {})
    return TokenizerFiles(*contents)


def from_vocab_and_merges(folder: str) -> dict:
    """Return vocab.json and merges.txt as tokenizer.json would have them."""
    from tokenizers import ByteLevelBPETokenizer

    files = [os.path.join(folder, name) for name in ("vocab.json", "merges.txt")]
    return json.loads(ByteLevelBPETokenizer.from_file(*files).to_str())


def check_model(model: dict, n_vocab: int) -> None:
    """Raise ValueError if the vocabulary is not a byte-level BPE's, or another model's: it may have some ids that the
    model lacks, which only a text with such a token finds out."""
    for name, usual in USUAL.items():
        if (model.get(name) or usual) != usual:
            raise ValueError(f"its {name} is {model[name]!r}")
    ids = model["vocab"].values()
    if not ids:
        raise ValueError("it has no tokens")
    if "merges" not in model:
        raise ValueError("it has no merges")
    if sum(i < n_vocab for i in ids) <= len(ids) / 2:
        raise ValueError(f"it has ids up to {max(ids)}, and the model has {n_vocab} ids")


# ---- Tokens beside those that merges make ----------------------------------------------------------------------------


NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class AddedTokens(NamedTuple):
    """Tokens that no merge makes."""

    numbered: list[Token]  # in the order of their ids
    named: dict[str, Token]  # {"eos_token": "</s>", ...}


def tokens_to_add(files: TokenizerFiles, in_file: list[dict]) -> AddedTokens:
    """Return the tokens that the files number, and those that they name. in_file: those of tokenizer.json."""
    config, added = files.config, {}
    by_id = config.get("added_tokens_decoder")
    if by_id is None:  # a folder of an older version
        config, added = config | files.names, files.added
        by_id = {i: text for text, i in added.items()}
        by_id |= {token["id"]: token for token in in_file}
    numbered = [by_id[i] for i in sorted(by_id, key=int)]
    named = named_tokens(config, added)
    if files.is_gpt2s:
        named = dict.fromkeys(NAMED[:3], END_OF_TEXT) | named
    return AddedTokens(numbered, named)


def named_tokens(config: dict, added: dict) -> dict:
    """Return {name: token} of each setting that ends in _token, then of the extra special tokens.

    A token is a text, or an object with flags; for the texts in `added` the flags are dropped."""
    named = {}
    for name in (*NAMED, *config):
        token = config.get(name)
        text = text_of(token)
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text if text in added else token
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    return named | (extra if isinstance(extra, dict) else {text_of(token): token for token in extra})


def text_of(token: object) -> Any:
    """Return the text of a token, which some files store with its flags."""
    return token.get("content") if isinstance(token, dict) else token


def end_tokens(files: TokenizerFiles, named: dict, tokenizer: "Tokenizer", n_vocab: int) -> list[int]:
    """Return the ids of the tokens that end a text, those that the model and the tokenizer have: the one that the
    tokenizer names, and those of generation_config.json, else of config.json. <|endoftext|> ends it if they name
    none."""

    def usable(ids):  # a list, an id, or None
        listed = ids if isinstance(ids, list) else [ids]
        numbers = [i for i in listed if type(i) is int and 0 <= i < n_vocab]
        return [i for i in numbers if tokenizer.id_to_token(i) is not None]

    eos = text_of(named.get("eos_token", ""))
    of_tokenizer = usable(tokenizer.token_to_id(eos))
    of_model = usable(files.generation.get("eos_token_id"))
    if not of_model:
        of_model = usable(files.settings.get("eos_token_id"))
    return of_tokenizer + of_model or usable(tokenizer.token_to_id(END_OF_TEXT))


def added_tokens(in_file: list[Token], added: AddedTokens) -> list["AddedToken"]:
    """Return the tokens that are added to those in the file, as the library takes them: the numbered ones, then the
    named ones that neither has."""
    named = added.named
    tokens = [*added.numbered]
    there = set(map(text_of, [*in_file, *tokens]))
    unique = {repr(token): token for token in named.values()}  # with other flags it is another one: the last counts
    for token in unique.values():
        if text_of(token) not in there:
            tokens.append(token)
    special = set(map(text_of, named.values()))
    return [added_token(token, text_of(token) in special) for token in tokens]


def added_token(token: Token, is_special: bool) -> "AddedToken":
    """Return a token as the library takes it."""
    from tokenizers import AddedToken

    flags = {}
    if isinstance(token, dict):
        flags = {name: token[name] for name in FLAGS if name in token}
    if is_special:
        flags["special"] = True
    return AddedToken(text_of(token), **flags)
