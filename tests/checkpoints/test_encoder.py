"""encoder.py against tiktoken on the official vocabulary, and by hand on a vocabulary of four merges."""

import json
import os
import random
import re
from pathlib import Path

import pytest
from checkpoint_files import MODELS
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import vocabulary as small_vocabulary
from tokenizer_files import PIECES

from encoder import END_OF_TEXT, Encoder, StreamDecoder, bpe, get_encoder
from speculative.checkpoints.names import MODEL_SIZES
from speculative.checkpoints.tokenizer import read_encoder

many = settings(deadline=None, derandomize=True)

pieces = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
any_text = st.text(st.characters(exclude_categories=("Cn", "Cs"))) | pieces


@pytest.fixture(scope="module")
def vocabulary():
    """The folder of OpenAI's encoder.json and vocab.bpe: the fixtures' own, or that of a model that was downloaded."""
    fixtures = Path(os.environ.get("SHARED_DIR", "nowhere")) / "gpt2-tokenizer"
    for folder in [fixtures, *(MODELS / size for size in MODEL_SIZES)]:
        if (folder / "encoder.json").is_file() and (folder / "vocab.bpe").is_file():
            return folder
    pytest.skip("neither SHARED_DIR nor models/124M holds the official vocabulary")


@pytest.fixture(scope="module")
def gpt2(vocabulary):
    return get_encoder(vocabulary.name, vocabulary.parent)


@pytest.fixture(scope="module")
def oracle(vocabulary):
    """tiktoken's gpt2, with its own reader of the files and its own pattern, so that nothing of ours is in it."""
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str

    files = [str(vocabulary / name) for name in ("vocab.bpe", "encoder.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", "")  # no copies of the files in the temporary folder
        ranks = data_gym_to_mergeable_bpe_ranks(*files)
    special = {END_OF_TEXT: 50256}
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=special)


# ---- against tiktoken


@many
@given(text=any_text)
def test_any_text_encodes_as_in_tiktoken(gpt2, oracle, text):
    assert gpt2.encode(text) == oracle.encode(text, disallowed_special=())
    assert gpt2.encode(text, allowed_special=True) == oracle.encode(text, allowed_special="all")


ALPHABETS = ["a", "ab", "abcdefghijklmnopqrstuvwxyz", "0123456789", "!?", "日本", " ", "\n", " \t\n"]


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_long_words_and_white_space_encode_as_in_tiktoken(gpt2, oracle, alphabet):
    """Were the time quadratic in the length of a word, this would take half an hour."""
    for length in (31, 33, 499, 500, 20_000):
        text = "".join(random.Random(length).choices(alphabet, k=length))
        for tail in ("", "a", " a", "\n"):
            assert gpt2.encode(text + tail) == oracle.encode(text + tail)


def test_every_token_is_what_its_own_bytes_merge_into(gpt2):
    """The merges cannot differ from tiktoken's on any word.

    tiktoken merges neighbours whenever the two together are a token; bpe only pairs that vocab.bpe lists. The first
    time that tiktoken merged an unlisted pair, the token's bytes alone would have come to that pair too (nothing had
    been merged across their borders) and stopped there. But each token's bytes, alone, end as that token.
    """
    one = {i: bpe([gpt2.byte_to_id[byte] for byte in token], gpt2.merges) for i, token in gpt2.id_to_bytes.items()}
    assert {i for i in one if one[i] != [i]} == {gpt2.eot}


def test_the_official_vocabulary_and_the_prompt_of_the_blog(gpt2):
    ids = [36235, 39141, 18765, 1143, 326, 9061, 561, 530, 1110, 1716]
    assert gpt2.encode("Alan Turing theorized that computers would one day become") == ids
    assert (gpt2.n_vocab, gpt2.eot) == (50257, 50256)


# ---- merging


MERGES = ["i s", "s i", "p p", "is si"]
PAIRS = [tuple(merge.split(" ")) for merge in MERGES]
VOCAB = small_vocabulary(PAIRS)


def test_merges_by_hand():
    """The example in bpe's docstring, which also has what a left-to-right or longest-match encoder would get wrong."""
    encoder = Encoder(VOCAB, PAIRS)
    tokens = ["m", "is", "s", "issi", "pp", "i"]
    assert encoder.encode("mississippi") == [VOCAB[token] for token in tokens]
    assert encoder.encode("is isis") == [VOCAB[token] for token in ["is", "Ġ", "is", "is"]]
    assert encoder.encode("") == []


# ---- end of text, and the way back


@many
@given(ids=st.lists(st.integers(0, 50256), max_size=30), text=any_text, size=st.integers(1, 4))
def test_texts_survive_the_way_back_and_a_stream_gives_the_same(gpt2, ids, text, size):
    encoded = gpt2.encode(text)
    assert gpt2.decode(encoded) == gpt2.decode(gpt2.encode(text, allowed_special=True)) == text
    ids = ids + encoded  # random ids often are not UTF-8
    stream = StreamDecoder(gpt2)
    pushed = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join(pushed) + stream.flush() == gpt2.decode(ids)


# ---- files


HEADER = "#version: 0.2"


@pytest.mark.parametrize(
    ("vocab", "lines", "named"),
    [
        (VOCAB | {END_OF_TEXT: 999}, [HEADER, *MERGES], "encoder.json"),  # a gap
        (VOCAB | {END_OF_TEXT: float(len(VOCAB) - 1)}, [HEADER, *MERGES], "encoder.json"),
        (list(VOCAB), [HEADER, *MERGES], "encoder.json"),
        ([], [HEADER, *MERGES], "encoder.json"),
        (None, [HEADER, *MERGES], "encoder.json"),
        (VOCAB | {END_OF_TEXT: "x"}, [HEADER, *MERGES], "encoder.json"),
        (VOCAB | {"xyz": len(VOCAB)}, [HEADER, *MERGES], "vocab.bpe"),  # nothing makes this token
        (VOCAB, [HEADER, *MERGES, "m is"], "vocab.bpe"),
        (VOCAB, [HEADER, "i s", "s i p", *MERGES[2:]], "vocab.bpe"),
        (VOCAB, [HEADER, *MERGES[:-1], "zz z"], "vocab.bpe"),  # of which the left one is no token
        (VOCAB, MERGES, "vocab.bpe"),
        (VOCAB, ["<html><body>404 Not Found" * 1000], "vocab.bpe"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_one_line(tmp_path, vocab, lines, named):
    (tmp_path / "encoder.json").write_text(json.dumps(vocab), encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / named))}: (its|should) [^\n]{{9,300}}$"):
        get_encoder(tmp_path.name, tmp_path.parent)
    (tmp_path / named).unlink()
    with pytest.raises(ValueError, match=rf"{named}: No such file"):
        get_encoder(tmp_path.name, tmp_path.parent)


def without(*tokens):
    """The small vocabulary without these, its ids from 0 on."""
    return {token: i for i, token in enumerate(token for token in VOCAB if token not in tokens)}


OWN_TRAINING = [  # the vocabulary, the lines of the merges, and what is said of them
    (VOCAB, MERGES, "its first line should begin with #version"),
    (without(END_OF_TEXT), [HEADER, *MERGES], "encoder.json, which lacks '<|endoftext|>'; if both"),
    (VOCAB | {"<pad>": len(VOCAB)}, [HEADER, *MERGES], "encoder.json, which also has '<pad>'; if both"),
    (without("Ā", "ā"), [HEADER, *MERGES], "encoder.json, which lacks 'Ā' (2 tokens differ); if both"),
    (VOCAB, [HEADER, *MERGES[:-1]], "encoder.json, which also has 'issi'; if both"),
    (VOCAB, [HEADER, *MERGES, "m is k"], "its line 'm is k' should merge two tokens"),
]


@pytest.mark.parametrize(("vocab", "lines", "said"), OWN_TRAINING)
def test_the_line_says_why_a_vocabulary_of_somebodys_own_does_not_fit(vocab, lines, said, tmp_path):
    (tmp_path / "encoder.json").write_text(json.dumps(vocab), encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("\n".join([*lines, ""]), encoding="utf-8")
    with pytest.raises(ValueError) as refused:
        get_encoder(tmp_path.name, tmp_path.parent)
    assert said in str(refused.value)
    if "if both" in said:  # and then they can be read
        (tmp_path / "encoder.json").rename(tmp_path / "vocab.json")
        (tmp_path / "vocab.bpe").rename(tmp_path / "merges.txt")
        encoder = read_encoder(str(tmp_path), len(vocab))
        assert encoder.decode(encoder.encode("mississippi")) == "mississippi"
