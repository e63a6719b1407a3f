"""--pack: packed weights are kept on the disk, so that later runs map them and begin sooner."""

import os

from speculative.checkpoints.loading import complete_folder
from speculative.drafters import parse_drafter, roles_of
from speculative.engines.c import pack_files
from speculative.loading import networks_of
from speculative.options import Options
from speculative.session import models_of
from speculative.support.errors import UserError
from speculative.support.files import size_of
from speculative.support.terminal import one_line


def write_packed(o: Options) -> None:
    """Pack the models that this run would load, one after the other. Raises UserError."""
    models = models_of(o)
    if not models.engine.packs:
        raise UserError("--pack is for the compiled forward pass, and there is no C compiler: pip install ziglang")
    parse_drafter(o.drafter)  # raises UserError for a name that is unknown
    for spec in [models.spec(role) for role in networks_of(["target", *roles_of(o.drafter)])]:
        folder = complete_folder(spec.size, o.models_dir, o.source)
        path = pack_files.path_of(folder, o.models_dir, spec.dtype)
        if not size_of(path):
            pack_files.save(path, folder, spec.hparams, spec.dtype)
        print(one_line(f"{path}: {size_of(path) / 1e6:,.0f} MB; to undo --pack, delete {os.path.dirname(path)}"))
