"""The words that were typed, and their meaning: {option: the text of its value}. options.py makes options of it."""

import re
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from speculative.run.options import FIELDS, SHORT
from speculative.run.values import SWITCH, as_switch, without_escapes
from speculative.support.errors import OTHER_NAMES_OF_OPTIONS, Option, UserError, did_you_mean, unknown_option

SWITCHES = {name for name, f in FIELDS.items() if f.metadata["check"] is as_switch}
WITHOUT_VALUE = SWITCHES | {"serve"}  # an option that may stand without a value
LIKE_SWITCH = ("true", "false", "yes", "no")  # words that are refused as the value of a switch, not taken as a prompt
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # an editor puts them in the place of - and --
COMMANDS = ("law", "page")  # the commands of python -m speculative
QUESTIONS = ("help", "version")  # flags that are not options of a run
TEXTS = {"prompt": "prompt", "stop": "stop text"}  # options whose value is a text -> its name
LONG = {*FIELDS, *" ".join(OTHER_NAMES_OF_OPTIONS.values()).split()} - {*SHORT}  # names of an option, not of its letter


class Given(dict[str, "str | list[str] | None"]):
    """{option: the text that was typed, None without a value}. A stop text may be given more than once."""

    def add(self, name: str, value: str | None) -> None:
        """Add an option. Raises UserError if it is given twice."""
        if value and name in TEXTS:
            value = without_escapes(value)
        if name == "stop" and value:
            self[name] = [*(self.get(name) or []), value]
        elif name in self:
            raise UserError(Option(name), " is given twice, and takes one value: give it once")
        else:
            self[name] = value


class Flag(NamedTuple):
    """A word that names an option."""

    name: str
    value: str | None  # that stands in the same word


def read_words(words: Sequence[str]) -> Given:
    """Return the options of a command line. A word that belongs to none is the prompt, before the options or after
    them. Raises UserError."""
    given = Given()
    last = Flag("", None)
    rest = deque(words)
    while rest:
        if is_flag(rest[0]):
            last = read_flag(rest)
        elif "prompt" in given or re.fullmatch(r"[\d.]+", rest[0]) or (last.name in TEXTS and " " not in rest[0]):
            raise cut_text(last, rest)
        else:
            last = Flag("prompt", bare_word(rest))
        given.add(*last)
    return given


def is_flag(word: str) -> bool:
    """Return True for a word that begins as an option does, also if an editor made its dash longer."""
    return bool(re.match(f"--|-[A-Za-z]|[{DASHES}]-?[A-Za-z]", word))


def read_flag(rest: deque[str]) -> Flag:
    """Take an option and its value: --K=4, --K 4, -K 4, -K=4 or -K4. Raises UserError."""
    word = rest.popleft()
    if word[0] in DASHES:
        raise UserError(f"{word:.80} begins with a dash that an editor made longer: type -- or - yourself")
    typed, equals, value = word.partition("=")
    name = typed.removeprefix("-").removeprefix("-").replace("-", "_")
    if word[1] in SHORT and name not in LONG:  # -temperature is not -t emperature
        name = SHORT[word[1]]
        equals = word[2:]
        value = equals.removeprefix("=")
    elif not word.startswith("--") or name not in FIELDS:
        raise unknown_option(typed, FIELDS)
    return Flag(name, value if equals else following(name, rest))


def following(name: str, rest: deque[str]) -> str:
    """Take the value of an option from the words after it. Raises UserError."""
    next_word = rest[0] if rest else "--"
    is_switched = next_word in SWITCH or (name in SWITCHES and next_word.lower() in LIKE_SWITCH)
    if is_switched or (name not in SWITCHES and not is_flag(next_word)):
        return rest.popleft()
    if name in WITHOUT_VALUE:
        return "True"
    raise UserError(f"--{name} needs a value; one that begins with - is written --{name}=VALUE")


def bare_word(rest: deque[str]) -> str:
    """Take a word as the prompt, as picoGPT does. Raises UserError if it is an option without its dashes."""
    word = rest.popleft()
    if word in {*FIELDS, *QUESTIONS}:
        raise UserError(f"{word} is an option: type --{word}; as a prompt it is given as --prompt {word}")
    if rest and re.search(r"\.(py|json)\b", rest[0]):
        command = "python -m speculative"
        if word in COMMANDS:
            raise UserError(f"{word} is a command of {command}: type {command} {word} {rest[0]:.80}")
        hint = did_you_mean(word, COMMANDS)
        raise UserError(f"unknown command {word:.80}: {command} has {', '.join(COMMANDS)}", hint=hint)
    return word


def cut_text(last: Flag, rest: deque[str]) -> UserError:
    """Return the error of words that follow no option: most often the shell has cut a text at its spaces. last: the
    option before them, with its value."""
    words = [*takewhile(lambda word: not is_flag(word), rest)]
    if last.name in TEXTS and last.value:
        name = last.name
        words.insert(0, last.value)
    else:
        name = "prompt"
    text = " ".join(words).strip("“”„‘’")
    return UserError(f'a {TEXTS[name]} is given as --{name} "{text:.80}"')
