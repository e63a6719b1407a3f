"""Loading, from top to bottom: from options to models that can decode.

load              the plan, with every refusal; the checkpoints, each opened once; prompts and sizes against the context
                  and the memory; then the weights, and the parts that drafters load
Models            the models of a session by role: their small files, and those that are loaded
drafting_for      a draft of another vocabulary takes the target's ids
load_weights      from files to networks. A tensor passes two functions: weights.array(name) reads and checks it, and
                  pack(name, array) of each format packs it
write_packs       packed weights on the disk, which later runs map
spelled_out       the options that --fast stands for, which the small files decide
function_network  a user's function in the place of the target
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, NamedTuple

import numpy as np

from speculative.blog.encoder import Encoder
from speculative.checkpoints.disk import FileState, state_of
from speculative.checkpoints.folder import Checkpoint, announce_downloads, find_files, open_checkpoint
from speculative.checkpoints.names import packs_folder
from speculative.checkpoints.weights import by_threads, checkpoint_shapes, nested, parameter_count
from speculative.drafters.user import NO_FUNCTIONS, Functions, check_parameters
from speculative.engines import memory
from speculative.engines.c.library import use_c_crc32c
from speculative.engines.choice import make_engine
from speculative.engines.contract import Engine
from speculative.engines.formats import FORMATS, is_mapped, model_bytes
from speculative.engines.network import Network, map_vocabulary
from speculative.run.options import AnyOptions, ModelOptions
from speculative.run.plan import Plan, make_plan
from speculative.run.prompts import PromptReader
from speculative.sampling import as_distributions
from speculative.support.errors import Option, UserError
from speculative.support.files import size_of
from speculative.support.progress import working
from speculative.support.terminal import one_line

ENDLESS = 2**31  # tokens of a context without an end
IN_PLACE_TOKENS = 200  # read by a command; with more, packing float32 weights pays


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
    # the plan, with every refusal; --fast asks for the target's sizes, so its small files may be opened here
    o = spelled_out(replace(o, engine=models.engine.name), models, prompts)
    plan = make_plan(o, models.engine, functions)
    for drafter in plan.drafters:
        if drafter.needs_weights and not models.spec("target").files:
            needs = "needs the target's weights, and a function has none: try prompt_lookup"
            raise UserError(Option("drafter"), f" {drafter.name} {needs}")
    # the checkpoints: models.spec opens one at its first call
    missing = [role for role in plan.network_roles if role not in models.loaded]
    announce_downloads([models.wanted[role].size for role in missing], models.models_dir, models.source)
    specs = [models.spec(role) for role in plan.network_roles]
    new = [spec for spec in specs if spec.role in missing]
    # prompts and sizes against the context and the memory
    smallest = min(specs, key=attrgetter("n_ctx"))
    whose = "" if smallest.role == "target" else str(smallest)
    reader = PromptReader(plan, models.spec("target").encoder, smallest.n_ctx, whose)
    fitting = reader.keep_those_that_fit(prompts, o.n_tokens_to_generate)
    n_longest = max(map(len, reader.known.values()), default=1)  # tokens of a prompt
    n_tokens = n_longest + o.n_tokens_to_generate
    n_texts = o.batch // o.data_parallel  # on a device
    check_memory(models.engine, new, n_texts * n_tokens if o.batch > 1 else None)
    # the weights, and the parts that drafters load: small ones before large ones, then those that need the target's
    parts = [(part, part.load(models)) for part in plan.loaded_parts if part.load and part.name not in models.loaded]
    is_short = bool(fitting) and not packing_pays(o, n_tokens)  # if no prompts are known, many tokens may come
    load_weights(models, new, in_place=is_short)
    for part, content in parts:
        part.check(content, models)
        models.loaded[part.name] = Network(content) if part.has_model else content
    models.engine.prepare(plan, [models[spec.role] for spec in new], n_longest)
    return LoadedRun(o, plan, models, reader, fitting)


def packing_pays(o: ModelOptions, n_tokens: int) -> bool:
    """Return False for a command that reads so few tokens that its float32 weights are used where they lie in the file.
    Prompts and long windows cost 1.1 to 1.5 times as much without tiles, but to write 6 GB of tiles would take longer.
    n_tokens: of its longest text."""
    if o.batch > 1 or getattr(o, "verify", False):
        return True
    return getattr(o, "n_samples", 1) * n_tokens > IN_PLACE_TOKENS


def check_memory(engine: Engine, specs: Sequence[ModelSpec], n_cached: int | None = None) -> None:
    """Raise UserError if these networks do not fit into the memory, before they are downloaded and read. n_cached: the
    tokens for which caches are kept, of all texts that are decoded together; None for one text, which has a whole
    context."""
    sizes = []
    for spec in specs:
        n_own = 0 if spec.role in engine.sharing_roles else n_cached
        sizes.append(memory.SizedModel(spec.role, spec.hparams, engine.held_dtype(spec.dtype), n_own))
    memory.check(sizes, engine.free_bytes(), engine.saving)


# ---- The models of a session, and their small files ------------------------------------------------------------------


class Wanted(NamedTuple):
    """A model that an option names."""

    size: str
    dtype: str  # its weight format


def wanted_models(o: ModelOptions, engine: Engine) -> dict[str, Wanted]:
    """Return by role the models that may be loaded: the target, the draft, and the target's copies by format."""
    draft_dtype = o.draft_dtype
    if draft_dtype == "auto":
        draft_dtype = engine.draft_dtype or o.dtype
    models = {dtype: Wanted(o.target_model_size, dtype) for dtype in FORMATS}
    models["target"] = Wanted(o.target_model_size, o.dtype)
    models["draft"] = Wanted(o.draft_model_size, draft_dtype)
    return models


class Models:
    """The models of a session. The small files are read first: spec(role). They are enough for all checks.

    After load, models[role] is a network, or the object that a drafter loads under its name ("heads", "ngram").
    """

    def __init__(self, engine: Engine, o: ModelOptions, quiet: bool = False):
        """quiet: print nothing about the loading."""
        self.engine = engine
        self.wanted = wanted_models(o, engine)
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
            files = find_files(size, self.models_dir, self.source, weights=False, refresh=self.refresh)
            checkpoint = open_checkpoint(files)
            other = (target.files, target.encoder) if target and target.files else None
            spec = ModelSpec(role, size, checkpoint, dtype, checkpoint.load_encoder(other), checkpoint.hparams)
            if target:
                spec = drafting_for(target, spec)
        self.specs[role] = spec
        return spec

    def take_unpacked(self) -> tuple[list[ModelSpec], float]:
        """Return the models that were read from checkpoints since this was last asked, and the seconds of that."""
        taken = self.unpacked, self.unpacked_seconds
        self.unpacked, self.unpacked_seconds = [], 0.0
        return taken


def new_models_of(o: ModelOptions, quiet: bool = False) -> Models:
    """Return the models of these options, not yet loaded. quiet: print nothing about the loading. Raises UserError."""
    return Models(make_engine(o.engine, o.threads, o.mesh, o.data_parallel, quiet), o, quiet)


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


# ---- Weights ---------------------------------------------------------------------------------------------------------


def load_weights(models: Models, specs: Sequence[ModelSpec], in_place: bool) -> None:
    """Load these networks: each model once for all of its formats, and the target last, as it is the largest. in_place:
    see Engine.maker. Raises UserError."""
    names = [spec.size for spec in specs]
    for name in reversed(dict.fromkeys(names)):
        of_model = [spec for spec in specs if spec.size == name]
        files = with_weights(models, of_model[0])
        unpacked = [spec for spec in of_model if not map_pack(models, spec, files)]
        if unpacked:
            stays = in_place and not files.small  # no file holds a padded model's weights
            read_weights(models, unpacked, files, stays)


def with_weights(models: Models, spec: ModelSpec) -> Checkpoint:
    """Return a model's files, after a download of its weights if they are missing."""
    assert spec.files
    if not spec.files.missing():
        return spec.files
    return open_checkpoint(find_files(spec.size, models.models_dir, models.source))


def read_weights(models: Models, specs: Sequence[ModelSpec], files: Checkpoint, in_place: bool) -> None:
    """Read the weights of a model once, and pack them for the networks in each of these formats."""
    hparams = specs[0].hparams
    weights = files.open_weights(hparams)
    if files.has_checksums and not weights.is_checked:
        use_c_crc32c()
    makers = [models.engine.maker(spec, in_place) for spec in specs]
    packed: list[dict[str, Any]] = [{} for _ in specs]  # the tensors of each, by name
    began = time.perf_counter()
    n_bytes = 4 * parameter_count(hparams)
    with working(f"loading {specs[0].size}", n_bytes, "B", models.quiet, unit_scale=True, delay=0.5) as bar:

        def pack_tensor(name: str) -> None:
            array = weights.array(name)
            for maker, tensors in zip(makers, packed, strict=True):
                tensors[name] = maker.pack(name, array)
            is_kept = [tensors[name] is array for tensors in packed]
            if not any(is_kept):  # no network uses the array itself
                weights.release(name)
            bar.update(array.nbytes)

        by_threads(pack_tensor, weights.shapes)
        weights.finish()
    if models.engine.packs:
        models.unpacked += [spec for spec in specs if not (in_place and spec.dtype == "float32")]
        models.unpacked_seconds += time.perf_counter() - began
    for spec, maker, tensors in zip(specs, makers, packed, strict=True):
        models.loaded[spec.role] = maker.network(nested({name: tensors[name] for name in weights.shapes}))
        if is_mapped(models.loaded[spec.role].params):
            for name in files.weights:
                path = files.path(name)
                models.files_in_use[path] = state_of(path)


# ---- Packs: packed weights, which --pack writes to the disk and later runs map ---------------------------------------


def pack_of(models: Models, spec: ModelSpec, files: Checkpoint) -> str | None:
    """Return the path of a model's pack, None if there is none. files: all of them are there."""
    if not models.engine.packs or not os.path.isdir(packs_folder(models.models_dir)):
        return None
    from speculative.engines.c import pack_files

    path = pack_files.path_of(files, models.models_dir, spec.dtype)
    return path if size_of(path) else None


def map_pack(models: Models, spec: ModelSpec, files: Checkpoint) -> bool:
    """Make a network of its pack. Return False if there is no pack."""
    path = pack_of(models, spec, files)
    if not path:
        return False
    from speculative.engines.c import pack_files

    params = pack_files.load(path, spec.hparams, spec.dtype)
    models.files_in_use[path] = state_of(path)
    if not models.quiet:
        print(one_line(f"{spec.size}: mapped from {path}"), file=sys.stderr)
    models.loaded[spec.role] = models.engine.network(params, spec.hparams, f"{spec}, mapped from {path},")
    return True


def write_packs(models: Models, roles: Sequence[str]) -> Iterator[str]:
    """Write the packs of these roles that are missing or damaged, one after the other. Yield the paths of all. Raises
    UserError."""
    from speculative.engines.c import pack_files

    for spec in map(models.spec, roles):
        files = with_weights(models, spec)
        path = pack_files.path_of(files, models.models_dir, spec.dtype)
        if not pack_files.is_whole(path, spec.hparams, spec.dtype):
            pack_files.save(path, files.open_weights(spec.hparams), spec.hparams, spec.dtype)
        yield path


# ---- The options of --fast -------------------------------------------------------------------------------------------

LARGE_BYTES = 2**28  # bytes of weights; reading fewer is not bound by memory
LOOK_UP_OR_DRAFT = "prompt_lookup+model"


def spelled_out(o: AnyOptions, models: Models, prompts: Sequence[str] = ()) -> AnyOptions:
    """Return the options that --fast is short for, if it is given. prompts: all that will be decoded, if they are
    known. Raises UserError."""
    if not o.fast:
        return o
    accept = "block" if o.temperature > 0 else "token"
    return replace(o, drafter=fast_drafter(o, models, prompts), K="auto", tree=None, accept=accept)


def fast_drafter(o: ModelOptions, models: Models, prompts: Sequence[str]) -> str:
    """Return the drafter that --fast stands for: look-ups and the draft model. They draft for an int8 copy of the
    target if that pays. Raises UserError."""
    return f"int8/{LOOK_UP_OR_DRAFT}" if copy_pays(o, models, prompts) else LOOK_UP_OR_DRAFT


def copy_pays(o: ModelOptions, models: Models, prompts: Sequence[str]) -> bool:
    """Return True if an int8 copy of the target, which has to fit beside it, saves more time than it takes to make. If
    no prompts are known, or if the copy's pack is mapped, that time does not count. Raises UserError."""
    target = models.spec("target")
    if not target.files or target.dtype != "float32":
        return False  # a function has no weights; a copy of bfloat16 saves too little
    copy = target._replace(dtype="int8")
    if copy.n_bytes < LARGE_BYTES:
        return False
    is_there = "int8" in models.loaded or (not target.files.missing() and pack_of(models, copy, target.files))
    is_free = not prompts or is_there
    n_tokens = math.inf if is_free else len(prompts) * o.n_tokens_to_generate / o.batch
    return models.engine.copy_is_quick(n_tokens, o.temperature) and copy_fits(models)


def copy_fits(models: Models) -> bool:
    """Return True if the memory holds an int8 copy beside the two models."""
    new = [models.spec(role) for role in ("target", "draft", "int8") if role not in models.loaded]
    try:
        check_memory(models.engine, new)
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
