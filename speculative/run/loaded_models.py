"""The models of a session by role: what their small files say, whether they fit, and their weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speculative.blog.encoder import Encoder
from speculative.checkpoints.complete import complete_folder
from speculative.checkpoints.disk import FilesInUse
from speculative.checkpoints.loading import load_encoder_and_hparams
from speculative.drafters.base import DrafterSpec
from speculative.engines import memory
from speculative.engines.contract import Engine
from speculative.engines.formats import FORMATS
from speculative.engines.network import Network
from speculative.run.function import function_network
from speculative.run.model_spec import ModelSpec
from speculative.run.packs import Packs
from speculative.run.plan import Plan, Wanted
from speculative.run.weight_reader import WeightReader
from speculative.support.errors import UserError

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
        self.reader = WeightReader(self.engine, self.packs, self.files_in_use, self.quiet)

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
            self.specs[role] = self.copy_of_target(role) if is_copy(role) else self.described(role)
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

    def check_drafters_have_weights(self, plan: Plan) -> None:
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
        return is_copy(role) and self.engine.shares_caches

    # ---- Weights -----------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, in_place: bool = False) -> list:
        """Load what is not loaded yet: the small parts of drafters first, then networks, a target with its copies.
        Return the new networks. in_place: see Engine.converter. Raises UserError."""
        parts = self.load_parts(plan)
        new = self.new_specs(plan.network_roles)
        self.load_networks(new, in_place)
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
        """Load networks, the weights of the target last, as they are the largest: each model once for all formats."""
        names = [*dict.fromkeys(spec.size for spec in specs)]
        for name in reversed(names):
            of_model = [spec for spec in specs if spec.size == name]
            self.loaded |= self.reader.networks(of_model, self.folder_with_weights(of_model[0]), in_place)

    def write_packs(self, roles: Sequence[str]) -> Iterator[str]:
        """Write the packs of these roles that are missing or damaged, one after the other. Yield the paths of all.
        Raises UserError."""
        for spec in map(self.spec, roles):
            yield self.packs.write(spec, self.folder_with_weights(spec))

    def folder_with_weights(self, spec: ModelSpec) -> str:
        """Return the folder of a model, with its weights, which are downloaded if they are missing."""
        return complete_folder(spec.size, self.models_dir, self.source)

    def forget(self, roles: Sequence[str]) -> None:
        """Empty the caches, so that two decodes begin alike."""
        for role in roles:
            self.loaded[role].forget()


def is_copy(role: str) -> bool:
    """Return True for a copy of the target, whose role is its weight format."""
    return role in FORMATS
