"""The contract of an engine: one object, chosen once (choice.py), that answers all that depends on the engine.

Engine, below, is the contract. The protocols before it name what an engine reads of a plan, a drafter and a model to be
loaded: engines stand below run/ and drafters/, so they cannot import these.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from speculative.engines import memory
from speculative.engines.formats import FORMATS
from speculative.engines.model import Call
from speculative.engines.network import CachedNetwork, Network
from speculative.filters import Filters
from speculative.rules import Rule
from speculative.sampling import Step


class PlannedDrafter(Protocol):
    """The part of a drafter that an engine reads (drafters/base.Drafter)."""

    @property
    def name(self) -> str: ...
    @property
    def has_model(self) -> bool: ...
    @property
    def load(self) -> Callable | None: ...
    @property
    def not_on_jax(self) -> str: ...


class Planned(Protocol):
    """The part of a plan that an engine reads (run/plan.py)."""

    @property
    def drafters(self) -> Sequence[PlannedDrafter]: ...
    @property
    def depends_on_times(self) -> bool: ...
    @property
    def Ks(self) -> Sequence[int | str]: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def target_filters(self) -> Filters: ...
    @property
    def draft_filters(self) -> Filters: ...
    @property
    def batch(self) -> int: ...


class PlacedStep(NamedTuple):
    """The step that a call of the target gave to one text, and whose it is.

    A loop on a device keeps neither p nor q: its steps have none, but the chances of acceptance.
    """

    place: int  # the place of the text in the group that is decoded
    step: Step
    chances: list[float] | None = None  # its drafts' chances of acceptance; None: the rule computes them from p and q


class ToLoad(Protocol):
    """The part that an engine reads of a model that is to be loaded (run/load.ModelSpec)."""

    @property
    def role(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def hparams(self) -> dict: ...


class Maker(NamedTuple):
    """Makes a network: first each tensor is packed, then all of them are the parameters."""

    pack: Callable[[str, np.ndarray], Any]  # name, array -> the tensor as the network takes it
    network: Callable[[dict], CachedNetwork]  # the nested dict of these -> the network


class DeviceLoops(Protocol):
    """Both decoders as programs on a device (jax/device_loops.py), in place of the loops in Python."""

    @property
    def logs(self) -> Mapping[str, deque[Call]]:
        """The calls, by role."""

    def ready(self, inputs: Sequence, N: int) -> None:
        """Do the work before a decode that is not part of its time. inputs: token ids [n_prompts][n]."""

    def rounds(
        self, decoder: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable[[int], bool]
    ) -> Iterator[Sequence[PlacedStep]]:
        """Yield, for each call of the target, the step that it gave each text, of N tokens at most. decoder: its
        name. rngs: the random numbers of each text. is_stopped(place): True if the caller needs no more tokens of
        this text."""


class Engine:
    """An engine, as the loader, the decoders and the measuring ask it, with the answers that most engines give."""

    name = ""  # its name for --engine
    takes_functions = True  # whether a user's function can be the target
    draft_dtype: str | None = "float32"  # the format that --draft_dtype auto stands for; None: the target's
    saving: Sequence[str] = ()  # the formats that take less memory than float32, the largest first
    exact = False  # whether a row is equal to the bit, however many rows are computed with it
    packs = False  # whether --pack can write its weights
    sharing_roles: Collection[str] = FORMATS  # the roles that use the target's cache: its copies, by their formats
    predicts = True  # whether calls of other row counts can be timed after a run, for predictions

    def copy_is_quick(self, N: float, temperature: float) -> bool:
        """Return True if an int8 copy of a large float32 target saves more time in N tokens than it takes to make. N:
        infinite if it need not be made, or serves texts without an end."""
        return False

    def words(self) -> str:
        """Return the engine's name, with the instructions and the threads that it uses."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return the lines of the JSON document about the engine's own devices and versions."""
        return {}

    def kernel_words(self, network: Network) -> tuple[str, str] | None:
        """Return a network's weight format and its kernels in words; None if there is nothing to tell."""
        return None

    def free_bytes(self) -> int | None:
        """Return the bytes that the models may take, None if it is unknown."""
        return memory.available()

    def held_dtype(self, dtype: str) -> str:
        """Return the format whose bytes weights of this one take. Raises UserError if the engine does not take it."""
        return "float32"

    def tolerance(self, dtype: str) -> float:
        """Return the distance of two logits up to which rounding may change their order, if rows are not exact."""
        return FORMATS["float32"].tolerance  # all engines except JAX compute in float32

    def check(self, plan: Planned) -> None:
        """Raise UserError if a plan's drafters, K, batch or rule do not go with the engine."""

    def pack(self, dtype: str, name: str, array: np.ndarray, in_place: bool = False) -> Any:
        """Return a tensor as a network in this format takes it. in_place: for a run so short that packing does not
        pay. Raises UserError."""
        raise NotImplementedError

    def network(self, params: dict, hparams: dict, name: str) -> CachedNetwork:
        """Return a network of packed weights. Raises UserError if the logits of a first pass are not finite."""
        raise NotImplementedError

    def maker(self, spec: ToLoad, in_place: bool) -> Maker:
        """Return the maker of a model's network. in_place: see pack. Raises UserError.

        JAX overrides this, as its tensors and its network share a mesh. The others override pack and network.
        """
        pack = partial(self.pack, spec.dtype, in_place=in_place)
        return Maker(pack, partial(self.network, hparams=spec.hparams, name=str(spec)))

    def window_seconds(self, network: Network, x: np.ndarray, n_rows: int) -> float:  # x [n]
        """Return the seconds of so many rows after a text: measured, or estimated from a part of the network."""
        began = time.perf_counter()
        network.logits(np.append(x, np.resize(x, n_rows - 1)), n_rows)
        return time.perf_counter() - began

    def prepare(self, plan: Planned, networks: Sequence[CachedNetwork], n_prompt: int) -> None:
        """Compile all that decodes of a prompt of so many tokens need, if the engine compiles it for their sizes."""

    def device_loops(self, plan: Planned, networks: Mapping) -> DeviceLoops | None:
        """Return both decoders as programs on the device; None if a loop in Python calls the models. networks: by role,
        the target first."""
        return None
