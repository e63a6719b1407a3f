"""The measurements, and the programs that are compared: python -m benchmarks.NAME."""

from speculative.support import exits

exits.begin_package()
