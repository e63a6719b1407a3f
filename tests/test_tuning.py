"""The choices for a CPU: no bit depends on them, noise makes none, and what is kept of them."""

import json

import numpy as np
import pytest
from test_kernels import multiply
from tiny import convert, random_params

pytest.importorskip("numba")

from speculative.engines import formats, kernels, plain, runtime, threads, tuning
from speculative.engines.cpu import BLOCK, cache_bytes
from speculative.engines.packed import PackedWeight, packer
from speculative.engines.tuning import CHOICES, PLAN

HPARAMS = {"n_vocab": 261, "n_ctx": 96, "n_embd": 96, "n_head": 3, "n_layer": 3}
USUAL = tuning.usual("int8")
FAST = {name: choice.candidates[-1] for name, choice in CHOICES.items()}  # nothing usual


def plan_with(chosen):
    plan = np.zeros(1, PLAN)
    tuning.follow(plan, chosen)
    return plan


@pytest.mark.parametrize("dtype", formats.FORMATS)
def test_no_bit_depends_on_a_choice(dtype):
    rng = np.random.default_rng(0)
    n_in = 20 * BLOCK
    weight = PackedWeight.packed(rng.standard_normal((n_in, kernels.LANES), np.float32), dtype)
    n_rows = 2 * kernels.ROWS + 3
    x = rng.standard_normal((n_rows, n_in), np.float32)
    choices = [USUAL, FAST, *(USUAL | {name: c} for name in CHOICES for c in CHOICES[name].candidates)]
    small_share = plan_with(USUAL)
    small_share["share"] = 1  # a step at a time
    plans = [*map(plan_with, choices), small_share]
    for n in range(1, n_rows + 1):
        expected = multiply(x[:n], weight, plan=plans[0])
        for plan in plans[1:]:
            assert np.array_equal(multiply(x[:n], weight, plan=plan), expected)


# ---- Choosing --------------------------------------------------------------------------------------------------------


class Machine:
    """seconds(n_rows), of a machine on which what is fast takes so much of the usual time, and with so much noise."""

    def __init__(self, fast, ratio, noise=0.0, seed=0):
        self.plan = plan_with(USUAL)
        self.fast = fast
        self.ratio = ratio
        self.noise = noise
        self.rng = np.random.default_rng(seed)
        self.now = 0.0

    def seconds(self, n_rows):
        taken = 1 + self.noise * self.rng.exponential()
        for name, value in self.fast.items():
            if value != USUAL[name] and (CHOICES[name].part(self.plan) == value).all():
                taken *= self.ratio
        self.now += taken
        return taken

    def chosen(self):
        ratios = tuning.measure(self.plan, USUAL, self.seconds, limit=500.0, clock=lambda: self.now)
        return {name: tuning.best(ratios[name], USUAL[name]) for name in CHOICES}


@pytest.mark.parametrize("noise", [0, 0.02])
def test_what_is_faster_is_chosen(noise):
    assert Machine(FAST, 0.8, noise).chosen() == FAST


def test_what_is_hardly_faster_is_not():
    assert Machine(FAST, 0.97).chosen() == USUAL


def test_noise_hardly_ever_chooses_anything():
    """Single passes take up to several times as long as others."""
    chosen = [Machine({}, 1, noise=1, seed=seed).chosen() for seed in range(20)]
    assert sum(one != USUAL for one in chosen) <= 2


def test_too_few_rounds_choose_nothing():
    few = {0: [1.0] * 3, 8192: [0.5] * 3}
    assert tuning.best(few, 0) == 0


def test_measuring_leaves_the_usual_behind():
    machine = Machine(FAST, 0.8)
    machine.chosen()
    assert machine.plan == plan_with(USUAL)


# ---- What is kept ----------------------------------------------------------------------------------------------------

NOW = 1_000_000_000.0


@pytest.fixture
def tuned(tmp_path):
    """tuned(now, **more): what is found for a small model's layers, whose plan is the usual again afterwards."""
    params = convert(random_params(HPARAMS), packer("int8"))
    run = runtime.new_pass(params, HPARAMS)
    layer_bytes = plain.n_bytes(params["blocks"][0])
    yield lambda now, folder=tmp_path: tuning.tune(run, "int8", layer_bytes, 0.02, folder=str(folder), now=now)
    tuning.follow(tuning.plan_of("int8"), USUAL)


def kept_in(folder):
    return next(folder.glob("tuned-int8-*.json"))


def test_what_was_chosen_is_kept_and_followed(tuned, tmp_path):
    assert tuned(NOW).ratios
    kept = json.loads(kept_in(tmp_path).read_text())
    kept_in(tmp_path).write_text(json.dumps(kept | {"chosen": FAST}))
    again = tuned(NOW + 1)
    assert again == (FAST, {})
    assert tuning.plan_of("int8") == plan_with(FAST)


@pytest.mark.parametrize("later", [-1, tuning.WEEK])
def test_it_is_measured_anew_after_a_week(tuned, later):
    tuned(NOW)
    assert tuned(NOW + later).ratios


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "another CPU"},
        {"chosen": USUAL | {"rows": 10**6}},
        {"chosen": USUAL | {"rows": -1}},
        {"chosen": USUAL | {"ahead_1": "far"}},
        {"chosen": {}},
        {"time": None},
        *(b"", b"{", b"[]", b"[" * 100_000, b"\xff\xfe", b'{"machine": 1e999}'),
    ],
)
def test_what_is_damaged_or_does_not_fit_is_measured_anew(tuned, tmp_path, change):
    tuned(NOW)
    kept = kept_in(tmp_path)
    content = change if isinstance(change, bytes) else json.dumps(json.loads(kept.read_text()) | change).encode()
    kept.write_bytes(content)
    assert tuned(NOW).ratios
    assert not tuned(NOW).ratios


def test_where_nothing_can_be_kept_it_is_measured_each_time(tuned, tmp_path):
    tmp_path.joinpath("file").touch()
    for _ in range(2):
        assert tuned(NOW, folder=tmp_path / "file").ratios


def test_a_model_that_a_cache_holds_has_nothing_to_choose_on_one_core():
    """The tests have one thread."""
    params = convert(random_params(HPARAMS), packer("int8"))
    assert runtime.tune(params, HPARAMS) is None


# ---- Threads ---------------------------------------------------------------------------------------------------------

SMALL = 2**20  # bytes, which usually take one thread


class Cores:
    """seconds(n_threads), of a machine with 8 cores on which so many threads are fastest."""

    def __init__(self, fastest, ratio=0.8):
        self.fastest = fastest
        self.ratio = ratio
        self.now = 0.0

    def seconds(self, n_threads):
        taken = self.ratio if n_threads == self.fastest else 1.0
        self.now += taken
        return taken


@pytest.fixture
def tune_threads(tmp_path):
    """tune_threads(cores, n_bytes, most, **more) -> tuning.Tuned"""
    before = dict(threads.chosen)

    def tune(cores, n_bytes=SMALL, most=8, now=NOW, **more):
        timed = {"seconds": cores.seconds, "clock": lambda: cores.now}
        how = {"limit": 500.0, "folder": str(tmp_path), "now": now}
        return threads.tune_threads(None, "int8", n_bytes, most, **timed, **how, **more)

    yield tune
    threads.chosen.clear()
    threads.chosen.update(before)


@pytest.mark.parametrize(("n_bytes", "most", "numbers"), [(SMALL, 8, [1, 2, 4, 8]), (2**26, 12, [1, 2, 4, 8, 9, 12])])
def test_the_number_of_threads_that_is_fastest_is_taken(tune_threads, n_bytes, most, numbers):
    for n in numbers:
        found = tune_threads(Cores(n), n_bytes, most, anew=True)
        assert [*found.ratios["threads"]] == numbers
        assert found.chosen == {"threads": n}
        assert threads.threads_of("int8", n_bytes, most) == n
        assert tune_threads(Cores(1), n_bytes, most) == ({"threads": n}, {})  # kept
    assert tune_threads(Cores(4, ratio=0.97), n_bytes, most, now=NOW + tuning.WEEK).chosen == {
        "threads": threads.usual(n_bytes, most)
    }


def test_a_number_of_threads_that_this_machine_does_not_have_is_measured_anew(tune_threads, tmp_path):
    tune_threads(Cores(8))
    [kept] = tmp_path.glob("threads-*.json")
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"chosen": {"threads": 64}}))
    assert tune_threads(Cores(2)).chosen == {"threads": 2}


def test_a_real_pass_is_timed_in_each_number_of_threads(tmp_path):
    params = convert(random_params(HPARAMS), packer("int8"))
    seconds = threads.stopwatch(runtime.new_pass(params, HPARAMS))
    assert min(seconds(n) for n in (1, 2, 3)) > 0


# ---- The machine and the report --------------------------------------------------------------------------------------


def test_the_largest_cache_counts(tmp_path):
    for i, size in enumerate(("64K", "32768K", "1024K")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(f"{size}\n")
    assert cache_bytes(str(tmp_path)) == 2**25
    assert cache_bytes(str(tmp_path / "none")) == 2**26


def test_the_report_names_the_choice():
    params = convert(random_params(HPARAMS), packer("int4"))
    assert runtime.choices(params) == ("int4", "1 thread; bytes asked for ahead by rows: 1: 0, 3: 8192")
