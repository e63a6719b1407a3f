"""Reads the weights of models, from packs or from checkpoints.

Each tensor of a checkpoint passes through four functions, of which each calls the next: build_params.converted, which
reads and checks it; absorb, for the settings of a few models (of a padded model, Padding.pad in its place);
convert_and_count below; and Engine.load.convert_to_all, which packs it once for each format.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from speculative.checkpoints.disk import FilesInUse
from speculative.checkpoints.folder import look
from speculative.checkpoints.loading import load_params
from speculative.checkpoints.shapes import parameter_count
from speculative.engines.c.library import use_c_crc32c
from speculative.engines.contract import Engine
from speculative.engines.parameters import is_mapped
from speculative.run.model_spec import ModelSpec
from speculative.run.packs import Packs
from speculative.support.progress import working


@dataclass
class WeightReader:
    """Makes networks of files."""

    engine: Engine
    packs: Packs
    files_in_use: FilesInUse
    quiet: bool

    def networks(self, specs: Sequence[ModelSpec], folder: str, in_place: bool) -> dict[str, Any]:
        """Return {role: network} of these specs, which are formats of the model in a folder. in_place: see
        Engine.converter. Raises UserError."""
        networks = {}
        unpacked = []
        for spec in specs:
            if network := self.packs.mapped(spec, folder):
                networks[spec.role] = network
            else:
                unpacked.append(spec)
        if unpacked:
            networks |= self.from_checkpoint(unpacked, folder, in_place)
        return networks

    def from_checkpoint(self, specs: Sequence[ModelSpec], folder: str, in_place: bool) -> dict[str, Any]:
        """The same for a model without packs of these formats: its files are read once for all."""
        use_c_crc32c()  # they may be checked for the first time
        files = look(folder)
        in_place = in_place and not files.padded_from  # a padded model's weights are in no file
        packable = [spec for spec in specs if not (in_place and spec.dtype == "float32")]  # the others stay in the file
        read_weights = partial(self.read_weights, specs[0], folder, packable)
        networks = self.engine.load(read_weights, specs, in_place)
        if any(is_mapped(network.params) for network in networks):
            for name in files.weights:
                self.files_in_use.add(files.path(name))
        return {spec.role: network for spec, network in zip(specs, networks, strict=True)}

    def read_weights(self, spec: ModelSpec, folder: str, packable: Sequence[ModelSpec], convert: Callable) -> Any:
        """Read the tensors of a model with a bar, and call convert(name, array) for each -> its results. packable: the
        specs whose packs would save the reading."""
        n_bytes = 4 * parameter_count(spec.hparams)
        began = time.perf_counter()
        with working(f"loading {spec.size}", n_bytes, "B", self.quiet, unit_scale=True, delay=0.5) as bar:

            def convert_and_count(name, array):
                value = convert(name, array)
                bar.update(array.nbytes)
                return value

            params = load_params(folder, spec.hparams, convert_and_count)
        self.packs.note(packable, time.perf_counter() - began)
        return params
