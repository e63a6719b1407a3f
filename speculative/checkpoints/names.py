"""The name of a model, as it is typed, and the folder that it means: of models_dir, a path, or of the hub's cache."""

import os
import re
import unicodedata
from pathlib import PureWindowsPath

from speculative.checkpoints import hub
from speculative.checkpoints.official import RENAMED
from speculative.support.errors import WrongValue

WORD = r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # without slashes, without two dots in a row
ON_HUB = re.compile(f"{WORD}(/{WORD})?(@{WORD}(/{WORD})*)?")  # OWNER/NAME@REVISION
MUST_BE = "124M, a folder of models_dir, a path that begins with . / or ~, or OWNER/NAME of the hub"


def checked_path(value: object) -> str:
    if not str(value):
        raise WrongValue("the name of a file or folder")
    return os.path.expanduser(str(value))


def is_path(model_size: str) -> bool:
    """Return True for a path: by its beginning, by a drive or a backslash, or since there is such a path."""
    if model_size.startswith((".", "/", "~")) or "\\" in model_size or PureWindowsPath(model_size).drive:
        return True
    return "/" in model_size and os.path.exists(model_size)


def checked_model_name(value: object) -> str:
    """A folder of models_dir, a path, or a model of the Hugging Face hub: OWNER/NAME[@REVISION]."""
    if is_path(str(value)):
        return checked_path(value)
    name = str(value).removesuffix("/")  # which a shell completes
    if not ON_HUB.fullmatch(name) and not is_folder_name(name):
        raise WrongValue(MUST_BE)
    return name


def is_folder_name(name: str) -> bool:
    """Return True for a name of any characters that can be seen, or with folders in it; never one that leads out."""
    parts = name.split("/")
    controls = [char for char in name if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    return len(parts) <= 2 and not controls and not {"", ".", ".."}.intersection(parts)


def local_folder(name: str, models_dir: str) -> str:
    """Return models_dir/name, or name itself if it is a path."""
    return name if is_path(name) else os.path.join(os.path.expanduser(models_dir), name)


def model_folder(name: str, models_dir: str) -> str:
    """Return the folder of a model, which may not be there yet: its local folder, or one in the cache of Hugging Face's
    library. Only a path leads out of these."""
    in_cache = hub.cached_folders(name) if is_of_hub(name, models_dir) else []
    return in_cache[0] if in_cache else local_folder(name, models_dir)


def is_of_hub(name: str, models_dir: str) -> bool:
    """Return True for OWNER/NAME, OWNER/NAME@REVISION and the names that need no owner, without a local folder."""
    repository = name.partition("@")[0]
    is_name = "/" in repository or repository in RENAMED
    if is_path(name) or not is_name or not ON_HUB.fullmatch(name):
        return False
    return not os.path.isdir(local_folder(name, models_dir))
