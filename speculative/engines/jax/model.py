"""A forward pass on JAX: gpt2.py compiled for any device, the third beside plain.py's and the C engine's.

JAX compiles a function for each combination of shapes. So the cache is allocated whole, the part without tokens is
masked, and the number of tokens in a call is padded to a power of two. After warm_up nothing is compiled any more.

gpt2.py is loaded a second time, with its `np` set to jax.numpy. Only its attention is replaced: the number of keys is
always the capacity of the cache, and the positions make the mask.
"""

import contextlib
import importlib.util
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from speculative.engines.model import CachedNetwork
from speculative.engines.plain import with_activation
from speculative.engines.vocabulary import to_draft, to_target
from speculative.support.errors import UserError, first_line
from speculative.support.files import cache_home

ACTIVATIONS = {"gelu": partial(jax.nn.gelu, approximate=False), "relu": jax.nn.relu}  # by their names in config.json
SMALL = 8  # tokens: up to this many are fed in one call that computes the logits of them all

# ---- The network on the device ---------------------------------------------------------------------------------------

spec = importlib.util.find_spec("speculative.blog.gpt2")
gpt2 = importlib.util.module_from_spec(spec)  # a second copy of gpt2.py,
spec.loader.exec_module(gpt2)
gpt2.np = jnp  # type: ignore[attr-defined]  # in which np is jax.numpy


@partial(jax.tree_util.register_dataclass, data_fields=["w", "scale"], meta_fields=["dtype", "of_input", "of_output"])
@dataclass
class Matrix:
    """A weight in any format that JAX takes: multiplied in dtype, summed in float32. The product is float32."""

    w: Any  # [n_in, ...]
    scale: Any  # [...], of the output channels, or None; wte's [n_vocab] are those of its transpose
    dtype: Any
    of_input: Any  # the sharding of the factor; None leaves it to the compiler
    of_output: Any  # that of the product

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

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in jax.tree.leaves(self))


def constrain(x, sharding):
    return x if sharding is None else lax.with_sharding_constraint(x, sharding)


@dataclass(frozen=True)
class DeviceNetwork:
    """A model on the device."""

    params: dict  # those of gpt2(), with a Matrix for wte and for each w
    hparams: dict
    n_head: int  # as computed: on several devices there may be a few more, which always give 0
    dtype: Any  # of the factors of the weights, and of the cache
    mesh: Any  # the devices
    split: bool  # whether it is split over them, or each has all of it
    least: int = 1  # the number of rows that a call computes at least, at most SMALL

    def new_cache(self, capacity: int) -> list:
        """[(keys, values)] of each layer, both [n_head, capacity, d_head]."""
        d_head = self.hparams["n_embd"] // self.hparams["n_head"]
        zeros = partial(jnp.zeros, (self.n_head, capacity, d_head), self.dtype)
        return [(zeros(), zeros()) for _ in range(self.hparams["n_layer"])]

    @property
    def everywhere(self):
        """The sharding of arrays that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def cache_sharding(self, n_batch_axes: int = 0):
        """The sharding of the caches."""
        return NamedSharding(self.mesh, PartitionSpec(*["data"] * n_batch_axes, "model" if self.split else None))

    def forward(self, params, tokens, start, cache, n_last=None):
        """gpt2() on tokens [n] at the positions start, start + 1, ... -> logits [n or n_last, n_vocab], the cache.

        Tokens of padding at the end do no harm: the tokens before them do not see their keys, which are overwritten
        when a token is read at that position. Beyond the last position they take the embedding of the last one.
        """
        n = len(tokens)
        tokens = jnp.pad(tokens, (0, max(0, self.least - n)))  # [n_rows], the larger of n and least
        positions = start + jnp.arange(len(tokens))  # [n_rows]
        if "vocabulary_map" in self.hparams:
            tokens = to_draft(tokens, self.hparams["vocabulary_map"], jnp)
        wpe = params["wpe"][jnp.minimum(positions, self.hparams["n_ctx"] - 1)]  # [n_rows, n_embd]
        activation = ACTIVATIONS.get(self.hparams.get("activation_function"), gpt2.gelu)
        updated: list[tuple] = []
        layers = [partial(attend, positions, updated, *layer) for layer in cache]
        # At their default precision, GPUs round float32 factors to 10 bits.
        with jax.default_matmul_precision("highest"):
            logits = gpt2.gpt2(
                tokens,
                **with_activation(params | {"wpe": wpe}, activation),
                n_head=self.n_head,
                cache=SimpleNamespace(length=0, layers=layers),
                n_last=n_last,
            )[:n]  # [n or n_last, n_vocab]
        if "vocabulary_map" in self.hparams:
            logits = to_target(logits, self.hparams["vocabulary_map"], jnp)
        return logits, updated


def attend(positions, updated, keys, values, q, k, v):
    # [n], a list, [n_head, capacity, d_head] twice, [n_head, n, d_head] thrice -> [n_head, n, d_head]
    """Write k and v at their positions, append these to `updated`, and attend from each q to all keys up to its own."""
    keys = written(keys, k, positions[0])
    values = written(values, v, positions[0])
    updated.append((keys, values))
    scores = product(q, jnp.swapaxes(keys, -1, -2))  # [n_head, n, capacity]
    scores = scores / math.sqrt(q.shape[-1])
    capacity = keys.shape[-2]
    can_see = jnp.arange(capacity) <= positions[:, None]  # [n, capacity]
    weights = jax.nn.softmax(jnp.where(can_see, scores, -jnp.inf))  # [n_head, n, capacity]
    return product(weights, values)  # [n_head, n, d_head]


def written(cache, new, position):  # [n_head, capacity, d_head], [n_head, n, d_head], a number -> as the first
    """Write new rows to a cache, from the position on."""
    return lax.dynamic_update_slice(cache, new.astype(cache.dtype), (0, position, 0))


def product(a, b):  # [n_head, n, m], [n_head, m, k] -> [n_head, n, k]
    """Multiply in b's type, and sum in float32."""
    return jnp.matmul(a.astype(b.dtype), b, preferred_element_type=jnp.float32)


def devices(n: int = 1, flags: str = "JAX") -> list:
    """The first n devices. Raises UserError if there are fewer than the flags ask for, or none."""
    try:
        present = jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter without a message, if a platform is not installed
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(f"jax finds no device of JAX_PLATFORMS={platforms} ({first_line(error)}): unset it") from error
    if len(present) < n:
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={n}"
        raise UserError(f"{flags} needs {n} devices, and jax finds {len(present)}; {flag} makes {n} of a CPU")
    return present[:n]


# ---- The pass, as CachedNetwork calls it -----------------------------------------------------------------------------


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


class JaxPass:
    """The twin of plain.PlainPass: gpt2() on the devices, with a cache of its own."""

    hidden = None  # it keeps no output of the last block

    def __init__(self, network: DeviceNetwork):
        self.network = network
        self.n_ctx = network.hparams["n_ctx"]
        capacity = self.n_ctx + SMALL  # rows of padding may follow the last token
        self.new_cache = jax.jit(partial(network.new_cache, capacity), out_shardings=network.cache_sharding())
        shardings = network.everywhere, network.cache_sharding()
        self.step = jax.jit(network.forward, static_argnames="n_last", donate_argnames="cache", out_shardings=shardings)
        self.cache = None
        self.tokens = np.empty(0, np.int32)  # [n], those of the cache

    def __call__(self, tokens, n_last: int, n_past: int = 0):  # [n] -> [n_last, n_vocab]
        """The same as PlainPass."""
        n = n_past + len(tokens)
        first = n - n_last  # the position of the first wanted row
        self.tokens = np.append(self.tokens[:n_past], tokens)
        if len(tokens) > max(n_last, SMALL):  # a prompt, of which only the last few tokens need logits
            self.feed(n_past, first, n_last=0)
            n_past = first
        logits, start = self.feed(n_past, n)
        return logits[first - start : n - start]  # [n_last, n_vocab]

    def feed(self, n_past: int, n: int, n_last=None):  # -> [n_rows or n_last, n_vocab], the position of the first row
        """Feed the tokens from n_past to n, padded to a power of two (a prompt: of at least SMALL). If padding would
        exceed the context, known tokens are fed once more."""
        least = SMALL if n_last == 0 else 1
        n_rows = power_of_two(max(n - n_past, least))
        n_rows = min(n_rows, self.n_ctx)
        start = min(n_past, self.n_ctx - n_rows)
        tokens = np.zeros(n_rows, np.int32)  # [n_rows]
        tokens[: n - start] = self.tokens[start:n]
        cache = self.cache or self.new_cache()
        self.cache = None  # as the call takes over its memory
        logits, self.cache = self.step(self.network.params, tokens, np.int32(start), cache, n_last=n_last)
        return np.asarray(logits), start

    def warm_up(self, n_prompt: int, K: int = 0) -> None:
        """Compile all that decoding after n_prompt tokens needs, with windows of up to K + 1 rows."""
        largest = power_of_two(max(K + 1, SMALL))
        self(np.zeros(n_prompt, int), n_last=1)
        for n_rows in {min(2**i, self.n_ctx) for i in range(largest.bit_length())}:
            self(np.zeros(n_rows, int), n_last=n_rows)


def cached(network: DeviceNetwork, name: str = "the model") -> CachedNetwork:
    """A DeviceNetwork of the devices as decoders take it. It translates the ids of another vocabulary itself."""
    return CachedNetwork(network.params, network.hparams | {"vocabulary_map": None}, lambda *_: JaxPass(network), name)


# ---- What is compiled ------------------------------------------------------------------------------------------------


COMPILED = "/jax/compilation_cache/cache_misses"  # of a program that is compiled, and written to the disk
events: Counter[str] = Counter()


def count(event: str, **details: Any) -> None:
    """Count what JAX tells of its work."""
    events[event] += 1


jax.monitoring.register_event_listener(count)


def keep_compiled() -> None:
    """Keep every compiled program on disk for the next run: in JAX_COMPILATION_CACHE_DIR, or the user's cache."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", users_folder())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def users_folder() -> str | None:
    """Return the folder of this user's compiled programs; None if there is no home, or it is another user's."""
    try:
        folder = cache_home().with_name("speculative-sampling-jax")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return str(folder) if os.access(folder, os.W_OK | os.X_OK) else None


@contextlib.contextmanager
def compiling(what: str, quiet: bool) -> Iterator[None]:
    """Print how long something took to compile, if it was not on the disk."""
    began = time.perf_counter()
    n_before = events[COMPILED]
    yield
    if events[COMPILED] > n_before and not quiet:
        seconds = time.perf_counter() - began
        print(f"compiled {what} in {seconds:.1f} s, which the next run of this length need not", file=sys.stderr)
