"""The making of the bundled pair, and drafts that learn: python -m training pair | distil | heads | online."""
