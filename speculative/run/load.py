"""Loading, from top to bottom: from options to models that can decode.

    load      the plan, with every refusal; the checkpoints, each opened once; prompts and sizes against the context
              and the memory; then the weights, and the parts that drafters load
    Models    the models of a session by role, which keep the loaded ones for the next session
    fast      the options that --fast stands for, which the small files decide

A tensor passes two functions: weights.array(name) reads and checks it, and pack(name, array) of each format packs it.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple

import numpy as np

from speculative.blog.encoder import Encoder
from speculative.checkpoints.disk import FileState, state_of
from speculative.checkpoints.folder import Checkpoint, announce_downloads, find_checkpoint
from speculative.checkpoints.weights import by_threads, checkpoint_shapes, nested, parameter_count
from speculative.drafters.user import NO_FUNCTIONS, Functions, check_parameters
from speculative.engines import memory
from speculative.engines.c.library import use_c_crc32c
from speculative.engines.choice import make_engine
from speculative.engines.contract import Engine
from speculative.engines.formats import FORMATS, is_mapped, model_bytes
from speculative.engines.network import CachedNetwork, Network
from speculative.engines.vocabulary import map_vocabulary
from speculative.run.options import AnyOptions, ModelOptions
from speculative.run.plan import Plan, make_plan, wanted_models
from speculative.run.prompts import PromptReader
from speculative.sampling import as_distributions
from speculative.support.errors import Option, UserError
from speculative.support.files import size_of
from speculative.support.progress import working
from speculative.support.terminal import one_line

ENDLESS = 2**31  # tokens of a context without an end
IN_PLACE_TOKENS = 200  # read by a command; with more, packing float32 weights pays
PACKED = "packed"  # the folder of packs in models_dir


class ModelSpec(NamedTuple):
    """A model that is to be loaded, as its small files describe it."""

    role: str  # "target", "draft", or the weight format of a quantized copy of the target
    size: str  # the model's name
    files: Checkpoint | None  # None for a user's function, which has no weights
    dtype: str
    encoder: Encoder
    hparams: dict

    @property
    def folder(self) -> str:
        """The folder of its files; "" for a user's function."""
        return self.files.folder if self.files else ""

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
class LoadedRun(Generic[AnyOptions]):
    """A run that is loaded: its options, its plan, and its models."""

    options: AnyOptions  # with the engine that runs, and --fast spelled out
    plan: Plan
    models: "Models"
    reader: PromptReader
    prompts: list[str]  # those that fit into the context


def load(
    o: AnyOptions, models: "Models", functions: Functions = NO_FUNCTIONS, prompts: Sequence[str] = ()
) -> LoadedRun[AnyOptions]:
    """Load the models that these options need, if they are not loaded yet. models: from new_models_of, or those of
    another session. functions: of the user. prompts: all that will be decoded, if they are known. Raises UserError."""
    # the plan, with every refusal
    o = spelled_out(replace(o, engine=models.engine.name), models)
    plan = make_plan(o, models.engine, functions)
    for drafter in plan.specs:
        if drafter.needs_weights and not models.spec("target").files:
            needs = "needs the target's weights, and a function has none: try prompt_lookup"
            raise UserError(Option("drafter"), f" {drafter.name} {needs}")
    # the checkpoints, each opened once
    models.announce(plan.network_roles)
    smallest = min(map(models.spec, plan.network_roles), key=lambda spec: spec.n_ctx)
    whose = "" if smallest.role == "target" else str(smallest)
    # prompts and sizes against the context and the memory
    reader = PromptReader(plan, models.spec("target").encoder, smallest.n_ctx, whose)
    fitting = reader.keep_those_that_fit(prompts, o.n_tokens_to_generate)
    n_longest = max(map(len, reader.known.values()), default=1)  # tokens of a prompt
    n_tokens = n_longest + o.n_tokens_to_generate
    n_texts = o.batch // o.data_parallel  # on a device
    models.check(plan.network_roles, n_texts * n_tokens if o.batch > 1 else None)
    # the weights, and the parts that drafters load
    is_short = bool(fitting) and not packing_pays(o, n_tokens)  # if no prompts are known, many tokens may come
    new = models.load(plan, in_place=is_short)
    models.engine.prepare(plan, new, n_longest)
    return LoadedRun(o, plan, models, reader, fitting)


def new_models_of(o: ModelOptions, quiet: bool = False) -> "Models":
    """Return the models of these options, not yet loaded. quiet: print nothing about the loading. Raises UserError."""
    return Models(make_engine(o.engine, o.threads, o.mesh, o.data_parallel, quiet), o, quiet)


def packing_pays(o: ModelOptions, n_tokens: int) -> bool:
    """Return False for a command that reads so few tokens that its float32 weights are used where they lie in the file.
    Prompts and long windows cost 1.1 to 1.5 times as much without tiles, but to write 6 GB of tiles would take longer.
    n_tokens: of its longest text."""
    if o.batch > 1 or getattr(o, "verify", False):
        return True
    return getattr(o, "n_samples", 1) * n_tokens > IN_PLACE_TOKENS


class Models:
    """The models of a session. The small files are read first: spec(role). They are enough for all checks.

    After load(plan), models[role] is a network, or the object that a drafter loads under its name ("heads", "ngram").
    """

    def __init__(self, engine: Engine, o: ModelOptions, quiet: bool = False):
        self.engine = engine
        self.wanted = wanted_models(o, engine)  # by role: see Plan
        self.models_dir = o.models_dir
        self.source = o.source  # the source of official models that are missing
        self.ngram_text = o.ngram_text  # the file in which n-grams are counted
        self.quiet = quiet
        self.refresh = o.refresh  # whether the hub is asked for newer versions
        self.specs: dict[str, ModelSpec] = {}
        self.loaded: dict[str, Any] = {}
        self.files_in_use: dict[str, FileState] = {}  # by path, those that stay mapped
        self.unpacked: list[ModelSpec] = []  # read from checkpoints: packs of them could be mapped
        self.unpacked_seconds = 0.0  # seconds of reading these, which packs would save

    def __reduce__(self):
        raise UserError("loaded models are neither copied nor pickled, as they hold addresses: load them once more")

    def __getitem__(self, role: str) -> Any:
        return self.loaded[role]

    def take_target(self, function: Callable[..., Any], encoder: Encoder, name: str) -> None:
        """Take a user's function in the place of the target: see function_network. Raises UserError."""
        if not self.engine.takes_functions:
            raise UserError("a function as the target is for ", Option("engine"), " c or numpy")
        hparams = {"n_vocab": encoder.n_vocab, "n_ctx": ENDLESS}
        self.specs["target"] = ModelSpec("target", name, None, "float32", encoder, hparams)
        self.loaded["target"] = function_network(function, encoder.n_vocab, f"the target {name}")

    def forget(self, roles: Sequence[str]) -> None:
        """Empty the caches, so that two decodes begin alike."""
        for role in roles:
            self.loaded[role].forget()

    def announce(self, roles: Sequence[str]) -> None:
        """Print how much will be downloaded for these roles, if anything is. Raises UserError."""
        sizes = [self.wanted[role].size for role in roles if role not in self.loaded]
        announce_downloads(sizes, self.models_dir, self.source)

    # ---- Small files, and checks -------------------------------------------------------------------------------------

    def spec(self, role: str) -> ModelSpec:
        """Return the spec of a model, whose small files are opened at the first call, and downloaded if they are
        missing. Raises UserError, also if a draft's vocabulary is not the target's."""
        if role in self.specs:
            return self.specs[role]
        if role in FORMATS:  # a copy
            spec = self.spec("target")._replace(role=role, dtype=role)
        else:
            size, dtype = self.wanted[role]
            target = None if role == "target" else self.spec("target")
            files = find_checkpoint(size, self.models_dir, self.source, weights=False, refresh=self.refresh)
            other = (target.files, target.encoder) if target and target.files else None
            spec = ModelSpec(role, size, files, dtype, files.load_encoder(other), files.hparams)
            if target:
                spec = drafting_for(target, spec)
        self.specs[role] = spec
        return spec

    def check(self, roles: Sequence[str], n_cached: int | None = None) -> None:
        """Raise UserError if the networks of these roles do not fit into the memory, before they are downloaded and
        read. n_cached: the tokens for which caches are kept, of all texts that are decoded together; None for one text,
        which has a whole context."""
        sizes = []
        for spec in self.new_specs(roles):
            dtype = self.engine.held_dtype(spec.dtype)
            n_own = 0 if self.shares_cache(spec.role) else n_cached
            sizes.append(memory.SizedModel(spec.role, spec.hparams, dtype, n_own))
        memory.check(sizes, self.engine.free_bytes(), self.engine.saving)

    def new_specs(self, roles: Sequence[str]) -> list[ModelSpec]:
        """Return the specs of these roles without those that are loaded."""
        return [self.spec(role) for role in roles if role not in self.loaded]

    def shares_cache(self, role: str) -> bool:
        """Return True for a copy of the target that uses the target's cache."""
        return role in FORMATS and self.engine.shares_caches

    # ---- Weights -----------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, in_place: bool = False) -> list[CachedNetwork]:
        """Load the missing models: the small parts of drafters first, then networks, each model once for all of its
        formats, and the target last, as it is the largest. Return the new networks. in_place: see Engine.maker. Raises
        UserError."""
        parts = [(part, part.load(self)) for part in plan.loaded_parts if part.load and part.name not in self.loaded]
        new = self.new_specs(plan.network_roles)
        self.load_networks(new, in_place)
        for part, content in parts:
            if part.check:
                part.check(content, self)
            self.loaded[part.name] = Network(content) if part.has_model else content
        return [self.loaded[spec.role] for spec in new]

    def load_networks(self, specs: Sequence[ModelSpec], in_place: bool) -> None:
        names = [*dict.fromkeys(spec.size for spec in specs)]
        for name in reversed(names):
            of_model = [spec for spec in specs if spec.size == name]
            files = self.with_weights(of_model[0])
            unpacked = [spec for spec in of_model if not self.map_pack(spec, files)]
            if unpacked:
                stays = in_place and not files.small  # a padded model's weights are in no file
                self.read(unpacked, files, stays)

    def with_weights(self, spec: ModelSpec) -> Checkpoint:
        """Return a model's files, after a download of its weights if they are missing."""
        assert spec.files
        if not spec.files.missing():
            return spec.files
        return find_checkpoint(spec.size, self.models_dir, self.source)

    def read(self, specs: Sequence[ModelSpec], files: Checkpoint, in_place: bool) -> None:
        """Read the weights of a model once, and pack them for the networks in each of these formats."""
        hparams = specs[0].hparams
        weights = files.open_weights(hparams)
        if not weights.is_checked:
            use_c_crc32c()
        makers = [self.engine.maker(spec, in_place) for spec in specs]
        packed: list[dict[str, Any]] = [{} for _ in specs]  # the tensors of each, by name
        began = time.perf_counter()
        n_bytes = 4 * parameter_count(hparams)
        with working(f"loading {specs[0].size}", n_bytes, "B", self.quiet, unit_scale=True, delay=0.5) as bar:

            def pack_tensor(name: str) -> None:
                array = weights.array(name)
                for maker, tensors in zip(makers, packed, strict=True):
                    tensors[name] = maker.pack(name, array)
                if not any(tensors[name] is array for tensors in packed):  # no network keeps the array itself
                    weights.release(name)
                bar.update(array.nbytes)

            by_threads(pack_tensor, weights.shapes)
            weights.finish()
        if self.engine.packs:
            self.unpacked += [spec for spec in specs if not (in_place and spec.dtype == "float32")]
            self.unpacked_seconds += time.perf_counter() - began
        for spec, maker, tensors in zip(specs, makers, packed, strict=True):
            self.loaded[spec.role] = maker.network(nested({name: tensors[name] for name in weights.shapes}))
            if is_mapped(self.loaded[spec.role].params):
                for name in files.weights:
                    path = files.path(name)
                    self.files_in_use[path] = state_of(path)

    # ---- Packs: packed weights, which --pack writes to the disk and later runs map -----------------------------------

    def map_pack(self, spec: ModelSpec, files: Checkpoint) -> bool:
        """Make a network of its pack. Return False if there is no pack."""
        if not self.engine.packs or not os.path.isdir(os.path.join(self.models_dir, PACKED)):
            return False
        from speculative.engines.c import pack_files

        path = pack_files.path_of(files, self.models_dir, spec.dtype)
        if not size_of(path):
            return False
        params = pack_files.load(path, spec.hparams, spec.dtype)
        self.files_in_use[path] = state_of(path)
        if not self.quiet:
            print(one_line(f"{spec.size}: mapped from {path}"), file=sys.stderr)
        self.loaded[spec.role] = self.engine.network(params, spec.hparams, f"{spec}, mapped from {path},")
        return True

    def write_packs(self, roles: Sequence[str]) -> Iterator[str]:
        """Write the packs of these roles that are missing or damaged, one after the other. Yield the paths of all.
        Raises UserError."""
        from speculative.engines.c import pack_files

        for spec in map(self.spec, roles):
            files = self.with_weights(spec)
            path = pack_files.path_of(files, self.models_dir, spec.dtype)
            if not pack_files.is_whole(path, spec.hparams, spec.dtype):
                pack_files.save(path, files.open_weights(spec.hparams), spec.hparams, spec.dtype)
            yield path

    def take_unpacked(self) -> tuple[list[ModelSpec], float]:
        """Return the models that were read from checkpoints since this was last asked, and the seconds of that."""
        taken = self.unpacked, self.unpacked_seconds
        self.unpacked, self.unpacked_seconds = [], 0.0
        return taken


def drafting_for(target: ModelSpec, spec: ModelSpec) -> ModelSpec:
    """Return a draft's spec with the hparam by which a draft of another vocabulary takes the target's ids. Raises
    UserError if there is no such way."""
    if spec.encoder is target.encoder:
        return spec
    vocabulary_map = map_vocabulary(target.encoder, spec.encoder)
    if vocabulary_map is None:
        raise UserError(f"{spec.size} and {target.size} have different vocabularies, so one cannot draft for the other")
    if vocabulary_map.n_shared == target.encoder.n_vocab == spec.encoder.n_vocab:
        return spec
    return spec._replace(hparams=spec.hparams | {"vocabulary_map": vocabulary_map})


# ---- The options of --fast -------------------------------------------------------------------------------------------

LARGE_BYTES = 2**28  # bytes of weights; reading fewer is not bound by memory
LOOK_UP_OR_DRAFT = "prompt_lookup+model"


def spelled_out(o: AnyOptions, models: Models) -> AnyOptions:
    """Return the options that --fast is short for, if it is given. Raises UserError."""
    if not o.fast:
        return o
    accept = "block" if o.temperature > 0 else "token"
    drafter = fast_drafter(models, o.n_tokens_to_generate)
    return replace(o, drafter=drafter, K="auto", tree=None, accept=accept)


def fast_drafter(models: Models, N: int) -> str:
    """Return the drafter that --fast stands for: look-ups and the draft model. They draft for an int8 copy of the
    target if that pays. N: the tokens to generate. Raises UserError."""
    return f"int8/{LOOK_UP_OR_DRAFT}" if copy_pays(models, N) else LOOK_UP_OR_DRAFT


def copy_pays(models: Models, N: int) -> bool:
    """Return True if an int8 copy of the target, which has to fit beside it, saves more time in N tokens than it takes
    to make. Raises UserError."""
    target = models.spec("target")
    if not target.files or target.dtype != "float32":
        return False  # a function has no weights; a copy of bfloat16 saves too little
    copy = target._replace(dtype="int8")
    is_large = copy.n_bytes >= LARGE_BYTES
    return is_large and models.engine.copy_is_quick(N) and copy_fits(models)


def copy_fits(models: Models) -> bool:
    """Return True if the memory holds an int8 copy beside the two models."""
    try:
        models.check(["target", "draft", "int8"])
    except UserError:
        return False
    return True


# ---- A user's function in the place of the target --------------------------------------------------------------------


def function_network(function: Callable, n_vocab: int, name: str) -> Network:
    """Return the logarithms of a function's distributions as a network: temperature and filters apply to them as to
    logits. function(x, n_last) -> [n_last or more, n_vocab]. name: of the function, in messages."""
    check_parameters(function, "model(x, n_last)")

    def log_rows(x, n_last=1):  # [n] -> [n_last, n_vocab]
        """Call the function. Raises UserError if it does not return distributions over the vocabulary."""
        returned = function(np.array(x), n_last)  # a copy, as it may change x
        rows = as_distributions(returned, n_last)  # [n_last, n_vocab]
        n_returned = rows.shape[1]
        if n_returned != n_vocab:
            raise UserError(f"{name} returned rows of {n_returned} tokens, and the encoder has {n_vocab}")
        with np.errstate(divide="ignore"):
            return np.log(rows, dtype=np.float32)

    return Network(log_rows)
