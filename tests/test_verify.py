"""--verify must be able to fail: the accept rule, the residual and the cache are broken on purpose, one at a time."""

import re
import types
from functools import partial

import numpy as np
import pytest
from tiny import broken_sampling, random_params

from speculative.drafters import Drafter
from speculative.drafters.model import model_drafter
from speculative.engines.plain import CachedModel, KVCache, PlainPass
from speculative.filters import Filters, to_distribution
from speculative.lookahead import AutoK
from speculative.measure import sampled
from speculative.measure.decoders import Choice, Decoders
from speculative.measure.uniform import BINS, alike, detectable, flat, place
from speculative.measure.verify import show, verify

HPARAMS = {"n_vocab": 50, "n_ctx": 512, "n_embd": 12, "n_head": 3, "n_layer": 1}
PROMPTS = [list(range(1, 12)), [7, 7, 3, 7, 7, 3, 9, 8, 2, 1, 40, 6]]


def row_by_row(logits, temperature):
    return np.stack([to_distribution(row[None], temperature)[0] for row in logits])


class OneRowAtATime(CachedModel):
    """CachedModel, with rows that do not depend on each other to the bit, as NumPy's own product does not grant it."""

    def __call__(self, x, n_last=1):
        x = np.asarray(x)
        super().__call__(x[: len(x) - n_last + 1])
        return np.stack([super(OneRowAtATime, self).__call__(x[: n + 1])[0] for n in range(len(x) - n_last, len(x))])


class NeverBack(KVCache):
    """A cache that cannot be rolled back: the keys and values of rejected tokens stay (but for emptying it)."""

    @property
    def length(self):
        return self.n

    @length.setter
    def length(self, n):
        self.n = n if n == 0 else max(n, self.n)


def chains_of(model):
    """Decoders.make_drafter."""
    return lambda rng: Drafter(model_drafter(model, rng))


def decoders(temperature, model=OneRowAtATime, cache=KVCache):
    """Those of a network, for what may be wrong with a model."""
    target_params, draft_params = random_params(HPARAMS, seed=1), random_params(HPARAMS, seed=1)
    noise = np.random.default_rng(2)
    draft_params["wte"] = draft_params["wte"] + 0.6 * noise.standard_normal(draft_params["wte"].shape, np.float32)
    to_probs = Filters(temperature=temperature)
    draft_model = OneRowAtATime(draft_params, HPARAMS, to_probs)
    target_model = model(target_params, HPARAMS, to_probs, partial(PlainPass, cache=cache))
    return Decoders(target_model, chains_of(draft_model))


def table_decoders(temperature, sampling=None, **options):
    """Those of a table from the last token to the next, which takes no time; for what may be wrong with the loop."""
    logits, noise = np.random.default_rng(1).standard_normal((2, HPARAMS["n_vocab"], HPARAMS["n_vocab"]), np.float32)
    target, draft = (partial(look_up, to_distribution(table, temperature)) for table in (logits, logits + noise))
    if sampling:
        options["speculative"] = lambda x, drafter, *rest: sampling(x, drafter.chain, *rest)
    return Decoders(target, chains_of(draft), **options)


def look_up(rows, x, n_last=1):  # [n_vocab, n_vocab], [n] -> [n_last, n_vocab]
    return rows[np.asarray(x)[len(x) - n_last :]]


DRAWS = {decoders: 60, table_decoders: 200}


def run(decoders=decoders, **broken):
    draws = DRAWS[decoders]
    checks = verify(partial(decoders, **broken), 1.0, PROMPTS, 3, 20, draws=draws, clock=lambda: 0.0)
    return {check.name: check for check in checks}


def failed(checks):
    return {name for name, check in checks.items() if not check.passed}


@pytest.mark.parametrize("decoders", [decoders, table_decoders])
def test_it_passes_where_nothing_is_broken(decoders):
    checks = run(decoders)
    assert len(checks) == 6 and failed(checks) == set()
    assert f"{DRAWS[decoders]} draws of 8 tokens" in checks["speculative against the target"].detail
    assert "K = 1, 2, 4, 8, 3" in checks["greedy"].detail


ACCEPT = "u * float(p[i][j]) < float(q[i][j])"
RESIDUAL = "residual = max_fn(q[i] - p[i])"


@pytest.mark.parametrize(
    ("right", "wrong", "seen_by"),
    [
        (ACCEPT, "rng.random() < 0.9", "speculative against the target"),
        (ACCEPT, "rng.random() * float(q[i][j]) < float(p[i][j])", "speculative against the target"),
        (RESIDUAL, "residual = q[i]", "speculative against the target"),
        (RESIDUAL, "residual = max_fn(p[i] - q[i])", "speculative against the target"),
        ("sample(q[m], rng)", "sample(q[m - 1], rng)", "greedy"),
    ],
)
def test_it_sees_a_broken_loop(right, wrong, seen_by):
    assert seen_by in failed(run(table_decoders, sampling=broken_sampling(right, wrong).speculative_sampling))


def test_it_sees_lenience():
    assert "speculative against the target" in failed(run(table_decoders, lenience=0.3))


def test_it_sees_a_stale_cache():
    assert {"greedy", "rows"} <= failed(run(cache=NeverBack))


def test_it_sees_rows_that_depend_on_their_number():
    class Blurred(OneRowAtATime):
        def __call__(self, x, n_last=1):
            rows = super().__call__(x, n_last)
            return np.nextafter(rows, 1, dtype=np.float32) if n_last > 1 else rows

    checks = run(model=Blurred)
    assert failed(checks) == {"rows"}
    assert "prompt 1, 2 rows, cached" in checks["rows"].detail


def test_greedy_texts_may_part_where_rounding_can_bring_it_about_and_nowhere_else():
    """An engine whose rows depend on their number: the two logits that are closest are 1e-4 apart, or 0.1."""
    rng = np.random.default_rng(3)
    logits = 3 * rng.standard_normal((HPARAMS["n_vocab"], HPARAMS["n_vocab"])).astype(np.float32)
    last = PROMPTS[0][-1]

    def decoders_where(margin, rounding, temperature):
        first, second = np.argsort(-logits[last])[:2]
        table = logits.copy()
        table[last, second] = table[last, first] - margin
        rounded = table.copy()
        rounded[last, second] += 2 * margin  # what a window of several rows makes of it
        alone, in_window = (to_distribution(t, temperature) for t in (table, rounded))

        def target(x, n_last=1):
            return look_up(alone if n_last == 1 else in_window, x, n_last)

        drafter = chains_of(partial(look_up, alone))
        return Decoders(target, drafter, logits=partial(look_up, table), rounding=rounding)

    def greedy(margin, rounding):
        checks = list(verify(partial(decoders_where, margin, rounding), 1.0, PROMPTS, 3, 20, draws=25))
        assert [check.name for check in checks][:2] == ["greedy", "speculative against the target"]
        return checks[0]

    assert greedy(1e-4, 1e-3).passed and "5 texts part, where" in greedy(1e-4, 1e-3).detail
    found = greedy(0.1, 1e-3)
    assert not found.passed and "at new token 1, where the two best logits are 0.1 apart" in found.detail


def test_it_stops_when_the_time_is_up():
    ticks = iter(range(10**6))
    checks = list(verify(table_decoders, 1.0, PROMPTS, 1, 4, draws=10**6, seconds=40, clock=lambda: float(next(ticks))))
    draws = int(checks[2].detail.split(" over ")[1].split()[0])
    assert 200 < draws < 230 and sampled.detectable(4 * draws) > sampled.SHIFT  # slow models get five times as long


def test_place_respects_the_order_and_its_ties():
    q = np.array([0.1, 0.4, 0.0, 0.4, 0.1], np.float32)
    half = types.SimpleNamespace(random=lambda: 0.5)
    assert [place(token, q, q, half) for token in range(5)] == pytest.approx([0.85, 0.2, 1.0, 0.6, 0.95])
    rising = np.arange(5)
    assert [place(token, q, rising, half) for token in range(5)] == pytest.approx([0.95, 0.7, 1.0, 0.3, 0.05])


def test_p_values_against_known_ones():
    """The 5 % point for 3 degrees of freedom is 7.815; for 2, the chance of x or more is exp(-x / 2)."""
    assert flat(np.array([20, 20, 20, 20])) == 1
    assert flat(np.array([10, 20, 30])) == pytest.approx(np.exp(-10 / 2))
    assert flat(1000 + np.array([50, 0, 0, -50]) * (7.815 / 5) ** 0.5) == pytest.approx(0.05, abs=1e-4)
    assert alike(np.array([10, 20, 30]), np.array([30, 20, 10])) == pytest.approx(np.exp(-20 / 2))


def test_the_detectable_difference_is_detected():
    """Simulated: places that are off by just that much are found in about 95 of 100 verifications."""
    n, rng = 2000, np.random.default_rng(0)
    d = detectable(n)
    shifted = np.full(BINS, 1 / BINS) + np.where(np.arange(BINS) % 2, 1, -1) * 2 * d / BINS
    assert np.abs(shifted - 1 / BINS).sum() / 2 == pytest.approx(d)
    found = np.mean([2 * flat(rng.multinomial(n, shifted)) < 1e-4 for _ in range(1000)])
    assert 0.92 < found < 0.98


def test_show_prints_every_check_and_the_verdict():
    lines = []
    assert show(verify(table_decoders, 0, PROMPTS, Choice("auto", AutoK), 6, draws=25), print=lines.append)
    assert (
        len(lines) == 8
        and re.match(r"Verdict: no loss found; a shift above \d+\.\d% would", lines[-1])
        and "K = 1, 2, 4, 8, auto" in lines[1]
    )
    broken = partial(table_decoders, sampling=broken_sampling("sample(q[m], rng)", "0").speculative_sampling)
    assert not show(verify(broken, 1.0, PROMPTS, 2, 6, draws=200), print=lines.append)
    assert lines[-1].startswith("Verdict: NOT lossless")
