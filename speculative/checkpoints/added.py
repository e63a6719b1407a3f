"""Added tokens: they are found in a text as they stand, before the rest is cut into words.

As in Hugging Face's tokenizers, the longest token at a place is found, and the search goes on after it. The time is
linear in the text, however many tokens there are: about twenty comparisons for each place where one may begin.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import regex

MOST_LETTERS = 2**10  # of a token

SPACE = regex.compile(r"\s*")
SPACE_BEFORE = regex.compile(r"(?r)\s*")  # from right to left
LETTER = regex.compile(r"\w")


class Added(NamedTuple):
    id: int
    lstrip: bool = False  # whether it takes the white space before it
    rstrip: bool = False  # and after it
    single_word: bool = False  # whether it is only found where no letter or digit stands beside it
    normalized: bool = False  # whether it is looked for only where no token without this was found


class Finder:
    """Finds the tokens {text: Added} in a text. There is at least one token."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.texts = sorted(tokens)
        self.lengths = []  # of each text and of all tokens that it begins with, the shortest first
        self.first = regex.compile(f"[{''.join(map(regex.escape, {text[0] for text in tokens}))}]")
        inner = []  # the tokens that the last text begins with, itself among them
        for text in self.texts:
            while inner and not text.startswith(inner[-1]):
                inner.pop()
            inner.append(text)
            self.lengths.append([len(token) for token in inner])

    def longest(self, text, i):
        """The longest token that stands in the text at i, "" if none."""
        window = text[i : i + MOST_LETTERS]
        place = bisect_right(self.texts, window) - 1
        if place < 0:
            return ""
        # The texts between a token that the window begins with and the window itself all begin with that token. So it
        # is the last of them, or one that the last of them begins with.
        last = self.texts[place]
        lengths = self.lengths[place]
        n = bisect_left(lengths, True, key=lambda length: not window.startswith(last[:length]))
        return last[: lengths[n - 1]] if n else ""

    def cut(self, text, skipped):
        """The ids of the tokens in a text and the pieces of text between them, in order.

        skipped: the tokens that are left as text.
        """
        pieces = []
        end = 0  # of the text that is in pieces
        at = 0  # where the search goes on
        while found := self.first.search(text, at):
            i = found.start()
            token = self.longest(text, i)
            at = i + max(1, len(token))
            if not token or token in skipped:
                continue
            about = self.tokens[token]
            if about.single_word and LETTER.search(text[max(0, i - 1) : i] + text[at : at + 1]):
                continue
            start = max(end, SPACE_BEFORE.match(text, min(end, i), i).start()) if about.lstrip else i
            stop = SPACE.match(text, at).end() if about.rstrip else at
            if start < stop:  # else it is white space that a token before it has taken
                pieces += [text[end:start], about.id]
                end = stop
        return [*pieces, text[end:]]
