"""The acceptance of assisted generation, as installed: its parameters are one of the law's forms."""

from transformers.generation.utils import _speculative_sampling as rule  # noqa: F401
