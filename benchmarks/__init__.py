"""The measurements, and the programs that are compared: python -m benchmarks.NAME."""

from plumbing import exits

exits.begin_package()
