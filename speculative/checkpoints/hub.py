"""Models of the Hugging Face hub: their names, and their folders in the cache of Hugging Face's own library."""

from speculative.checkpoints.official import HUGGING_FACE
from speculative.support.errors import UserError

WITHOUT_OWNER = (*HUGGING_FACE.values(), "distilgpt2")  # names that the hub knows without their owner


def is_of_hub(model_size: str) -> bool:
    """Return True for OWNER/NAME, OWNER/NAME@REVISION and the names that need no owner."""
    is_path = model_size.startswith((".", "/", "~"))
    return not is_path and ("/" in model_size or model_size.partition("@")[0] in WITHOUT_OWNER)


def cached_folder(model_size: str) -> str:
    """Return the folder of a model in the cache, which may be incomplete, or "" if there is none."""
    try:
        return snapshot(model_size, local_files_only=True)
    except UserError:
        return ""


def snapshot(model_size: str, **how) -> str:
    """Call huggingface_hub.snapshot_download, which returns a folder. Raises UserError with its message in one line.

    It takes care of HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, and begins an interrupted file again.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = model_size.partition("@")
    try:
        return snapshot_download(name, revision=revision or None, **how)
    except Exception as error:  # its kinds are those of several libraries
        raise UserError(f"{model_size}: {' '.join(str(error).split()):.400}") from error
