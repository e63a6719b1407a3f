"""The models of a session by role, each read when it is first asked for."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from encoder import Encoder
from speculative.checkpoints import packs
from speculative.checkpoints.folders import missing_files, model_folder, own_folder
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.tensors import parameter_count
from speculative.drafters import DRAFTERS
from speculative.engines import devices, formats, memory, packed, packed_files, runtime
from speculative.engines.model import FunctionNetwork
from speculative.engines.models import load_networks, packed_network
from speculative.engines.vocabulary import share
from speculative.options import ModelOptions
from speculative.support.errors import UserError
from speculative.support.official import WEIGHT_BYTES
from speculative.support.patience import lines

SLOW_SECONDS = 5  # of reading and packing: if it takes longer, a line says what --pack would save
BAR_BYTES = 2**28  # of weights: if there are more, a bar shows how they are read


class ModelSpec(NamedTuple):
    """A model, as its small files describe it."""

    role: str  # "target", "draft", or the weight format of a quantized copy of the target
    size: str  # its name
    dtype: str
    encoder: Encoder
    hparams: dict

    def __str__(self) -> str:
        return f"the {self.role} {self.size}"


class Models:
    """models[role] is the network of that role, or what a drafter loads under its name ("heads", "ngram").

    The small files are read first: spec(role). They are enough for all checks.
    """

    def __init__(self, o: ModelOptions, quiet: bool = False):
        self.o = o
        self.quiet = quiet
        self.specs = {}
        self.loaded = {}
        self.n_prompt = 1  # tokens of the longest prompt, for JAX, which compiles for them

    def spec(self, role: str) -> ModelSpec:
        """Download the small files if they are missing, and read them. Raises UserError."""
        if role not in self.specs:
            self.specs[role] = self.describe(role)
        return self.specs[role]

    def describe(self, role: str) -> ModelSpec:
        o = self.o
        if role == "target":
            return ModelSpec(role, o.target_model_size, o.dtype, *self.small_files(o.target_model_size))
        target = self.spec("target")
        if role != "draft":
            if formats.find(role).weight_bytes >= formats.find(o.dtype).weight_bytes:
                raise UserError(f"--drafter {role} takes no fewer bytes than the target, whose weights are {o.dtype}")
            return target._replace(role=role, dtype=role)
        dtype = devices.choose_draft_dtype(o.draft_dtype, o.dtype, o.engine)
        encoder, hparams = self.small_files(o.draft_model_size)
        shared = share(target.encoder, encoder)
        if shared is None:
            names = f"{o.draft_model_size} and {o.target_model_size}"
            raise UserError(f"{names} have different vocabularies, so one cannot draft for the other")
        if not shared.n_shared == target.encoder.n_vocab == encoder.n_vocab:
            hparams = hparams | {"shared": shared}
        return ModelSpec(role, o.draft_model_size, dtype, encoder, hparams)

    def small_files(self, size: str) -> tuple[Encoder, dict]:
        return load_encoder_and_hparams(size, self.o.models_dir, self.o.source)

    def folder(self, role: str) -> str:
        """The folder of the weights, downloaded if they are missing."""
        return complete_folder(self.spec(role).size, self.o.models_dir, self.o.source)

    def __getitem__(self, role: str) -> Any:
        if role not in self.loaded:
            if networks_of([role]):
                self.read(role)
            else:
                loaded = DRAFTERS[role].load(self, self.o)
                self.loaded[role] = FunctionNetwork(loaded) if DRAFTERS[role].model else loaded
        return self.loaded[role]

    def read(self, role: str) -> None:
        """Read a model's weights; the target's together with those of its copies, from one reading."""
        size = self.spec(role).size
        specs = [spec for spec in self.specs.values() if spec.size == size and spec.role not in self.loaded]
        folder = self.folder(role)
        if self.o.engine == "numpy":
            runtime.set_threads(self.o.threads)
            runtime.warm_up([spec.dtype for spec in specs])  # so that compiling is not counted as loading
            packed.compile_for([spec.dtype for spec in specs])
            self.map_packs(specs, folder)
        unread = [spec for spec in specs if spec.role not in self.loaded]
        if unread:
            load_fn = load_networks if self.o.engine == "numpy" else devices.loader(self.o, self.n_prompt)
            self.loaded |= read_networks(unread, folder, load_fn, self.quiet)

    def map_packs(self, specs: Sequence[ModelSpec], folder: str) -> None:
        """Map the packed weights that are on the disk."""
        for spec in specs:
            path = packs.path_of(own_folder(spec.size, self.o.models_dir), spec.dtype)
            params = packed_files.find(path, folder, spec.dtype, spec.hparams)
            if params is not None:
                self.loaded[spec.role] = packed_network(params, spec.hparams, f"{spec}, mapped from {path},")
                if not self.quiet:
                    print(f"{spec.size}: mapped from {path}", file=sys.stderr)

    def check(self, roles: Sequence[str], n_cached: int | None) -> None:
        """Raises UserError if the models of these roles do not fit into the memory or onto the disk, before gigabytes
        are downloaded and read. n_cached: the tokens of all prompts, if several are decoded together."""
        new = [self.spec(role) for role in networks_of(roles) if role not in self.loaded]
        if self.o.engine == "jax":
            for spec in new:
                formats.on_jax(spec.dtype)
        free = devices.free_bytes(self.o)
        memory.check([(spec.hparams, spec.dtype) for spec in new], free, n_cached, jax=self.o.engine == "jax")
        missing = {spec.size for spec in new if missing_files(model_folder(spec.size, self.o.models_dir))}
        if missing:
            from speculative.support.fetch import check_disk_space

            check_disk_space(self.o.models_dir, sum(WEIGHT_BYTES.get(size, 0) for size in missing))


def networks_of(roles: Sequence[str]) -> list[str]:
    """The roles that are networks, and not something else that a drafter loads."""
    return [role for role in roles if role not in DRAFTERS or not DRAFTERS[role].load]


def read_networks(specs: Sequence[ModelSpec], folder: str, load_fn: Callable, quiet: bool) -> dict[str, Any]:
    """{role: network} of one size, from one reading of its weights, which a bar shows if it takes long."""
    hparams = specs[0].hparams
    loading = f"loading {specs[0].size}"
    n_bytes = 4 * parameter_count(hparams)
    off = True if quiet or n_bytes < BAR_BYTES else None  # None: unless standard error is a terminal
    bar = tqdm(desc=loading, total=n_bytes, unit="B", unit_scale=True, leave=False, disable=off)
    seconds = 0.0

    def read(convert):
        nonlocal seconds
        start = time.perf_counter()
        params = load_params(folder, hparams, convert, bar.update)
        seconds = time.perf_counter() - start
        return params

    with lines(loading), bar:
        networks = load_fn(read, hparams, [spec.dtype for spec in specs], [*map(str, specs)])
    if seconds > SLOW_SECONDS and load_fn is load_networks and not quiet:
        print(
            f"{specs[0].size}: read in {seconds:.0f} s; --pack, given once, makes later starts faster", file=sys.stderr
        )
    return {spec.role: network for spec, network in zip(specs, networks, strict=True)}
