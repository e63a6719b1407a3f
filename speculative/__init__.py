"""The method, one idea a file. Start with sampling.py, the paper's two algorithms. From Python:

from speculative import load_pair  # session.py

session = load_pair("124M", "1558M", K=4, temperature=0)
for step in session.speculative("Alan Turing theorized", 40):
    print(step.text, end="", flush=True)
run = session.compare("Alan Turing theorized", 40)
run.page("run.html")
"""

from speculative.version import __version__

__all__ = ["__version__", "load_pair"]


def __getattr__(name: str):
    """Imports load_pair when it is asked for: the two algorithms alone need not wait for the rest."""
    if name != "load_pair":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speculative.session import load_pair

    return load_pair
