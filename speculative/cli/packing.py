"""--pack: packed weights are kept on the disk, so that later runs map them and begin sooner. --unpack removes them."""

import os
import shutil
from collections.abc import Iterator
from functools import partial

import numpy as np

from speculative.checkpoints import packs
from speculative.checkpoints.folders import own_folder
from speculative.checkpoints.loading import complete_folder, load_params
from speculative.engines import formats, packed_files
from speculative.engines.library import library
from speculative.loading import choose
from speculative.measure.decoders import Check
from speculative.support import arguments, checksums
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.hub import in_cache
from speculative.support.options import Options

ALONE = ("prompt_file", "unconditional", "stop", "n_samples", "batch", "only", "verbose", "stream", "color")
ALONE += ("json", "html", "verify", "interactive", "serve")

FLAGS = (
    Flag(
        "pack",
        arguments.switch,
        "write the packed weights of these models to the disk, and end; later runs then begin sooner",
        False,
        excludes=(*ALONE, "unpack"),
        only_engine="numpy",
        why="JAX packs nothing",
    ),
    Flag(
        "unpack",
        arguments.switch,
        "remove from the disk what --pack has written for these models, and end",
        False,
        excludes=ALONE,
        only_engine="numpy",
        why="JAX packs nothing",
    ),
)


def write_packed(o: Options) -> None:
    """Packs what this run would load, one model after the other. Raises UserError."""
    if not library():
        raise UserError("--pack is for the compiled forward pass, and there is no C compiler: pip install ziglang")
    for wanted in choose(o, {}).values():
        folder = complete_folder(wanted.model_size, o.models_dir, o.source)
        kept_in = own_folder(wanted.model_size, o.models_dir)
        if in_cache(kept_in):
            raise UserError(f"{kept_in} is Hugging Face's, where nothing is written: name the model OWNER/NAME")
        path = packs.path_of(kept_in, wanted.dtype)
        if packed_files.find(path, folder, wanted.dtype, wanted.hparams):
            print(f"{path} is there already")
            continue
        try:
            os.makedirs(kept_in, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {kept_in}: {error.strerror}") from error
        checksums.clear_left_over(kept_in)
        free = shutil.disk_usage(kept_in).free
        _, n_bytes = packed_files.places(wanted.hparams, wanted.dtype)
        if n_bytes > free:
            raise UserError(f"{path} needs {n_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB of disk are free")
        read = partial(load_params, folder, wanted.hparams)
        packed_files.save(path, folder, wanted.dtype, wanted.hparams, read)
        print(f"{path}: {os.path.getsize(path) / 1e6:,.0f} MB")


def remove_packed(o: Options) -> None:
    """Removes all packed weights of both models, in whatever format. Raises UserError."""
    for model_size in dict.fromkeys((o.target_model_size, o.draft_model_size)):
        folder = own_folder(model_size, o.models_dir)
        names = (packs.path_of(folder, dtype) for dtype in formats.FORMATS)  # a user's file may have a name like them
        paths = sorted(filter(os.path.lexists, names))
        for path in paths:
            n_bytes = os.lstat(path).st_size
            os.unlink(path)
            print(f"removed {path}: {n_bytes / 1e6:,.0f} MB")
        if not paths:
            print(f"{folder} has no packed weights")


def check_packed(o: Options) -> Iterator[Check]:
    """For each model that is mapped: whether its tiles are what packing makes of the weights now."""
    for wanted in choose(o, {}).values():
        folder = complete_folder(wanted.model_size, o.models_dir, o.source)
        path = packs.path_of(own_folder(wanted.model_size, o.models_dir), wanted.dtype)
        params = packed_files.find(path, folder, wanted.dtype, wanted.hparams)
        if params is None:
            continue
        read = partial(load_params, folder, wanted.hparams)
        rng = np.random.default_rng(o.seed)
        n_tiles, different = packed_files.first_difference(params, wanted.dtype, read, rng)
        if different:
            detail = f"{path}: tensor {different} is not what packing makes of the weights; --unpack removes it"
        else:
            detail = f"{n_tiles} tiles of {path} are what packing makes of the weights"
        yield Check("packed", not different, detail)
