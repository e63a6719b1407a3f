"""What tensors a GPT-2 has, and how they become its parameters, whatever file they come from."""

import math
import os

import numpy as np

from plumbing.errors import UserError, first_line
from plumbing.official import MODEL_SIZES


def bad_file(path, fault: str) -> UserError:
    """The UserError for a file that is not what it should be."""
    downloaded = os.path.basename(os.path.dirname(os.path.abspath(path))) in MODEL_SIZES
    remedy = f"delete {path} and run again" if downloaded else f"replace {path} by a good copy"
    return UserError(f"{path}: {fault}; {remedy}")


def checkpoint_shapes(hparams: dict) -> dict[str, tuple[int, ...]]:
    """hparams -> {tensor name: shape} of every parameter, under OpenAI's names without their "model/"."""
    n = hparams["n_embd"]
    n_inner = hparams.get("n_inner", 4 * n)
    block = {"ln_1/g": (n,), "ln_1/b": (n,), "ln_2/g": (n,), "ln_2/b": (n,)}
    layers = [("attn/c_attn", n, 3 * n), ("attn/c_proj", n, n), ("mlp/c_fc", n, n_inner), ("mlp/c_proj", n_inner, n)]
    for layer, n_in, n_out in layers:
        block |= {f"{layer}/w": (n_in, n_out), f"{layer}/b": (n_out,)}
    blocks = {f"h{i}/{name}": shape for i in range(hparams["n_layer"]) for name, shape in block.items()}
    return {"wte": (hparams["n_vocab"], n), "wpe": (hparams["n_ctx"], n), **blocks, "ln_f/g": (n,), "ln_f/b": (n,)}


def parameter_count(hparams: dict) -> int:
    """How many numbers the parameters are; as float32, each takes 4 bytes."""
    return sum(math.prod(shape) for shape in checkpoint_shapes(hparams).values())


def build_params(path, found, read, hparams, convert=None):
    """params from the checkpoint in path. found: {name: shape}, which hparams must agree with; read: name -> array."""
    shapes = checkpoint_shapes(hparams)
    for name in sorted(shapes.keys() ^ found.keys()):
        raise bad_file(path, f"{'has' if name in found else 'lacks'} tensor {name!r:.100}, contrary to hparams.json")
    params = {}
    for name, shape in shapes.items():
        # OpenAI's kernels are those of a convolution of width 1: they have one more axis, in front.
        if found[name] not in (shape, (1, *shape)):
            raise bad_file(path, f"tensor {name} is {found[name]!s:.100}, but hparams.json makes it {shape}")
        try:
            array = read(name).reshape(shape)
        except MemoryError:
            raise
        except Exception as error:  # its kind depends on the library and on the damage
            raise bad_file(path, f"tensor {name} cannot be used ({first_line(error)})") from error
        if array.dtype != np.float32:
            raise bad_file(path, f"tensor {name} is {array.dtype}, not float32")
        # NaN and infinity both show in minimum or maximum, which need no copy of the array, as np.isfinite would.
        if not (math.isfinite(array.min()) and math.isfinite(array.max())):
            raise bad_file(path, f"tensor {name} holds NaN or infinity")
        *keys, last = name.split("/")
        node = params
        for key in keys:
            node = node.setdefault(key, {})
        node[last] = convert(name, array) if convert else array
    return params | {"blocks": [params.pop(f"h{i}") for i in range(hparams["n_layer"])]}
