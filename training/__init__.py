"""How the bundled pair was made, and how drafts learn: python -m training pair | distil | heads | online."""

from plumbing import exits

exits.begin_package()
