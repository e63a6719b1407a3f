"""python -m speculative, and the command speculative-sampling: the blog's main.py, the checker of laws, and pages."""

import os
import sys

import speculative.support.early  # noqa: F401  # Ctrl-C during the imports below is one line
from speculative.blog import main  # type: ignore[attr-defined]
from speculative.cli.command import read_command
from speculative.cli.modes import replay
from speculative.law import main as check_law
from speculative.support.errors import guarded

COMMANDS = {"law": check_law, "page": replay}


def command() -> None:
    """Run the words of the command line."""
    name, *words = sys.argv[1:] or [""]
    try:
        with guarded():
            if name in COMMANDS:
                COMMANDS[name](words)
            else:
                main.main(**read_command(main.__doc__))
    except SystemExit as ended:
        if name == "law":  # a file that was checked may have left threads that wait, and functions for Python's own end
            os._exit(ended.code if isinstance(ended.code, int) else 0)
        raise


if __name__ == "__main__":
    command()
