"""Errors that a user sees as one line, their wording, and the guard that ends a command by one of them."""

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from textwrap import shorten

from speculative.support.process import handle_signals, prepare_streams
from speculative.support.terminal import one_line, without_secrets

EXTRAS = {"scipy": "verify", "starlette": "serve", "uvicorn": "serve", "jax": "jax"}  # a library -> its extra
EXTRAS |= dict.fromkeys(("optax", "matplotlib"), "training")

NO_THREAD = "can't start new thread"  # Python says it if threads or memory are limited
MORE_THREADS = "raise the limit of processes (ulimit -u) or of memory (ulimit -v), or take fewer with --threads"


class Option(str):
    """The name of an option in an error, without the dashes that it has at a command line alone."""


class UserError(Exception):
    """Something the user can put right: a sentence in parts, of which some are options, and a hint.

    UserError(Option("K"), " is given twice") is "--K is given twice" at a command line, and names K in a session, in
    Python and in the workbench as each of them does. The message is one line.
    """

    def __init__(self, *sentence: str, hint: str | Sequence[str] = ()):
        """hint: the remedy, in parts too; it stands behind a semicolon."""
        super().__init__(*sentence)
        self.sentence = sentence
        self.hint = (hint,) if isinstance(hint, str) and hint else tuple(hint)
        self.prefix = "--"  # the prefix of options, where the error is shown

    @property
    def option(self) -> str:
        """The first option that the sentence names; "" if it names none."""
        return next((part for part in self.sentence if isinstance(part, Option)), "")

    def words(self, named: Callable[[str], str]) -> str:
        """Return the message, with options as `named` names them."""
        parts = (*self.sentence, "; ", *self.hint) if self.hint else self.sentence
        words = [named(part) if isinstance(part, Option) else part for part in parts]
        return one_line(without_secrets("".join(words)))

    def __str__(self) -> str:
        return self.words(self.prefix.__add__)


class WrongValue(ValueError):
    """The values that are right, and a hint: from the check of an option, which does not know its name."""

    def __init__(self, must_be: str, hint: str = ""):
        super().__init__(must_be)
        self.must_be = must_be
        self.hint = hint


@contextlib.contextmanager
def naming_options(prefix: str) -> Iterator[None]:
    """Errors in the body of the `with` name an option with this prefix: "/" in a session, "" in Python."""
    try:
        yield
    except UserError as error:
        error.prefix = prefix
        raise


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, its words up to the 200th character."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return shorten(line, 200, placeholder=" ...")


def alike(name: str, names: Collection[str]) -> str:
    """Return the one of the names that is most like this one, "" if none is."""
    found = [other for other in names if other.lower() == name.lower()]
    if name:
        found += [other for other in names if other.startswith(name)]
    found += difflib.get_close_matches(name, names, n=1)
    return found[0] if found else ""


def did_you_mean(name: str, names: Collection[str]) -> str:
    """ "did you mean K?", or "" if none of the names is like it."""
    other = alike(name, names)
    return f"did you mean {other}?" if other else ""


def install(extra: str) -> str:
    """Return the command that installs the libraries of an extra, in the versions of the tests."""
    return f'pip install -e ".[{extra}]" -c requirements.txt'


def explanation(error: Exception) -> str:
    """Return the line for a foreseen error, "" for another."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        library = str(error.name).partition(".")[0]
        how = install(EXTRAS[library]) if library in EXTRAS else f"pip install {library}"
        return f"{error}: {how}"
    if isinstance(error, MemoryError):
        return f"there is too little memory ({first_line(error)}): take smaller models, or raise the limit"
    if NO_THREAD in str(error):
        return f"the system starts no more threads ({first_line(error)}): {MORE_THREADS}"
    if isinstance(error, OSError):
        return f"{error.filename or 'cannot write the output'}: {error.strerror or error}"
    return ""


# ---- The end of a command --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def guarded(interrupted: str = "interrupted") -> Iterator[None]:
    """The body of the `with` is the whole of a command. A foreseen error ends the process with one line and status 2.

    Ctrl-C ends it with the line `interrupted` and status 130, SIGTERM with status 143. An unforeseen exception shows
    its traceback, by which it can be repaired.
    """
    prepare_streams()
    try:
        handle_signals()
        yield
        sys.stdout.flush()  # here, so that a full disk is explained
    except KeyboardInterrupt:
        sys.stdout.flush()
        print(interrupted, file=sys.stderr, flush=True)
        os._exit(130)  # at once: Python's own way out waits for threads, in which JAX may compile for a minute
    except Exception as error:
        message = explanation(error)
        if not message:
            raise
        if isinstance(error, OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes to standard output once more when it ends
        if isinstance(error, BrokenPipeError):  # nobody reads on
            sys.exit(128 + 13)  # as a shell says of a program that SIGPIPE ended
        print(f"error: {one_line(message)}", file=sys.stderr)
        sys.exit(2)


# ---- Names that other programs and papers have for our options and models --------------------------------------------

# Each is answered with "did you mean", and never taken silently.


OTHER_NAMES_OF_OPTIONS = {  # an option -> its names elsewhere
    "K": "lookahead gamma num_draft_tokens num_speculative_tokens num_assistant_tokens draft_max spec_draft_n_max "
    "draft_length draft_len",
    "n_tokens_to_generate": "max_tokens max_new_tokens num_tokens n_tokens tokens length max_length n_predict n",
    "target_model_size": "model m model_size target target_model",
    "draft_model_size": "draft_model md model_draft assistant_model draft",
    "temperature": "temp T t greedy",
    "quiet": "no_stream",
    "verbose": "verbose_prompt v",
    "seed": "s",
    "prompt": "input p",
    "prompt_file": "file f",
    "threads": "n_threads num_threads",
    "interactive": "chat i",
    "html": "page",
    "score": "perplexity ppl logprobs echo",
}
OTHER_NAMES_OF_MODELS = {  # an official size -> its names elsewhere
    "124M": "117M small gpt2-small",
    "355M": "345M medium",
    "774M": "762M large",
    "1558M": "1542M 1.5B 1.6B xl",
}


def meant(name: str, names: Collection[str], synonyms: Mapping[str, str]) -> str:
    """Return K for a synonym of K, or a name like it; "" if none of the names is meant."""
    for ours, others in synonyms.items():
        if ours in names and name in others.split():
            return ours
    return alike(name, names)


def unknown_option(typed: str, names: Collection[str]) -> UserError:
    """Return the error of an option that is none of the names. typed: with its dashes, if it has any."""
    typed = type(typed)(typed[:80])  # an Option stays one
    name = typed.lstrip("-").replace("-", "_")
    ours = meant(name, names, OTHER_NAMES_OF_OPTIONS)
    value = " 0" if name == "greedy" else ""
    hint = ("did you mean ", Option(ours), f"{value}?") if ours else ("see ", Option("help"))
    return UserError("unknown option ", typed, hint=hint)
