"""What is measured, and against whom: python -m benchmarks.NAME."""

from speculative.cli import exits

exits.begin_package()
