"""Where the bundled pair comes from: python -m training pair FILES."""

from speculative.cli import exits

exits.begin_package()
