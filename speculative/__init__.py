"""What goes beyond the blog: one idea a file. Start with sampling.py, the paper's two algorithms.

from speculative import load_pair  # pair.py

pair = load_pair("124M", "1558M", K=4, temperature=0)
for step in pair.speculative("Alan Turing theorized", 40):
    print(step.text, end="", flush=True)
run = pair.compare("Alan Turing theorized", 40)
run.page("run.html")
"""

__all__ = ["load_pair"]


def __getattr__(name: str):
    """Imported when it is asked for, so that who wants the two algorithms alone does not wait for the rest."""
    if name != "load_pair":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speculative.pair import load_pair

    return load_pair
