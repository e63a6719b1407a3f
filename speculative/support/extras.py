"""Libraries that the small installation lacks: they are asked for by name, before any work begins."""

from collections.abc import Iterable
from importlib.util import find_spec

from speculative.support.errors import UserError

EXTRAS = {  # {library: the extra of pyproject.toml that has it}
    "scipy": "verify",
    "starlette": "serve",
    "uvicorn": "serve",
    "huggingface_hub": "hub",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "optax": "training",
    "tokenizers": "training",
    "matplotlib": "training",
}


def check(what: str, libraries: Iterable[str]) -> None:
    """Raises UserError where `what` needs a library that is not installed."""
    for name in libraries:
        if not installed(name):
            raise UserError(f"{what} needs {name}: {advice(name)}")


def installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # something stands in its way
        return False


def advice(name: str | None) -> str:
    """The command that installs a missing module."""
    library = str(name).partition(".")[0]
    if library in EXTRAS:
        return f'pip install {library}, or in the repository pip install -e ".[{EXTRAS[library]}]"'
    return "in the repository, pip install -e ."
