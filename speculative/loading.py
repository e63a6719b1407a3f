"""The models of a session by role: what their small files say, whether they fit, and their weights."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from speculative.blog.encoder import Encoder
from speculative.checkpoints import crc32c
from speculative.checkpoints.disk import FilesInUse
from speculative.checkpoints.folder import look
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.engines import formats, memory
from speculative.engines.c import pack_files
from speculative.engines.c.library import c_crc32c, library
from speculative.engines.contract import Engine
from speculative.engines.formats import model_bytes
from speculative.engines.function import FunctionNetwork
from speculative.engines.network import Network
from speculative.engines.parameters import is_mapped
from speculative.engines.vocabulary import map_vocabulary
from speculative.plan import Plan, Wanted
from speculative.support.errors import UserError
from speculative.support.files import size_of
from speculative.support.progress import working
from speculative.support.terminal import one_line

ENDLESS = 2**31  # tokens of a context without an end
LARGE_BYTES = 2**28  # of weights; reading fewer is not bound by memory
LOOK_UP_OR_DRAFT = "prompt_lookup+model"


class ModelSpec(NamedTuple):
    """A model that is to be loaded, as its small files describe it."""

    role: str  # "target", "draft", or the weight format of a quantized copy of the target
    size: str  # the model's name
    folder: str  # "" for a user's function, which has no weights
    dtype: str
    encoder: Encoder
    hparams: dict

    @property
    def n_ctx(self) -> int:
        """The tokens of its context."""
        return self.hparams["n_ctx"]

    @property
    def n_bytes(self) -> int:
        """The bytes of its weights."""
        return model_bytes(self.dtype, checkpoint_shapes(self.hparams))

    def __str__(self) -> str:
        return f"the {self.role} {self.size}"


@dataclass
class Models:
    """The models of a run. The small files are read first: spec(role). They are enough for all checks.

    After load(plan), models[role] is a network, or the object that a drafter loads under its name ("heads", "ngram").
    """

    engine: Engine
    wanted: Mapping[str, Wanted]  # by role: see Plan
    models_dir: str
    source: str  # of official models that are missing
    ngram_text: str | None  # the file in which n-grams are counted
    quiet: bool = False
    refresh: bool = False  # whether the hub is asked for newer versions
    specs: dict[str, ModelSpec] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)
    packable: list[ModelSpec] = field(default_factory=list)  # read from a checkpoint: packs of them could be mapped
    packable_seconds: float = 0.0  # of reading these, which packs would save
    files_in_use: FilesInUse = field(default_factory=FilesInUse)

    def __reduce__(self):
        raise UserError("loaded models are neither copied nor pickled, as they hold addresses: load them once more")

    def __getitem__(self, role: str) -> Any:
        return self.loaded[role]

    def take_target(self, function: Callable, encoder: Encoder, name: str) -> None:
        """Take a user's function in the place of the target: see FunctionNetwork."""
        hparams = {"n_vocab": encoder.n_vocab, "n_ctx": ENDLESS}
        self.specs["target"] = ModelSpec("target", name, "", "float32", encoder, hparams)
        self.loaded["target"] = FunctionNetwork(function, encoder.n_vocab, f"the target {name}")

    # ---- Small files, and checks -------------------------------------------------------------------------------------

    def spec(self, role: str) -> ModelSpec:
        """Download the small files if they are missing, and read them. Raises UserError."""
        if role not in self.specs:
            is_copy = role in formats.FORMATS
            self.specs[role] = self.spec("target")._replace(role=role, dtype=role) if is_copy else self.described(role)
        return self.specs[role]

    def described(self, role: str) -> ModelSpec:
        """Return the spec of a model. Raises UserError if a draft's vocabulary is not the target's."""
        size, dtype = self.wanted[role]
        folder = complete_folder(size, self.models_dir, self.source, weights=False, refresh=self.refresh)
        target = None if role == "target" else self.spec("target")
        other = (target.folder, target.encoder) if target and target.folder else None
        encoder, hparams = load_encoder_and_hparams(folder, other)
        if target:
            hparams = hparams | shared_ids(target, size, encoder)
        return ModelSpec(role, size, folder, dtype, encoder, hparams)

    def check(self, networks: Sequence[str], n_cached: int | None = None) -> None:
        """Raise UserError if these networks do not fit into the memory, before gigabytes are downloaded and read.
        n_cached: the tokens of all prompts, if several are decoded together."""
        sizes = []
        for spec in self.new_specs(networks):
            n_own = 0 if self.shares_cache(spec.role) else n_cached
            sizes.append(memory.SizedModel(spec.role, spec.hparams, self.engine.held_dtype(spec.dtype), n_own))
        memory.check(sizes, self.engine.free_bytes(), self.engine.saving)

    def smallest_context(self, plan: Plan) -> ModelSpec:
        """Return the model with the smallest context."""
        return min(map(self.spec, plan.networks), key=lambda spec: spec.n_ctx)

    def check_weights(self, plan: Plan) -> None:
        """Raise UserError if a drafter needs the weights of a target that is a function."""
        copies = [role for role in plan.networks if role in formats.FORMATS]
        for name in [*copies, *plan.parts_without_a_model]:
            if not self.spec("target").folder:
                needs = "needs the target's weights, and a function has none: try prompt_lookup"
                raise UserError(f"--drafter {name} {needs}")

    def new_specs(self, networks: Sequence[str]) -> list[ModelSpec]:
        """Return the specs of these networks without those that are loaded."""
        return [self.spec(role) for role in networks if role not in self.loaded]

    def shares_cache(self, role: str) -> bool:
        """Return True for a copy of the target that uses the target's cache."""
        return role in formats.FORMATS and self.engine.shares_caches

    def fast_drafter(self, N: int) -> str:
        """Return the drafter that --fast stands for: look-ups and the draft model. They draft for an int8 copy of the
        target if that pays. N: the tokens to generate. Raises UserError."""
        return f"int8/{LOOK_UP_OR_DRAFT}" if self.copy_pays(N) else LOOK_UP_OR_DRAFT

    def copy_pays(self, N: int) -> bool:
        """Whether an int8 copy of the target, which has to fit beside it, saves more time in N tokens than it takes to
        make. Raises UserError."""
        target = self.spec("target")
        is_large = target.folder and target._replace(dtype="int8").n_bytes >= LARGE_BYTES
        # a copy of bfloat16 saves too little
        if not (is_large and target.dtype == "float32" and self.engine.copy_pays(N)):
            return False
        try:
            self.check(["target", "draft", "int8"])
        except UserError:
            return False
        return True

    # ---- Weights -----------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, in_place: bool = False) -> list:
        """Load what is not loaded yet: the small parts of drafters first, then networks, a target with its copies.
        Return the new networks. in_place: see Engine.converter. Raises UserError."""
        parts = {spec: spec.load(self) for spec in plan.loaded_parts if spec.name not in self.loaded}
        new = self.new_specs(plan.networks)
        sizes = dict.fromkeys(spec.size for spec in reversed(new))  # the target's, which is the largest, last
        for size in sizes:
            self.read([spec for spec in new if spec.size == size], in_place)
        for spec in new:
            if self.shares_cache(spec.role):  # a copy reads entries of more exact copies, not of less exact ones
                rank = [*formats.FORMATS].index(spec.role)
                self.loaded[spec.role].share_cache(self.loaded["target"], rank)
        for part, content in parts.items():
            if part.check:
                part.check(content, self)
            self.loaded[part.name] = Network(content) if part.has_model else content
        return [self.loaded[spec.role] for spec in new]

    def read(self, specs: Sequence[ModelSpec], in_place: bool) -> None:
        """Read the weights of a model, downloaded if they are missing, once for all formats of these specs."""
        size = specs[0].size
        hparams = specs[0].hparams
        folder = complete_folder(size, self.models_dir, self.source)
        specs = [spec for spec in specs if not self.map_packed(spec, folder)]
        if not specs:
            return
        in_place = in_place and not look(folder).small  # whose weights are in memory in any case
        n_bytes = 4 * parameter_count(hparams)
        if crc32c.is_slow() and library():
            crc32c.compute_in_c(c_crc32c)
        packed = [spec for spec in specs if not (in_place and spec.dtype == "float32")]
        with working(f"loading {size}", n_bytes, "B", self.quiet, unit_scale=True, delay=0.5) as bar:

            def read_weights(convert):
                began = time.perf_counter()
                params = load_params(folder, hparams, convert, bar.update)
                self.note_packable(packed, time.perf_counter() - began)
                return params

            networks = self.engine.load(read_weights, specs, in_place)
        if any(is_mapped(network.params) for network in networks):
            for name in look(folder).weights:
                self.files_in_use.add(os.path.join(folder, name))
        self.loaded |= zip([spec.role for spec in specs], networks, strict=True)

    def note_packable(self, specs: list[ModelSpec], seconds: float) -> None:
        """Count the seconds of reading weights that are packed in memory now."""
        if specs:
            self.packable += specs
            self.packable_seconds += seconds

    def forget(self, networks: Sequence[str]) -> None:
        """Empty the caches, so that two decodes begin alike."""
        for role in networks:
            self.loaded[role].forget()

    def map_packed(self, spec: ModelSpec, folder: str) -> bool:
        """Map the packed weights that --pack has written to the disk. False if there are none."""
        if not self.engine.packs or not os.path.isdir(os.path.join(self.models_dir, "packed")):
            return False
        path = pack_files.path_of(folder, self.models_dir, spec.dtype)
        if not size_of(path):
            return False
        params = pack_files.load(path, spec.hparams, spec.dtype)
        self.files_in_use.add(path)
        self.loaded[spec.role] = self.engine.network(params, spec.hparams, f"{spec}, mapped from {path},")
        if not self.quiet:
            print(one_line(f"{spec.size}: mapped from {path}"), file=sys.stderr)
        return True

    def write_packed(self, networks: Sequence[str]) -> Iterator[str]:
        """Write the packed weights of these networks to the disk, where they are missing or damaged, one after the
        other. Yield their paths. Raises UserError."""
        for spec in map(self.spec, networks):
            folder = complete_folder(spec.size, self.models_dir, self.source)
            path = pack_files.path_of(folder, self.models_dir, spec.dtype)
            if not pack_files.is_whole(path, spec.hparams, spec.dtype):
                pack_files.save(path, folder, spec.hparams, spec.dtype)
            yield path


def shared_ids(target: ModelSpec, size: str, encoder: Encoder) -> dict:
    """Return the hparam by which a draft of another vocabulary takes the target's ids. Raises UserError if there is no
    such way. size: the draft's name."""
    if encoder is target.encoder:
        return {}
    vocabulary_map = map_vocabulary(target.encoder, encoder)
    if vocabulary_map is None:
        raise UserError(f"{size} and {target.size} have different vocabularies, so one cannot draft for the other")
    is_same = vocabulary_map.n_shared == target.encoder.n_vocab == encoder.n_vocab
    return {} if is_same else {"vocabulary_map": vocabulary_map}
