"""Libraries that a small installation lacks, and the extra of pyproject.toml that has each."""

from collections.abc import Iterable
from importlib.util import find_spec

EXTRAS = {
    "scipy": "verify",
    "starlette": "serve",
    "uvicorn": "serve",
    "jax": "jax",
    "optax": "training",
    "safetensors": "training",
    "matplotlib": "training",
}


def check(what: str, libraries: Iterable[str]) -> None:
    """Raise ModuleNotFoundError if a library that `what` needs is not installed, before any work begins."""
    for name in libraries:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"{what} needs {name}", name=name)


def advice(name: str | None) -> str:
    """Return the command that installs a missing module."""
    library = str(name).partition(".")[0]
    if library in EXTRAS:
        return f'pip install {library}, or in the repository pip install -e ".[{EXTRAS[library]}]"'
    return "in the repository, pip install -e ."
