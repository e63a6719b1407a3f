"""Packs: a model's packed weights in one file, which later runs map instead of reading and packing the model.

The file is the arrays in the order of the model's tensors, each at a multiple of 64 bytes as the kernels need it. Its
name holds a hash of everything that it depends on, so it cannot be out of date: a changed model has another.
"""

import hashlib
import math
import os
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from speculative.checkpoints.disk import bad_file, mapped, state_of
from speculative.checkpoints.folder import Checkpoint
from speculative.checkpoints.names import packs_folder
from speculative.checkpoints.weights import Shape, Weights, checkpoint_shapes, nested, read_all
from speculative.engines.c.library import library
from speculative.engines.c.packing import LAYOUT, PackedWeight, pack, tiles_shape
from speculative.engines.formats import Format, matrix_of
from speculative.support.files import replacing, size_of

ALIGNMENT = 64  # bytes of the largest vector register


class Place(NamedTuple):
    """The place of an array in a pack."""

    begin: int  # its first byte
    shape: Shape
    dtype: type
    matrix: tuple[Shape, Format] | None  # the shape and the format of a packed weight's matrix


def path_of(files: Checkpoint, models_dir: str, dtype: str) -> str:
    """Return the path of the pack that fits a model's files as they are now, this CPU and this way to pack."""
    packed_from = f"{dtype}, tiles of {library().lanes()}, packing {LAYOUT}"
    for name in (files.settings_file, *files.weights):
        path = files.path(name)
        state = state_of(path)
        packed_from += f"{name} {state.n_bytes} {state.modified} {state.changed}"
    digest = hashlib.sha256(packed_from.encode()).hexdigest()
    model = os.path.basename(os.path.abspath(files.folder))
    name = f"{model}-{dtype}-{digest[:16]}.pack"
    return os.path.join(packs_folder(models_dir), name)


def places(hparams: dict, dtype: str) -> tuple[dict[str, Place], int]:
    """Return the places of a pack's arrays, by their names, and the bytes of the file."""
    places: dict[str, Place] = {}
    end = 0
    for name, shape in checkpoint_shapes(hparams).items():
        matrix = matrix_of(name, shape, dtype)
        stored_shape, stored_type = (tiles_shape(*matrix), np.uint8) if matrix else (shape, np.float32)
        places[name] = Place(end, stored_shape, stored_type, matrix)
        end += math.prod(stored_shape) * stored_type().itemsize
        end += -end % ALIGNMENT
    return places, end


def save(path: str, weights: Weights, hparams: dict, dtype: str) -> None:
    """Pack a model to the disk, tensor by tensor: the whole file or nothing. Raises UserError, OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    place_of, n_bytes = places(hparams, dtype)
    lock = Lock()
    with replacing(path) as part, open(part, "wb") as f:
        f.truncate(n_bytes)

        def write(name, array):
            value = pack(dtype, name, array)
            with lock:
                f.seek(place_of[name].begin)
                f.write(np.ascontiguousarray(getattr(value, "tiles", value)).data)

        read_all(weights, write)


def is_whole(path: str, hparams: dict, dtype: str) -> bool:
    """Return True for a file of a pack's size; False for a link, which another file may stand behind."""
    _, n_bytes = places(hparams, dtype)
    return not os.path.islink(path) and size_of(path) == n_bytes


def load(path: str, hparams: dict, dtype: str) -> dict:
    """Map a pack -> the parameters of a model, packed. Raises UserError if it is cut."""
    file = mapped(path).content
    place_of, n_bytes = places(hparams, dtype)
    if n_bytes != len(file):
        raise bad_file(path, "damaged: delete it, and run --pack again")
    params: dict[str, Any] = {}
    for name, (begin, shape, kind, matrix) in place_of.items():
        array: np.ndarray = np.ndarray(shape, kind, file, begin)
        params[name] = PackedWeight(matrix[0], matrix[1], array) if matrix else array
    return nested(params)
