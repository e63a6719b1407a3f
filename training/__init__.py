"""Where the bundled pair comes from: python -m training pair FILES."""

import sys

from speculative.cli import exits

if sys.argv[0] == "-m":  # as Python leaves it until it has found the module that it is told to run
    exits.begin()
