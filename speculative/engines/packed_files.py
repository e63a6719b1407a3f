"""Packs: a model's packed weights in one file, which later runs map instead of reading and packing the model.

The file is the arrays, each at a multiple of 64 bytes as the kernels need it; then their index, JSON; then the place of
the index. Its name holds a hash of everything that it depends on, so it cannot be out of date: what has changed has
another name.
"""

import hashlib
import json
import os

import numpy as np

from speculative.checkpoints import load_params
from speculative.checkpoints.folders import small_files, weight_files
from speculative.checkpoints.tensors import bad_file, checkpoint_shapes, mapped, nested
from speculative.engines.packed import arrays_of, layout, of_arrays, packer, shapes_of
from speculative.support.files import replacing

ALIGNMENT = 64  # bytes of the largest vector register
END = 8  # bytes at the end: the place of the index
SAMPLES = 64  # places of the weights that are hashed: other weights may have the same size and time


def path_of(folder: str, models_dir: str, dtype: str) -> str:
    """Return the path of the pack that fits the model in `folder`, this CPU and this way to pack."""
    number = hashlib.sha256(layout(dtype).encode())
    for name in (small_files(folder)[0], *weight_files(folder)):
        path = os.path.join(folder, name)
        about = os.stat(path)
        number.update(f"{name} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}".encode())
        with open(path, "rb") as f:
            for i in range(SAMPLES):
                f.seek(i * about.st_size // SAMPLES)
                number.update(f.read(64))
    name = f"{os.path.basename(os.path.abspath(folder))}-{dtype}-{number.hexdigest()[:16]}.pack"
    return os.path.join(models_dir, "packed", name)


def save(path: str, folder: str, hparams: dict, dtype: str) -> None:
    """Pack a model to the disk, tensor by tensor: the whole file or nothing. Raises UserError, OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pack = packer(dtype)
    index = {}  # {name: (type, shape, place)}
    with replacing(path) as part, open(part, "wb") as f:

        def write(name, array):
            for part_name, value in arrays_of(name, pack(name, array)).items():
                f.write(bytes(-f.tell() % ALIGNMENT))
                index[part_name] = (value.dtype.str, value.shape, f.tell())
                f.write(np.ascontiguousarray(value))

        load_params(folder, hparams, write)
        place = f.tell()
        f.write(json.dumps(index).encode() + place.to_bytes(END, "little"))


def load(path: str, hparams: dict, dtype: str) -> dict:
    """Map a pack -> the parameters of a model, packed. Raises UserError if it is damaged."""
    file = mapped(path)
    try:
        index = json.loads(file[int.from_bytes(file[-END:], "little") : -END])
        params = {}
        for name, shape in checkpoint_shapes(hparams).items():
            arrays = {}
            for part, (kind, part_shape) in shapes_of(name, shape, dtype).items():  # as the engine reads it
                _, _, begin = index[part]
                arrays[part] = np.ndarray(part_shape, kind, file, begin)
            params[name] = of_arrays(name, shape, dtype, arrays)
        return nested(params)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise bad_file(path, f"damaged ({error!r:.100})") from None
