"""Libraries that a small installation lacks are asked for by name, before any work begins."""

from collections.abc import Iterable
from importlib.util import find_spec


def check(what: str, libraries: Iterable[str]) -> None:
    """Raise ModuleNotFoundError if a library that `what` needs is not installed."""
    for name in libraries:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"{what} needs {name}", name=name)
