"""GPT-2's byte pair encoding (BPE): text in, token ids out, and back.

A pattern cuts the text into words, a word becomes its UTF-8 bytes, and neighbours in the word are merged, pair by pair,
in the order of a learned list, until no pair that the list names is left. The rest are the tokens. Words are never
merged with each other; and since every byte is a token, every text has an encoding and no token for "unknown" exists.

Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units" (merging), and Radford et
al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2 (bytes in place of characters).
"""

import codecs
import json
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path

import regex  # and not re, which does not know \p{L}

END_OF_TEXT = "<|endoftext|>"

# The character that stands for each byte in GPT-2's files: {byte: character}, 256 of them. vocab.bpe has two tokens a
# line with a space between, so a token's own spaces and newlines need another spelling. A byte that is a visible
# character of Latin-1 is spelled as that character, and the n-th of the others as character 256 + n. The space is the
# 32nd (counted from 0), hence the Ġ, character 288, in front of so many tokens.
HIDDEN = [byte for byte in range(256) if not chr(byte).isprintable() or chr(byte) == " "]
BYTE_TO_CHAR = {byte: chr(256 + HIDDEN.index(byte)) if byte in HIDDEN else chr(byte) for byte in range(256)}
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}

# Which characters are letters or numbers changes as Unicode grows, and with it where words end: the same ids as
# tiktoken's need a release of regex with the same Unicode version (see requirements.txt; the tests compare the two).
WORD = regex.compile(
    r"""
      '(?:[stmd]|re|ve|ll)    # what English contracts: it's, can't, I'm, I'd, we're, we've, we'll
    | [ ]?\p{L}+              # letters, with the space before them, if any
    | [ ]?\p{N}+              # digits and other numbers, with the space before them
    | [ ]?[^\s\p{L}\p{N}]+    # punctuation, symbols and all the rest, with the space before them
    | \s+(?!\S)               # white space; its last character is left to a word that follows
    | \s+                     # that last character, if the word did not take it
    """,
    regex.VERBOSE,
)


def bpe(tokens, merges):
    """Merges the tokens of one word: [n_bytes] ids -> list of at most n_bytes ids.

    merges is {(left id, right id): (rank, id of the two as one)}. Each step merges the pair with the lowest rank, and
    of equal ones the leftmost. With "i s", "s i", "p p" and "is si" as the list (ranks 0 to 3), mississippi goes

        m i s s i s s i p p i
        m is s i s s i p p i      rank 0, the left one of two
        m is s is s i p p i       rank 0 again
        m is s is si p p i        rank 1: only one "s i" is left, the other i went into "is"
        m is s is si pp i         rank 2
        m is s issi pp i          rank 3, a pair that the merges before it made

    Looking for the lowest rank in the whole word at each step would take time quadratic in its length. Here the pairs
    wait in a priority queue, and a merge adds the two new pairs it makes: n log n.
    """
    n = len(tokens)
    tokens = [*tokens, None]  # the places of a ring; the last is empty, so both ends of the word have a neighbour
    after = [*range(1, n + 1), 0]  # the place to the right of each; a merged pair keeps its left place
    before = [n, *range(n)]
    queue = [(merges[pair], i) for i, pair in enumerate(pairwise(tokens)) if pair in merges]
    heapify(queue)
    while queue:
        merge, i = heappop(queue)
        j = after[i]
        if merges.get((tokens[i], tokens[j])) != merge:
            continue  # one of the pair has been merged with its other neighbour since
        tokens[i] = merge[1]
        tokens[j] = None
        after[i] = after[j]
        before[after[j]] = i
        for left in (before[i], i):
            new = merges.get((tokens[left], tokens[after[left]]))
            if new is not None:
                heappush(queue, (new, left))
    return [token for token in tokens if token is not None]


class Encoder:
    """A vocabulary in use. n_vocab: the number of tokens; eot: the id of <|endoftext|>; ends: the ids that end a text,
    of which a tokenizer.json may name several."""

    def __init__(self, vocab, pairs):
        """vocab {token: id} and pairs [(left token, right token)], lowest rank first."""
        self.n_vocab = len(vocab)
        self.eot = vocab[END_OF_TEXT]
        self.ends = {self.eot}
        self.added = {self.eot}  # the ids of tokens that no merge makes
        self.id_to_bytes = {i: bytes([CHAR_TO_BYTE[char] for char in token]) for token, i in vocab.items()}
        self.byte_to_id = [vocab[BYTE_TO_CHAR[byte]] for byte in range(256)]
        self.merges = ranked(pairs, vocab)
        self.encode_word = lru_cache(maxsize=2**15)(self.encode_word)  # few words make up most of a text

    def encode_word(self, word):
        return bpe([self.byte_to_id[byte] for byte in word.encode("utf-8")], self.merges)

    def encode(self, text, allowed_special=False):
        """The token ids of a text, as a list. <|endoftext|> is plain text, or with allowed_special (--special) eot.

        The encoder of a tokenizer.json (checkpoints/tokenizer.py) finds its special tokens in any text.
        """
        ids = []
        for i, part in enumerate(text.split(END_OF_TEXT) if allowed_special else [text]):
            if i > 0:
                ids.append(self.eot)
            for word in WORD.findall(part):
                ids += self.encode_word(word)
        return ids

    def decode(self, ids):
        """The text of the ids. Bytes that are not UTF-8 (a character may be cut in two) become U+FFFD."""
        return b"".join([self.id_to_bytes[i] for i in ids]).decode("utf-8", "replace")


def ranked(pairs, vocab):
    """pairs [(left token, right token)], lowest rank first -> {(left id, right id): (rank, id of the two as one)}."""
    merges = {}
    for rank, (left, right) in enumerate(pairs):
        merges[vocab[left], vocab[right]] = (rank, vocab[left + right])
    return merges


class StreamDecoder:
    """Decodes ids as they come, up to the first stop text. The text is all that push and flush return, joined.

    stop: None, a text, or a tuple of texts. A character may span tokens: its first bytes wait here until the last one
    arrives. Bytes that may begin a stop text wait as well. END_OF_TEXT as a stop text is each token that ends a text,
    if the encoder has one, and not the characters.
    """

    def __init__(self, encoder, stop=None):
        self.encoder = encoder
        stops = [stop] if isinstance(stop, str) else stop or []
        self.ends = encoder.ends if END_OF_TEXT in stops else set()
        texts = [text for text in stops if text and not (self.ends and text == END_OF_TEXT)]
        self.stops = tuple(map(str.encode, texts))
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.waiting = b""
        self.stopped = False  # whether the stop text has come; the text after it is dropped

    def push(self, ids):
        """The text that these ids complete, "" if none."""
        for i in ids:
            self.stopped = self.stopped or i in self.ends
            if self.stopped:
                break
            self.waiting += self.encoder.id_to_bytes[i]
            self.stopped = self.waiting.startswith(self.stops, self.first_stop())
        n = self.first_stop(whole=self.stopped)
        given, self.waiting = self.waiting[:n], self.waiting[n:]
        return self.utf8.decode(given)

    def first_stop(self, whole=False):
        """The first index of the waiting bytes at which a stop text is or, unless it has to be whole, may have begun;
        their number if there is none."""
        for i in range(len(self.waiting)):
            has_begun = not whole and any(stop.startswith(self.waiting[i:]) for stop in self.stops)
            if has_begun or self.waiting.startswith(self.stops, i):
                return i
        return len(self.waiting)

    def flush(self):
        """The end of the text, with U+FFFD for a character that was never completed."""
        given, self.waiting = self.waiting[: self.first_stop(whole=True)], b""
        return self.utf8.decode(given, final=True)


def get_encoder(model_size, models_dir):
    """The Encoder of the model in models_dir/model_size, from its encoder.json (the ids) and vocab.bpe (the merges).

    ValueError, in one line that names the file, if one of them is missing, damaged or does not fit the other.
    """
    path = Path(models_dir) / model_size / "encoder.json"
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))
        ids = [*vocab.values()] if isinstance(vocab, dict) else [None]
        if not {*map(type, ids)} <= {int} or sorted(ids) != [*range(len(ids))]:
            raise ValueError("should be an object that gives each token an id, from 0 on")
        path = path.with_name("vocab.bpe")
        return Encoder(vocab, read_pairs(path, vocab))
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error!s:.200}") from None


def read_pairs(path, vocab):
    """[(left token, right token)] of a vocab.bpe, which makes the tokens of vocab from the bytes."""
    version, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if not version.startswith("#version"):
        raise ValueError("its first line should begin with #version, before the merges")
    pairs = [tuple(line.split(" ")) for line in lines]
    made = {*BYTE_TO_CHAR.values(), *map("".join, pairs), END_OF_TEXT}
    for line, pair in zip(lines, pairs, strict=True):
        if len(pair) != 2 or not made.issuperset(pair):
            raise ValueError(f"its line {line[:60]!r} should merge two tokens, each a byte or made by another line")
    unlike = made ^ vocab.keys()
    if unlike:
        token = END_OF_TEXT if END_OF_TEXT in unlike else min(unlike)
        verb = "lacks" if token in made else "also has"
        more = f" ({len(unlike)} tokens differ)" if len(unlike) > 1 else ""
        both = "if both are right, call them vocab.json and merges.txt"  # for which none of this is needed
        raise ValueError(f"its tokens should be those of encoder.json, which {verb} {token[:40]!r}{more}; {both}")
    return pairs
