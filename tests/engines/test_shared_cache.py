"""The shared cache of a target and its copies, as a state machine: whatever decodes call, interleave, cut and forget,
each row is the one that plain recomputation gives."""

from functools import cache, partial
from itertools import groupby

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule, run_state_machine_as_test
from tiny import HPARAMS, convert, random_params

from speculative.engines import shared_cache
from speculative.engines.c import packing
from speculative.engines.c.library import compiles
from speculative.engines.formats import FORMATS
from speculative.engines.network import CachedNetwork, common_prefix
from speculative.engines.plain import PlainPass

RANKS = {"target": 0, "int8": [*FORMATS].index("int8"), "int4": [*FORMATS].index("int4")}
LONGEST = HPARAMS["n_ctx"]
texts = st.lists(st.integers(0, 2), max_size=6)  # few tokens, so that texts begin alike


@cache
def fresh_networks():
    """{role: network}. The copies have other weights than the target, so that no row passes for another's."""
    networks = {}
    for role, rank in RANKS.items():
        params = random_params(seed=rank)
        forward = PlainPass(params, HPARAMS)
        if compiles():
            from speculative.engines.c.forward import CompiledPass

            params = convert(params, partial(packing.pack, "float32"))
            forward = CompiledPass(params, HPARAMS, 1)
        networks[role] = CachedNetwork(params, HPARAMS, forward)
    return networks


class Recomputed:
    """One decode without a shared cache. It keeps which network read each token, and computes all rows anew."""

    def __init__(self, networks):
        self.networks = networks
        self.tokens, self.readers = [], []  # [n] twice

    def rows(self, role, x, n_last):  # [n] -> [n_last, n_vocab]
        n_readable = sum(RANKS[reader] <= RANKS[role] for reader in self.readers)
        n = min(common_prefix(self.tokens[:n_readable], x), len(x) - n_last)
        self.tokens, self.readers = x, self.readers[:n] + [role] * (len(x) - n)
        cache = self.networks["target"].forward.new_cache()
        n = 0
        for reader, group in groupby(self.readers):
            n_tokens = len([*group])
            forward = self.networks[reader].forward
            outputs = forward(np.array(x[n : n + n_tokens]), min(n_last, n_tokens), n, cache)
            n += n_tokens
        return outputs.logits


class SharedCaches(RuleBasedStateMachine):
    """Several decodes over the same networks."""

    decodes = Bundle("decodes")

    def __init__(self):
        super().__init__()
        self.fresh = fresh_networks()
        self.networks = {role: network.with_own_cache(network.forward) for role, network in self.fresh.items()}

    @rule(target=decodes)
    def begin(self):
        return shared_cache.with_shared_caches(self.networks, ["int8", "int4"]), Recomputed(self.fresh)

    @rule(decode=decodes, role=st.sampled_from([*RANKS]), n_kept=st.integers(0, LONGEST), more=texts, data=st.data())
    def call(self, decode, role, n_kept, more, data):
        """Cut the decode's text anywhere and go on with other tokens, in any of its networks."""
        shared, recomputed = decode
        x = [*recomputed.tokens[:n_kept], *more][:LONGEST] or [0]
        n_last = data.draw(st.integers(1, min(4, len(x))), "n_last")
        same(shared[role].logits(np.array(x), n_last), recomputed.rows(role, x, n_last))

    @rule(x=texts)
    def call_the_target_alone(self, x):
        x = x or [0]
        same(self.networks["target"].logits(np.array(x)), Recomputed(self.fresh).rows("target", x, 1))

    @rule()
    def forget(self):
        self.networks["target"].forget()


def same(rows, expected):
    """To the bit in C. gpt2.py's rows depend on the number of rows that are computed at once."""
    if compiles():
        np.testing.assert_array_equal(rows, expected)
    else:
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-4)


def run(n_examples, n_steps):
    limits = settings(
        max_examples=n_examples,
        stateful_step_count=n_steps,
        phases=[Phase.generate],  # to make a failure smaller takes minutes
        derandomize=True,
        database=None,
        deadline=None,
    )
    run_state_machine_as_test(SharedCaches, settings=limits)


def test_each_row_is_the_recomputed_one():
    run(100, 30)


@pytest.mark.slow
def test_each_row_of_many_decodes_is_the_recomputed_one():
    run(500, 50)


def restore_nothing(cache, reader, x):
    """In place of SharedCache.restore: it trusts what other decodes have left."""


def restore_only_the_cache(cache, reader, x):
    """In place of SharedCache.restore: a copy reads its target's tokens itself."""
    if cache.contents.writer is not cache:
        cache.entries = shared_cache.entries_of_target(shared_cache.NO_TOKENS)
        cache.contents.writer = cache


def of_any_rank(entries, rank, x, parents=None):
    """In place of Entries.match: a network reads what was written by whomever."""
    return common_prefix(entries.tokens, x), []


MISTAKES = [
    (shared_cache.SharedCache, "restore", restore_nothing),
    (shared_cache.SharedCache, "restore", restore_only_the_cache),
    (shared_cache.Entries, "match", of_any_rank),
    (shared_cache.Entries, "of_target", lambda entries: entries.tokens),
]


@pytest.mark.parametrize(("owner", "name", "mistake"), MISTAKES)
def test_a_planted_mistake_is_seen(owner, name, mistake, monkeypatch):
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(AssertionError):
        run(100, 30)
