"""Control characters are shown, and the terminal does not obey them: a name, a server or a model may send some that
clear the screen.

Everything that a command prints passes through Shown, so no print can forget it. Only rich, which writes colours, goes
round it: its texts are translated before.
"""

from typing import TextIO

# json itself escapes those below 32; the others are control characters and what turns the direction of text.
OBEYED = (*range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
ESCAPED = {code: f"\\u{code:04x}" for code in OBEYED}

# Those of ASCII have pictures of their own.
SHOWN = ESCAPED | {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "\u2421"}
SHOWN |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}


def one_line(text: str) -> str:
    """The same text in one line. The names that it quotes may hold line ends and control characters."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Shown:
    """A stream on which the only control characters are line ends, tabs and the return before a progress bar."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.rich_proxied_file = stream  # where rich looks for a stream that stands behind another

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""
        self.stream.write(start + text[len(start) :].translate(SHOWN))
        return len(text)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)
