"""Hugging Face's tokenizers: their ids are those of transformers 5, or they are refused by their kind."""

import json
import os
from unittest.mock import Mock

import pytest
from tiny import refusal
from tokenizer_files import (
    CONFIG,
    MAP,
    MODEL,
    OWN,
    TEXT,
    TINY,
    TOKENIZERS,
    added,
    byte_level,
    decoder,
    strings,
    token,
    write_tokenizer,
)

from encoder import BYTE_TO_CHAR, END_OF_TEXT, StreamDecoder
from speculative.checkpoints.tokenizer import read_encoder, without_panic
from speculative.run.prompts import PromptReader


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
        reader = PromptReader(Mock(special=True), encoder, 32, "")
        assert reader.encode("<s>a") == [0, LETTERS["a"]]
        assert "the model has no end token to begin with" in refusal(reader.encode, "")
    else:
        assert encoder.encode(f"a{END_OF_TEXT}", allowed_special=True) == [LETTERS["a"], eot]
        assert encoder.decode([0, 1]) == "<s></s>"


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
