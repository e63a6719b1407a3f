"""The exact law of a program by enumeration, the check of somebody's code, and the statistical checks of --verify.

The law of a sampler is the probability of each text. It runs once for each outcome of its random numbers, and the
probabilities of each text are added up. Read unknown.py, traced.py and paths.py, then cases.py, forms.py and check.py.

From Python, speculative.law(function) -> a Verdict, as in a test:

    def test_mine():
        assert speculative.law(mine).lossless
"""

import sys
from types import ModuleType

VERDICTS: dict = {}  # {function: the Verdict on it}


class Law(ModuleType):
    """A package that can be called: speculative.law(function)."""

    def __call__(self, function):
        """Return the Verdict on a function. Raises UserError if its random numbers cannot be followed."""
        from speculative.law.check import check_law

        VERDICTS[function] = check_law(function)
        return VERDICTS[function]


law = sys.modules[__name__]
law.__class__ = Law  # only by its class can a module be called
