"""The method, one idea a file. Start with sampling.py, the paper's two algorithms. From Python:

from speculative import load_pair

session = load_pair("124M", "1558M", K=4, temperature=0)
for step in session.speculative("Alan Turing theorized", 40):
    print(step.text, end="", flush=True)
run = session.compare("Alan Turing theorized", 40)
run.page("run.html")
"""

from importlib import import_module

from speculative.version import __version__

TYPE_CHECKING = False  # as in typing, which takes long to import: a command has to see Ctrl-C at once
if TYPE_CHECKING:
    from speculative.law import law as law
    from speculative.report.pair import load_pair as load_pair
    from speculative.report.run import Run as Run
    from speculative.run.session import Session as Session
    from speculative.sampling import autoregressive_sampling as autoregressive_sampling
    from speculative.sampling import speculative_sampling as speculative_sampling
    from speculative.support.errors import UserError as UserError

HOMES = {  # names that are imported when they are asked for, so that the two algorithms need not wait for them
    "load_pair": "speculative.report.pair",
    "Session": "speculative.run.session",
    "Run": "speculative.report.run",
    "UserError": "speculative.support.errors",
    "law": "speculative.law",
    "autoregressive_sampling": "speculative.sampling",
    "speculative_sampling": "speculative.sampling",
}
__all__ = ["__version__", *HOMES]


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(HOMES[name])
    return globals().get(name) or getattr(home, name)  # speculative.law is a package, which is called like a function


def __dir__() -> list[str]:
    return __all__
