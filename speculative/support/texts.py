"""Texts from files: prompts, and texts in which n-grams are counted."""

import json

from speculative.support.errors import UserError
from speculative.support.files import open_to_read
from speculative.support.patience import SECONDS, notice

MAX_TEXT_BYTES = 2**28  # so that no endless file, such as /dev/zero, fills the memory


def read_text(path: str, what: str, most: int = MAX_TEXT_BYTES, silent: float = SECONDS) -> str:
    """A text file in UTF-8 of at most `most` bytes; "-" is the standard input. Raises UserError.

    A line says what it waits for after that many silent seconds.
    """
    try:
        with (
            notice(f"waiting for the end of the {what}, which comes from {path}", silent),
            open_to_read(path) as f,
        ):
            data = f.read(most + 1)
        text = data.decode("utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
        raise UserError(f"cannot read the {what} from {path}: {reason}") from None
    if len(data) > most:
        raise UserError(f"the {what} from {path} is longer than {most:,} bytes")
    if not text.strip():
        raise UserError(f"the {what} from {path} is empty: it should be some text")
    return text


def read_prompts(path: str, n: int | None = None) -> list[str]:
    """The first n prompts of a file (default: all). Raises UserError.

    A file .jsonl has an object with "prompt" on each line, any other file has one prompt a line.
    """
    lines = [line.rstrip("\r") for line in read_text(path, "file of prompts").split("\n") if line.strip()][:n]
    try:
        prompts = [json.loads(line)["prompt"] for line in lines] if is_jsonl(path) else lines
    except (ValueError, KeyError, TypeError, RecursionError):
        prompts = [None]
    if not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise UserError(f'each line of {path} should be an object with "prompt", which is a text that is not empty')
    return prompts


def is_jsonl(path: str) -> bool:
    return str(path).lower().endswith(".jsonl")
