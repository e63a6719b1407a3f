"""Stopping: where it ends, what is counted, and that it is the same for tokens that come one by one or in windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder, StreamDecoder
from speculative.sampling import Step
from speculative.stop import until_stop

WORDS = ["the", "re", " end", ".,", "é"]  # merged below from bytes, so that tokens of several bytes exist


def make_encoder():
    """The 256 bytes, a few tokens of several, and <|endoftext|>."""
    tokens, pairs = list(BYTE_TO_CHAR.values()), []
    for word in WORDS:
        chars = [BYTE_TO_CHAR[byte] for byte in word.encode()]
        for i in range(1, len(chars)):
            pairs.append(("".join(chars[:i]), chars[i]))
            tokens.append("".join(chars[: i + 1]))
    vocab = {token: i for i, token in enumerate([*tokens, END_OF_TEXT])}
    return Encoder(vocab, pairs)


ENCODER = make_encoder()


def windows(tokens, sizes):
    """Steps of these sizes: all but the last token of each are accepted drafts, of one more that was not."""
    steps, i = [], 0
    for size in sizes:
        part = tokens[i : i + size]
        if part:
            steps.append(Step(part, drafted=len(part), accepted=len(part) - 1))
        i += size
    return steps


def run(steps, stop=None):
    steps = list(until_stop(steps, ENCODER, stop))
    return steps, [t for s in steps for t in s.tokens]


def text_before_stop(tokens, stop):
    """The same, whether the tokens come together or one by one."""
    together, one_by_one = StreamDecoder(ENCODER, stop), StreamDecoder(ENCODER, stop)
    text = together.push(tokens) + together.flush()
    assert text == "".join([*(one_by_one.push([token]) for token in tokens), one_by_one.flush()])
    return text


def test_the_stop_text_begins_in_the_middle_of_a_token_and_spans_two():
    tokens = ENCODER.encode("the end.,the")
    assert [ENCODER.decode([t]) for t in tokens] == ["the", " end", ".,", "the"]
    steps, kept = run([Step(tokens, drafted=3, accepted=3)], "nd.")
    assert kept == tokens[:3]  # the third completes it
    assert steps == [Step(tokens[:3], drafted=3, accepted=3)]
    assert text_before_stop(kept, "nd.") == "the e"


def test_what_follows_in_the_window_is_cut_and_not_counted():
    tokens = ENCODER.encode("the end.,the")
    steps, _ = run([Step(tokens, drafted=5, accepted=3)], "the")
    assert steps == [Step(tokens[:1], drafted=1, accepted=1)]


def test_a_stop_at_the_last_token_of_a_window_leaves_it_as_it_is():
    tokens = ENCODER.encode("the end.,")
    step = Step(tokens, drafted=4, accepted=2)
    assert run([step, step], ".")[0] == [step]


def test_a_stop_text_that_spans_windows():
    tokens = ENCODER.encode("the end.,the")
    steps, kept = run(windows(tokens, [2, 2]), "d.")
    assert kept == tokens[:3]
    assert steps == [Step(tokens[:2], 2, 1), Step(tokens[2:3], 1, 1)]


def test_end_of_text_is_the_token_and_not_the_characters():
    tokens = [*ENCODER.encode(END_OF_TEXT), ENCODER.eot, *ENCODER.encode("the")]
    _, kept = run([Step(tokens, 20, len(tokens) - 1)], END_OF_TEXT)
    assert kept == tokens[: tokens.index(ENCODER.eot) + 1]
    assert text_before_stop(kept, END_OF_TEXT) == END_OF_TEXT


def test_nothing_to_stop_at():
    steps = windows(ENCODER.encode("the end.,"), [1, 2])
    assert run(steps)[0] == steps == run(steps, "é")[0] == run(steps, END_OF_TEXT)[0]
    assert text_before_stop([t for s in steps for t in s.tokens], "é") == "the end.,"


def test_half_a_character_before_the_stop():
    """The text before may end inside a character; it is shown as any other bytes that are not UTF-8."""
    first, second = (ENCODER.byte_to_id[byte] for byte in "é".encode())
    assert text_before_stop([first, ENCODER.byte_to_id[ord(".")], second], ".") == "\ufffd"


def test_no_step_is_asked_for_after_the_stop():
    def steps():
        yield Step(ENCODER.encode("the"), 0, 0)
        pytest.fail("one more call of the target")

    run(steps(), "the")


texts = st.text(alphabet="the rnd.,é\n", max_size=30)


@given(texts, st.text(alphabet="the .,é\n", min_size=1, max_size=4), st.data())
def test_windows_and_single_tokens_end_alike(text, stop, data):
    tokens = ENCODER.encode(text)
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(tokens), max_size=len(tokens)))
    steps, kept = run(windows(tokens, sizes), stop)
    assert kept == run(windows(tokens, [1] * len(tokens)), stop)[1] == tokens[: len(kept)]
    assert text_before_stop(kept, stop) == text.partition(stop)[0]
    if stop in text:
        assert stop in ENCODER.decode(kept) and stop not in ENCODER.decode(kept[:-1])
    else:
        assert kept == tokens
    for step in steps:
        assert 0 <= step.accepted <= step.drafted and step.accepted <= len(step.tokens) <= step.accepted + 1
