"""Packs: a model's packed weights in one file, which later runs map instead of reading and packing the model.

The file is the arrays in the order of the model's tensors, each at a multiple of 64 bytes as the kernels need it. Its
name holds a hash of everything that it depends on, so it cannot be out of date: a changed model has another.
"""

import hashlib
import math
import os
from threading import Lock
from typing import Any

import numpy as np

from speculative.checkpoints.disk import bad_file, mapped
from speculative.checkpoints.folder import look
from speculative.checkpoints.loading import load_params
from speculative.checkpoints.tensors import checkpoint_shapes, nested
from speculative.engines.c.library import lanes
from speculative.engines.c.packing import LAYOUT, PackedWeight, packer, tiles_shape
from speculative.engines.formats import matrix_of
from speculative.support.files import replacing, size_of

ALIGNMENT = 64  # bytes of the largest vector register


def path_of(folder: str, models_dir: str, dtype: str) -> str:
    """Return the path of the pack that fits the model in `folder`, this CPU and this way to pack."""
    parts = [f"{dtype}, tiles of {lanes()}, packing {LAYOUT}"]
    files = look(folder)
    for name in (files.settings, *files.weights):
        path = os.path.join(folder, name)
        about = os.stat(path)
        parts.append(f"{name} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}")
    packed_from = "".join(parts).encode()
    digest = hashlib.sha256(packed_from).hexdigest()[:16]
    whole_path = os.path.abspath(folder)
    model = os.path.basename(whole_path)
    return os.path.join(models_dir, "packed", f"{model}-{dtype}-{digest}.pack")


def places(hparams: dict, dtype: str) -> tuple[dict[str, tuple], int]:
    """Return {name: (first byte, shape, type, (shape, format) of a matrix or None)} of a pack's arrays; its bytes."""
    found: dict[str, tuple] = {}
    begin = 0
    for name, shape in checkpoint_shapes(hparams).items():
        matrix = matrix_of(name, shape, dtype)
        stored = (tiles_shape(*matrix), np.uint8) if matrix else (shape, np.float32)
        found[name] = (begin, *stored, matrix)
        stored_shape, stored_type = stored
        item = np.dtype(stored_type)
        n_bytes = math.prod(stored_shape) * item.itemsize
        padding = -n_bytes % ALIGNMENT
        begin += n_bytes + padding
    return found, begin


def save(path: str, folder: str, hparams: dict, dtype: str) -> None:
    """Pack a model to the disk, tensor by tensor: the whole file or nothing. Raises UserError, OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pack, (found, size) = packer(dtype), places(hparams, dtype)
    with replacing(path) as part, open(part, "wb") as f:
        f.truncate(size)

        def write(name, array):
            value = pack(name, array)
            with lock:
                f.seek(found[name][0])
                f.write(np.ascontiguousarray(value.tiles if isinstance(value, PackedWeight) else value).data)

        lock = Lock()
        load_params(folder, hparams, write)


def is_whole(path: str, hparams: dict, dtype: str) -> bool:
    """Return True for a file of a pack's size; False for a link, which another file may stand behind."""
    _, size = places(hparams, dtype)
    return not os.path.islink(path) and size_of(path) == size


def load(path: str, hparams: dict, dtype: str) -> dict:
    """Map a pack -> the parameters of a model, packed. Raises UserError if it is cut."""
    file = mapped(path).content
    found, size = places(hparams, dtype)
    if size != len(file):
        raise bad_file(path, "damaged: delete it, and run --pack again")
    params: dict[str, Any] = {}
    for name, (begin, shape, type, matrix) in found.items():
        array: np.ndarray = np.ndarray(shape, type, file, begin)
        params[name] = PackedWeight(matrix[0], matrix[1], array) if matrix else array
    return nested(params)
