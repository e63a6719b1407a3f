"""python -m training COMMAND [--help]: makes and improves the models that decode."""

import sys
from collections.abc import Callable
from functools import partial

from speculative.support import extras
from speculative.support.errors import UserError, guarded

COMMANDS = ("pair", "distil", "online", "heads")


def chosen() -> Callable:
    """Return the main of the command that was named."""
    command, *arguments = sys.argv[1:] or [None]
    if command in ("-h", "--help"):
        return partial(print, f"{__doc__}\n\ncommands: {', '.join(COMMANDS)}")
    if command not in COMMANDS:
        got = f", not {command!r:.80}" if command else ""
        raise UserError(f"python -m training needs a command, {' or '.join(COMMANDS)}{got}")
    extras.check(f"python -m training {command}", ("jax", "optax", "tokenizers"))
    module = __import__(f"training.{command}", fromlist=["main"])
    return partial(module.main, arguments)


guarded(lambda: chosen()(), "interrupted: the same command goes on from the last checkpoint")
