"""Packs: a model's packed weights in one file, which later runs map instead of reading and packing the model.

The file is the arrays in the order of the model's tensors, each at a multiple of 64 bytes as the kernels need it. Its
name holds a hash of everything that it depends on, so it cannot be out of date: a changed model has another.
"""

import hashlib
import os
from typing import Any

import numpy as np

from speculative.checkpoints.loading import load_params, look
from speculative.checkpoints.tensors import bad_file, checkpoint_shapes, mapped, nested
from speculative.engines.c.packing import PackedWeight, layout, packer, tiles_shape
from speculative.engines.formats import matrix_of
from speculative.support.files import replacing

ALIGNMENT = 64  # bytes of the largest vector register


def path_of(folder: str, models_dir: str, dtype: str) -> str:
    """Return the path of the pack that fits the model in `folder`, this CPU and this way to pack."""
    digest = hashlib.sha256(layout(dtype).encode())
    files = look(folder)
    for name in (files.settings, *files.weights):
        about = os.stat(os.path.join(folder, name))
        digest.update(f"{name} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode())
    name = f"{os.path.basename(os.path.abspath(folder))}-{dtype}-{digest.hexdigest()[:16]}.pack"
    return os.path.join(models_dir, "packed", name)


def save(path: str, folder: str, hparams: dict, dtype: str) -> None:
    """Pack a model to the disk, tensor by tensor: the whole file or nothing. Raises UserError, OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pack = packer(dtype)
    with replacing(path) as part, open(part, "wb") as f:

        def write(name, array):
            value = pack(name, array)
            f.write(np.ascontiguousarray(value.tiles if isinstance(value, PackedWeight) else value))
            f.write(bytes(-f.tell() % ALIGNMENT))

        load_params(folder, hparams, write)


def load(path: str, hparams: dict, dtype: str) -> dict:
    """Map a pack -> the parameters of a model, packed. Raises UserError if it is cut."""
    file = mapped(path)
    params = {}
    begin = 0
    try:
        for name, shape in checkpoint_shapes(hparams).items():
            matrix = matrix_of(name, shape, dtype)
            stored = (tiles_shape(*matrix), np.uint8) if matrix else (shape, np.float32)
            array: Any = np.ndarray(stored[0], stored[1], file, begin)
            begin += array.nbytes + -array.nbytes % ALIGNMENT
            params[name] = PackedWeight(*matrix, array) if matrix else array
    except (ValueError, TypeError):  # it ends before an array does
        begin = 0
    if begin != len(file):
        raise bad_file(path, "damaged: delete it, and run --pack again")
    return nested(params)
