"""The models of a session by role, loaded by one call."""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

from speculative.blog.encoder import Encoder
from speculative.checkpoints.loading import complete_folder, load_encoder_and_hparams, load_params
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.drafters import DRAFTERS
from speculative.engines import formats, memory
from speculative.engines.c import pack_files
from speculative.engines.choice import make_engine
from speculative.engines.formats import model_bytes
from speculative.engines.model import FunctionNetwork
from speculative.engines.vocabulary import share
from speculative.options import ModelOptions
from speculative.support.errors import UserError
from speculative.support.files import size_of
from speculative.support.progress import working
from speculative.support.terminal import one_line

LARGE_BYTES = 2**28  # of weights; reading fewer is not bound by memory


class ModelSpec(NamedTuple):
    """A model, as its small files describe it."""

    role: str  # "target", "draft", or the weight format of a quantized copy of the target
    size: str  # the model's name
    dtype: str
    encoder: Encoder
    hparams: dict

    def __str__(self) -> str:
        return f"the {self.role} {self.size}"


class Models:
    """The small files are read first: spec(role). They are enough for all checks.

    After load(roles), models[role] is a network, or the object that a drafter loads under its name ("heads", "ngram").
    """

    def __init__(self, o: ModelOptions, quiet: bool = False):
        self.o = o
        self.engine = make_engine(o.engine, o.threads, o.mesh, o.data_parallel, quiet)
        self.quiet = quiet
        self.specs: dict[str, ModelSpec] = {}
        self.loaded: dict[str, Any] = {}
        self.packable = (0.0, 0)  # seconds of reading that packs would save, and their bytes

    def __copy__(self) -> "Models":
        """The same weights, with caches of their own."""
        twin = Models(self.o, self.quiet)
        twin.specs, twin.loaded = self.specs.copy(), {role: copy(one) for role, one in self.loaded.items()}
        twin.share_caches()
        return twin

    def __reduce__(self):
        raise UserError("loaded models are not pickled, as they hold addresses: load them where they decode")

    def spec(self, role: str) -> ModelSpec:
        """Download the small files if they are missing, and read them. Raises UserError."""
        if role not in self.specs:
            self.specs[role] = self.describe(role)
        return self.specs[role]

    def describe(self, role: str) -> ModelSpec:
        o = self.o
        if role == "target":
            return ModelSpec(role, o.target_model_size, o.dtype, *self.encoder_and_hparams(o.target_model_size))
        target = self.spec("target")
        if role != "draft":
            if formats.FORMATS[role].weight_bytes >= formats.FORMATS[o.dtype].weight_bytes:
                raise UserError(f"--drafter {role} takes no fewer bytes than the target, whose weights are {o.dtype}")
            return target._replace(role=role, dtype=role)
        encoder, hparams = self.encoder_and_hparams(o.draft_model_size)
        shared = share(target.encoder, encoder)
        if shared is None:
            names = f"{o.draft_model_size} and {o.target_model_size}"
            raise UserError(f"{names} have different vocabularies, so one cannot draft for the other")
        if not shared.n_shared == target.encoder.n_vocab == encoder.n_vocab:
            hparams = hparams | {"shared": shared}
        dtype = self.engine.draft_dtype(o.dtype) if o.draft_dtype == "auto" else o.draft_dtype
        return ModelSpec(role, o.draft_model_size, dtype, encoder, hparams)

    def encoder_and_hparams(self, size: str) -> tuple[Encoder, dict]:
        return load_encoder_and_hparams(size, self.o.models_dir, self.o.source)

    def folder(self, role: str) -> str:
        """The folder of the weights, downloaded if they are missing."""
        return complete_folder(self.spec(role).size, self.o.models_dir, self.o.source)

    def __getitem__(self, role: str) -> Any:
        return self.loaded[role]

    def load(self, roles: Sequence[str]) -> None:
        """Load the roles that are not loaded yet: the small parts of a drafter first, a target with its copies. Raises
        UserError."""
        for role in reversed(roles):
            if role in self.loaded:
                continue
            if networks_of([role]):
                self.read(role)
            else:
                loaded = DRAFTERS[role].load(self, self.o)
                self.loaded[role] = FunctionNetwork(loaded) if DRAFTERS[role].model else loaded
        self.share_caches()

    def shares_cache(self, role: str) -> bool:
        """Return True for a copy of the target that uses the target's cache."""
        return role in formats.FORMATS and self.engine.shares_caches

    def share_caches(self) -> None:
        """Let the target's copies use its cache. A copy reads what copies in more bytes wrote, not in fewer."""
        for rank, role in enumerate(formats.FORMATS):
            if role in self.loaded and self.shares_cache(role):
                self.loaded[role].share_cache(self.loaded["target"], rank)

    def read(self, role: str) -> None:
        """Read a model's weights; the target's together with those of its copies, from one reading."""
        size = self.spec(role).size
        folder = self.folder(role)
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

            networks = self.engine.load(
                read, hparams, [spec.dtype for spec in specs], [*map(str, specs)], [spec.role for spec in specs]
            )
        self.loaded |= {spec.role: network for spec, network in zip(specs, networks, strict=True)}

    def map_packed(self, spec: ModelSpec, folder: str) -> bool:
        """Map the packed weights that --pack has written to the disk. False if there are none."""
        if not self.engine.packs or not os.path.isdir(os.path.join(self.o.models_dir, "packed")):
            return False
        path = pack_files.path_of(folder, self.o.models_dir, spec.dtype)
        if not size_of(path):
            return False
        params = pack_files.load(path, spec.hparams, spec.dtype)
        self.loaded[spec.role] = self.engine.network(params, spec.hparams, f"{spec}, mapped from {path},")
        if not self.quiet:
            print(one_line(f"{spec.size}: mapped from {path}"), file=sys.stderr)
        return True

    def with_fast(self, o: Any) -> Any:
        """Return the options that --fast stands for: look-ups and the draft model draft, for the target or for an int8
        copy of it, if that is bound by memory as the target is, and fits. Raises UserError."""
        drafter = "prompt_lookup+model"
        large = model_bytes("int8", checkpoint_shapes(self.spec("target").hparams)) >= LARGE_BYTES
        if self.engine.exact and o.dtype == "float32" and large:  # beside bfloat16 a copy saves too little
            with contextlib.suppress(UserError):
                self.check(["target", "draft", "int8"], None)
                drafter = f"int8/{drafter}"
        return replace(o, drafter=drafter, K="auto", tree=None, accept="block" if o.temperature > 0 else "token")

    def check(self, roles: Sequence[str], n_cached: int | None) -> None:
        """Raise UserError if the models of these roles do not fit into the memory, before gigabytes are downloaded and
        read. n_cached: the tokens of all prompts, if several are decoded together."""
        new = [self.spec(role) for role in networks_of(roles) if role not in self.loaded]
        no_cache = {"n_ctx": 0}
        hparams = [spec.hparams | no_cache if self.shares_cache(spec.role) else spec.hparams for spec in new]
        held = [(of, self.engine.held_dtype(spec.dtype)) for of, spec in zip(hparams, new, strict=True)]
        memory.check(held, self.engine.free_bytes(), n_cached, self.engine.saving)


def networks_of(roles: Sequence[str]) -> list[str]:
    """The roles that are networks, and not something else that a drafter loads."""
    return [role for role in roles if role not in DRAFTERS or not DRAFTERS[role].load]
