"""The check that models fit into memory, for machines with given free bytes."""

import re

import pytest
from tiny import refusal

from speculative.checkpoints.official import HPARAMS
from speculative.checkpoints.tensors import parameter_count
from speculative.engines import memory

PAIR = [(HPARAMS["1558M"], "float32"), (HPARAMS["124M"], "float32")]


def test_what_a_model_needs():
    """1558M: 6.23 GB of float32, 0.63 GB of cache, 0.64 GB for wte and one that it is made from."""
    hparams = HPARAMS["1558M"]
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
    line = refusal(memory.check, PAIR, free=total - 1)
    assert re.match(r"the models need 8\.\d GB of memory, and 8\.\d GB are free: ", line)


@pytest.mark.parametrize(
    ("models", "gigabytes", "remedy"),
    [
        (PAIR, 8, "--dtype bfloat16 --draft_dtype bfloat16 would fit"),
        (PAIR, 4, "--dtype int8 --draft_dtype int8 would fit"),
        (PAIR, 3, "--dtype int4 --draft_dtype int4 would fit"),
        (PAIR, 1.5, "--target_model_size 355M --dtype int4 --draft_dtype int4 would fit"),
        (PAIR, 0.1, "take smaller models"),
        (PAIR[:1], 3, "--dtype int8 would fit"),
    ],
)
def test_the_line_says_what_would_fit_and_it_does(models, gigabytes, remedy):
    free = int(gigabytes * 1e9)
    assert refusal(memory.check, models, free).endswith(f" {gigabytes:.1f} GB are free: {remedy}")
    if remedy.startswith("--"):
        words = remedy.removesuffix(" would fit").split()
        flags = dict(zip(words[::2], words[1::2], strict=True))
        target = HPARAMS[flags.get("--target_model_size", "1558M")]
        drafts = [(hparams, flags["--draft_dtype"]) for hparams, _ in models[1:]]
        memory.check([(target, flags["--dtype"]), *drafts], free)


def test_a_system_that_does_not_tell_is_trusted(tmp_path):
    missing = str(tmp_path / "missing")
    assert memory.available(missing, missing, missing) is memory.peak(missing) is None
    memory.check(PAIR, None)


def test_the_peak_is_no_less_than_what_is_in_use():
    if memory.peak() is None:
        pytest.skip("this system does not tell")
    in_use = b"x" * 2**28
    assert memory.peak() >= len(in_use)


def test_what_is_available(tmp_path):
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    limit, taken = tmp_path / "memory.max", tmp_path / "memory.stat"

    def available():
        return memory.available(str(meminfo), str(tmp_path), str(own))

    meminfo.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    assert available() == 600 * 1024
    taken.write_text("anon 100000\nfile 5000\n")
    for words, free in (("max", 600 * 1024), ("300000", 200_000), ("50000", 0)):  # a container's limit
        limit.write_text(f"{words}\n")
        assert available() == free
    limit.unlink()
    for folder, controllers, name, label in (
        ("a", "0:", "memory.max", "anon"),
        ("memory/b", "4:memory", "memory.limit_in_bytes", "total_rss"),
    ):  # a group's own limit, and one above it: of version 2, of version 1
        inner = tmp_path / folder / "c"
        inner.mkdir(parents=True)
        own.write_text(f"9:name=systemd:/\n{controllers}:/{folder.removeprefix('memory/')}/c\n")
        for path, most in ((inner, 90_000), (inner.parent, 40_000)):
            (path / name).write_text(f"{most}\n")
            (path / "memory.stat").write_text(f"{label} 10000\n")
        assert available() == 30_000
        (inner.parent / name).unlink()
        assert available() == 80_000
        (inner / name).unlink()
    meminfo.write_text("nothing of the kind")
    assert available() is None
