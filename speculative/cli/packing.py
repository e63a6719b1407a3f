"""--pack: packed weights are kept on the disk, so that later runs map them and begin sooner."""

import os

from speculative.checkpoints import complete_folder
from speculative.checkpoints.download import check_disk
from speculative.checkpoints.tensors import checkpoint_shapes
from speculative.engines import cpu, formats, packed_files
from speculative.loading import choose
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options

ALONE = ("prompt_file", "unconditional", "stop", "n_samples", "batch", "only", "verbose", "stream", "color")
ALONE += ("json", "html", "verify", "interactive", "serve")

FLAGS = (
    Flag(
        "pack",
        arguments.switch,
        "write the packed weights of these models to the disk, and end; later runs then begin sooner",
        False,
        excludes=ALONE,
        only_engine="numpy",
        why="JAX packs nothing",
    ),
)


def write_packed(o: Options) -> None:
    """Pack the models that this run would load, one after the other. Raises UserError."""
    if not cpu.has_numba():
        raise UserError("--pack is for compiled kernels: pip install numba")
    for wanted in choose(o, {}).values():
        folder = complete_folder(wanted.model_size, o.models_dir, o.source)
        path = packed_files.path_of(folder, o.models_dir, wanted.dtype)
        if not os.path.isfile(path):
            check_disk(path, formats.model_bytes(wanted.dtype, checkpoint_shapes(wanted.hparams)))
            packed_files.save(path, folder, wanted.hparams, wanted.dtype)
        print(f"{path}: {os.path.getsize(path) / 1e6:,.0f} MB; to undo --pack, delete {os.path.dirname(path)}")
