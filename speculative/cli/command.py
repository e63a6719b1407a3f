"""The command line: from the words that were typed to a call of main, with its options and its prompts."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from speculative.engines.choice import choose
from speculative.options import FIELDS, SHORT, Options, help_text, make_options, switch, without_escapes
from speculative.support.errors import UserError, install
from speculative.support.texts import is_jsonl, read_prompts, read_text
from speculative.version import __version__

SWITCHES = {name for name, f in FIELDS.items() if f.metadata["check"] is switch}
WITHOUT_VALUE = SWITCHES | {"serve"}
NEEDS = {"verify": "scipy", "serve": "starlette uvicorn"}  # libraries that a small installation lacks
USAGE = {"__main__.py": "python -m speculative", "main.py": "python main.py"}  # a file -> the command that runs it


def run(main: Callable, doc: str, words: list[str] | None = None) -> None:
    """Call main with the options that were typed. Raises UserError."""
    import fire

    words = [*map(expand_short_flag, sys.argv[1:] if words is None else words)]
    stops: list[str] = []  # fire would keep the last one

    def call(*others, **given):
        for word in (*others, *{"--"}.intersection(words)):
            raise UserError(f"unexpected {word!r:.80}: a value follows its --option; quote a text with spaces")
        main(**given | ({"stop": stops} if stops else {}))

    if {"-h", "--help"} & {*words}:
        file = os.path.basename(sys.argv[0])
        print(f"{doc}\nusage: {USAGE.get(file, file)} [--OPTION VALUE ...]\n{help_text('all' in words)}")
    elif "--version" in words:
        print(f"speculative-sampling {__version__}")
    else:
        seen: set[str] = set()
        for word, following in pairwise([*words, "--"]):
            name, has_value, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            if not word.startswith("--") or name not in FIELDS.keys() - SWITCHES:
                continue
            if not has_value and name not in WITHOUT_VALUE and re.match("--|-[A-Za-z]", following):
                raise UserError(f"--{name} needs a value; one that begins with - is written --{name}=VALUE")
            if name == "stop":
                stops.append(without_escapes(value if has_value else following))
            elif name in seen:
                raise UserError(f"--{name} is given twice, and takes one value: give it once")
            seen.add(name)
        fire.Fire(fire.decorators.SetParseFn(str)(call), command=[*words, "--", "--separator=\0"])


def expand_short_flag(word: str) -> str:
    """-K is short for --K."""
    match = re.fullmatch(f"-([{''.join(SHORT)}])(=.*)?", word, re.DOTALL)
    return f"--{SHORT[match[1]]}{match[2] or ''}" if match else word


def parse(given: dict[str, Any]) -> Options:
    """{option: the text that was typed} -> the options, with the engine that will run. Raises UserError."""
    o = make_options(Options, given)
    for name, libraries in NEEDS.items():
        if getattr(o, name) not in (None, False) and not all(map(find_spec, libraries.split())):
            raise UserError(f"--{name} needs more libraries: {install(name)}")  # before any work begins
    return replace(o, engine=choose(o.engine))


def choose_prompts(o: Options) -> list[str]:
    """One prompt, --n_samples times. With --batch B, all of a file's, which has to have B or more; or one, B times.

    With --interactive and --serve, whose prompts come later, none. Raises UserError.
    """
    if o.interactive or o.serve is not None:
        return []
    if not o.prompt_file:
        return [o.prompt] * o.batch * o.n_samples
    if o.batch == 1 and not is_jsonl(o.prompt_file):
        return [read_text(o.prompt_file, "prompt")] * o.n_samples
    prompts = read_prompts(o.prompt_file, None if o.batch > 1 else 1) * o.n_samples
    if len(prompts) < o.batch:
        raise UserError(f"--batch {o.batch} needs at least {o.batch} prompts, and {o.prompt_file} has {len(prompts)}")
    return prompts
