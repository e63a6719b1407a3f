"""What is measured, and against whom: python -m benchmarks.NAME."""

import sys

from speculative.cli import exits

if sys.argv[0] == "-m":  # as Python leaves it until it has found the module that it is told to run
    exits.begin()
