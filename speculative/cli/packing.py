"""--pack: packed weights are written beside each model, so that later runs map them and begin sooner."""

import os
import shutil
from typing import Any

from checkpoints.folders import model_folder
from plumbing import arguments
from plumbing.arguments import Flag
from plumbing.errors import UserError
from speculative.engines import cpu, packed_files

FLAGS = (
    Flag(
        "pack",
        arguments.switch,
        "write the packed weights of these models to the disk, and end; later runs then begin sooner",
        False,
        excludes=(
            *("prompt_file", "unconditional", "stop", "n_samples", "batch", "verbose", "stream", "color"),
            *("json", "html", "verify", "interactive", "serve"),
        ),
        only_engine="numpy",
        why="JAX packs nothing",
    ),
)


def write_packed(o: Any, models: dict) -> None:
    """models: {need: (what was wanted, the model)}, as cli.load has loaded them. Raises UserError."""
    if not cpu.has_numba():
        raise UserError("--pack is for compiled kernels: pip install numba")
    for wanted, model in models.values():
        folder = model_folder(wanted.model_size, o.models_dir)
        path = packed_files.path_of(folder, wanted.dtype)
        if packed_files.find(folder, wanted.dtype, wanted.hparams):
            print(f"{path} is there already")
            continue
        packed_files.discard_left_over(folder)
        free = shutil.disk_usage(folder).free
        if model.weight_bytes > free:
            needs = f"needs {model.weight_bytes / 1e6:,.0f} MB"
            raise UserError(f"{path} {needs}, and {free / 1e6:,.0f} MB of disk are free")
        packed_files.save(folder, wanted.dtype, model.params, wanted.hparams)
        print(f"{path}: {os.path.getsize(path) / 1e6:,.0f} MB")
