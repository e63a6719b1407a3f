"""Models of the Hugging Face hub, by its own library. Files in its cache are not asked for again.

The library takes care of HF_HOME, HF_TOKEN and HF_HUB_OFFLINE.
"""

import os
from textwrap import shorten
from typing import Any

from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.download import announce, certificate_advice, trust_certificates
from speculative.checkpoints.names import RENAMED, SMALL_NAMES, WEIGHT_NAMES
from speculative.support.errors import UserError

KEPT = "Ctrl-C keeps the files that are complete"


def cached_folders(name: str) -> list[str]:
    """Return the folders of a model in the library's cache, with all its small files: one for each of its names, as
    another program may have asked for the other one. Nothing is asked. Raises UserError if a file was cut."""
    folders = []
    for same in same_models(name):
        try:
            folder = ask("snapshot_download", same, allow_patterns=SMALL_NAMES, local_files_only=True)
        except UserError:  # the cache lacks a file
            continue
        check_sizes(same, folder)
        folders.append(folder)
    return folders


def same_models(name: str) -> list[str]:
    """ "gpt2@main" -> ["gpt2@main", "openai-community/gpt2@main"], and the other way round."""
    repository, at, revision = name.partition("@")
    other = RENAMED.get(repository) or {new: old for old, new in RENAMED.items()}.get(repository)
    return [name, f"{other}{at}{revision}"] if other else [name]


def check_sizes(name: str, folder: str) -> None:
    """Raise UserError for a file with fewer bytes than the hub's list says, which the cache keeps: a cut merges.txt
    would give other tokens."""
    try:
        listed = ask("get_cached_repo_tree", name)
    except UserError:  # another program has filled the cache, and kept no list
        return
    for file in listed:
        path = os.path.join(folder, file.path)
        n_bytes = os.path.getsize(path) if os.path.isfile(path) else file.size
        if n_bytes < file.size:
            raise bad_file(path, f"has {n_bytes:,} bytes of {file.size:,}")


def download(name: str, weights: bool) -> str:
    """Download the files of a model's newest version that the cache lacks -> its folder. weights=False: only the small
    files. Raises UserError."""
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE

    patterns = SMALL_NAMES
    if weights:
        patterns = [*SMALL_NAMES, *WEIGHT_NAMES]
        files = ask("snapshot_download", name, allow_patterns=patterns, dry_run=True)
        n_bytes = sum(file.file_size or 0 for file in files if file.will_download)
        announce(name, ENDPOINT, n_bytes, HF_HUB_CACHE, KEPT)
    return ask("snapshot_download", name, allow_patterns=patterns)


def names_of_files(name: str) -> set[str]:
    """Return the names of all files of a model. Raises UserError."""
    return {file.rfilename for file in ask("model_info", name).siblings}


def ask(function: str, name: str, **how) -> Any:
    """Call a function of huggingface_hub for a model, OWNER/NAME[@REVISION]. Raises UserError in one line."""
    import huggingface_hub

    trust_certificates()
    repository, _, revision = name.partition("@")
    try:
        return getattr(huggingface_hub, function)(repository, revision=revision or None, **how)
    except Exception as error:  # its kinds are those of several libraries
        raise UserError(f"{name}: {explanation(error)}", hint=certificate_advice(error)) from error


def explanation(error: Exception) -> str:
    """Return why the hub gave no answer."""
    import huggingface_hub

    answers = [getattr(cause, "response", None) for cause in (error, error.__cause__)]
    if 401 in [getattr(answer, "status_code", None) for answer in answers] and huggingface_hub.get_token():
        return (
            "the hub does not accept your token, which may have expired: renew the one in HF_TOKEN or of "
            "hf auth login, or remove it, as public models need none"
        )
    return shorten(str(error), 400, placeholder=" …")
