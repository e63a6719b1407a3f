"""GPT-2 on JAX: gpt2.py compiled for any device, with the whole cache as an array.

gpt2.py is loaded a second time, with its `np` set to jax.numpy. Only its attention is replaced: the number of keys is
always the capacity of the cache, and the positions make the mask.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from speculative.blog import gpt2 as plain_gpt2
from speculative.engines.network import to_draft, to_target
from speculative.engines.plain import with_activation

ACTIVATIONS = {"gelu": partial(jax.nn.gelu, approximate=False), "relu": jax.nn.relu}  # by their names in config.json
SMALL = 8  # tokens: up to this many are fed in one call that computes the logits of them all

gpt2 = ModuleType(plain_gpt2.__name__)  # a second copy of gpt2.py, whose np is jax.numpy
SourceFileLoader(gpt2.__name__, plain_gpt2.__file__).exec_module(gpt2)
gpt2.np = jnp  # type: ignore[attr-defined]


@partial(jax.tree_util.register_dataclass, data_fields=["w", "scale"], meta_fields=["dtype", "of_input", "of_output"])
@dataclass
class Matrix:
    """A weight in any format that JAX takes: multiplied in dtype, summed in float32. The product is float32."""

    w: jax.Array  # [n_in, ...]
    scale: jax.Array | None  # [...], of the output channels; wte's [n_vocab] are those of its transpose
    dtype: np.dtype
    of_input: NamedSharding | None  # the sharding of the factor; None leaves it to the compiler
    of_output: NamedSharding | None  # the sharding of the product

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
    dtype: np.dtype  # the type of the weights' factors and of the cache
    mesh: Mesh  # the devices
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
        activation = ACTIVATIONS.get(self.hparams.get("activation_function", "gelu_new"), gpt2.gelu)
        updated: list[tuple] = []
        attends = [partial(attend, positions, updated, *layer) for layer in cache]
        # At their default precision, GPUs round float32 factors to 10 bits.
        with jax.default_matmul_precision("highest"):
            logits = gpt2.gpt2(
                tokens,
                **with_activation(params | {"wpe": wpe}, activation),
                n_head=self.n_head,
                cache=SimpleNamespace(length=0, attends=attends),
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
