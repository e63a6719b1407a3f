"""python -m speculative, and the command speculative-sampling: the blog's main.py, and the checker of laws."""

import sys

import speculative.support.early  # noqa: F401  # Ctrl-C during the imports below is one line
from speculative.blog import main  # type: ignore[attr-defined]
from speculative.cli.command import run
from speculative.laws import check as check_law
from speculative.support.errors import guarded


def command() -> None:
    """Run the words of the command line."""
    if sys.argv[1:2] == ["law"]:
        return guarded(lambda: check_law.main(sys.argv[2:]))
    guarded(lambda: run(main.main, main.__doc__))


if __name__ == "__main__":
    command()
