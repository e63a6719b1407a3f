"""Models of the Hugging Face hub: their names, and their folders in the cache of its own libraries.

A model is downloaded to models_dir/OWNER/NAME; one that is whole in that cache is read there.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

# The names without an owner that the hub still knows, and the full ones.
SHORT = {
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "distilgpt2": "distilbert/distilgpt2",
}
PART = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"  # without two dots in a row
NAME = re.compile(rf"({PART}/{PART}|{'|'.join(map(re.escape, SHORT))})(?:@({PART}))?")
COMMIT = re.compile("[0-9a-f]{40}")


class Hub(NamedTuple):
    """A model's name on the hub."""

    name: str  # "owner/name"
    revision: str = "main"

    def __str__(self):
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


def hub_name(model_size: str) -> Hub | None:
    """ "owner/name", "owner/name@revision" or one of SHORT -> Hub; None for any other text."""
    match = NAME.fullmatch(model_size)
    if not match:
        return None
    name, revision = match.groups()
    return Hub(SHORT.get(name, name), revision or "main")


def cached_folder(hub: Hub) -> str | None:
    """The folder of this model in the cache of Hugging Face's libraries, None if there is none.

    It may be incomplete.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    with contextlib.suppress(OSError, ValueError):  # damaged
        for name in ("config.json", "hparams.json"):
            path = try_to_load_from_cache(hub.name, name, revision=hub.revision)
            folder = os.path.dirname(path) if isinstance(path, str) else ""
            if COMMIT.fullmatch(os.path.basename(folder)):  # a branch's entry is a text, and might lead anywhere
                return folder
    return None


def in_cache(folder: str | Path) -> bool:
    """True if a folder is in that cache. Nothing of ours is to be written there."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return False
    return Path(folder).resolve().is_relative_to(Path(constants.HF_HUB_CACHE).resolve())
