"""The command line: from the words that were typed to a call of main, with its options and its prompts."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from speculative.cli.help import help_text
from speculative.cli.words import Given, read_words
from speculative.engines.choice import process
from speculative.report.run import check_files
from speculative.run.options import Options, make_options
from speculative.support.errors import EXTRAS, UserError, install
from speculative.support.files import STANDARD_OUTPUT
from speculative.support.terminal import one_line
from speculative.support.texts import has_piped_text, is_json, prompts_in, read_text
from speculative.version import __version__

USAGE = {"__main__.py": "python -m speculative", "main.py": "python main.py"}  # a file -> the command that runs it
WITH_OWN_PROMPTS = {"prompt", "prompt_file", "score", "interactive", "serve", "pack"}  # which read no text from a pipe


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
