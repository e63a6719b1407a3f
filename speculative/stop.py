"""Ends a decoding at a stop text.

A stop text may begin in the middle of one token and end in the middle of another, so it is looked for in the bytes of
the new tokens, each time one is added. "<|endoftext|>" is the token of that name, and not the characters.

Decoding ends with the first token that completes a stop text, the same token for both decoders. That token counts; what
the same window gave after it does not, anywhere: see cut. The text ends before the stop text, which is no part of it.
"""

from collections.abc import Iterable, Iterator

from encoder import END_OF_TEXT, Encoder
from speculative.sampling import Step


def until_stop(steps: Iterable[Step], encoder: Encoder, stop_texts: list[str]) -> Iterator[Step]:
    """The steps up to the first token that completes one of stop_texts; all of them where none does."""
    eot, stops = split_stops(encoder, stop_texts)
    longest = max(map(len, stops), default=0)
    recent = b""  # what may be the beginning of a stop text
    for step in steps:
        for i, token in enumerate(step.tokens):
            recent += encoder.to_bytes([token])
            if token == eot or any(stop in recent for stop in stops):
                yield cut(step, i + 1)
                return
            recent = recent[max(0, len(recent) - longest + 1) :]
        yield step


def cut(step: Step, n: int) -> Step:
    """The step's first n tokens, as if the draft had proposed no more than those.

    If any are cut, the n that stay are all accepted drafts: the target's own token is the last of a step.
    """
    return step if n == len(step.tokens) else Step(step.tokens[:n], drafted=n, accepted=n)


def text_before_stop(tokens: list[int], encoder: Encoder, stop_texts: list[str]) -> str:
    """The text of the new tokens up to the first stop text in it."""
    eot, stops = split_stops(encoder, stop_texts)
    if eot in tokens:
        tokens = tokens[: tokens.index(eot)]
    text = encoder.to_bytes(tokens)
    end = min((text.find(stop) for stop in stops if stop in text), default=len(text))
    return text[:end].decode("utf-8", "replace")


def split_stops(encoder: Encoder, stop_texts: list[str]) -> tuple[int | None, list[bytes]]:
    """-> (the id of <|endoftext|> if that is one of them, the others as bytes)."""
    stops = [text.encode("utf-8", "surrogatepass") for text in stop_texts if text != END_OF_TEXT]
    return encoder.eot if END_OF_TEXT in stop_texts else None, stops
