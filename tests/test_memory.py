"""Whether the models fit, for machines with given free bytes."""

import pytest

from checkpoints.tensors import parameter_count
from plumbing.errors import UserError
from speculative.engines import memory


def official(size):
    n_layer, n_embd = memory.OFFICIAL[size]
    return {"n_vocab": 50257, "n_ctx": 1024, "n_embd": n_embd, "n_layer": n_layer}


PAIR = [(official("1558M"), "float32"), (official("124M"), "float32")]


def test_what_a_model_needs():
    """1558M: 6.23 GB of float32, 0.63 GB of cache, 0.64 GB for wte and one that it is made from."""
    hparams = official("1558M")
    assert parameter_count(hparams) * 4 == 6_230_444_800
    assert memory.needed(hparams, "float32") == 6_230_444_800 + 629_145_600 + 2 * 321_644_800
    width, n_layer = 1600, 48
    channels = 50257 + n_layer * 9 * width  # each with a scale
    in_float32 = n_layer * (9 + 4) * width + 2 * width + 1024 * width  # biases, norms and wpe
    matrices = 6_230_444_800 // 4 - in_float32
    int8 = matrices + 4 * (channels + in_float32)
    assert memory.needed(hparams, "int8") == int8 + 629_145_600 + 2 * 321_644_800


def test_just_enough_is_enough():
    total = sum(memory.needed(*model) for model in PAIR)
    memory.check(PAIR, free=total)
    with pytest.raises(UserError, match=r"the models need 8\.\d GB of memory, and 8\.\d GB are free: "):
        memory.check(PAIR, free=total - 1)


@pytest.mark.parametrize(
    "gigabytes, remedy",
    [
        (8, "--dtype bfloat16 --draft_dtype bfloat16 would fit"),
        (4, "--dtype int8 --draft_dtype int8 would fit"),
        (3, "--dtype int4 --draft_dtype int4 would fit"),
        (1.5, "--target_model_size 355M --dtype int4 --draft_dtype int4 would fit"),
        (0.1, "take smaller models"),
    ],
)
def test_the_line_says_what_would_fit(gigabytes, remedy):
    with pytest.raises(UserError) as caught:
        memory.check(PAIR, free=int(gigabytes * 1e9))
    assert str(caught.value).endswith(f" {gigabytes:.1f} GB are free: {remedy}")


def test_what_the_line_says_does_fit():
    """The flags that are named, tried."""
    for free in range(10**9, 8 * 10**9, 10**8):
        with pytest.raises(UserError) as caught:
            memory.check(PAIR, free)
        words = str(caught.value).rpartition(": ")[2].removesuffix(" would fit").split()
        if words[0] == "take":
            continue
        flags = dict(zip(words[::2], words[1::2], strict=True))
        target = official(flags.get("--target_model_size", "1558M"))
        memory.check([(target, flags["--dtype"]), (PAIR[1][0], flags["--draft_dtype"])], free)


def test_without_a_draft_model_none_is_spoken_of():
    with pytest.raises(UserError, match="free: --dtype int8 would fit"):
        memory.check(PAIR[:1], free=3 * 10**9)


def test_no_larger_size_is_named_for_a_model_that_is_small():
    with pytest.raises(UserError, match="take smaller models"):
        memory.check([(official("124M"), "float32")], free=10**8)


def test_a_system_that_does_not_tell_is_trusted(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check(PAIR)
    assert memory.read_number("/no/such/file") is None


def test_the_peak_stays(tmp_path):
    if (before := memory.peak()) is None:
        pytest.skip("this system does not tell")
    taken = b"x" * 2**28
    after = memory.peak()
    assert after >= before - 2**21 and after >= len(taken)  # the kernel adds up lazily
    del taken
    assert memory.peak() >= after - 2**21
    assert memory.peak(str(tmp_path / "missing")) is None


def test_what_is_available(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")

    def available():
        return memory.available(str(meminfo), str(tmp_path))

    assert available() == 600 * 1024
    (tmp_path / "memory.stat").write_text("anon 100000\nfile 5000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available() == 600 * 1024
    (tmp_path / "memory.max").write_text("300000\n")  # a container's limit
    assert available() == 200_000
    (tmp_path / "memory.max").write_text("50000\n")
    assert available() == 0
    for folder, controllers, names in (
        ("a", "0:", ("memory.max", "anon")),
        ("memory/b", "4:memory", ("memory.limit_in_bytes", "total_rss")),
    ):  # a group's own limit, and one above it: of version 2, of version 1
        inner = tmp_path / folder / "c"
        inner.mkdir(parents=True)
        own = tmp_path / "own"
        own.write_text(f"9:name=systemd:/\n{controllers}:/{folder.removeprefix('memory/')}/c\n")
        for path, limit in ((inner, 90_000), (inner.parent, 40_000)):
            (path / names[0]).write_text(f"{limit}\n")
            (path / "memory.stat").write_text(f"{names[1]} 10000\n")
        (tmp_path / "memory.max").unlink(missing_ok=True)
        assert memory.available(str(meminfo), str(tmp_path), str(own)) == 30_000
        (inner.parent / names[0]).unlink()
        assert memory.available(str(meminfo), str(tmp_path), str(own)) == 80_000
    (tmp_path / "memory.max").write_text("max")
    meminfo.write_text("nothing of the kind")
    (tmp_path / "memory.max").unlink()
    assert available() is None


def test_a_limit_on_the_address_space():
    """As `ulimit -v` sets it."""
    resource = pytest.importorskip("resource")
    if memory.read_number("/proc/self/status", "VmSize:") is None:
        pytest.skip("this system does not tell")
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = memory.read_number("/proc/self/status", "VmSize:") * 1024
    try:
        resource.setrlimit(resource.RLIMIT_AS, (taken + 10**8, before[1]))
        assert 0.5e8 < memory.available() <= 1.1e8
        with pytest.raises(UserError, match=r"the models need .* and 0\.1 GB are free"):
            memory.check(PAIR)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
