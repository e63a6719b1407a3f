"""What is measured, and against whom: python -m benchmarks.NAME."""

from plumbing import exits

exits.begin_package()
