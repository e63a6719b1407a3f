"""Hugging Face's tokenizers: their ids are those of transformers 5, or they are refused by their kind."""

import json
import os
import random
from unittest.mock import Mock

import pytest
from test_encoder import PIECES
from tiny import ROOT, refusal

from encoder import BYTE_TO_CHAR, END_OF_TEXT, StreamDecoder
from speculative.checkpoints.added_tokens import FLAGS
from speculative.checkpoints.tokenizer import BYTE_LEVEL, read_encoder
from speculative.run.session import Session
from speculative.support.panics import without_panic

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


@pytest.mark.parametrize("number", range(len(TOKENIZERS)))
def test_the_ids_are_those_of_transformers(number, tmp_path):
    changes, files, ids = TOKENIZERS[number]
    write_tokenizer(tmp_path, changes, files)
    assert read_encoder(tmp_path, 2060).encode(TEXT) == ids


OTHER_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@pytest.mark.parametrize("alphabet", [True, False])
@pytest.mark.parametrize("special", [(), (END_OF_TEXT,), OTHER_SPECIAL])
@pytest.mark.parametrize(("n_lines", "settings"), [(3, {}), (200, {}), (200, {"ignore_merges": True})])
def test_trained_tokenizers_give_the_ids_and_texts_of_their_library(alphabet, special, n_lines, settings, tmp_path):
    """Without an alphabet the bytes that have no token are left out."""
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = byte_level(models.BPE(**settings), prefix=n_lines == 200)
    how = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()} if alphabet else {}
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*special], show_progress=False, **how)
    tokenizer.train_from_iterator((TINY / "held_out.txt").read_text("utf-8").splitlines()[:n_lines], trainer)
    write_tokenizer(tmp_path, json.loads(tokenizer.to_str()), {CONFIG: OWN, "config.json": {"eos_token_id": 2}})
    encoder = read_encoder(tmp_path, tokenizer.get_vocab_size())
    assert encoder.eot == 2
    for text in [*strings(40), "".join(special), "né\u0301 日本 🦄"]:
        ids = tokenizer.encode(text).ids
        assert encoder.encode(text) == ids
        assert encoder.decode(ids) == tokenizer.decode(ids, skip_special_tokens=False)


def test_tokens_and_ids_of_which_the_other_has_none(tmp_path):
    write_tokenizer(tmp_path, added(token("[PAD]"), token("too many")), {})
    large = read_encoder(tmp_path, 2100)
    assert large.decode([*large.encode("a b"), *range(2050, 2100)]) == "a b"
    small = read_encoder(tmp_path, 2049)  # a model that was not made larger for the second
    assert small.decode(small.encode(f"a{END_OF_TEXT}[PAD]")) == f"a{END_OF_TEXT}[PAD]"
    assert "the token 'too many', and the model only the ids below 2049" in refusal(small.encode, "a too many")


def test_a_vocabulary_with_some_ids_more_than_the_model_has(tmp_path):
    vocab, merges = MODEL["vocab"] | {"qj": 2048, "xq": 2049}, [*MODEL["merges"], ["q", "j"], ["x", "q"]]
    write_tokenizer(tmp_path, {"model": MODEL | {"vocab": vocab, "merges": merges}}, {})
    encoder = read_encoder(tmp_path, 2048)
    assert encoder.decode(encoder.encode("It was x q")) == "It was x q"
    assert refusal(encoder.encode, "a xq") == "the text has the token 'xq', and the model only the ids below 2048"


LETTERS = {char: i for i, char in enumerate(BYTE_TO_CHAR.values(), 2)}
SENTENCE = {"model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1} | LETTERS, "merges": []}}
SENTENCE |= {"added_tokens": [{"id": i} | token(text, special=True) for i, text in enumerate(("<s>", "</s>"))]}


@pytest.mark.parametrize(
    ("files", "eot"),
    [
        ({}, -1),
        ({MAP: {"eos_token": "</s>"}}, 1),
        ({MAP: {"eos_token": "</s>"}, CONFIG: {"eos_token": "<s>"}}, 1),
        ({MAP: {"eos_token": "</s>"}, CONFIG: {"eos_token": "<s>"} | decoder()}, 0),
        ({"config.json": {"eos_token_id": 1}}, 1),
        ({"config.json": {"eos_token_id": 50256}}, -1),  # GPT-2's, which a smaller vocabulary does not have
        ({"config.json": {"eos_token_id": 0}, "generation_config.json": {"eos_token_id": [1, 0]}}, 1),
        ({"config.json": {"eos_token_id": 0}, CONFIG: {"eos_token": {"content": "</s>"}}}, 1),
        ({"config.json": {"eos_token_id": True}, CONFIG: {"eos_token": "not there"}}, -1),
    ],
)
def test_the_end_token_is_found_in_each_file_that_may_name_it(files, eot, tmp_path):
    write_tokenizer(tmp_path, SENTENCE, files)
    encoder = read_encoder(tmp_path, 258)
    assert encoder.eot == eot
    if eot < 0:
        session = Mock(encoder=encoder, max_prompt_bytes=32, options=Mock(special=True))
        assert Session.encode(session, "<s>a") == [0, LETTERS["a"]]
        assert "the model has no end token to begin with" in refusal(Session.encode, session, "")
    else:
        assert encoder.encode(f"a{END_OF_TEXT}", allowed_special=True) == [LETTERS["a"], eot]
        assert encoder.to_bytes([0, 1]) == b"<s></s>"


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"config.json": {"eos_token_id": [1, 0]}}, {0, 1}),
        ({"config.json": {"eos_token_id": [1, 0]}, "generation_config.json": {"eos_token_id": [5, 6]}}, {5, 6}),
        ({"generation_config.json": {"eos_token_id": 5}, CONFIG: {"eos_token": "</s>"}}, {1, 5}),
        ({"generation_config.json": {"eos_token_id": [5, 999, None]}}, {5}),
        ({MAP: {"eos_token": "</s>"}}, {1}),
        ({}, set()),
    ],
)
def test_each_of_several_end_tokens_ends_a_text(files, ends, tmp_path):
    write_tokenizer(tmp_path, SENTENCE, files)
    encoder = read_encoder(tmp_path, 258)
    assert encoder.ends == ends
    for i in (0, 1, 5, 6):
        text = StreamDecoder(encoder, END_OF_TEXT)
        shown = text.push([9, i, 10])
        assert text.stopped == (i in ends)
        assert shown == encoder.decode([9] if i in ends else [9, i, 10])


def test_a_panic_of_the_library_is_one_line(tmp_path, capfd):
    """Here an added token of which its normalizer leaves nothing. What others write at that time is not lost."""
    accents = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}}
    write_tokenizer(tmp_path, accents | added(token("\u0301", normalized=True)), {CONFIG: OWN})
    encoder = read_encoder(tmp_path, 2049)
    line = refusal(encoder.encode, "£")
    assert line.startswith(f"{tmp_path / 'tokenizer.json'}: the text cannot be encoded (the library tokenizers panics")
    assert capfd.readouterr().err == ""
    with without_panic():
        os.write(2, b"a line")
    assert capfd.readouterr().err == "a line"
    assert encoder.encode("It") == [40, 83]


def test_characters_without_bytes_are_named_once(tmp_path, capsys):
    vocab = {char: i for i, char in enumerate(map(chr, range(97, 123)), 2)}
    write_tokenizer(
        tmp_path,
        {"model": {"type": "BPE", "vocab": {"<s>": 0, "é": 1} | vocab, "merges": []}, "added_tokens": []},
        {CONFIG: OWN | {"eos_token": "é"}},
    )
    encoder = read_encoder(tmp_path, 40)
    assert encoder.encode("née: a日b日") == [*encoder.encode("n"), 1, *encoder.encode("e"), *encoder.encode("ab")]
    said = capsys.readouterr().err
    assert said == "the vocabulary has no bytes for these characters, so the model does not see them: :   日\n"
    encoder.encode("日")
    assert capsys.readouterr().err == ""


WORDS = {"type": "WordLevel", "vocab": {END_OF_TEXT: 2047}, "unk_token": "?"}
ROBERTA = {"tokenizer_class": "RobertaTokenizerFast"}
REFUSED = [
    ({"model": WORDS}, {}, "its type is 'WordLevel'"),
    ({}, {CONFIG: ROBERTA}, "its tokenizer_class is RobertaTokenizer, not GPT2Tokenizer"),
    ({"model": MODEL | {"continuing_subword_prefix": "##"}}, {}, "continuing_subword_prefix is '##'"),
    ({"model": MODEL | {"end_of_word_suffix": "</w>"}}, {}, "end_of_word_suffix is '</w>'"),
    ({"model": MODEL | {"vocab": {"a": 0.0}}}, {}, ""),
    ({"model": MODEL | {"vocab": []}}, {}, "it lacks a part, or a part is not what it should be"),
    ({"model": MODEL | {"vocab": {}}}, {}, "it has no tokens"),
    ({"model": {"vocab": {"a": 0}, "unk_token": "?"}}, {}, "it has no merges"),  # words, by their library of 2020
    ({"model": []}, {}, "it lacks a part, or a part is not what it should be"),
    ({"added_tokens": [1]}, {}, "it lacks a part, or a part is not what it should be"),
    ({"model": MODEL | {"vocab": {"a": 2048}}}, {}, "it has ids up to 2048, and the model has 2048 ids"),
    ({"model": None}, {}, "it lacks a part, or a part is not what it should be"),
    ({"decoder": None}, {CONFIG: OWN}, "not the bytes of a text"),
    (None, {"merges.txt": "one line of three words"}, ""),
]


@pytest.mark.parametrize(("changes", "files", "said"), REFUSED)
def test_a_tokenizer_that_cannot_be_used_is_named(changes, files, said, tmp_path):
    write_tokenizer(tmp_path, changes, files)
    line = refusal(read_encoder, tmp_path, 2048)
    name = "vocab.json" if changes is None else "tokenizer.json"
    assert line.startswith(f"{tmp_path / name}: cannot be used as a byte-level BPE (")
    assert said in line
