"""The name of a model, as it is typed, and the folder that it means: of models_dir, a path, or of the hub's cache."""

import contextlib
import os
import re
from pathlib import PureWindowsPath
from textwrap import shorten
from typing import Any

from speculative.checkpoints.official import HUGGING_FACE
from speculative.support.errors import UserError

WITHOUT_OWNER = (*HUGGING_FACE.values(), "distilgpt2")  # names that the hub knows without their owner


def path(value: Any) -> str:
    if not str(value):
        raise ValueError("the name of a file or folder")
    return os.path.expanduser(str(value))


def is_path(model_size: str) -> bool:
    """Return True for a path: by its beginning, by a drive or a backslash, or since there is such a path."""
    if model_size.startswith((".", "/", "~")) or "\\" in model_size or PureWindowsPath(model_size).drive:
        return True
    return "/" in model_size and os.path.exists(model_size)


def model(value: Any) -> str:
    """A folder of models_dir, a path, or a model of the Hugging Face hub: OWNER/NAME[@REVISION]."""
    word = r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # without slashes, without two dots in a row
    if is_path(str(value)):
        return path(value)
    name = str(value).removesuffix("/")  # which a shell completes
    if not re.fullmatch(f"{word}(/{word})?(@{word}(/{word})*)?", name):
        raise ValueError("124M, a folder of models_dir, a path that begins with . / or ~, or OWNER/NAME of the hub")
    return name


def local_folder(name: str, models_dir: str) -> str:
    """Return models_dir/name, or name itself if it is a path."""
    return name if is_path(name) else os.path.join(os.path.expanduser(models_dir), name)


def model_folder(name: str, models_dir: str) -> str:
    """Return the folder of a model, which may not be there yet: its local folder, or one in the cache of Hugging Face's
    library. Only a path leads out of these."""
    if is_of_hub(name, models_dir):
        with contextlib.suppress(UserError):  # it is not in the cache
            return ask_hub("snapshot_download", name, local_files_only=True)
    return local_folder(name, models_dir)


def is_of_hub(name: str, models_dir: str) -> bool:
    """Return True for OWNER/NAME, OWNER/NAME@REVISION and the names that need no owner, without a local folder."""
    repository = name.partition("@")[0]
    is_name = not is_path(name) and ("/" in repository or repository in WITHOUT_OWNER)
    return is_name and not os.path.isdir(local_folder(name, models_dir))


def ask_hub(function: str, name: str, **how) -> Any:
    """Call a function of huggingface_hub for a model. Raises UserError with its message in one line.

    It takes care of HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, and begins an interrupted file again.
    """
    import huggingface_hub

    repository, _, revision = name.partition("@")
    try:
        return getattr(huggingface_hub, function)(repository, revision=revision or None, **how)
    except Exception as error:  # its kinds are those of several libraries
        raise UserError(f"{name}: {shorten(str(error), 400, placeholder=' …')}") from error
