"""The version, where pyproject.toml, --version and speculative.__version__ find it."""

__version__ = "3.0.0"
