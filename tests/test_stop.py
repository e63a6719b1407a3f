"""Stopping: where it ends, what is counted, and that it is the same for tokens that come one by one or in windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import counts, encoder_of, stub

from encoder import END_OF_TEXT, StreamDecoder
from speculative.measure.recorder import Recorder

ENCODER = encoder_of("the", "re", " end", ".,", "é")


def windows(tokens, sizes):
    """Steps of these sizes: all but the last token of each are accepted drafts, of one more that was not."""
    steps, i = [], 0
    for size in sizes:
        part = tokens[i : i + size]
        if part:
            steps.append(stub(part, len(part), len(part) - 1))
        i += size
    return steps


def run(steps, stop=None):
    """-> the steps, their tokens; of `steps` none is asked for after the last of those."""
    asked = iter(steps)
    found = list(Recorder().watch(asked, text=StreamDecoder(ENCODER, stop)))
    assert len(list(asked)) == len(steps) - len(found)
    return found, [t for s in found for t in s.tokens]


def text_before_stop(tokens, stop):
    """The same, whether the tokens come together or one by one."""
    together, one_by_one = StreamDecoder(ENCODER, stop), StreamDecoder(ENCODER, stop)
    text = together.push(tokens) + together.flush()
    assert text == "".join([*(one_by_one.push([token]) for token in tokens), one_by_one.flush()])
    return text


@pytest.mark.parametrize(
    ("before", "stop", "after"),
    {
        "begins in a token and spans two": ([(4, 3, 3)], "nd.", [(3, 3, 3)]),
        "the rest of the window is not counted": ([(4, 5, 3)], "the", [(1, 1, 1)]),
        "a window that it ends stays": ([(3, 4, 2), (1, 0, 0)], ".", [(3, 4, 2)]),
        "spans windows": ([(2, 2, 1), (2, 2, 1)], "d.", [(2, 2, 1), (1, 1, 1)]),
        "no stop text": ([(1, 1, 0), (2, 2, 1)], None, [(1, 1, 0), (2, 2, 1)]),
        "no end of text": ([(1, 1, 0), (2, 2, 1)], END_OF_TEXT, [(1, 1, 0), (2, 2, 1)]),
    }.values(),
)
def test_what_is_counted(before, stop, after):
    """before and after: (tokens, drafted, accepted) of each step."""
    tokens = ENCODER.encode("the end.,the")
    assert [ENCODER.decode([t]) for t in tokens] == ["the", " end", ".,", "the"]

    def steps(expected):
        rest = iter(tokens)
        return [stub([next(rest) for _ in range(n)], drafted, accepted) for n, drafted, accepted in expected]

    found, _ = run(steps(before), stop)
    assert [*map(counts, found)] == [*map(counts, steps(after))]


def test_end_of_text_is_the_token_and_not_the_characters():
    tokens = [*ENCODER.encode(END_OF_TEXT), ENCODER.eot, *ENCODER.encode("the")]
    _, kept = run([stub(tokens, 20, len(tokens) - 1)], END_OF_TEXT)
    assert kept == tokens[: tokens.index(ENCODER.eot) + 1]
    assert text_before_stop(kept, END_OF_TEXT) == END_OF_TEXT


def test_half_a_character_before_the_stop_is_shown_as_any_other_bytes_that_are_not_utf8():
    first, second = (ENCODER.byte_to_id[byte] for byte in "é".encode())
    assert text_before_stop([first, ENCODER.byte_to_id[ord(".")], second], ".") == "\ufffd"


@given(st.text(alphabet="the rnd.,é\n", max_size=30), st.text(alphabet="the .,é\n", min_size=1, max_size=4), st.data())
def test_windows_and_single_tokens_end_alike(text, stop, data):
    tokens = ENCODER.encode(text)
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(tokens), max_size=len(tokens)))
    steps, kept = run(windows(tokens, sizes), stop)
    assert kept == run(windows(tokens, [1] * len(tokens)), stop)[1] == tokens[: len(kept)]
    assert text_before_stop(kept, stop) == text.partition(stop)[0]
    if stop in text:
        assert stop in ENCODER.decode(kept)
        assert stop not in ENCODER.decode(kept[:-1])
    else:
        assert kept == tokens
    for step in steps:
        assert 0 <= step.accepted <= step.drafted
        assert step.accepted <= len(step.tokens) <= step.accepted + 1
