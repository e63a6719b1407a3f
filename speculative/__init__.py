"""The method, one idea a file. Start with sampling.py, the paper's two algorithms. From Python:

from speculative import load_pair  # session.py

session = load_pair("124M", "1558M", K=4, temperature=0)
for step in session.speculative("Alan Turing theorized", 40):
    print(step.text, end="", flush=True)
run = session.compare("Alan Turing theorized", 40)
run.page("run.html")
"""

from importlib.util import find_spec
from pathlib import Path

from speculative.version import __version__

__all__ = ["__version__", "load_pair"]


def __getattr__(name: str):
    """Imports load_pair when it is asked for: the two algorithms alone need not wait for the rest."""
    if name != "load_pair":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_neighbours()
    from speculative.session import load_pair

    return load_pair


def check_neighbours() -> None:
    """Raises ImportError where something else has the name of a module that the package needs.

    Python looks for gpt2.py beside the user's script before it looks here, and would run that.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in ("gpt2", "encoder"):
        spec = find_spec(name)
        found = [spec.origin or "", *(spec.submodule_search_locations or [])] if spec else []
        paths = [Path(path).resolve() for path in found if path]
        if paths and paths[0] not in (ours / f"{name}.py", ours / name / "__init__.py"):
            raise ImportError(f"{paths[0]} hides {name} of speculative-sampling: give it another name")
