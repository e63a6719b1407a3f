"""The tensors of a GPT-2, and how they become its parameters, whatever file they come from."""

import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from speculative.support.checksums import PACKED
from speculative.support.errors import UserError, first_line
from speculative.support.official import MODEL_SIZES

AHEAD = 6  # tensors that are read while one is converted: from one matrix to the next at most, biases and norms between


def bad_file(path, fault: str) -> UserError:
    """The UserError for a file that is not what it should be."""
    downloaded = os.path.basename(os.path.dirname(os.path.abspath(path))) in MODEL_SIZES
    made = os.path.basename(path).startswith(PACKED)
    remedy = f"delete {path} and run again" if downloaded or made else f"replace {path} by a good copy"
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
    """The number of parameters. Each takes 4 bytes as float32."""
    return sum(math.prod(shape) for shape in checkpoint_shapes(hparams).values())


def build_params(path, found, read, hparams, convert=None, progress=None):
    """Reads all tensors of a checkpoint -> params. Raises UserError.

    path: of the checkpoint, for messages. found: {name: shape}, which must agree with hparams. read: name -> array.

    While a tensor is converted, a thread reads the next ones, in the order of checkpoint_shapes. progress(n) is told of
    the bytes that are done.
    """
    shapes = checkpoint_shapes(hparams)
    for name in sorted(shapes.keys() ^ found.keys()):
        raise bad_file(path, f"{'has' if name in found else 'lacks'} tensor {name!r:.100}, contrary to hparams.json")
    for name, shape in shapes.items():
        # OpenAI's kernels are those of a convolution of width 1: they have one more axis, in front.
        if found[name] not in (shape, (1, *shape)):
            raise bad_file(path, f"tensor {name} is {found[name]!s:.100}, but hparams.json makes it {shape}")
    params = {}
    unread = iter(shapes)
    coming = deque()
    with ThreadPoolExecutor(1) as ahead:
        for name, shape in shapes.items():
            for following in islice(unread, 1 + AHEAD - len(coming)):
                coming.append(ahead.submit(checked, path, following, shapes[following], read))
            array = coming.popleft().result()
            put(params, name, convert(name, array) if convert else array)
            del array  # whose memory may be used again
            if progress:
                progress(4 * math.prod(shape))
    return with_blocks(params, hparams)


def checked(path, name: str, shape: tuple[int, ...], read: Callable) -> np.ndarray:
    """A tensor of finite float32s. Raises UserError."""
    try:
        array = read(name).reshape(shape)
    except MemoryError:
        raise
    except Exception as error:  # its kind depends on the library and on the damage
        raise bad_file(path, f"tensor {name} cannot be used ({first_line(error)})") from error
    if array.dtype != np.float32:
        raise bad_file(path, f"tensor {name} is {array.dtype}, not float32")
    if not is_finite(array):
        raise bad_file(path, f"tensor {name} holds NaN or infinity")
    return array


def is_finite(array: np.ndarray) -> bool:
    """True if all float32s of an array are finite.

    If the sum of their squares is finite, they are: that takes one pass. If it is not, they may only be large. Then the
    minimum and the maximum decide, since NaN and infinity show in both.
    """
    flat = array.reshape(-1)  # [n]
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(float(np.dot(flat, flat))):
            return True
    return math.isfinite(array.min()) and math.isfinite(array.max())


def with_blocks(params: dict, hparams: dict) -> dict:
    """{"h0": a block, ...} -> {"blocks": [a block, ...]}, as gpt2.gpt2 takes them."""
    return params | {"blocks": [params.pop(f"h{i}") for i in range(hparams["n_layer"])]}


def put(params: dict, name: str, value) -> None:
    """params["h0"]["attn"]["w"] = value, for the name "h0/attn/w"."""
    *keys, last = name.split("/")
    for key in keys:
        params = params.setdefault(key, {})
    params[last] = value
