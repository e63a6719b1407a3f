"""The models of a session by role, loaded by one call."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from speculative.blog.encoder import Encoder
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.drafters import DRAFTERS
from speculative.engines import formats, memory
from speculative.engines.c import pack_files
from speculative.engines.contract import Engine
from speculative.engines.formats import model_bytes
from speculative.engines.model import Network
from speculative.engines.vocabulary import share
from speculative.support.errors import UserError
from speculative.support.files import size_of
from speculative.support.progress import working
from speculative.support.terminal import one_line

LARGE_BYTES = 2**28  # of weights; reading fewer is not bound by memory


class ModelSpec(NamedTuple):
    """A model that is to be loaded, as its small files describe it."""

    role: str  # "target", "draft", or the weight format of a quantized copy of the target
    size: str  # the model's name
    folder: str
    dtype: str
    encoder: Encoder
    hparams: dict

    def __str__(self) -> str:
        return f"the {self.role} {self.size}"


@dataclass
class Models:
    """The models of a run. The small files are read first: spec(role). They are enough for all checks.

    After load(roles), models[role] is a network, or the object that a drafter loads under its name ("heads", "ngram").
    """

    engine: Engine
    wanted: dict[str, tuple[str, str]]  # the name and the weight format of the "target" and of the "draft"
    models_dir: str
    source: str  # of official models that are missing
    ngram_text: str | None  # the file in which n-grams are counted
    quiet: bool = False
    specs: dict[str, ModelSpec] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)
    packable: tuple[float, int] = (0.0, 0)  # seconds of reading that packs would save, and their bytes

    def __reduce__(self):
        raise UserError("loaded models are neither copied nor pickled, as they hold addresses: load them once more")

    def spec(self, role: str) -> ModelSpec:
        """Download the small files if they are missing, and read them. Raises UserError."""
        if role not in self.specs:
            self.specs[role] = self.copy_of_target(role) if role not in self.wanted else self.described(role)
        return self.specs[role]

    def described(self, role: str) -> ModelSpec:
        """Return the spec of a model, and refuse a draft whose vocabulary is not the target's."""
        size, dtype = self.wanted[role]
        folder = complete_folder(size, self.models_dir, self.source, weights=False)
        target = self.spec("target") if role == "draft" else None
        encoder, hparams = load_encoder_and_hparams(folder, target and (target.folder, target.encoder))
        if target and encoder is not target.encoder:
            shared = share(target.encoder, encoder)
            if shared is None:
                both = f"{size} and {target.size}"
                raise UserError(f"{both} have different vocabularies, so one cannot draft for the other")
            if not shared.n_shared == target.encoder.n_vocab == encoder.n_vocab:
                hparams = hparams | {"shared": shared}
        if target and dtype == "auto":
            dtype = self.engine.draft_dtype(target.dtype)
        return ModelSpec(role, size, folder, dtype, encoder, hparams)

    def copy_of_target(self, dtype: str) -> ModelSpec:
        """Return the spec of the target's rounded copy. Raises UserError if it saves no bytes."""
        target = self.spec("target")
        if formats.FORMATS[dtype].weight_bytes >= formats.FORMATS[target.dtype].weight_bytes:
            raise UserError(f"--drafter {dtype} takes no fewer bytes than the target, whose weights are {target.dtype}")
        return target._replace(role=dtype, dtype=dtype)

    def __getitem__(self, role: str) -> Any:
        return self.loaded[role]

    def check(self, roles: Sequence[str], n_cached: int | None = None) -> None:
        """Raise UserError if the models of these roles do not fit into the memory, before gigabytes are downloaded and
        read. n_cached: the tokens of all prompts, if several are decoded together."""
        new = [self.spec(role) for role in networks_of(roles) if role not in self.loaded]
        no_cache = {"n_ctx": 0}
        hparams = [spec.hparams | no_cache if self.shares_cache(spec.role) else spec.hparams for spec in new]
        sizes = [(h, self.engine.held_dtype(spec.dtype)) for h, spec in zip(hparams, new, strict=True)]
        memory.check(sizes, self.engine.free_bytes(), n_cached, self.engine.saving)

    def load(self, roles: Sequence[str]) -> list:
        """Load the roles that are not loaded yet: the small parts of a drafter first, a target with its copies. Return
        the new networks. Raises UserError."""
        new = [role for role in roles if role not in self.loaded]
        for role in reversed(new):
            if role in self.loaded:  # read together with an earlier role
                continue
            if networks_of([role]):
                self.read(role)
            else:
                loaded = DRAFTERS[role].load(self)
                self.loaded[role] = Network(loaded) if DRAFTERS[role].model else loaded
        for rank, role in enumerate(formats.FORMATS):  # a copy reads entries of more exact copies, not of less exact
            if role in new and self.shares_cache(role):
                self.loaded[role].share_cache(self.loaded["target"], rank)
        return [self.loaded[role] for role in networks_of(new)]

    def shares_cache(self, role: str) -> bool:
        """Return True for a copy of the target that uses the target's cache."""
        return role in formats.FORMATS and self.engine.shares_caches

    def read(self, role: str) -> None:
        """Read a model's weights, downloaded if they are missing; the target's together with those of its copies, from
        one reading."""
        size = self.spec(role).size
        folder = complete_folder(size, self.models_dir, self.source)
        specs = [spec for spec in self.specs.values() if spec.size == size and spec.role not in self.loaded]
        specs = [spec for spec in specs if not self.map_packed(spec, folder)]
        if not specs:
            return
        hparams = specs[0].hparams
        n_bytes = 4 * parameter_count(hparams)
        with working(f"loading {size}", n_bytes, "B", self.quiet, unit_scale=True, delay=0.5) as bar:

            def read(convert):
                began = time.perf_counter()
                params = load_params(folder, hparams, convert, bar.update)
                seconds, n_packed = self.packable
                n_packed += sum(model_bytes(spec.dtype, checkpoint_shapes(hparams)) for spec in specs)
                self.packable = seconds + time.perf_counter() - began, n_packed
                return params

            self.loaded |= zip([spec.role for spec in specs], self.engine.load(read, specs), strict=True)

    def map_packed(self, spec: ModelSpec, folder: str) -> bool:
        """Map the packed weights that --pack has written to the disk. False if there are none."""
        if not self.engine.packs or not os.path.isdir(os.path.join(self.models_dir, "packed")):
            return False
        path = pack_files.path_of(folder, self.models_dir, spec.dtype)
        if not size_of(path):
            return False
        params = pack_files.load(path, spec.hparams, spec.dtype)
        self.loaded[spec.role] = self.engine.network(params, spec.hparams, f"{spec}, mapped from {path},")
        if not self.quiet:
            print(one_line(f"{spec.size}: mapped from {path}"), file=sys.stderr)
        return True

    def write_packed(self, roles: Sequence[str]) -> Iterator[str]:
        """Write the packed weights of these roles to the disk, where they are missing, one after the other. Yield their
        paths. Raises UserError."""
        for spec in [self.spec(role) for role in networks_of(roles)]:
            folder = complete_folder(spec.size, self.models_dir, self.source)
            path = pack_files.path_of(folder, self.models_dir, spec.dtype)
            if not size_of(path):
                pack_files.save(path, folder, spec.hparams, spec.dtype)
            yield path

    def fast_drafter(self) -> str:
        """Return the drafter that --fast stands for: look-ups and the draft model. They draft for an int8 copy of the
        target if that is bound by memory, int8 is fast and the copy fits. Raises UserError."""
        target = self.spec("target")
        large = model_bytes("int8", checkpoint_shapes(target.hparams)) >= LARGE_BYTES
        if large and target.dtype == "float32" and self.engine.has_fast_int8():  # a copy of bfloat16 saves too little
            with contextlib.suppress(UserError):
                self.check(["target", "draft", "int8"])
                return "int8/prompt_lookup+model"
        return "prompt_lookup+model"


def networks_of(roles: Sequence[str]) -> list[str]:
    """Return the roles that are networks, without other things that drafters load."""
    return [role for role in roles if role not in DRAFTERS or not DRAFTERS[role].load]
