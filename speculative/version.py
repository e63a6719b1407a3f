"""The version, where pyproject.toml, --version and speculative.__version__ find it."""

__version__ = "1.0.0"
