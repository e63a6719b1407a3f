"""python -m speculative, and the command speculative-sampling: the blog's main.py."""

from speculative.blog import main  # type: ignore[attr-defined]
from speculative.cli.command import run
from speculative.support.errors import guarded


def command() -> None:
    """Run the words of the command line."""
    guarded(lambda: run(main.main, main.__doc__))


if __name__ == "__main__":
    command()
