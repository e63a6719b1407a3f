"""The whole decode on the device: Algorithms 1 and 2 as one compiled loop, which asks the host for no token.

Its steps are those of speculative/sampling.py. The host reads the tokens of a few calls together. The differences:

- Every shape is fixed. The text and the caches are allocated once, for the longest prompt, N and K. Always K tokens are
  drafted and K + 1 rows are scored; near the end only the first k drafts may be accepted, so the tokens are exactly N.
  If every text lacks a single token, nothing is drafted.
- The random numbers are JAX's, made of the seed, the prompt's number and the position. At temperature 0 they are not
  used, and only rounding may part the tokens from those of the Python loop (see run/greedy.py).
- Algorithm 1 is Algorithm 2 with K = 0: nothing is drafted, and the token is sampled from q.
- Several prompts can be decoded together, each at its own pace, until all of them are done.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from speculative.engines.jax.model import DeviceNetwork
from speculative.engines.jax.sampling import RULES, sample, to_distribution, uniform
from speculative.filters import Filters
from speculative.rules import Rule

CALLS = 8  # calls of the target before the host reads their tokens


class State(NamedTuple):
    """The state of the decoding. Every array has one more axis in front, of the prompts that are decoded together."""

    x: jax.Array  # [capacity] tokens; those from n on mean nothing
    n: jax.Array  # length of the text
    T: jax.Array  # final length of the text
    number: jax.Array  # the prompt's number, the first being 0
    draft_cache: list  # holds x[:n - 2] at least: after a full acceptance, the draft has not read its last token
    target_cache: list  # holds x[:n - 1]


class Output(NamedTuple):
    """The result of a call of the target."""

    tokens: jax.Array  # [K + 1]
    n_tokens: jax.Array  # number of new tokens: 0 if the text was complete before
    n: jax.Array  # length of the text with them
    drafts: jax.Array  # [K]
    n_allowed: jax.Array  # number of drafts that may be accepted, from the first on
    alpha: jax.Array  # [K]
    peaks: jax.Array  # [K + 1], the largest logit of each row
    draft_peaks: jax.Array  # [K], the same of the draft


class Drafts(NamedTuple):
    """The drafts of a step."""

    tokens: jax.Array  # [K]
    p: jax.Array  # [K, n_vocab]
    peaks: jax.Array  # [K], the largest logit of each row


class DeviceDecoder:
    """Both algorithms for a pair of DeviceNetworks, compiled: a prompt is read, then calls run."""

    def __init__(
        self, target: DeviceNetwork, draft: DeviceNetwork, filters: Filters, draft_filters: Filters, rule: Rule
    ):
        self.networks = {"target": target, "draft": draft}
        self.filters = {"target": filters, "draft": draft_filters}
        self.accept = RULES[rule.kind](rule.number)
        self.params = {role: network.params for role, network in self.networks.items()}
        # The places of all results are fixed, so that they are the same each time and nothing is compiled twice.
        self.by_row = NamedSharding(target.mesh, PartitionSpec("data"))
        state = State._make([*[self.by_row] * 4, draft.cache_sharding(1), target.cache_sharding(1)])
        shardings = state, target.everywhere, target.everywhere
        self.run = jax.jit(self.run_calls, static_argnames="K", donate_argnames="state", out_shardings=shardings)
        self.prefill = {}
        for role, network in self.networks.items():
            read = partial(self.read_prompts, role)
            cache = network.cache_sharding(1)
            self.prefill[role] = jax.jit(read, static_argnames="capacity", out_shardings=cache)

    def read_prompts(self, role, params, tokens, capacity):  # [n_batch, n_prompt] -> the cache
        """Feed the prompts to a model."""
        network = self.networks[role]

        def feed(tokens):
            return network.forward(params, tokens, 0, network.new_cache(capacity), n_last=0)[1]

        return jax.vmap(feed, spmd_axis_name="data")(tokens)

    def run_calls(self, params, state, seed, most, K):
        """Make up to `most` calls of the target -> State, number of calls, Output [CALLS, n_batch, ...]."""
        key = jax.random.key(seed)
        if len(state.n) > 1:
            steps = partial(self.steps, params, key, K)
            return loop(steps, state, most)
        # A single row goes without its axis, all along the loop: vmap makes a scatter of each write to a cache, and a
        # reshape in a loop copies it.
        step = partial(self.step, params, key, K)
        state = jax.tree.map(lambda a: a[0], state)
        state, calls, outputs = loop(step, state, most)
        state = jax.tree.map(lambda a: a[None], state)
        outputs = jax.tree.map(lambda a: a[:, None], outputs)
        return state, calls, outputs

    def steps(self, params, key, K, state):
        """One iteration of the loop, for several texts -> State, Output."""
        may_draft = jnp.any(state.T - state.n > 1)
        return jax.vmap(partial(self.step, params, key, K, may_draft=may_draft), spmd_axis_name="data")(state)

    def step(self, params, key, K, state, may_draft=None):
        """One iteration of the loop, for one text -> State, Output. may_draft: False if no draft could be accepted, in
        any of the texts."""
        x, n, T, number, draft_cache, target_cache = state
        n_missing = T - n
        key = jax.random.fold_in(key, number)
        key = jax.random.fold_in(key, n)
        draft_key, u_key, sample_key = jax.random.split(key, 3)

        # Step 1: the draft proposes K tokens, of which k may be accepted.
        k = jnp.clip(n_missing - 1, 0, K)
        drafts = no_drafts = self.no_drafts(K)
        if K:
            if may_draft is None:
                may_draft = n_missing > 1
            propose = partial(self.propose, params["draft"], x, n, draft_key, K)
            drafts, draft_cache = lax.cond(may_draft, propose, lambda cache: (no_drafts, cache), draft_cache)

        # Step 2: the target scores all of them in one call, after the token that it has not read yet.
        target = self.networks["target"]
        filters = self.filters["target"]
        window = jnp.append(x[n - 1], drafts.tokens)  # [K + 1]
        logits, target_cache = target.forward(params["target"], window, n - 1, target_cache)
        q = to_distribution(logits, filters)  # [K + 1, n_vocab]

        # Steps 3 and 4: accept the drafts from left to right, then resample or add the bonus token.
        u = uniform(u_key, (K,))  # [K]
        n_accepted, rest, alpha = self.accept(drafts.tokens, drafts.p, q, k, u)
        token = sample(rest, sample_key, filters.temperature)
        is_draft = jnp.arange(K + 1) < n_accepted  # [K + 1]
        tokens = jnp.where(is_draft, jnp.append(drafts.tokens, 0), token)  # [K + 1]
        x = lax.dynamic_update_slice(x, tokens, (n,))  # the next step overwrites those after the new n
        n_tokens = jnp.where(n_missing > 0, n_accepted + 1, 0)
        n += n_tokens
        output = Output(
            tokens=tokens,
            n_tokens=n_tokens,
            n=n,
            drafts=drafts.tokens,
            n_allowed=k,
            alpha=alpha,
            peaks=jnp.max(logits, axis=-1),  # [K + 1]
            draft_peaks=drafts.peaks,
        )
        return State(x, n, T, number, draft_cache, target_cache), output

    def no_drafts(self, K):
        """The result of Step 1 if nothing is drafted. These tokens are never accepted; their p is ones, so that q / p
        is finite."""
        n_vocab = self.networks["target"].hparams["n_vocab"]
        return Drafts(jnp.zeros(K, jnp.int32), jnp.ones((K, n_vocab)), jnp.zeros(K))

    def propose(self, params, x, n, key, K, cache):  # -> Drafts, the cache
        """drafters.model, on the device. It reads the last two tokens, as it may not have read the one before."""
        draft = self.networks["draft"]
        filters = self.filters["draft"]
        start = jnp.maximum(n - 2, 0)
        last_two = lax.dynamic_slice(x, (start,), (2,))  # [2]
        logits, cache = draft.forward(params, last_two, start, cache)  # [2, n_vocab]

        def draw(logits, i):  # [n_vocab] -> id, [n_vocab], the largest
            [p_i] = to_distribution(logits[None], filters)
            token = sample(p_i, jax.random.fold_in(key, i), filters.temperature)
            return Drafts(token, p_i, jnp.max(logits))

        def draw_and_feed(carry, i):
            logits, cache = carry
            drawn = draw(logits, i)
            [logits], cache = draft.forward(params, drawn.tokens[None], n + i, cache)
            return (logits, cache), drawn

        # After the last token is drawn, the draft is not called any more.
        first = logits[n - 1 - start]  # [n_vocab]
        (logits, cache), drawn = lax.scan(draw_and_feed, (first, cache), jnp.arange(K - 1))
        last = draw(logits, K - 1)
        return jax.tree.map(lambda some, one_more: jnp.append(some, one_more[None], axis=0), drawn, last), cache


def loop(step, state, most):
    """Take steps until all texts are complete, up to `most` -> State, their number, Output [CALLS, ...]."""
    of_a_step = jax.eval_shape(step, state)[1]
    outputs = jax.tree.map(lambda a: jnp.zeros((CALLS, *a.shape), a.dtype), of_a_step)

    def is_unfinished(carry):
        state, i, _ = carry
        return (i < most) & jnp.any(state.n < state.T)

    def call(carry):
        state, i, outputs = carry
        state, output = step(state)
        outputs = jax.tree.map(lambda all, new: all.at[i].set(new), outputs, output)
        return state, i + 1, outputs

    return lax.while_loop(is_unfinished, call, (state, jnp.int32(0), outputs))
