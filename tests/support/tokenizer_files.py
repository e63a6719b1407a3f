"""Tokenizers in the files of Hugging Face's library, and texts that tell them apart."""

import json
import random

from tiny import ROOT

from encoder import END_OF_TEXT
from speculative.checkpoints.tokenizer import BYTE_LEVEL
from speculative.checkpoints.tokenizer_files import FLAGS

# Text that walks every branch of the pattern more often than random characters do.
PIECES = ["'s", "'LL", "'", " ", "  ", "\t", "\n", "\r\n", "\x00", "\x1c", "\x85", "\xa0", "\u3000", "\ufeff"]
PIECES += ["the", "é", "e\u0301", "12", "²", "Ⅷ", "...", "_", "日本", "🙂", "👩‍👧"]
PIECES += [END_OF_TEXT, "<|endof", "text|>"]

TINY = ROOT / "models" / "tiny-target"


def bundled_vocabulary():
    vocab = json.loads((TINY / "encoder.json").read_text(encoding="utf-8"))
    merges = (TINY / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    return vocab, [tuple(merge.split(" ")) for merge in merges]


def byte_level(model, prefix=False):
    """A tokenizer of Hugging Face's library."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def make_tokenizer(added=()):
    """The same from OpenAI's files."""
    from tokenizers import models

    vocab, merges = bundled_vocabulary()
    tokenizer = byte_level(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens([END_OF_TEXT])
    tokenizer.add_tokens(list(added))
    return tokenizer


ADDED = ["[PAD]", "[PAD][", "<|user|>", "foo bar", "<mask>", "<right>", "word"]


def strings(n):
    """Texts with all that decides where a word or an added token ends."""
    rng = random.Random(0)
    pieces = [(TINY / "held_out.txt").read_text(encoding="utf-8")[i : i + 50] for i in range(0, 2000, 70)]
    pieces += ADDED + PIECES
    return ["".join(rng.choices(pieces, k=rng.randint(0, 9))) for _ in range(n)]


def write_tokenizer(folder, changes, files):
    """Write the bundled vocabulary as tokenizer.json with other parts, or as vocab.json and merges.txt (changes is
    None), and other files {name: content}."""
    if changes is None:
        vocab, merges = bundled_vocabulary()
        (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
        files = {"vocab.json": vocab} | files
    else:
        files = {"tokenizer.json": json.loads(make_tokenizer().to_str()) | changes} | files
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def token(text, **flags):
    return dict.fromkeys(FLAGS, False) | {"content": text} | flags


def added(*tokens):
    """The added tokens in tokenizer.json: <|endoftext|>, and these from id 2048 on."""
    return {"added_tokens": [{"id": i} | t for i, t in enumerate([token(END_OF_TEXT, special=True), *tokens], 2047)]}


def decoder(*tokens):
    """The same in tokenizer_config.json."""
    return {"added_tokens_decoder": {str(t.pop("id")): t for t in added(*tokens)["added_tokens"]}}


def template(single, *texts):
    """A post-processor that puts tokens around each text."""
    vocab = bundled_vocabulary()[0]
    special = {text: {"id": text, "ids": [vocab[text]], "tokens": [text]} for text in texts}
    kinds = [(part, "SpecialToken" if part in texts else "Sequence") for part in single]
    parts = [{kind: {"id": part, "type_id": 0}} for part, kind in kinds]
    return {"post_processor": {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": special}}


CUT = {"direction": "Right", "max_length": 12, "strategy": "LongestFirst", "stride": 0}
FILLED = {"strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": None}
FILLED |= {"pad_id": 2047, "pad_type_id": 0, "pad_token": END_OF_TEXT}
MODEL = json.loads(make_tokenizer().to_str())["model"]
OF_2020 = {name: value for name, value in MODEL.items() if name not in ("type", "byte_fallback", "ignore_merges")}
OF_2020 |= {"merges": [" ".join(pair) for pair in MODEL["merges"]]}
OWN = {"tokenizer_class": "PreTrainedTokenizerFast"}  # all of tokenizer.json counts
MORE = [token("[PAD]"), token("<sep>", special=True, lstrip=True), token("<mask>", special=True, rstrip=True)]
MORE += [token("was", single_word=True)]
LOWER = {"normalizer": {"type": "Lowercase"}}
DIGITS = [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]
DIGITS = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": DIGITS}}
BEFORE, AROUND = template([END_OF_TEXT, "A"], END_OF_TEXT), template([END_OF_TEXT, "A", "the"], END_OF_TEXT, "the")
TEXT = f"It was <sep> WAS{END_OF_TEXT}[PAD] 12<mask> x"
CONFIG, MAP, TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NAMES = {"eos_token": "<sep>", "pad_token": token("[PAD]"), "additional_special_tokens": ["<mask>", "was"]}
IDS = {"<sep>": 2049, "[PAD]": 2048}
PLAIN = [650, 304, 220, 27, 323, 79, 29, 407, 32, 50, 2047, 58, 47, 32, 35, 60, 1908, 17, 27, 76, 1761, 29, 220, 87]
SPACED = [490, *PLAIN[1:11], 220, *PLAIN[11:]]
SMALL = [272, *PLAIN[1:7], 304, 2047, 58, 79, 343, 60, *PLAIN[16:]]
ADDED_IDS = [650, 220, 2051, 2049, 407, 32, 50, 2047, 2048, 1908, 17, 2050, 87]
NAMED_IDS = [650, 220, 2051, 220, 2048, 407, 32, 50, 2047, 2049, 1908, 17, 2050, 220, 87]
SPLIT = [*ADDED_IDS[:3], *PLAIN[2:10], 27, 91, 1292, 78, 702, 68, 1047, 91, 29, 2048, *PLAIN[16:]]
PAD = [*PLAIN[:11], 2048, *PLAIN[16:]]
SEP_PAD = [650, 304, 220, 2049, *PAD[7:]]
# What tokenizer.json has (None: vocab.json and merges.txt are there); the other files; the ids of transformers 5.24.
TOKENIZERS = [
    ({}, {}, PLAIN),
    ({}, {"config.json": {"model_type": "gpt2"} | OWN}, PLAIN),
    ({"model": MODEL | {"merges": [" ".join(pair) for pair in MODEL["merges"]]}}, {}, PLAIN),
    ({"model": MODEL | {"dropout": 1.0}}, {}, PLAIN),
    ({"model": OF_2020}, {}, PLAIN),
    ({"model": OF_2020}, {CONFIG: OWN}, PLAIN),
    ({"model": OF_2020} | added(*MORE), {CONFIG: OWN}, ADDED_IDS),
    ({"truncation": CUT}, {CONFIG: OWN}, PLAIN),
    ({"padding": FILLED}, {}, PLAIN),
    (LOWER, {}, PLAIN),
    (LOWER, {CONFIG: OWN}, SMALL),
    (DIGITS, {}, PLAIN),
    (DIGITS, {CONFIG: OWN}, [*PLAIN[:16], 220, 16, *PLAIN[17:]]),
    ({}, {CONFIG: {"add_prefix_space": True}}, SPACED),
    ({}, {CONFIG: OWN | {"add_prefix_space": True}}, PLAIN),
    ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}}, {CONFIG: OWN}, SPACED),
    (BEFORE, {}, [2047, *PLAIN]),
    (AROUND, {CONFIG: OWN}, [2047, *PLAIN, 1195]),
    ({}, {CONFIG: {"add_bos_token": True}}, PLAIN),
    (added(*MORE), {}, ADDED_IDS),
    (added(*MORE), {CONFIG: OWN}, ADDED_IDS),
    (added(*MORE), {CONFIG: OWN | {"split_special_tokens": True}}, SPLIT),
    (added(*MORE), {CONFIG: decoder(MORE[1], MORE[0])}, [650, 304, 2048, *PLAIN[7:11], 2049, *PLAIN[16:]]),
    ({}, {CONFIG: OWN | decoder(*MORE)}, ADDED_IDS),
    ({}, {CONFIG: OWN | {"added_tokens_decoder": {"9": token("[PAD]")}}}, PAD),
    ({}, {TOKENS: IDS}, SEP_PAD),
    ({}, {TOKENS: IDS, CONFIG: OWN | {"eos_token": "<sep>"}}, SEP_PAD),
    ({}, {MAP: NAMES}, NAMED_IDS),
    ({}, {MAP: NAMES, CONFIG: OWN | decoder()}, PLAIN),
    ({}, {CONFIG: NAMES | {"pad_token": "[PAD]"}}, NAMED_IDS),
    ({}, {CONFIG: OWN | {"extra_special_tokens": ["[PAD]", "was"]}}, [650, 220, 2049, *PAD[2:]]),
    (
        {},
        {CONFIG: OWN | {"image_token": "<mask>", "extra_special_tokens": {"audio_token": "[PAD]"}}},
        [*PLAIN[:11], 2049, 1908, 17, 2048, 220, 87],
    ),
    ({}, {TOKENS: {"<sep>": 2047}, MAP: {"unk_token": token("<sep>", lstrip=True)}}, [650, 304, 220, 2048, *PLAIN[7:]]),
    ({}, {MAP: {"eos_token": MORE[1], "pad_token": "<sep>", "cls_token": MORE[1]}}, [650, 304, 220, 2048, *PLAIN[7:]]),
    (None, {}, PLAIN),
    (None, {CONFIG: {"add_bos_token": True}}, [2047, *PLAIN]),
    (None, {CONFIG: {"add_prefix_space": True}}, SPACED),
    (None, {CONFIG: decoder(*MORE)}, ADDED_IDS),
    (None, {TOKENS: IDS, MAP: NAMES}, [650, 220, 2051, 220, 2049, *PAD[7:14], 2050, 220, 87]),
]
