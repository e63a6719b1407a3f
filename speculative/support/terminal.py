"""Text that is safe to print: control characters are escaped, and passwords are left out."""

import re

# A model, a server or a file name may send control characters that clear the screen. json itself escapes those below
# 32. These are the others, and the characters that turn the direction of text.
CONTROLS = range(0x7F, 0xA0)
MARKS = (0x61C, 0x200E, 0x200F)
OVERRIDES = range(0x202A, 0x202F)
ISOLATES = range(0x2066, 0x206A)
ESCAPED = {code: f"\\u{code:04x}" for code in (*CONTROLS, *MARKS, *OVERRIDES, *ISOLATES)}

# For str.translate. The control characters of ASCII have pictures of their own, such as ␛.
PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
PRINTABLE = ESCAPED | PICTURES | {127: "\u2421"}


def one_line(text: str) -> str:
    """Return the same text in one line, with line ends and control characters as escapes."""
    line = ""
    for char in text:
        line += char if char.isprintable() else repr(char)[1:-1]
    return line


def without_secrets(text: str) -> str:
    """Return the same text without the password or the token of an address in it."""
    return re.sub(r"(?<=://)[^/@\s]+@|(?<=[?&]token=)[^&\s]+", "…", text)
