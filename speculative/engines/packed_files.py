"""Packed weights on the disk. The next run maps them: it reads and packs nothing, and begins sooner.

packed-int8.safetensors beside a model's weights has the tiles first, each matrix at a multiple of 64 bytes, as the
kernels need it; then all else.
It fits the weights that it was made of, one kind of CPU and one way to pack. What does not fit is not used.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints.folders import config_path, weight_files
from checkpoints.tensors import bad_file, checkpoint_shapes, is_finite, put, with_blocks
from checkpoints.weights import open_safetensors
from plumbing import checksums
from plumbing.errors import UserError
from plumbing.files import replacing
from speculative.engines import cpu, formats
from speculative.engines.cpu import BLOCK, this_cpu
from speculative.engines.packed import PackedEmbedding, PackedWeight, scale_shape, tiles_shape

ALIGNMENT = 64  # bytes of the largest vector register
TYPES = {"uint8": "U8", "float32": "F32"}  # NumPy's names, and safetensors'


def path_of(folder: str, dtype: str) -> str:
    return os.path.join(folder, f"{checksums.PACKED}{dtype}.safetensors")


def save(folder: str, dtype: str, params: dict, hparams: dict) -> str:
    """Writes what packing made of a model, all or nothing, and notes its checksum -> its path. Raises UserError."""
    path = path_of(folder, dtype)
    arrays = {}
    for name in checkpoint_shapes(hparams):
        arrays |= parts(name, tensor(params, name))
    order = sorted(arrays, key=lambda name: not name.endswith("/tiles"))  # the tiles first
    header = {"__metadata__": origin(folder, dtype)}
    end = 0
    for name in order:
        array = arrays[name]
        begin = end
        end = begin + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    try:
        with replacing(path) as part:
            with open(part, "wb") as f:
                f.write(struct.pack("<Q", len(text)) + text)
                for name in order:
                    f.write(np.ascontiguousarray(arrays[name]))
            noted = {}
            if checksums.noted(folder):
                noted = {os.path.basename(path): checksums.describe(part)}
                checksums.note(folder, noted)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    for name, about in noted.items():
        checksums.keep_verified(folder, {name: checksums.state(path, about)})
    return path


def discard_left_over(folder: str) -> None:
    """Removes what runs that were killed had written of packed weights. Another run may be writing: what is less than
    an hour old stays."""
    for part in Path(folder).glob(f".*.part/{checksums.PACKED}*.safetensors"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > 3600:
                shutil.rmtree(part.parent)


def find(folder: str, dtype: str, hparams: dict) -> dict | None:
    """The parameters of a model, mapped from the disk as they were packed; None where there is no such file, or one
    that does not fit, which a line says. Raises UserError where it is damaged."""
    path = path_of(folder, dtype)
    name = os.path.basename(path)
    if not os.path.isfile(path) or not cpu.has_numba():
        return None
    noted = checksums.noted(folder)
    with open_safetensors(path) as f:
        fits = f.metadata() == origin(folder, dtype)
    if not fits or (noted and name not in noted):
        say_it_does_not_fit(path)
        return None
    checksums.check(folder, [name], bad_file)
    with checksums.compared(folder, [name], bad_file):
        arrays = mapped(path)
    shapes = checkpoint_shapes(hparams)
    expected = {}
    for name, shape in shapes.items():
        expected |= layout(name, shape, dtype)
    if {name: (array.dtype.name, array.shape) for name, array in arrays.items()} != expected:
        raise bad_file(path, "its tensors are not those of this model")
    params = {}
    for name, shape in shapes.items():
        put(params, name, whole(name, shape, dtype, arrays))
    return with_blocks(params, hparams)


def mapped(path: str) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file that is found whole, where the system keeps the file itself."""
    file = np.asarray(np.memmap(path, np.uint8, "r"))  # [n_bytes]
    begin = 8 + int.from_bytes(file[:8], "little")
    numpy_type = {theirs: name for name, theirs in TYPES.items()}
    arrays = {}
    for name, about in json.loads(bytes(file[8:begin])).items():
        if name == "__metadata__":
            continue
        first, end = about["data_offsets"]
        if about["dtype"] not in numpy_type:
            raise bad_file(path, f"tensor {name!r:.100} is {about['dtype']}")
        arrays[name] = file[begin + first : begin + end].view(numpy_type[about["dtype"]]).reshape(about["shape"])
        if arrays[name].dtype == np.float32 and not is_finite(arrays[name]):
            raise bad_file(path, f"tensor {name!r:.100} holds NaN or infinity")
        if name.endswith("/tiles") and arrays[name].ctypes.data % vector_bytes():
            raise bad_file(path, f"tensor {name!r:.100} does not begin where vector loads can read it")
    return arrays


def vector_bytes() -> int:
    return 4 * this_cpu().vector


@functools.cache
def say_it_does_not_fit(path: str) -> None:
    unknown = "is not known to be of these weights and for this CPU"
    print(f"{path} {unknown}, and not used: --pack makes it anew", file=sys.stderr)


def origin(folder: str, dtype: str) -> dict[str, str]:
    """What packed weights depend on: the files that they were read from, and what packing does on this machine."""
    about = {"packing": fingerprint(dtype)}
    for path in [config_path(folder), *(os.path.join(folder, name) for name in weight_files(folder))]:
        state = os.stat(path)
        about[os.path.basename(path)] = f"{state.st_size} bytes of {state.st_mtime_ns}, {sample(path)}"
    return about


def sample(path: str) -> str:
    """The sha256 of 64 places all over a file, in which other weights of the same size and time differ."""
    n_bytes = os.path.getsize(path)
    sha256 = hashlib.sha256()
    with open(path, "rb") as f:
        for i in range(64):
            f.seek(i * n_bytes // 64)
            sha256.update(f.read(4096))
    return sha256.hexdigest()


@functools.cache
def fingerprint(dtype: str) -> str:
    """A number for the layout of tiles and the rounding: of what packing makes of a small matrix on this CPU."""
    w = np.random.default_rng(0).standard_normal((2 * BLOCK + 3, this_cpu().lanes + 1), np.float32)  # [n_in, n_out]
    sha256 = hashlib.sha256()
    for format in (dtype, formats.find(dtype).embedding):
        weight = PackedWeight.packed(w, format)
        sha256.update(f"{format} {weight.tiles.shape}".encode())
        sha256.update(weight.tiles)
        sha256.update(b"" if weight.scale is None else weight.scale)
    return sha256.hexdigest()


# ---- A tensor of the checkpoint, and what the file has of it ---------------------------------------------------------


def parts(name: str, value: Any) -> dict[str, np.ndarray]:
    """{"h0/mlp/c_fc/w/tiles": array, ...} of a packed weight; anything else is one array."""
    if isinstance(value, PackedEmbedding):
        value = value.T
    if not isinstance(value, PackedWeight):
        return {name: value}
    if value.scale is None:
        return {f"{name}/tiles": value.tiles}
    return {f"{name}/tiles": value.tiles, f"{name}/scale": value.scale}


def packed_as(name: str, shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, int], str] | None:
    """([n_in, n_out], format) of a tensor that is packed; None of any other."""
    if name == "wte":
        return shape[::-1], formats.find(dtype).embedding
    return (shape, dtype) if name.endswith("/w") else None


def layout(name: str, shape: tuple[int, ...], dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{name: (type, shape)} of its parts."""
    packed = packed_as(name, shape, dtype)
    if packed is None:
        return {name: ("float32", shape)}
    tiles = tiles_shape(*packed)
    scale = {f"{name}/scale": ("float32", scale_shape(tiles))} if formats.find(packed[1]).channel_bytes else {}
    return {f"{name}/tiles": ("uint8", tiles)} | scale


def whole(name: str, shape: tuple[int, ...], dtype: str, arrays: dict[str, np.ndarray]) -> Any:
    """The tensor of its parts."""
    packed = packed_as(name, shape, dtype)
    if packed is None:
        return arrays[name]
    weight = PackedWeight(*packed, arrays[f"{name}/tiles"], arrays.get(f"{name}/scale"))
    return PackedEmbedding(weight) if name == "wte" else weight


def tensor(params: dict, name: str) -> Any:
    """params["blocks"][3]["ln_1"]["g"], for the name "h3/ln_1/g"."""
    value = params
    for key in name.split("/"):
        value = value[key] if key in value else value["blocks"][int(key.removeprefix("h"))]
    return value
