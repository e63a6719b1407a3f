"""The packs of a folder of models: packed weights, which --pack writes to the disk and later runs map."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from speculative.checkpoints.disk import FilesInUse
from speculative.engines.c import pack_files
from speculative.engines.contract import Engine
from speculative.run.model_spec import ModelSpec
from speculative.support.files import size_of
from speculative.support.terminal import one_line


@dataclass
class Packs:
    """The packs that are on the disk, and what further ones would save."""

    engine: Engine
    models_dir: str
    quiet: bool
    files_in_use: FilesInUse
    unpacked: list[ModelSpec] = field(default_factory=list)  # read from checkpoints: packs of them could be mapped
    seconds: float = 0.0  # of reading these, which packs would save

    def path_of(self, spec: ModelSpec, folder: str) -> str:
        return pack_files.path_of(folder, self.models_dir, spec.dtype)

    def write(self, spec: ModelSpec, folder: str) -> str:
        """Write the pack of a model, if it is missing or damaged -> its path. Raises UserError."""
        path = self.path_of(spec, folder)
        if not pack_files.is_whole(path, spec.hparams, spec.dtype):
            pack_files.save(path, folder, spec.hparams, spec.dtype)
        return path

    def mapped(self, spec: ModelSpec, folder: str) -> Any:
        """Return the network of a pack; None if there is no pack."""
        if not self.engine.packs:
            return None
        path = self.path_of(spec, folder)
        if not size_of(path):
            return None
        params = pack_files.load(path, spec.hparams, spec.dtype)
        self.files_in_use.add(path)
        if not self.quiet:
            print(one_line(f"{spec.size}: mapped from {path}"), file=sys.stderr)
        return self.engine.network(params, spec.hparams, f"{spec}, mapped from {path},")

    def note(self, specs: Sequence[ModelSpec], seconds: float):
        """Count the seconds of reading weights that were packed in memory."""
        if self.engine.packs and specs:
            self.unpacked += specs
            self.seconds += seconds

    def take_unpacked(self) -> tuple[list[ModelSpec], float]:
        """Return the models that were read from checkpoints since this was last asked, and the seconds of that."""
        taken = self.unpacked, self.seconds
        self.unpacked, self.seconds = [], 0.0
        return taken
