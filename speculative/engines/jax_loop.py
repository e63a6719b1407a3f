"""The whole decode on the device: Algorithms 1 and 2 as one compiled loop, with no word to the host for each token.

The loop of speculative/sampling.py stays the oracle; the steps below are its steps, with its names. The host starts the
loop for a few calls of the target at a time and gets their tokens together, for streaming. The differences:

- Every shape is fixed. Always K tokens are drafted and K + 1 rows scored; where the end is nearer, only the first k
  drafts can be accepted, so that the tokens are exactly N.
- The random numbers are JAX's, made of the seed, the row and the position: another stream than NumPy's, from the same
  distribution. At temperature 0 none is looked at, and the tokens are those of the Python loop but for rounding: where
  two logits are as good as tied, the one or the other may win (see first_difference).
- Algorithm 1 is Algorithm 2 with K = 0: nothing is drafted, and the token is sampled from q.
- Several prompts can be decoded together, each at its own pace.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from speculative.engines.jax_engine import SMALL, Network, power_of_two
from speculative.engines.jax_sampling import accept, greedy_sample, sample, to_distribution
from speculative.errors import UserError
from speculative.sampling import Step

# ---- The loop --------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Where a prompt's decoding stands. For a batch, every array has one more axis, in front."""

    x: Any  # [capacity], the tokens; beyond n there is nothing of meaning
    n: Any
    T: Any
    key: Any
    draft_cache: list  # holds x[:n - 2] at least: after a full acceptance, the draft has not been fed its last token
    target_cache: list  # holds x[:n - 1]


class Output(NamedTuple):
    """What a call of the target gave."""

    tokens: Any  # [K + 1]
    count: Any  # how many of them are new: 0 where the row was done before
    drafted: Any


class DeviceDecoder:
    """Both algorithms for a pair of Networks, each a generator of Steps.

    block is how many calls of the target the device makes before the host sees their tokens.
    """

    def __init__(
        self,
        target: Network,
        draft: Network | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        draft_temperature: float | None = None,
        lenience: float = 1.0,
        block: int = 8,
    ):
        """temperature, top_k and top_p as in filters.py, lenience as in sampling.py; all are those of both models, but
        for a draft_temperature that is not None."""
        self.target, self.draft, self.lenience, self.block = target, draft, lenience, block
        draft_temperature = temperature if draft_temperature is None else draft_temperature
        self.to_probs = partial(to_distribution, temperature=temperature, top_k=top_k, top_p=top_p)
        self.draft_to_probs = partial(self.to_probs, temperature=draft_temperature)
        self.sample = sample if temperature else greedy_sample
        self.draft_sample = sample if draft_temperature else greedy_sample
        self.n_ctx = min(network.hparams["n_ctx"] for network in (target, draft) if network)
        self.params = {"target": target.params, "draft": draft.params if draft else None}
        # Said of what comes out, so that it lies the same way each time and nothing is compiled twice.
        draft_cache = draft.cache_sharding(1) if draft else None
        where = State(*[target.everywhere] * 4, draft_cache, target.cache_sharding(1))
        self.prefill = jax.jit(self._prefill, static_argnames=("K", "capacity"), out_shardings=where)
        self.run = jax.jit(
            self._run,
            static_argnames="K",
            donate_argnames="state",
            out_shardings=(where, target.everywhere, target.everywhere),
        )

    def autoregressive(self, x, N: int, seed: int) -> Iterator[Step]:
        """Algorithm 1."""
        return (step for [step] in self.batch([x], N, 0, seed))

    def speculative(self, x, N: int, K: int, seed: int) -> Iterator[Step]:
        """Algorithm 2; with K = 0, Algorithm 1."""
        return (step for [step] in self.batch([x], N, K, seed))

    def batch(self, prompts, N: int, K: int, seed: int) -> Iterator[list[Step | None]]:
        """N tokens for each of the prompts: for each call of the target, the Step of each row, None once it is done.

        Raises UserError where a prompt is empty or does not fit into the context.
        """
        state = self.start(prompts, N, K, seed)
        calls, n_missing = None, N * len(prompts)
        while n_missing:
            state, calls, outputs = self.run(self.params, state, K=K)
            tokens, counts, drafted = (np.asarray(a) for a in outputs)  # [block, n_batch, ...]
            for i in range(int(calls)):
                yield [
                    Step(t[:c].tolist(), drafted=int(d), accepted=int(c) - 1) if c else None
                    for t, c, d in zip(tokens[i], counts[i], drafted[i], strict=True)
                ]
            n_missing -= int(counts[: int(calls)].sum())

    def start(self, prompts, N: int, K: int, seed: int) -> State:
        """Feeds the prompts, padded to one length, to both models."""
        lengths = np.array([len(x) for x in prompts], np.int32)  # [n_batch]
        if not lengths.all() or lengths.max() + N > self.n_ctx:
            raise UserError(
                f"prompts of {lengths.min()} to {lengths.max()} tokens and {N} more: "
                f"they must have a token at least, and the context holds {self.n_ctx}"
            )
        # Windows may begin at T - 1 and so end at T + K. Multiples of 64 spare a compilation for each length.
        capacity = -(-(int(lengths.max()) + N + K) // 64) * 64
        n_padded = min(max(SMALL, power_of_two(int(lengths.max()))), capacity)
        tokens = np.zeros((len(prompts), n_padded), np.int32)  # [n_batch, n_padded]
        for row, x in zip(tokens, prompts, strict=True):
            row[: len(x)] = x
        return self.prefill(self.params, tokens, lengths, np.int32(N), np.uint32(seed % 2**32), K=K, capacity=capacity)

    def warm_up(self, n_prompt: int, N: int, K: int, n_batch: int = 1) -> float:
        """Compiles what decoding n_batch prompts, the longest of n_prompt tokens, takes -> seconds."""
        start = time.perf_counter()
        state = self.start([np.zeros(n_prompt, int)] * n_batch, N, K, 0)
        state = state._replace(T=jnp.copy(state.n))  # nothing is left to be done
        jax.block_until_ready(self.run(self.params, state, K=K))
        return time.perf_counter() - start

    # What follows is compiled.

    def _prefill(self, params, tokens, lengths, N, seed, K, capacity):
        """tokens [n_batch, n_padded], lengths [n_batch] -> State, all but each last token fed to the target."""
        n_batch, n_padded = tokens.shape

        def feed(network, params):
            def row(tokens, cache):
                return network.forward(params, tokens, 0, cache, n_last=0)[1]

            return for_each_row(row, tokens, network.new_cache(capacity, n_batch))

        return State(
            x=jnp.pad(tokens, ((0, 0), (0, capacity + 1 - n_padded))),
            n=lengths,
            T=lengths + N,
            key=jax.random.split(jax.random.key(seed), n_batch),
            draft_cache=feed(self.draft, params["draft"]) if K else [],
            target_cache=feed(self.target, params["target"]),
        )

    def _run(self, params, state, K):
        """Up to `block` calls of the target -> State, how many calls, Output [block, n_batch, ...]."""
        n_batch = len(state.n)
        outputs = Output(
            jnp.zeros((self.block, n_batch, K + 1), jnp.int32),
            jnp.zeros((self.block, n_batch), jnp.int32),
            jnp.zeros((self.block, n_batch), jnp.int32),
        )

        def unfinished(carry):
            state, i, _ = carry
            return (i < self.block) & jnp.any(state.n < state.T)

        def call(carry):
            state, i, outputs = carry
            state, output = for_each_row(partial(self.step, params, K), state)
            return state, i + 1, jax.tree.map(lambda all, new: all.at[i].set(new), outputs, output)

        return lax.while_loop(unfinished, call, (state, jnp.int32(0), outputs))

    def step(self, params, K, state):
        """One iteration of the loop, for one row -> State, Output."""
        x, n, T, row_key, draft_cache, target_cache = state
        draft_key, key = jax.random.split(jax.random.fold_in(row_key, n))

        # Step 1: the draft proposes K tokens, of which k may be accepted.
        k = jnp.clip(T - n - 1, 0, K)
        if K:
            x_draft, p, draft_cache = self.propose(params["draft"], x, n, draft_cache, draft_key, K)
        else:
            x_draft, p = jnp.zeros(0, jnp.int32), jnp.zeros((0, self.target.hparams["n_vocab"]))

        # Step 2: the target scores all of them in one call, after the token that it has not been fed yet.
        window = jnp.append(x[n - 1], x_draft)  # [K + 1]
        logits, target_cache = self.target.forward(params["target"], window, n - 1, target_cache)
        q = self.to_probs(logits)  # [K + 1, n_vocab]

        # Steps 3 and 4: accept the drafts from left to right, then resample or add the bonus token.
        accepted, token = accept(x_draft, p, q, k, key, self.lenience, self.sample)
        tokens = jnp.where(jnp.arange(K + 1) < accepted, jnp.append(x_draft, 0), token)  # [K + 1]
        x = lax.dynamic_update_slice(x, tokens, (n,))  # beyond the new n, the next step overwrites it
        count = jnp.where(n < T, accepted + 1, 0)
        return State(x, n + count, T, row_key, draft_cache, target_cache), Output(tokens, count, k)

    def propose(self, params, x, n, cache, key, K):  # -> [K], [K, n_vocab], the cache after
        """model_drafter, on the device. It first feeds the last two tokens, as it may not know the one before."""
        start = jnp.maximum(n - 2, 0)
        logits, cache = self.draft.forward(params, lax.dynamic_slice(x, (start,), (2,)), start, cache)  # [2, n_vocab]

        def draw(logits, i):  # [n_vocab] -> id, [n_vocab]
            [p_i] = self.draft_to_probs(logits[None])
            return self.draft_sample(p_i, jax.random.fold_in(key, i)), p_i

        def draw_and_feed(carry, i):
            logits, cache = carry
            token, p_i = draw(logits, i)
            [logits], cache = self.draft.forward(params, token[None], n + i, cache)
            return (logits, cache), (token, p_i)

        # The last one is only drawn: nothing is asked of the draft after it.
        (logits, cache), (tokens, p) = lax.scan(draw_and_feed, (logits[n - 1 - start], cache), jnp.arange(K - 1))
        token, p_i = draw(logits, K - 1)
        return jnp.append(tokens, token), jnp.append(p, p_i[None], axis=0), cache


def for_each_row(function: Callable, *batch):
    """jax.vmap; but a single row stays without the axis, as vmap makes of each write to the cache a slower scatter."""
    if len(jax.tree.leaves(batch)[0]) > 1:
        return jax.vmap(function)(*batch)
    row = jax.tree.map(lambda a: a[0], batch)
    return jax.tree.map(lambda a: a[None], function(*row))


# ---- Against the Python loop -----------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """The first place where two greedy texts part."""

    position: int  # in the text, prompt included
    tokens: tuple[int, int]
    margin: float  # between the two best logits there

    def __str__(self):
        a, b = self.tokens
        return (
            f"first difference at position {self.position}: token {a} or {b}, "
            f"where the two best logits are {self.margin:.2g} apart"
        )


def first_difference(prompt, tokens_a, tokens_b, logits: Callable) -> Difference | None:
    """None where two continuations of the prompt are the same, up to the end of the shorter.

    logits is a model that gives logits: CachedModel(params, hparams, to_probs=lambda logits: logits), for example. A
    margin of the size of rounding (1e-4, say, in float32) means that both tokens are right; a large one is a bug.
    """
    for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
        if a != b:
            x = [*prompt, *tokens_a[:i]]
            second, best = np.partition(logits(np.asarray(x))[0], -2)[-2:]
            return Difference(len(x), (int(a), int(b)), float(best - second))
    return None
