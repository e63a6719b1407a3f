"""python -m speculative, and the command speculative-sampling: the blog's main.py, the checker of laws, and pages."""

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
    with guarded():
        if name in COMMANDS:
            COMMANDS[name](words)
        else:
            main.main(**read_command(main.__doc__))


if __name__ == "__main__":
    command()
