"""Packed weights on the disk. The next run maps them: it reads and packs nothing, and begins sooner.

packed-int8.safetensors has the tiles first, each matrix at a multiple of 64 bytes, as the kernels need it; then all
else. It fits the weights that it was made of, one kind of CPU and one way to pack. What does not fit is not used.
"""

import functools
import json
import math
import os
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from speculative.checkpoints import packs
from speculative.checkpoints.tensors import bad_file, checkpoint_shapes, is_finite, put, with_blocks
from speculative.engines.library import lanes, library
from speculative.engines.packed import PackedWeight, arrays_of, layout, of_arrays, packer, shapes_of
from speculative.support import checksums
from speculative.support.errors import UserError
from speculative.support.files import replacing

ALIGNMENT = 64  # bytes of the largest vector register
TYPES = {"uint8": "U8", "float32": "F32"}  # NumPy's names, and safetensors'


def save(path: str, folder: str, dtype: str, hparams: dict, read: Callable) -> None:
    """Packs a model to the disk, tensor by tensor, all of it or nothing.

    folder: where the weights are. read(convert): reads them, as load_params does. Raises UserError, also where the
    weights changed while they were read.
    """
    before = packs.state(folder)
    about = {"sha256": "0" * 64, "packing": layout(dtype), "origin": json.dumps(packs.origin(folder))}
    about |= {f"sha256 of {os.path.basename(of)}": "0" * 64 for of in packs.made_of(folder)}
    tensors, _ = places(hparams, dtype)
    begin = len(header_bytes(about, tensors))
    pack = packer(dtype)
    over = threading.Event()
    try:
        with replacing(path) as part, open(part, "w+b") as f, ThreadPoolExecutor(1) as thread:
            sums = [thread.submit(checksums.describe, of, over) for of in packs.made_of(folder)]

            def write(name, array):
                for part_name, value in arrays_of(name, pack(name, array)).items():
                    f.seek(begin + tensors[part_name]["data_offsets"][0])
                    f.write(np.ascontiguousarray(value))

            try:
                read(write)
            except BaseException:
                over.set()
                raise
            for of, described in zip(packs.made_of(folder), sums, strict=True):
                about[f"sha256 of {os.path.basename(of)}"] = described.result()["sha256"]
            f.seek(0)
            f.write(header_bytes(about, tensors))
            f.flush()
            about["sha256"] = packs.sum_of(np.memmap(part, np.uint8, "r"))
            f.seek(0)
            f.write(header_bytes(about, tensors))
            f.close()
            if packs.state(folder) != before:
                raise UserError(f"{folder}: the weights were changed while they were packed: run --pack again")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    keep_verified(path, about["sha256"])


def header_bytes(about: dict[str, str], tensors: dict[str, dict]) -> bytes:
    """The beginning of the file. Its length does not depend on the sums in it."""
    text = json.dumps({"__metadata__": about, **tensors}).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def places(hparams: dict, dtype: str) -> tuple[dict[str, dict], int]:
    """({name: type, shape and place} of all tensors of the file, as its header says it; how many bytes they take)."""
    arrays = {}
    for name, shape in checkpoint_shapes(hparams).items():
        arrays |= shapes_of(name, shape, dtype)
    tensors = {}
    end = 0
    for name in sorted(arrays, key=lambda name: not name.endswith("/tiles")):  # the tiles first
        kind, shape = arrays[name]
        begin = end
        end = begin + math.prod(shape) * np.dtype(kind).itemsize
        tensors[name] = {"dtype": TYPES[kind], "shape": list(shape), "data_offsets": [begin, end]}
    return tensors, end


def find(path: str, folder: str, dtype: str, hparams: dict) -> dict | None:
    """The parameters of a model, mapped from the disk as they were packed; None where there is no such file, or one
    that does not fit, which a line says. folder: where the weights are. Raises UserError where it is damaged."""
    if not os.path.isfile(path) or not library():
        return None
    checksums.clear_left_over(os.path.dirname(path))
    file, header, begin = packs.read_file(path)
    if not packs.is_of(header, folder) or header["__metadata__"].get("packing") != layout(dtype):
        say_it_does_not_fit(path)
        return None
    check_sum(path, file)
    tensors, n_bytes = places(hparams, dtype)
    del header["__metadata__"]
    if header != tensors or len(file) != begin + n_bytes or begin % ALIGNMENT:
        raise bad_file(path, "its tensors are not those of this model")
    arrays = {name: part_of(file[begin:], about) for name, about in tensors.items()}
    for name, array in arrays.items():
        if array.dtype == np.float32 and not is_finite(array):
            raise bad_file(path, f"tensor {name!r:.100} holds NaN or infinity")
    params = {}
    for name, shape in checkpoint_shapes(hparams).items():
        put(params, name, of_arrays(name, shape, dtype, arrays))
    return with_blocks(params, hparams)


def part_of(data: np.ndarray, about: dict) -> np.ndarray:  # uint8 [n_bytes] -> [*shape]
    """A tensor where the system keeps the file itself."""
    numpy_type = {theirs: name for name, theirs in TYPES.items()}
    begin, end = about["data_offsets"]
    return data[begin:end].view(numpy_type[about["dtype"]]).reshape(about["shape"])


def check_sum(path: str, file: np.ndarray) -> None:  # uint8 [n_bytes]
    """Compares a file with the sha256 that it says of itself, once until it changes. Raises UserError."""
    noted = packs.sum_noted(file)
    folder, name = os.path.split(path)
    if checksums.read_verified(folder).get(name) != checksums.state(path, {"sha256": noted}):
        if packs.sum_of(file) != noted:
            raise bad_file(path, packs.DAMAGED)
        keep_verified(path, noted)


def keep_verified(path: str, sha256: str) -> None:
    folder, name = os.path.split(path)
    checksums.keep_verified(folder, {name: checksums.state(path, {"sha256": sha256})})


@functools.cache
def say_it_does_not_fit(path: str) -> None:
    unknown = "is not known to be of these weights and for this CPU"
    print(f"{path} {unknown}, and not used: --pack makes it anew", file=sys.stderr)


def first_difference(params: dict, dtype: str, read: Callable, rng: np.random.Generator) -> tuple[int, str]:
    """Compares what was mapped with the weights that read(convert) reads: of each matrix the first tile, the last and
    one between, packed anew; all other tensors whole -> (how many tiles were compared, the name of the first tensor
    that differs, or "")."""
    n_tiles = 0
    different = []

    def compare(name, array):
        nonlocal n_tiles
        mapped = tensor(params, name)
        weight = mapped.T if name == "wte" else mapped
        if not isinstance(weight, PackedWeight):
            if not np.array_equal(mapped, array):
                different.append(name)
            return
        w = array.T if name == "wte" else array  # [n_in, n_out]
        for i in {0, int(rng.integers(len(weight.tiles))), len(weight.tiles) - 1}:
            channels = slice(i * lanes(), (i + 1) * lanes())
            anew = PackedWeight.packed(w[:, channels], weight.dtype)
            n_tiles += 1
            same = np.array_equal(anew.tiles[0], weight.tiles[i])
            if not same or (anew.scale is not None and not np.array_equal(anew.scale, weight.scale[channels])):
                different.append(name)

    read(compare)
    return n_tiles, "".join(different[:1])


def tensor(params: dict, name: str) -> Any:
    """params["blocks"][3]["ln_1"]["g"], for the name "h3/ln_1/g"."""
    value = params
    for key in name.split("/"):
        value = value[key] if key in value else value["blocks"][int(key.removeprefix("h"))]
    return value
