"""The command line: from the words that were typed to a call of main."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from speculative.engines.choice import choose
from speculative.options import FIELDS, SHORT, Options, help_text, make_options, switch
from speculative.support.errors import UserError
from speculative.version import __version__

WITHOUT_VALUE = {name for name, f in FIELDS.items() if f.metadata["check"] is switch} | {"serve"}
NEEDS = {"verify": "scipy", "serve": "starlette uvicorn"}  # libraries that a small installation lacks
USAGE = {"__main__.py": "python -m speculative", "main.py": "python main.py"}  # a file -> the command that runs it


def run(main: Callable, doc: str, words: list[str] | None = None) -> None:
    """Call main with the options that were typed. Raises UserError."""
    import fire

    words = [*map(written_out, sys.argv[1:] if words is None else words)]

    def call(*others, **given):
        for word in (*others, *{"--"}.intersection(words)):
            raise UserError(f"unexpected {word!r:.80}: a value follows its --option; quote a text with spaces")
        main(**given)

    if {"-h", "--help"} & {*words}:
        file = os.path.basename(sys.argv[0])
        print(f"{doc}\nusage: {USAGE.get(file, file)} [--OPTION VALUE ...]\n{help_text('all' in words)}")
    elif "--version" in words:
        print(f"speculative-sampling {__version__}")
    else:
        for word, following in pairwise([*words, "--"]):
            name = word.removeprefix("--").replace("-", "_")
            if word.startswith("--") and name in FIELDS.keys() - WITHOUT_VALUE and re.match("--|-[A-Za-z]", following):
                raise UserError(f"--{name} needs a value; one that begins with - is written --{name}=VALUE")
        fire.Fire(fire.decorators.SetParseFn(str)(call), command=[*words, "--", "--separator=\0"])


def written_out(word: str) -> str:
    """-K is short for --K."""
    match = re.fullmatch(f"-([{''.join(SHORT)}])(=.*)?", word, re.DOTALL)
    return f"--{SHORT[match[1]]}{match[2] or ''}" if match else word


def parse(given: dict[str, Any]) -> Options:
    """{option: the text that was typed} -> the options, with the engine that will run. Raises UserError."""
    o = make_options(Options, given)
    for name, libraries in NEEDS.items():
        if getattr(o, name) not in (None, False) and not all(map(find_spec, libraries.split())):
            raise UserError(f"--{name} needs more libraries: pip install {libraries}")  # before any work begins
    return replace(o, engine=choose(o.engine))
