"""The command line: from the words that were typed to a call of main, with its options and its prompts."""

import os
import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import takewhile
from typing import NamedTuple

from speculative.cli.help import help_text
from speculative.engines.choice import process
from speculative.report.run import check_files
from speculative.run.options import FIELDS, SHORT, Options, make_options
from speculative.run.values import SWITCH, as_switch, without_escapes
from speculative.support.errors import (
    EXTRAS,
    OTHER_NAMES_OF_OPTIONS,
    Option,
    UserError,
    did_you_mean,
    install,
    unknown_option,
)
from speculative.support.files import STANDARD_OUTPUT
from speculative.support.terminal import one_line
from speculative.support.texts import has_piped_text, is_json, prompts_in, read_text
from speculative.version import __version__

USAGE = {"__main__.py": "python -m speculative", "main.py": "python main.py"}  # a file -> the command that runs it
# Options beside which no text is read from a pipe.
WITH_OWN_PROMPTS = {"prompt", "prompt_file", "score", "interactive", "serve", "pack"}
SWITCHES = {name for name, f in FIELDS.items() if f.metadata["check"] is as_switch}
WITHOUT_VALUE = SWITCHES | {"serve"}  # an option that may stand without a value
LIKE_SWITCH = ("true", "false", "yes", "no")  # words that are refused as the value of a switch, not taken as a prompt
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # an editor puts them in the place of - and --
COMMANDS = ("law", "page")  # the commands of python -m speculative
QUESTIONS = ("help", "version")  # flags that are not options of a run
TEXTS = {"prompt": "prompt", "stop": "stop text"}  # options whose value is a text -> its name
LONG = {*FIELDS, *" ".join(OTHER_NAMES_OF_OPTIONS.values()).split()} - {*SHORT}  # names of an option, not of its letter


# ---- The words that were typed ---------------------------------------------------------------------------------------


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
    value: str | None  # the value of the option; None if none is given


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
    typed, attached, value = word.partition("=")  # attached: "" if the value is the next word
    name = typed.removeprefix("-").removeprefix("-").replace("-", "_")
    if word[1] in SHORT and name not in LONG:  # -temperature is not -t emperature
        name = SHORT[word[1]]
        attached = word[2:]
        value = attached.removeprefix("=")
    elif not word.startswith("--") or name not in FIELDS:
        raise unknown_option(typed, FIELDS)
    return Flag(name, value if attached else following(name, rest))


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


# ---- The options of a run --------------------------------------------------------------------------------------------


def read_command(doc: str | None, words: Sequence[str] | None = None) -> Given:
    """Return the options that were typed, as main takes them; print --help or --version and end. Raises UserError."""
    words = sys.argv[1:] if words is None else words
    if {"-h", "--help"} & {*words}:
        file = os.path.basename(sys.argv[0])
        program = USAGE.get(file, file)
        about = (doc or "").replace(USAGE["main.py"], program)
        print(f"{about}\nusage: {program} [PROMPT] [--OPTION VALUE ...]\n{help_text('all' in words)}")
        sys.exit(0)
    if "--version" in words:
        print(f"speculative-sampling {__version__}")
        sys.exit(0)
    given = read_words(words)
    if not WITH_OWN_PROMPTS & given.keys() and has_piped_text():
        given["prompt_file"] = "-"
    return given


def read_options(given: Mapping[str, object]) -> Options:
    """{option: its value, or the text that was typed} -> the options. Raises UserError,
    also for files that cannot be written."""
    o = make_options(Options, dict(given))
    if given.get("seed") == "random":
        if process(o.engine).n_processes > 1:
            raise UserError("--seed random would be another number in each process: give all of them the same number")
        print(f"drawn: --seed {o.seed}, with which the run can be repeated", file=sys.stderr)
    for library, extra in EXTRAS.items():  # an extra is named as the option that needs it
        if getattr(o, extra, None) not in (None, False) and not find_spec(library):
            raise UserError(f"--{extra} needs more libraries: {install(extra)}")  # before any work begins
    if process(o.engine).number > 0:
        return replace(o, json=None, html=None)  # the first process writes
    if o.only == "autoregressive" and (o.html or o.verbose):
        raise UserError(
            "--only autoregressive drafts nothing to show with --html or --verbose: leave it out, or take --json"
        )
    if o.json or o.html:
        check_files([o.json, o.html], o)
    if {o.json, o.html} <= STANDARD_OUTPUT:
        raise UserError("--json and --html cannot both be standard output: give one of them a file")
    return o


def direct_output(o: Options) -> None:
    """Let the rest of this process print nothing if it is not the first, and to standard error if standard output is
    for --json or --html."""
    if process().number > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif STANDARD_OUTPUT & {o.json, o.html}:
        sys.stdout = sys.stderr


# ---- Prompts ---------------------------------------------------------------------------------------------------------


def choose_prompts(o: Options) -> list[str]:
    """One prompt, --n_samples times; with --batch B at least B times, or all prompts of a file, of which it has to have
    B or more.

    Raises UserError.
    """
    if not o.prompt_file:
        return [o.prompt] * max(o.batch, o.n_samples)
    return file_prompts(o.prompt_file, o.batch) * o.n_samples


def file_prompts(file: str, batch: int) -> list[str]:
    """Return the first prompt of a file, or with --batch all. Raises UserError if they are too few."""
    text = read_text(file, "prompt" if batch == 1 else "file of prompts")
    if batch == 1 and not is_json(file, text):
        return [text]
    prompts = prompts_in(text, file)
    n = len(prompts)
    if n < batch:
        raise UserError(f"--batch {batch} needs at least {batch} prompts, and {file} has {n}")
    if batch > 1:
        return prompts
    if n > 1:
        line = f"only the first of {n} prompts in {file} is decoded: --batch {n} decodes all of them"
        print(one_line(line), file=sys.stderr)
    return prompts[:1]
