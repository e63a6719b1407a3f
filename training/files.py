"""A trained model as a folder that main.py takes."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from speculative.checkpoints.folders import small_files
from speculative.support.errors import UserError
from speculative.support.files import replacing

HUGGING_FACE = {"wte": "wte.weight", "wpe": "wpe.weight", "blocks": "h", "g": "weight", "w": "weight", "b": "bias"}


def named_tensors(params, path=()):
    """The leaves of params under Hugging Face's names: blocks[0]["ln_1"]["g"] is h.0.ln_1.weight."""
    for key, value in params.items() if isinstance(params, dict) else enumerate(params):
        name = (*path, HUGGING_FACE.get(key, str(key)))
        if isinstance(value, (dict, list)):
            yield from named_tensors(value, name)
        else:
            yield ".".join(name), value


def as_float16(params):
    """Rounded to what the file will hold, so that the draft learns from the target that is used."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda a: jnp.asarray(a, np.float16).astype(np.float32), params)


def save_model(folder: Path, hparams: dict, params: dict, vocabulary: dict[str, str]) -> None:
    """Writes the whole folder or nothing, weights in float16. vocabulary: {name of file: text}. Raises UserError."""
    from safetensors import SafetensorError

    tensors = {name: np.ascontiguousarray(a, np.float16) for name, a in named_tensors(params)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, suffix=".part") as unfinished:
            whole = Path(unfinished, folder.name)
            whole.mkdir()
            save_readable(tensors, whole / "model.safetensors", {"format": "pt"})
            for name, text in {"hparams.json": json.dumps(hparams), **vocabulary}.items():
                write(whole / name, text)
            check_new(folder)
            shutil.move(whole, folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error


def save_readable(tensors: dict, path: Path, metadata: dict[str, str]) -> None:
    """safetensors' save_file, whose file only the owner could read: it gets the permissions of any other new file."""
    from safetensors.numpy import save_file

    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata=metadata)
    path.chmod(mode)


def save_tensors(path: Path, tensors: dict, metadata: dict[str, str]) -> None:
    """Writes one file of tensors, in float16, or nothing. Raises UserError."""
    from safetensors import SafetensorError

    try:
        with replacing(path) as part:
            arrays = {name: np.ascontiguousarray(a, np.float16) for name, a in tensors.items()}
            save_readable(arrays, Path(part), metadata)
            check_new(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def check_new(folder: Path) -> None:
    """Raises UserError if there is something already."""
    if folder.exists():
        raise UserError(f"{folder} is there already: delete it, or choose another name")


def vocabulary_files(vocab: dict, merges: list) -> dict[str, str]:
    """A vocabulary in the official formats."""
    lines = "".join(f"{left} {right}\n" for left, right in merges)
    return {"encoder.json": json.dumps(vocab), "vocab.bpe": f"#version: 0.2\n{lines}"}


def read_vocabulary(folder: Path) -> dict[str, str]:
    """The files of a model's vocabulary as they are, in whichever format."""
    _, *names = small_files(str(folder))
    return {name: (Path(folder) / name).read_text(encoding="utf-8") for name in names}


def check_trainable(name: str, hparams: dict) -> None:
    """Raises UserError if a model is not one that network.py computes."""
    if "activation_function" in hparams:
        raise UserError(
            f"{name} has activation_function {hparams['activation_function']}: training knows gelu_new only"
        )


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="\n")
