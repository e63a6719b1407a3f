"""The files of a folder that decide the tokens: a vocabulary, its merges, and settings."""

import json
import os
from typing import NamedTuple

from speculative.checkpoints.config import read_object

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
