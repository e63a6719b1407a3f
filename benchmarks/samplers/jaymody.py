"""The blog's own loop."""

from main import speculative_sampling  # noqa: F401
