"""--pack: packed weights are kept on the disk, so that later runs map them and begin sooner."""

import os
import shutil
from collections.abc import Iterator
from functools import partial

import numpy as np

from speculative.checkpoints import packs
from speculative.checkpoints.folders import own_folder
from speculative.checkpoints.loading import complete_folder, load_params
from speculative.drafters import roles_of
from speculative.engines import cpu, packed_files
from speculative.loading import Models, ModelSpec, networks_of
from speculative.measure.decoders import Check
from speculative.options import Options
from speculative.support import checksums
from speculative.support.errors import UserError
from speculative.support.hub import in_cache


def wanted_models(o: Options) -> list[ModelSpec]:
    models = Models(o)
    return [models.spec(role) for role in networks_of(["target", *roles_of(o.drafter)])]


def write_packed(o: Options) -> None:
    """Packs what this run would load, one model after the other. Raises UserError."""
    if not cpu.has_numba():
        raise UserError("--pack is for compiled kernels: pip install numba")
    for wanted in wanted_models(o):
        folder = complete_folder(wanted.size, o.models_dir, o.source)
        kept_in = own_folder(wanted.size, o.models_dir)
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


def check_packed(o: Options) -> Iterator[Check]:
    """For each model that is mapped: whether its tiles are what packing makes of the weights now."""
    for wanted in wanted_models(o):
        folder = complete_folder(wanted.size, o.models_dir, o.source)
        path = packs.path_of(own_folder(wanted.size, o.models_dir), wanted.dtype)
        params = packed_files.find(path, folder, wanted.dtype, wanted.hparams)
        if params is None:
            continue
        read = partial(load_params, folder, wanted.hparams)
        rng = np.random.default_rng(o.seed)
        n_tiles, different = packed_files.first_difference(params, wanted.dtype, read, rng)
        if different:
            detail = f"{path}: tensor {different} is not what packing makes of the weights; delete it"
        else:
            detail = f"{n_tiles} tiles of {path} are what packing makes of the weights"
        yield Check("packed", not different, detail)
