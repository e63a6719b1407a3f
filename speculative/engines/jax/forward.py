"""A forward pass on JAX, as CachedNetwork calls it: the third beside plain.py's and the C engine's.

JAX compiles a function for each combination of shapes. So the cache is allocated whole, the part without tokens is
masked, and the number of tokens in a call is padded to a power of two. After warm_up nothing is compiled any more.
"""

from functools import partial

import jax
import numpy as np

from speculative.engines.jax.model import SMALL, DeviceNetwork
from speculative.engines.network import CachedNetwork, Rows


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


class JaxCache:
    """The keys and values of all layers on the devices, and their tokens."""

    def __init__(self) -> None:
        self.arrays: list | None = None  # made at the first call
        self.tokens = np.empty(0, np.int32)  # [n]


class JaxPass:
    """The twin of plain.PlainPass: gpt2() on the devices. It keeps no output of the last block."""

    takes_trees = False

    def __init__(self, network: DeviceNetwork):
        self.network = network
        self.n_ctx = network.hparams["n_ctx"]
        capacity = self.n_ctx + SMALL  # rows of padding may follow the last token
        self.new_arrays = jax.jit(partial(network.new_cache, capacity), out_shardings=network.cache_sharding())
        shardings = network.everywhere, network.cache_sharding()
        self.step = jax.jit(network.forward, static_argnames="n_last", donate_argnames="cache", out_shardings=shardings)

    def new_cache(self) -> JaxCache:
        return JaxCache()

    def __call__(self, tokens, n_last: int, n_past: int, cache: JaxCache) -> Rows:  # [n]
        """The same as PlainPass."""
        n = n_past + len(tokens)
        first = n - n_last  # the position of the first wanted row
        cache.tokens = np.append(cache.tokens[:n_past], tokens)
        if len(tokens) > max(n_last, SMALL):  # a prompt, of which only the last few tokens need logits
            self.feed(cache, n_past, first, n_last=0)
            n_past = first
        logits, start = self.feed(cache, n_past, n)
        return Rows(logits[first - start : n - start])  # [n_last, n_vocab]

    def feed(self, cache: JaxCache, n_past: int, n: int, n_last: int | None = None) -> tuple[np.ndarray, int]:
        """Feed the tokens from n_past to n, padded to a power of two (a prompt: of at least SMALL) -> logits [n_rows or
        n_last, n_vocab], and the position of the first row. If padding would exceed the context, tokens of the cache
        are fed once more."""
        least = SMALL if n_last == 0 else 1
        n_rows = power_of_two(max(n - n_past, least))
        n_rows = min(n_rows, self.n_ctx)
        start = min(n_past, self.n_ctx - n_rows)
        tokens = np.zeros(n_rows, np.int32)  # [n_rows]
        tokens[: n - start] = cache.tokens[start:n]
        arrays = cache.arrays or self.new_arrays()
        cache.arrays = None  # as the call takes over its memory
        logits, cache.arrays = self.step(self.network.params, tokens, np.int32(start), arrays, n_last=n_last)
        return np.asarray(logits), start

    def warm_up(self, n_prompt: int, K: int = 0) -> None:
        """Compile all that decoding after n_prompt tokens needs, with windows of up to K + 1 rows."""
        largest = power_of_two(max(K + 1, SMALL))
        cache = self.new_cache()
        self(np.zeros(n_prompt, int), n_last=1, n_past=0, cache=cache)
        for n_rows in {min(2**i, self.n_ctx) for i in range(largest.bit_length())}:
            self(np.zeros(n_rows, int), n_last=n_rows, n_past=0, cache=cache)


def cached(network: DeviceNetwork, name: str = "the model") -> CachedNetwork:
    """A DeviceNetwork of the devices as decoders take it. It translates the ids of another vocabulary itself."""
    return CachedNetwork(network.params, network.hparams | {"vocabulary_map": None}, JaxPass(network), name)
