"""python -m training COMMAND [--help]: makes and improves the models that decode."""

import sys

from speculative.cli.exits import guarded
from speculative.errors import UserError

COMMANDS = ("pair", "distil", "online")


def main() -> None:
    """Runs the command that was named, whose module is imported only then."""
    command, *arguments = sys.argv[1:] or [None]
    if command in ("-h", "--help"):
        print(f"{__doc__}\n\ncommands: {', '.join(COMMANDS)}")
        return
    if command not in COMMANDS:
        got = f", not {command!r:.80}" if command else ""
        raise UserError(f"python -m training needs a command, {' or '.join(COMMANDS)}{got}")
    module = __import__(f"training.{command}", fromlist=["main"])
    module.main(arguments)


guarded(main, "interrupted: the same command goes on from the last checkpoint")
