"""The models of a session by role: what their small files say, whether they fit, and their weights."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from speculative.blog.encoder import Encoder
from speculative.checkpoints import crc32c
from speculative.checkpoints.disk import FilesInUse
from speculative.checkpoints.folder import look
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.shapes import parameter_count
from speculative.drafters.base import DrafterSpec
from speculative.engines import memory
from speculative.engines.c.library import c_crc32c, library
from speculative.engines.contract import Engine
from speculative.engines.formats import FORMATS
from speculative.engines.function import function_network
from speculative.engines.network import Network
from speculative.engines.parameters import is_mapped
from speculative.model_spec import ModelSpec
from speculative.packs import Packs
from speculative.plan import Plan, Wanted
from speculative.support.errors import UserError
from speculative.support.progress import working

ENDLESS = 2**31  # tokens of a context without an end


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

    def __post_init__(self):
        self.specs: dict[str, ModelSpec] = {}
        self.loaded: dict[str, Any] = {}
        self.files_in_use = FilesInUse()
        self.packs = Packs(self.engine, self.models_dir, self.quiet, self.files_in_use)

    def __reduce__(self):
        raise UserError("loaded models are neither copied nor pickled, as they hold addresses: load them once more")

    def __getitem__(self, role: str) -> Any:
        return self.loaded[role]

    def take_target(self, function: Callable, encoder: Encoder, name: str) -> None:
        """Take a user's function in the place of the target: see function_network."""
        hparams = {"n_vocab": encoder.n_vocab, "n_ctx": ENDLESS}
        self.specs["target"] = ModelSpec("target", name, "", "float32", encoder, hparams)
        self.loaded["target"] = function_network(function, encoder.n_vocab, f"the target {name}")

    # ---- Small files, and checks -------------------------------------------------------------------------------------

    def spec(self, role: str) -> ModelSpec:
        """Download the small files if they are missing, and read them. Raises UserError."""
        if role not in self.specs:
            is_copy = role in FORMATS
            self.specs[role] = self.copy_of_target(role) if is_copy else self.described(role)
        return self.specs[role]

    def copy_of_target(self, dtype: str) -> ModelSpec:
        """Return the spec of the target's copy in this format, which is its role."""
        return self.spec("target")._replace(role=dtype, dtype=dtype)

    def described(self, role: str) -> ModelSpec:
        """Return the spec of a model. Raises UserError if a draft's vocabulary is not the target's."""
        size, dtype = self.wanted[role]
        folder = complete_folder(size, self.models_dir, self.source, weights=False, refresh=self.refresh)
        if role == "target":
            return ModelSpec(role, size, folder, dtype, *load_encoder_and_hparams(folder))
        target = self.spec("target")
        of_target = (target.folder, target.encoder) if target.folder else None
        spec = ModelSpec(role, size, folder, dtype, *load_encoder_and_hparams(folder, of_target))
        return spec.drafting_for(target)

    def check(self, roles: Sequence[str], n_cached: int | None = None) -> None:
        """Raise UserError if the networks of these roles do not fit into the memory, before they are downloaded and
        read. n_cached: the tokens of all prompts, if several are decoded together."""
        sizes = []
        for spec in self.new_specs(roles):
            dtype = self.engine.held_dtype(spec.dtype)
            n_own = 0 if self.shares_cache(spec.role) else n_cached
            sizes.append(memory.SizedModel(spec.role, spec.hparams, dtype, n_own))
        memory.check(sizes, self.engine.free_bytes(), self.engine.saving)

    def smallest_context(self, plan: Plan) -> ModelSpec:
        """Return the model with the smallest context."""
        return min(map(self.spec, plan.network_roles), key=lambda spec: spec.n_ctx)

    def check_weights(self, plan: Plan) -> None:
        """Raise UserError if a drafter needs the weights of a target that is a function."""
        for drafter in plan.specs:
            if drafter.needs_weights and not self.spec("target").folder:
                needs = "needs the target's weights, and a function has none: try prompt_lookup"
                raise UserError(f"--drafter {drafter.name} {needs}")

    def new_specs(self, roles: Sequence[str]) -> list[ModelSpec]:
        """Return the specs of these roles without those that are loaded."""
        return [self.spec(role) for role in roles if role not in self.loaded]

    def shares_cache(self, role: str) -> bool:
        """Return True for a copy of the target that uses the target's cache."""
        return role in FORMATS and self.engine.shares_caches

    # ---- Weights -----------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, in_place: bool = False) -> list:
        """Load what is not loaded yet: the small parts of drafters first, then networks, a target with its copies.
        Return the new networks. in_place: see Engine.converter. Raises UserError."""
        parts = self.load_parts(plan)
        new = self.new_specs(plan.network_roles)
        self.load_networks(new, in_place)
        self.share_caches(new)
        for part, content in parts:
            if part.check:
                part.check(content, self)
            self.loaded[part.name] = Network(content) if part.has_model else content
        return [self.loaded[spec.role] for spec in new]

    def load_parts(self, plan: Plan) -> list[tuple[DrafterSpec, Any]]:
        """Load what drafters need of their own, unless it is loaded -> each with its content."""
        parts = []
        for part in plan.loaded_parts:
            if part.name not in self.loaded:
                parts.append((part, part.load(self)))
        return parts

    def load_networks(self, specs: Sequence[ModelSpec], in_place: bool) -> None:
        """Load networks, the weights of the target last, as they are the largest."""
        for size in dict.fromkeys(spec.size for spec in reversed(specs)):
            self.read([spec for spec in specs if spec.size == size], in_place)

    def share_caches(self, specs: Sequence[ModelSpec]) -> None:
        """Let copies of the target use its cache. A copy reads entries of more exact copies, not of less exact ones."""
        for spec in specs:
            if self.shares_cache(spec.role):
                rank = [*FORMATS].index(spec.role)
                self.loaded[spec.role].share_cache(self.loaded["target"], rank)

    def read(self, specs: Sequence[ModelSpec], in_place: bool) -> None:
        """Read the weights of a model, downloaded if they are missing, once for all formats of these specs."""
        folder = self.complete_folder(specs[0])
        unpacked = []
        for spec in specs:
            if network := self.packs.mapped(spec, folder):
                self.loaded[spec.role] = network
            else:
                unpacked.append(spec)
        if unpacked:
            self.read_checkpoint(unpacked, folder, in_place)

    def read_checkpoint(self, specs: Sequence[ModelSpec], folder: str, in_place: bool) -> None:
        files = look(folder)
        in_place = in_place and not files.padded_from  # a padded model's weights are not read where they lie
        if crc32c.is_slow() and library():
            crc32c.in_c = c_crc32c
        packable = [spec for spec in specs if not (in_place and spec.dtype == "float32")]
        read_weights = partial(self.read_weights, specs[0], folder, packable)
        networks = self.engine.load(read_weights, specs, in_place)
        for spec, network in zip(specs, networks, strict=True):
            self.loaded[spec.role] = network
            if is_mapped(network.params):
                for name in files.weights:
                    self.files_in_use.add(os.path.join(folder, name))

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

    def write_packs(self, roles: Sequence[str]) -> Iterator[str]:
        """Write the packs of these roles that are missing or damaged, one after the other. Yield the paths of all.
        Raises UserError."""
        for spec in map(self.spec, roles):
            yield self.packs.write(spec, self.complete_folder(spec))

    def complete_folder(self, spec: ModelSpec) -> str:
        """Return the folder of a model, with its weights, which are downloaded if they are missing."""
        return complete_folder(spec.size, self.models_dir, self.source)

    def forget(self, roles: Sequence[str]) -> None:
        """Empty the caches, so that two decodes begin alike."""
        for role in roles:
            self.loaded[role].forget()
