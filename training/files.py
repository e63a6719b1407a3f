"""A trained model as a folder that main.py takes."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from speculative import checksums

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
    return jax.tree.map(lambda a: jnp.asarray(a, np.float16).astype(np.float32), params)


def save_model(folder, hparams, params, vocab, merges):
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(a, np.float16) for name, a in named_tensors(params)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write(folder / "hparams.json", json.dumps(hparams))
    write(folder / "encoder.json", json.dumps(vocab))
    write(folder / "vocab.bpe", "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges))
    names = ("hparams.json", "encoder.json", "vocab.bpe", "model.safetensors")
    checksums.note(folder, {name: checksums.describe(folder / name) for name in names})


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="\n")
