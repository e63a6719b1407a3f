"""The check that models fit into memory, for machines with given free bytes; and what other systems tell."""

import ctypes
import os
from types import SimpleNamespace

import pytest
from tiny import refusal

from speculative import load_pair
from speculative.checkpoints.names import HPARAMS
from speculative.engines import memory
from speculative.engines import system as machine

PAIR = [
    memory.SizedModel("target", HPARAMS["1558M"], "float32"),
    memory.SizedModel("draft", HPARAMS["124M"], "float32"),
]
COPY = memory.SizedModel("int8", HPARAMS["1558M"], "int8", n_cached=0)
BATCH = [model._replace(n_cached=32 * 60) for model in PAIR]


def test_what_a_model_needs():
    """1558M: 6.23 GB of float32, 0.63 GB of cache, 0.64 GB for wte and one that it is made from."""
    assert memory.needed(PAIR[:1]) == 6_230_444_800 + 629_145_600 + 2 * 321_644_800


@pytest.mark.parametrize(("batch", "n_cached"), [(1, None), (8, 8 * 41)])  # a text begins with one token at least
def test_a_copy_needs_no_cache_of_its_own(batch, n_cached, monkeypatch):
    options = {"demo": True, "drafter": "int8", "batch": batch, "n_tokens_to_generate": 40}
    hparams = load_pair(**options).models.spec("target").hparams
    token = 8 * hparams["n_layer"] * hparams["n_embd"]
    target = memory.SizedModel("target", hparams, "float32", n_cached)
    copy = memory.SizedModel("int8", hparams, "int8", n_cached=1)
    total = memory.needed([target, copy]) - token
    monkeypatch.setattr(memory, "available", lambda: total)
    assert load_pair(**options)
    monkeypatch.setattr(memory, "available", lambda: total - 1)
    assert "free: " in refusal(load_pair, **options)


def test_of_a_target_that_is_loaded_no_other_format_is_proposed(monkeypatch):
    session = load_pair(demo=True, drafter="prompt_lookup")
    monkeypatch.setattr(memory, "available", lambda: 10**6)
    assert refusal(session.changed, drafter="int8").endswith("1 MB are free: take smaller models")


@pytest.mark.parametrize(("options", "free"), [({}, 1), ({"dtype": "int8", "engine": "numpy"}, 25)])
def test_models_that_do_not_fit_are_refused_before_they_are_read(options, free, monkeypatch):
    """gpt2.py holds the numbers of a smaller format as float32; in int8, 25 MB are enough for the demo."""
    monkeypatch.setattr(memory, "available", lambda: free * 10**6)
    assert refusal(load_pair, demo=True, **options).endswith(f"{free} MB are free: take smaller models")


@pytest.mark.parametrize(
    ("models", "gigabytes", "remedy"),
    [
        (PAIR, 8, "--dtype float16 --draft_dtype float16 would fit"),
        (PAIR, 4, "--dtype int8 --draft_dtype int8 would fit"),
        (PAIR, 3, "--dtype int4 --draft_dtype int4 would fit"),
        (PAIR, 1.5, "--target_model_size 355M --dtype int4 --draft_dtype int4 would fit"),
        (PAIR, 0.1, "take smaller models"),
        (PAIR[:1], 3, "--dtype int8 would fit"),
        ([PAIR[0], COPY], 7, "--dtype float16 would fit"),
        ([PAIR[0], COPY], 4, "--target_model_size 774M --dtype bfloat16 would fit"),
        ([COPY], 2, "take smaller models"),
        (PAIR[1:], 0.7, "--draft_dtype float16 would fit"),
        (BATCH, 0.1, "take smaller models or a smaller --batch"),
    ],
)
def test_the_line_says_what_would_fit_and_it_does(models, gigabytes, remedy):
    free = int(gigabytes * 1e9)
    assert refusal(memory.check, models, free).endswith(f" {gigabytes:.1f} GB are free: {remedy}")
    words = remedy.removesuffix(" would fit").split()
    if remedy.startswith("--"):
        flags = dict(zip(words[::2], words[1::2], strict=True))
        target = HPARAMS[flags.get("--target_model_size", "1558M")]
        dtypes = {role: flags.get(f"--{option}") for role, option in memory.OPTIONS.items()}
        fitting = []
        for model in models:
            hparams = model.hparams if model.role == "draft" else target
            fitting.append(model._replace(hparams=hparams, dtype=dtypes.get(model.role, model.dtype)))
        memory.check(fitting, free)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """(path, text) -> a file of the system."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_a_system_that_does_not_tell_is_trusted(system):
    assert memory.available() is memory.peak() is None
    system("proc/meminfo", "nothing of the kind")
    assert memory.available() is None
    memory.check(PAIR, None)


def test_threads_that_had_no_core_are_counted(system):
    assert machine.seconds_waited() == 0
    for thread, waited in ((7, 1_500_000_000), (8, 250_000_000)):
        system(f"proc/self/task/{thread}/schedstat", f"900 {waited} 3\n")
    assert machine.seconds_waited() == 1.75


V1 = "4:memory:", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss"
V2 = "0::", "sys/fs/cgroup", "memory.max", "anon"


@pytest.mark.parametrize(("groups", "folder", "limit", "label"), [V1, V2])
def test_the_limits_of_a_container_and_of_the_groups_around_it_count(system, groups, folder, limit, label):
    system("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    system("proc/self/cgroup", f"9:name=systemd:/\n{groups}/a/b\n")
    assert memory.available() == 600 * 1024
    for group in ("a/b", "a", ""):  # from the inside out
        system(f"{folder}/{group}/memory.stat", f"{label} 10000\nfile 5000\n")
        for words, free in (("200000", 190_000), ("5000", 0), ("max", 600 * 1024)):
            system(f"{folder}/{group}/{limit}", words)
            assert memory.available() == free


def test_a_limit_on_the_address_space_counts_and_the_peak_is_told(system):
    system("proc/meminfo", "MemAvailable:    600 kB\n")
    system("proc/self/status", "VmHWM:      70 kB\nVmSize:     100 kB\n")
    assert memory.peak() == 70 * 1024
    for limit, free in (("unlimited", 600 * 1024), ("409600", 300 * 1024), ("5000", 0)):
        system("proc/self/limits", f"Max address space         {limit}            unlimited            bytes\n")
        assert memory.available() == free


CORES = "sys/devices/system/cpu/cpu"
PAIRS = {f"{CORES}{i}/topology/core_cpus_list": f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(4)}
MAC = {"hw.memsize": "8589934592", "hw.perflevel0.physicalcpu": "4", "hw.l1dcachesize": "65536"}
MAC["machdep.cpu.brand_string"] = "Apple M1"
MACHINES = {
    # files of Linux; values of macOS; free memory of Windows; then cores, the first cache and free bytes
    "equal cores": ({f"{CORES}{i}/cpu_capacity": "1024" for i in range(8)}, {}, None, 8, 2**15, None),
    "a hybrid laptop, two threads a core": (PAIRS | {"sys/devices/cpu_core/cpus": "0-3"}, {}, None, 2, 2**15, None),
    "only its slow cores": ({"sys/devices/cpu_core/cpus": "8-11,14"}, {}, None, 8, 2**15, None),
    "ARM, two clusters": (
        {f"{CORES}{i}/cpu_capacity": "1024" if i > 5 else "446" for i in range(8)}
        | {f"{CORES}{i}/topology/core_cpus_list": f"{i}" for i in range(8)}
        | {f"{CORES}0/cache/index0/size": "48K"},
        *({}, None, 2, 48 * 1024, None),
    ),
    "a container": (
        {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}
        | {"sys/fs/cgroup/a/cpu.max": "250000 100000"},
        *({}, None, 3, 2**15, None),
    ),
    "a container of version 1": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/docker/0f", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000"}
        | {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"},
        *({}, None, 1, 2**15, None),
    ),
    "a Mac": ({}, MAC, None, 4, 2**16, 3 * 2**31),
    "an Intel Mac": ({}, {"hw.memsize": "8589934592"}, None, 8, 2**15, 3 * 2**31),
    "Windows": ({}, {}, 3 * 10**9, 8, 2**15, 3 * 10**9),
}


@pytest.mark.parametrize(("files", "values", "free", *("n", "cache", "available")), MACHINES.values(), ids=MACHINES)
def test_what_other_machines_tell(files, values, free, n, cache, available, system, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for path, text in files.items():
        system(path, text + "\n")
    for module in (machine, memory):
        monkeypatch.setattr(module, "sysctl", lambda name: values.get(name, ""))
    if values or free:
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})
    if free:

        def tell(status):
            assert status[0] == ctypes.sizeof(status) == 64
            status[1], status[2] = 10**10, free

        kernel = SimpleNamespace(GlobalMemoryStatusEx=tell)
        monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert (machine.n_cores(), machine.first_cache(), memory.available()) == (n, cache, available)
    assert values.get("machdep.cpu.brand_string", "") in machine.cpu()
    for asked, most in (("2", 2), ("1,8", 1), ("999", n), ("0", n), ("all", n)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert machine.n_cores() == min(most, n)
