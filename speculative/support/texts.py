"""Texts from files: prompts, and texts in which n-grams are counted."""

import codecs
import contextlib
import json
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any

from speculative.support.errors import UserError

# How a text begins that is not in UTF-8, as PowerShell and some editors write it: the longer mark first.
MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
MARKS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
JSON_LINES = (".jsonl", ".ndjson")
SECONDS_FOR_PIPE = 0.2  # to wait for the first byte: the program before ours began when ours did


def read_text(path: str, what: str) -> str:
    """Return a text in UTF-8, or with a byte order mark in UTF-16 or UTF-32; "-" is the standard input. Lines end in
    \\n, whichever system wrote them. Raises UserError, which names the purpose of the text."""
    try:
        content = read_standard_input() if path == "-" else Path(path).read_bytes()
        encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8-sig")
        text = content.decode(encoding)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = f"byte {error.start} is not {encoding.removesuffix('-sig').upper()}"
        raise UserError(f"cannot read the {what} from {path}: {reason}") from None
    if not text.strip():
        raise UserError(f"the {what} from {path} is empty: it should be some text")
    return text.replace("\r\n", "\n")


def read_standard_input() -> bytes:
    """Return all of the standard input, nothing if a notebook has none."""
    return sys.stdin.buffer.read() if hasattr(sys.stdin, "buffer") else b""


def has_piped_text() -> bool:
    """Return True if a text comes over the standard input, from a pipe or a file. A line says so if a pipe is open and
    nothing has come yet: it may be one that nobody writes to."""
    try:
        mode = os.fstat(0).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)) or sys.stdin.fileno() != 0:
            return False
        if not select.select([0], [], [], SECONDS_FOR_PIPE)[0]:
            print("nothing has come from the pipe yet: --prompt_file - waits for a prompt", file=sys.stderr)
            return False
        return bool(sys.stdin.buffer.peek().strip())  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):  # there is no standard input, or it is not the process's own
        return False


def read_prompts(path: str, n: int | None = None) -> list[str]:
    """Return the first n prompts of a file (default: all). Raises UserError.

    A file .jsonl or .ndjson has an object with "prompt" on each line, a file .json an array of them, or one; the
    standard input may have either. Any other file has one prompt a line.
    """
    return prompts_in(read_text(path, "file of prompts"), path)[:n]


def prompts_in(text: str, path: str) -> list[str]:
    """Return the prompts in the text of a file. Raises UserError."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not is_json(path, text):
        return lines
    objects = None if has_json_lines(path) else objects_of(text)
    if objects is None:
        objects = [parsed(line) for line in lines]
    if not objects:
        raise UserError(f'{path} has no prompts: give objects with "prompt"')
    return [prompt_of(each, f"{path}: prompt {number}") for number, each in enumerate(objects, start=1)]


def objects_of(text: str) -> list | None:
    """Return the values of a text of JSON: the parts of an array, or its one value. None if it is something else, such
    as an object on each line."""
    whole = parsed(text)
    if whole is None:
        return None
    return whole if isinstance(whole, list) else [whole]


def parsed(text: str) -> Any:
    """Return the value of a text of JSON, None if it has none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def prompt_of(value: object, name: str) -> str:
    """Return the prompt of a value that a JSON file holds. name: for the error. Raises UserError."""
    prompt = value.get("prompt") if isinstance(value, dict) else None
    if prompt and isinstance(prompt, str):
        return prompt
    raise UserError(f'{name} should be an object with "prompt", which is a text that is not empty')


def is_json(path: str, text: str) -> bool:
    """Return True if the prompts in the text of a file are JSON objects: its name says so, or over the standard input
    its first object."""
    if path != "-":
        return has_json_lines(path) or path.lower().endswith(".json")
    [first, *_] = objects_of(text) or [parsed(text.lstrip().split("\n")[0])]
    return isinstance(first, dict) and "prompt" in first


def has_json_lines(path: str) -> bool:
    """Return True if the file's name says that it has a JSON object on each line."""
    return str(path).lower().endswith(JSON_LINES)  # Python may give a Path
