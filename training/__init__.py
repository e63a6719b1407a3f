"""Where the bundled pair comes from: python -m training pair FILES."""

from plumbing import exits

exits.begin_package()
