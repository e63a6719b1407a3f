"""Where the bundled pair comes from: python -m training pair FILES."""
