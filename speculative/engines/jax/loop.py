"""The whole decode on the device: Algorithms 1 and 2 as one compiled loop, with no word to the host for each token.

The loop of speculative/sampling.py stays the oracle; the steps below are its steps, with its names. The host starts the
loop for a few calls of the target at a time and gets their tokens together, for streaming. The differences:

- Every shape is fixed. Always K tokens are drafted and K + 1 rows scored; where the end is nearer, only the first k
  drafts can be accepted, so that the tokens are exactly N.
- The random numbers are JAX's, made of the seed, the prompt's number and the position: another stream than NumPy's,
  from the same distribution. At temperature 0 none is looked at, and the tokens are those of the Python loop but for
  rounding: where two logits are as good as tied, the one or the other may win (see first_difference).
- Algorithm 1 is Algorithm 2 with K = 0: nothing is drafted, and the token is sampled from q.
- Several prompts can be decoded together, each at its own pace; the next takes the place of one that is done.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from speculative.engines.jax.model import SMALL, Network, power_of_two
from speculative.engines.jax.sampling import RULES, greedy_sample, sample, to_distribution
from speculative.engines.model import not_finite
from speculative.filters import GREEDY, Filters
from speculative.rules import TOKEN, Rule
from speculative.sampling import Proposal, Step
from speculative.support.errors import UserError

PROBED = 4  # calls at a time, where their costs are measured

# ---- The loop --------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The state of the decoding. Every array has one more axis in front, of the prompts that are decoded together."""

    x: Any  # [capacity], the tokens; beyond n there is nothing of meaning
    n: Any
    T: Any
    key: Any
    draft_cache: list  # holds x[:n - 2] at least: after a full acceptance, the draft has not been fed its last token
    target_cache: list  # holds x[:n - 1]


class Output(NamedTuple):
    """The result of a call of the target."""

    tokens: Any  # [K + 1]
    count: Any  # how many of them are new: 0 where the row was done before
    x_draft: Any  # [K]
    drafted: Any
    alpha: Any  # [K]
    matching: Any  # [K]
    # The position at which a model's logits had no largest; -1 where all had.
    target_fault: Any
    draft_fault: Any


class Row(NamedTuple):
    """The result of a call of the target for one prompt, on the host."""

    number: int  # of the prompt, the first being 0
    step: Step
    alpha: list[float]  # for each draft that was reached, in order: the rule's chance of acceptance
    matching: list[float]  # likewise Σ p q


class DeviceDecoder:
    """Both algorithms for a pair of Networks, each a generator.

    block is how many calls of the target the device makes before the host sees their tokens.
    """

    def __init__(
        self,
        target: Network,
        draft: Network | None = None,
        filters: Filters = GREEDY,
        draft_filters: Filters | None = None,
        rule: Rule = TOKEN,
        block: int = 8,
        end: int = -1,
    ):
        """filters are the target's, and the draft's too where draft_filters is None; rule has to be one of RULES.
        The decoding of a prompt also ends with the call that gave the token `end`."""
        self.target = target
        self.draft = draft
        name, _, number = rule.name.partition(":")
        self.accept = RULES[name](float(number or 1))
        self.block = block
        self.end = end
        draft_filters = draft_filters or filters
        self.to_probs = partial(to_distribution, **filters._asdict())
        self.draft_to_probs = partial(to_distribution, **draft_filters._asdict())
        self.sample = sample if filters.temperature else greedy_sample
        self.draft_sample = sample if draft_filters.temperature else greedy_sample
        self.n_ctx = min(network.hparams["n_ctx"] for network in (target, draft) if network)
        self.params = {"target": target.params, "draft": draft.params if draft else None}
        # With a single row, XLA on an accelerator multiplies vectors: more kernels, and some write every product to
        # memory before they add them up. So a row of padding goes with it. A CPU gains nothing by that.
        self.fewest_rows = 1 if target.mesh.devices.flat[0].platform == "cpu" else 2
        # Where what comes out lies is given, so that it is the same each time and nothing is compiled twice.
        draft_cache = draft.cache_sharding(1) if draft else None
        self.by_row = NamedSharding(target.mesh, PartitionSpec("data"))
        where = State(*[self.by_row] * 4, draft_cache, target.cache_sharding(1))
        self.vmap = partial(jax.vmap, spmd_axis_name="data")
        compiled = partial(jax.jit, out_shardings=where)
        self.prefill = compiled(self._prefill, static_argnames=("K", "capacity"))
        self.refill = compiled(self._refill, static_argnames="K", donate_argnames="state")
        self.grow = compiled(self._grow, static_argnames="capacity")
        self.restart = compiled(self._restart, donate_argnames="state")
        self.run = jax.jit(
            self._run,
            static_argnames="K",
            donate_argnames="state",
            out_shardings=(where, *[target.everywhere] * 3),
        )
        self.repeat = jax.jit(self._repeat, static_argnames="role", donate_argnames="cache")
        self.forget()

    def forget(self) -> None:
        """Drops the prompts whose prefill the next decode could have shared."""
        self.kept = None, None  # what was prefilled, and the State after its decoding
        self.prefill_seconds = 0.0  # what the last decode's prefill took

    def speculative(self, x, N: int, K: int, seed: int) -> Iterator[Step]:
        """Algorithm 2; with K = 0, Algorithm 1."""
        return (row.step for [row] in self.batch([x], N, K, seed))

    def batch(
        self, prompts, N: int, K: int, seed: int, n_batch: int | None = None, stop: Callable | None = None
    ) -> Iterator[list[Row]]:
        """N tokens for each of the prompts -> for each call of the target, the Rows of the prompts that it served.

        n_batch of them (default: all) are decoded at a time; where one is done, the next takes its place (continuous
        batching: Yu et al. 2022, "Orca"). What a prompt is given depends on its number and not on its neighbours.
        stop(number, step): where a prompt's decoding is to end with this step, as much of the step as counts; else
        None. Raises UserError where a prompt is empty or does not fit into the context.
        """
        n_batch = min(n_batch or len(prompts), len(prompts))
        copies = self.target.mesh.shape["data"]
        if n_batch % copies:
            raise ValueError(f"{n_batch} prompts at a time cannot be shared out to {copies} copies of the models")
        self.check(prompts, N)
        state = self.start(prompts[:n_batch], N, K, seed)
        kept, _ = self.kept
        serves = list(range(n_batch))  # the number of the prompt in each slot; None where it is done
        waiting = deque(range(n_batch, len(prompts)))
        lengths = np.array([len(x) for x in prompts[:n_batch]])  # [n_batch]
        ends = lengths + N  # [n_batch]
        while any(number is not None for number in serves):
            self.kept = None, None  # as the compiled call takes over the State's memory
            # A cache that is full doubles, so that attention never reads much more than is in use.
            state = self.grown(state, self.capacity(lengths, ends, K))
            state, calls, output, done = self.run(
                self.params, state, np.bool_(len(waiting) > 0), np.int32(self.end), K=K
            )
            self.kept = kept, state
            output, done = jax.tree.map(np.array, (output, done))  # [block, n_batch, ...], [n_batch]
            lengths += output.count.sum(axis=0)
            output = jax.tree.map(np.ndarray.tolist, output)
            for i in range(int(calls)):
                rows = []
                for slot, number in enumerate(serves):
                    given = output_at(output, i, slot)
                    if number is None or not given.count:
                        continue
                    check_finite(given)
                    row = row_of(number, given)
                    cut = stop(number, row.step) if stop else None
                    if cut:
                        row = row._replace(step=cut)
                        serves[slot] = None
                        done[slot] = True
                    rows.append(row)
                yield rows
            for slot in np.flatnonzero(done):
                serves[slot] = waiting.popleft() if waiting else None
                if serves[slot] is not None:
                    kept = None
                    self.kept = None, None
                    x = prompts[serves[slot]]
                    lengths[slot] = len(x)
                    ends[slot] = len(x) + N
                    state = self.grown(state, self.capacity(lengths, ends, K))
                    with self.timing_prefill():
                        chosen = self.arguments([x], N, seed, serves[slot])
                        state = jax.block_until_ready(self.refill(self.params, state, np.int32(slot), *chosen, K=K))

    def start(self, prompts, N: int, K: int, seed: int) -> State:
        """Feeds the prompts to both models; or takes up the State of the last decode, if it was that of the same
        prompts: its caches still hold them."""
        arguments = self.arguments(prompts, N, seed)
        lengths = np.array([len(x) for x in prompts])
        capacity = self.capacity(lengths, lengths + N, K)
        wanted = K, N, [list(x) for x in prompts]
        kept, state = self.kept
        self.kept = wanted, None
        self.prefill_seconds = 0.0
        with self.timing_prefill():
            if wanted == kept:
                state = self.restart(state, *arguments)
            else:
                del state  # before room is made for another
                state = self.prefill(self.params, *arguments, K=K, capacity=capacity)
            return jax.block_until_ready(state)

    def check(self, prompts, N: int) -> None:
        """Raises UserError where a prompt is empty or does not fit into the context."""
        shortest = min(map(len, prompts))
        longest = max(map(len, prompts))
        if not shortest or longest + N > self.n_ctx:
            raise UserError(
                f"prompts of {shortest} to {longest} tokens and {N} more: "
                f"they must have a token at least, and the context holds {self.n_ctx}"
            )

    def capacity(self, lengths, ends, K: int) -> int:  # [n_batch] twice
        """The tokens that a cache has to hold for a block of calls. lengths, ends: of the texts now, and at their end.

        It is 64, doubled until that is enough: with more sizes there would be more to compile. A window may begin at
        the last token, and so end K after it.
        """
        most = int(np.max(np.minimum(ends, lengths + self.block * (K + 1)))) + K
        return min(64 * power_of_two(-(-most // 64)), self.largest(K))

    def largest(self, K: int) -> int:
        """The capacity that is enough for the whole context."""
        return -(-(self.n_ctx + K) // 64) * 64

    def grown(self, state: State, capacity: int) -> State:
        """The State with room for so many tokens: itself, if it has that."""
        return self.grow(state, capacity=capacity) if state.x.shape[1] < capacity else state

    def arguments(self, prompts, N: int, seed: int, first: int = 0) -> tuple:
        """The prompts from number `first` on as the compiled functions take them, padded to one length:
        tokens [n_batch, n_padded], lengths [n_batch], numbers [n_batch], N, seed."""
        lengths = np.array([len(x) for x in prompts], np.int32)  # [n_batch]
        n_padded = min(max(SMALL, power_of_two(int(lengths.max()))), -(-self.n_ctx // 64) * 64)
        tokens = np.zeros((len(prompts), n_padded), np.int32)  # [n_batch, n_padded]
        for row, x in zip(tokens, prompts, strict=True):
            row[: len(x)] = x
        numbers = np.arange(first, first + len(prompts), dtype=np.int32)  # [n_batch]
        return tokens, lengths, numbers, np.int32(N), np.uint32(seed % 2**32)

    @contextmanager
    def timing_prefill(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.prefill_seconds += time.perf_counter() - start

    def warm_up(self, lengths: list[int], N: int, K: int, n_batch: int | None = None) -> float:
        """Compiles what decoding prompts of these lengths takes, n_batch at a time, and runs it for a few tokens ->
        seconds."""
        begin = time.perf_counter()
        at_the_end = np.array([max(lengths) + N])
        prompts = [np.zeros(n, int) for n in lengths]
        first = prompts[:n_batch]
        later = {power_of_two(len(x)): x for x in prompts[n_batch or len(prompts) :]}
        state = self.start(first, N, K, 0)
        while True:
            state = self.restart(state, *self.arguments(first, min(N, K + 2), 0))
            state, *_ = self.run(self.params, state, np.bool_(False), np.int32(-1), K=K)
            capacity = state.x.shape[1]
            for n_padded, x in later.items():
                if n_padded <= capacity:
                    state = self.refill(self.params, state, np.int32(0), *self.arguments([x], 1, 0), K=K)
            if capacity >= self.capacity(at_the_end, at_the_end, K):
                break
            state = self.grown(state, min(2 * capacity, self.largest(K)))
        jax.block_until_ready(state)
        self.forget()
        return time.perf_counter() - begin

    def probe(self, n: int, N: int, K: int, n_batch: int = 1) -> tuple[float, dict[int, float]]:
        """Times the parts of a decode in its middle; n is the prompt's length -> the seconds of a drafted token,
        {rows: seconds} of one row of the target and of a window; each for n_batch prompts together.

        The medians of three times, after one that compiles, of PROBED calls each.
        """
        seconds = {}
        capacity = self.capacity(np.array([n + N // 2]), np.array([n + N]), K)
        for role, n_rows in [("draft", 1), ("target", 1), ("target", K + 1)]:
            batch = (n_batch,) if n_batch > 1 else ()
            network = self.draft if role == "draft" else self.target
            times = []
            where = network.cache_sharding(len(batch))
            cache = jax.jit(partial(network.new_cache, capacity, *batch), out_shardings=where)()
            tokens = np.zeros((*batch, n_rows), np.int32)  # [n_batch, n_rows], or without the first
            for _ in range(4):
                start = time.perf_counter()
                cache = jax.block_until_ready(
                    self.repeat(self.params, tokens, np.int32(n + N // 2), cache, np.int32(PROBED), role=role)
                )
                times.append((time.perf_counter() - start) / PROBED)
            seconds[role, n_rows] = median(times[1:])
        return seconds.pop(("draft", 1)), {n_rows: took for (_, n_rows), took in seconds.items()}

    # What follows is compiled.

    def _prefill(self, params, tokens, lengths, numbers, N, seed, K, capacity):
        """tokens [n_batch, n_padded], lengths [n_batch], numbers [n_batch] -> State of new caches."""

        def feed(network, params):
            def row(tokens, cache):
                return network.forward(params, tokens, 0, cache, n_last=0)[1]

            return for_each_row(self.vmap, row, tokens, network.new_cache(capacity, len(tokens)))

        if len(tokens) % self.target.mesh.shape["data"] == 0:  # not where a single row is refilled
            tokens = lax.with_sharding_constraint(tokens, self.by_row)
        caches = feed(self.draft, params["draft"]) if K else [], feed(self.target, params["target"])
        state = State(jnp.zeros((len(tokens), capacity), jnp.int32), None, None, None, *caches)
        return self._restart(state, tokens, lengths, numbers, N, seed)

    def _restart(self, state, tokens, lengths, numbers, N, seed):
        """The State before the first call, with the caches of one whose prompts were the same."""
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(numbers)  # [n_batch]
        x = lax.dynamic_update_slice(state.x, tokens, (0, 0))  # [n_batch, capacity]
        return state._replace(x=x, n=lengths, T=lengths + N, key=keys)

    def _grow(self, state, capacity):
        """The State with room for so many tokens."""
        more = capacity - state.x.shape[1]
        longer = [
            jax.tree.map(lambda a: jnp.pad(a, ((0, 0), (0, 0), (0, more), (0, 0))), cache)
            for cache in (state.draft_cache, state.target_cache)
        ]
        return State(jnp.pad(state.x, ((0, 0), (0, more))), state.n, state.T, state.key, *longer)

    def _refill(self, params, state, slot, tokens, lengths, numbers, N, seed, K):
        """tokens [1, n_padded], lengths [1], numbers [1] -> State with this prompt at a slot, ready to be decoded."""
        new = self._prefill(params, tokens, lengths, numbers, N, seed, K, state.x.shape[1])

        def put(a, new):
            return lax.dynamic_update_slice_in_dim(a, new, slot, axis=0)

        keys = jax.random.wrap_key_data(put(*map(jax.random.key_data, (state.key, new.key))))  # [n_batch]
        rest = jax.tree.map(put, state._replace(key=None), new._replace(key=None))
        return rest._replace(key=keys)

    def _run(self, params, state, eager, end, K):
        """Up to `block` calls of the target -> State, how many calls, Output [block, n_batch, ...], done [n_batch].

        eager: stops as soon as any row is done, else when all are.
        """
        n_batch = len(state.n)
        step = partial(self.step, params, end, K, self.fewest_rows if n_batch == 1 else 1)
        if n_batch == 1:  # without the axis, all along the loop: with it, each call would copy the caches
            state = jax.tree.map(lambda a: a[0], state)
        else:
            step = self.vmap(step)
        outputs = jax.tree.map(lambda a: jnp.zeros((self.block, *a.shape), a.dtype), jax.eval_shape(step, state)[1])

        def unfinished(carry):
            state, i, _ = carry
            active = state.n < state.T
            return (i < self.block) & jnp.where(eager, jnp.all(active), jnp.any(active))

        def call(carry):
            state, i, outputs = carry
            state, output = step(state)
            return state, i + 1, jax.tree.map(lambda all, new: all.at[i].set(new), outputs, output)

        state, calls, outputs = lax.while_loop(unfinished, call, (state, jnp.int32(0), outputs))
        if n_batch == 1:
            state = jax.tree.map(lambda a: a[None], state)
            outputs = jax.tree.map(lambda a: a[:, None], outputs)
        return state, calls, outputs, state.n >= state.T

    def _repeat(self, params, tokens, n, cache, calls, role):
        """So many calls of a model -> the cache. Each is given what the one before made probable."""
        network, to_probs = {
            "target": (self.target, self.to_probs),
            "draft": (self.draft, self.draft_to_probs),
        }[role]

        fewest = self.fewest_rows if tokens.ndim == 1 else 1

        def call(tokens, cache):
            logits, cache = forward(network, params[role], tokens, n, cache, fewest)
            return jnp.argmax(to_probs(logits), axis=-1).astype(jnp.int32), cache

        call = call if tokens.ndim == 1 else self.vmap(call)
        return lax.fori_loop(0, calls, lambda _, carry: call(*carry), (tokens, cache))[1]

    def step(self, params, end, K, fewest, state):
        """One iteration of the loop, for one row -> State, Output. fewest: rows, as forward's."""
        x, n, T, row_key, draft_cache, target_cache = state
        draft_key, key = jax.random.split(jax.random.fold_in(row_key, n))

        # Step 1: the draft proposes K tokens, of which k may be accepted.
        k = jnp.clip(T - n - 1, 0, K)
        draft_fault = jnp.int32(-1)
        if K:
            x_draft, p, peaks, draft_cache = self.propose(params["draft"], x, n, draft_cache, draft_key, K, fewest)
            draft_fault = fault(peaks, n, k)
        else:
            x_draft = jnp.zeros(0, jnp.int32)
            p = jnp.zeros((0, self.target.hparams["n_vocab"]))

        # Step 2: the target scores all of them in one call, after the token that it has not been fed yet.
        window = jnp.append(x[n - 1], x_draft)  # [K + 1]
        logits, target_cache = forward(self.target, params["target"], window, n - 1, target_cache, fewest)
        target_fault = fault(jnp.max(logits, axis=-1), n, k + 1)
        q = self.to_probs(logits)  # [K + 1, n_vocab]
        matching = jnp.sum(p * q[:K], axis=-1)  # [K]

        # Steps 3 and 4: accept the drafts from left to right, then resample or add the bonus token.
        kept, token, alpha = self.accept(x_draft, p, q, k, key, self.sample)
        tokens = jnp.where(jnp.arange(K + 1) < kept, jnp.append(x_draft, 0), token)  # [K + 1]
        x = lax.dynamic_update_slice(x, tokens, (n,))  # beyond the new n, the next step overwrites it
        count = jnp.where(n < T, kept + 1, 0)
        n += count
        T = jnp.where(jnp.any((tokens == end) & (jnp.arange(K + 1) < count)), n, T)
        faults = (target_fault, draft_fault)
        output = Output(tokens, count, x_draft, k, alpha, matching, *faults)
        return State(x, n, T, row_key, draft_cache, target_cache), output

    def propose(self, params, x, n, cache, key, K, fewest):  # -> [K], [K, n_vocab], [K], the cache after
        """model_drafter, on the device. It first feeds the last two tokens, as it may not know the one before. The
        third array has the largest logit of each row."""
        start = jnp.maximum(n - 2, 0)
        logits, cache = self.draft.forward(params, lax.dynamic_slice(x, (start,), (2,)), start, cache)  # [2, n_vocab]

        def draw(logits, i):  # [n_vocab] -> id, [n_vocab], the largest
            [p_i] = self.draft_to_probs(logits[None])
            return self.draft_sample(p_i, jax.random.fold_in(key, i)), p_i, jnp.max(logits)

        def draw_and_feed(carry, i):
            logits, cache = carry
            drawn = draw(logits, i)
            [logits], cache = forward(self.draft, params, drawn[0][None], n + i, cache, fewest)
            return (logits, cache), drawn

        # The last one is only drawn: nothing is asked of the draft after it.
        (logits, cache), drawn = lax.scan(draw_and_feed, (logits[n - 1 - start], cache), jnp.arange(K - 1))
        last = draw(logits, K - 1)
        tokens, p, peaks = (jnp.append(a, b[None], axis=0) for a, b in zip(drawn, last, strict=True))
        return tokens, p, peaks, cache


def fault(peaks, n, k):  # [m] -> the position of the first of the first k that is not finite, n being that of the first
    wrong = ~jnp.isfinite(peaks) & (jnp.arange(len(peaks)) < k)  # [m]
    return jnp.where(jnp.any(wrong), n + jnp.argmax(wrong), -1).astype(jnp.int32)


def check_finite(given: Output) -> None:
    """Raises UserError where a model's weights are damaged. given: on the host."""
    for name, position in (("the draft model", given.draft_fault), ("the target", given.target_fault)):
        if position >= 0:
            raise not_finite(name, position)


def forward(network: Network, params, tokens, start, cache, fewest: int):  # [n] -> [n, n_vocab], the cache after
    """network.forward, which is fed at least `fewest` rows: what is added is padding."""
    padded = jnp.pad(tokens, (0, max(fewest - len(tokens), 0)))  # [n or fewest]
    logits, cache = network.forward(params, padded, start, cache)
    return logits[: len(tokens)], cache


def output_at(output: Output, i: int, slot: int) -> Output:
    """One call's output for one slot, out of lists [block][n_batch]."""
    return Output(*(field[i][slot] for field in output))


def row_of(number: int, output: Output) -> Row:
    """An Output of a call for one prompt, on the host, in plain numbers and lists."""
    proposal = Proposal(output.x_draft[: output.drafted], ())  # p and q stay on the device
    step = Step(output.tokens[: output.count], proposal, ())
    reached = min(step.accepted + 1, step.drafted)
    return Row(number, step, output.alpha[:reached], output.matching[:reached])


def for_each_row(vmap: Callable, function: Callable, *batch):
    """vmap; but a single row goes without the axis, as vmap turns each write to the cache into a scatter, which is
    slow."""
    if len(jax.tree.leaves(batch)[0]) > 1:
        return vmap(function)(*batch)
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
