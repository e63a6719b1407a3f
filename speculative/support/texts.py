"""Texts from files: prompts, and texts in which n-grams are counted."""

import contextlib
import json

from speculative.support.errors import UserError


def read_text(path: str, what: str) -> str:
    """Return a text in UTF-8; "-" is the standard input. Raises UserError, which says what the text is for."""
    try:
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="", closefd=path != "-") as f:
            text = f.read()  # -sig: some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"byte {error.start} is not UTF-8"
        raise UserError(f"cannot read the {what} from {path}: {reason}") from None
    if not text.strip():
        raise UserError(f"the {what} from {path} is empty: it should be some text")
    return text


def read_prompts(path: str, n: int | None = None) -> list[str]:
    """Return the first n prompts of a file (default: all). Raises UserError.

    A file .jsonl has an object with "prompt" on each line, any other file has one prompt a line.
    """
    text = read_text(path, "file of prompts")
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()][:n]
    if not is_jsonl(path):
        return lines
    return [prompt_of(line, f"{path}: prompt {number}") for number, line in enumerate(lines, start=1)]


def prompt_of(line: str, name: str) -> str:
    """Return the prompt of a line of JSON. name: of the line, for the error. Raises UserError."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        prompt = json.loads(line)["prompt"]
        if prompt and isinstance(prompt, str):
            return prompt
    raise UserError(f'{name} should be an object with "prompt", which is a text that is not empty')


def is_jsonl(path: str) -> bool:
    """Return True if the file's name says that each line is a JSON object."""
    return path.lower().endswith(".jsonl")
