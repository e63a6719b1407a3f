"""--pack: packed weights are kept on the disk, so that later runs map them and begin sooner."""

import os

from speculative.drafters import parse_drafter, roles_of
from speculative.engines import packed_files
from speculative.loading import Models, networks_of
from speculative.options import Options
from speculative.support.errors import UserError
from speculative.support.terminal import one_line


def write_packed(o: Options) -> None:
    """Pack the models that this run would load, one after the other. Raises UserError."""
    if o.engine != "c":
        raise UserError("--pack is for the compiled forward pass, and there is no C compiler: pip install ziglang")
    parse_drafter(o.drafter)  # raises UserError for a name that is unknown
    models = Models(o)
    for role in networks_of(["target", *roles_of(o.drafter)]):
        spec = models.spec(role)
        folder = models.folder(role)
        path = packed_files.path_of(folder, o.models_dir, spec.dtype)
        if not os.path.isfile(path):
            packed_files.save(path, folder, spec.hparams, spec.dtype)
        n_bytes = os.path.getsize(path)
        print(one_line(f"{path}: {n_bytes / 1e6:,.0f} MB; to undo --pack, delete {os.path.dirname(path)}"))
