"""The JAX engine: gpt2.py compiled for whatever device there is, behind the contract model(x, n_last) -> distributions.

JAX compiles a function once for every combination of array shapes that it meets. So every shape here is fixed: the
cache is allocated whole, the part without tokens is masked, and the number of tokens that are fed at a time is padded
to a power of two. After warm_up nothing is compiled any more.

gpt2.py is shared: it is loaded a second time with its `np` set to jax.numpy. Its attention alone is replaced. There the
number of keys makes the mask; here that number is always the capacity of the cache, and the compiled program is told
how many of them count. (Where heads are split over several devices, sharding.py replaces mha too, and says why.)

Nothing that runs on NumPy imports this module, which imports JAX.
"""

import importlib.util
import math
import os
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from speculative.engines.library import cache_home
from speculative.engines.model import N_CALLS, Call, check_finite, check_length, common_prefix
from speculative.engines.vocabulary import to_draft, to_target
from speculative.support.errors import UserError, first_line

ACTIVATIONS = {"gelu": partial(jax.nn.gelu, approximate=False), "relu": jax.nn.relu}  # by their names in config.json
SMALL = 8  # tokens: up to this many are fed in one call that computes the logits of them all

# ---- The network on the device ---------------------------------------------------------------------------------------


def load_gpt2():
    """gpt2.py once more, as a module of its own whose `np` is jax.numpy."""
    spec = importlib.util.find_spec("gpt2")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.np = jnp
    return module


@partial(jax.tree_util.register_dataclass, data_fields=["w", "scale"], meta_fields=["dtype", "of_input", "of_output"])
@dataclass
class Matrix:
    """A weight in any format that JAX takes: multiplied in dtype, summed in float32. What comes out is float32.

    of_input and of_output say how the factor and the product are to lie on the devices; None leaves it to the compiler.
    """

    w: Any  # [n_in, ...]
    scale: Any  # [...], of the output channels, or None; wte's [n_vocab] are those of its transpose
    dtype: Any
    of_input: Any = None
    of_output: Any = None

    def __rmatmul__(self, x):  # [n_rows, n_in] -> [n_rows, ...]
        x = constrain(x, self.of_input).astype(self.dtype)
        w = self.w
        if self.scale is not None:
            x, w = lax.optimization_barrier((x, w))  # else XLA widens w before the loop, and each call reads it wide
        product = jnp.tensordot(x, w.astype(self.dtype), axes=1, preferred_element_type=jnp.float32)  # [n_rows, ...]
        return constrain(product if self.scale is None else product * self.scale, self.of_output)

    def __getitem__(self, ids):  # [n_rows] -> [n_rows, n_embd], of wte
        rows = self.w[ids].astype(jnp.float32)
        return constrain(rows if self.scale is None else rows * self.scale[ids, None], self.of_output)

    @property
    def T(self):
        return replace(self, w=self.w.T)


def constrain(x, sharding):
    return x if sharding is None else lax.with_sharding_constraint(x, sharding)


@dataclass(frozen=True)
class Network:
    """A model on the device."""

    params: dict  # those of gpt2(), with a Matrix for wte and for each w
    hparams: dict
    n_head: int  # as computed: on several devices there may be a few that always give 0
    dtype: Any  # of what is multiplied by the weights, and of the cache
    gpt2: Any  # the module
    mesh: Any  # the devices
    split: bool  # whether it is split over them, or lies on each as a whole

    @property
    def weight_bytes(self) -> int:
        """The bytes that one token reads: all but wpe, of which it reads a single row."""
        read = jax.tree.leaves({**self.params, "wpe": None})
        return sum(a.size * a.dtype.itemsize for a in read)

    def new_cache(self, capacity: int, *batch: int) -> list:
        """[(keys, values)] of each layer, both [*batch, n_head, capacity, d_head]."""
        d_head = self.hparams["n_embd"] // self.hparams["n_head"]
        zeros = partial(jnp.zeros, (*batch, self.n_head, capacity, d_head), self.dtype)
        return [(zeros(), zeros()) for _ in range(self.hparams["n_layer"])]

    @property
    def everywhere(self):
        """The sharding of arrays that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def cache_sharding(self, n_batch_axes: int = 0):
        """The sharding of the caches."""
        return NamedSharding(self.mesh, PartitionSpec(*["data"] * n_batch_axes, "model" if self.split else None))

    def forward(self, params, tokens, start, cache, n_last=None):
        """gpt2() on tokens [n] that stand at start, start + 1, ... -> logits [n or n_last, n_vocab], the cache after.

        Tokens that are only padding, at the end, do no harm: their keys lie behind those of the others, who do not see
        them, and are overwritten when a token is fed there. In the loop some stand beyond the last position: those take
        the embedding of the last one.
        """
        positions = start + jnp.arange(len(tokens))  # [n]
        wpe = params["wpe"][jnp.minimum(positions, self.hparams["n_ctx"] - 1)]  # [n, n_embd]
        cache = StaticCache(self.gpt2.softmax, cache, positions)
        shared = self.hparams.get("shared")
        if shared:
            tokens = to_draft(tokens, shared, jnp)
        activation = ACTIVATIONS.get(self.hparams.get("activation_function"), self.gpt2.gelu)
        # At their default precision, GPUs round float32 factors to 10 bits.
        with jax.default_matmul_precision("highest"):
            logits = self.gpt2.gpt2(
                tokens, **{**params, "wpe": wpe}, n_head=self.n_head, cache=cache, n_last=n_last, activation=activation
            )  # [n or n_last, n_vocab]
        if shared:
            logits = to_target(logits, shared, jnp)
        return logits, cache.updated


class StaticCache:
    """A KVCache of constant shape, for one call of gpt2(). length is 0, as gpt2() is given the rows of wpe it needs."""

    def __init__(self, softmax, layers, positions):
        self.softmax = softmax
        self.positions = positions  # [n]
        self.length = 0
        self.updated = []
        self.layers = [partial(self.attend, *layer) for layer in layers]

    def attend(self, keys, values, q, k, v):  # [n_head, capacity, d_head] twice, [n_head, n, d_head] thrice
        """Writes k and v at their positions, and attends from q to all that stand at or before its own.

        -> [n_head, n, d_head]
        """
        start = self.positions[0]
        keys = lax.dynamic_update_slice(keys, k.astype(keys.dtype), (0, start, 0))
        values = lax.dynamic_update_slice(values, v.astype(values.dtype), (0, start, 0))
        self.updated.append((keys, values))
        multiply = partial(jnp.matmul, preferred_element_type=jnp.float32)
        scores = multiply(q.astype(keys.dtype), jnp.swapaxes(keys, -1, -2))  # [n_head, n, capacity]
        seen = jnp.arange(keys.shape[-2]) <= self.positions[:, None]  # [n, capacity]
        weights = self.softmax(jnp.where(seen, scores / math.sqrt(q.shape[-1]), -jnp.inf))  # [n_head, n, capacity]
        return multiply(weights.astype(values.dtype), values)  # [n_head, n, d_head]


def is_matrix(name: str) -> bool:
    return name == "wte" or name.endswith("/w")


def devices(n: int, flags: str = "JAX") -> list:
    """The first n devices. Raises UserError where there are fewer than flags ask for, or none can be used."""
    try:
        found = jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter, without a word, where a platform is not installed
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(f"jax finds no device of JAX_PLATFORMS={platforms} ({first_line(error)}): unset it") from error
    if len(found) < n:
        raise UserError(
            f"{flags} needs {n} devices and there {'is 1' if len(found) == 1 else f'are {len(found)}'} "
            f"({found[0].platform}); XLA_FLAGS=--xla_force_host_platform_device_count={n} makes {n} of a CPU"
        )
    return found[:n]


# ---- model(x, n_last) ------------------------------------------------------------------------------------------------


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


class JaxModel:
    """model(x, n_last) -> [n_last, n_vocab], computing only what the previous call did not: CachedModel's twin."""

    def __init__(self, network: Network, to_probs: Callable, name: str = "the model"):
        """to_probs: logits [n, n_vocab] -> distributions [n, n_vocab], as for CachedModel, and like there on NumPy.
        name: what a message calls it."""
        self.network = network
        self.name = name
        self.to_probs = to_probs
        self.n_ctx = network.hparams["n_ctx"]
        self.weight_bytes = network.weight_bytes
        self.new_cache = jax.jit(partial(network.new_cache, self.n_ctx), out_shardings=network.cache_sharding())
        self.step = jax.jit(
            network.forward,
            static_argnames="n_last",
            donate_argnames="cache",
            out_shardings=(network.everywhere, network.cache_sharding()),
        )
        self.cache = None
        self.log: deque[Call] = deque(maxlen=N_CALLS)
        self.forget()

    def with_probs(self, to_probs: Callable) -> "JaxModel":
        """The same weights and programs, with another way from logits to distributions and a cache of its own."""
        twin = copy(self)
        twin.to_probs = to_probs
        twin.cache = None
        twin.tokens = np.empty(0, int)
        return twin

    def forget(self) -> None:
        """Empty the cache."""
        self.tokens = np.empty(0, int)  # the tokens whose keys and values the cache holds

    def __call__(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """Raises ValueError where x does not fit into the context or has fewer than n_last tokens; and UserError where
        a row has no largest logit, because the weights are damaged."""
        began = time.perf_counter()
        x = np.asarray(x)  # [n]
        check_length(len(x), n_last, self.n_ctx)
        n_held = n_keep = min(common_prefix(self.tokens, x), len(x) - n_last)
        self.tokens = x[:0]  # so that an interrupted pass leaves an empty cache behind and not a wrong one
        n_without_logits = len(x) - n_last
        if len(x) - n_keep > max(n_last, SMALL):  # a prompt, of which only the last few tokens need logits
            self.feed(x[:n_without_logits], n_keep, n_last=0)
            n_keep = n_without_logits
        logits, start = self.feed(x, n_keep)
        logits = logits[len(x) - n_last - start : len(x) - start]  # [n_last, n_vocab]
        check_finite(logits, self.name, len(x) - n_last + 1)
        self.tokens = x
        rows = self.to_probs(logits)  # [n_last, n_vocab]
        self.log.append(Call(began, time.perf_counter() - began, len(x) - n_held, n_last))
        return rows

    def feed(self, x, n_keep, n_last=None):  # [n] -> [n_rows or n_last, n_vocab], the position of the first row
        """Feeds x[n_keep:], padded to a power of two (a prompt: of at least SMALL).

        Where the padding would stick out of the cache, the rows begin earlier: known tokens are fed once more.
        """
        n_rows = min(power_of_two(max(len(x) - n_keep, SMALL if n_last == 0 else 1)), self.n_ctx)
        start = min(n_keep, self.n_ctx - n_rows)
        tokens = np.zeros(n_rows, np.int32)  # [n_rows]
        tokens[: len(x) - start] = x[start:]
        cache = self.cache or self.new_cache()
        self.cache = None  # as the call is given its memory
        logits, self.cache = self.step(self.network.params, tokens, np.int32(start), cache, n_last=n_last)
        return np.asarray(logits), start

    def warm_up(self, n_prompt: int, K: int = 0) -> float:
        """Compiles what decoding after n_prompt tokens will need, with windows of up to K + 1 rows -> seconds."""
        start = time.perf_counter()
        largest = min(power_of_two(max(K + 1, SMALL)), self.n_ctx)
        self.feed(np.zeros(max(n_prompt - 1, 1), int), 0, n_last=0)
        for n_rows in {min(2**i, largest) for i in range(largest.bit_length())}:
            self.feed(np.zeros(n_rows, int), 0)
        self.forget()
        return time.perf_counter() - start


# ---- Compiling -------------------------------------------------------------------------------------------------------


def keep_compiled(folder: str | Path | None = None) -> Path:
    """Keeps every compiled program on disk, where the next run finds it -> the folder.

    By default JAX_COMPILATION_CACHE_DIR, or else a folder in the user's cache.
    """
    beside_ours = cache_home().with_name("speculative-sampling-jax")
    folder = Path(folder or os.environ.get("JAX_COMPILATION_CACHE_DIR") or beside_ours)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder
