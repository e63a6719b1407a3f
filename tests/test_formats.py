"""A weight format that is registered while the program runs works everywhere, or is refused in a line."""

import dataclasses
import re

import numpy as np
import pytest
from tiny import HPARAMS, convert, logits_themselves, random_params, refusal, texts

from speculative.cli.flags import usage
from speculative.engines import formats, memory, runtime
from speculative.engines.formats import BFLOAT16, FLOAT32, INT8
from speculative.engines.formats.base import Stored
from speculative.engines.packed import PackedWeight, packer
from speculative.engines.plain import CachedModel, PlainPass

LARGE = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 1600, "n_layer": 48}


@pytest.fixture
def registered():
    """register(format, name, **changes) -> name, until the test ends."""
    names = []

    def register(format, name, **changes):
        changes = {"name": name, "embedding": name, "jax": "it is a toy", **changes}
        formats.register(dataclasses.replace(format, **changes))
        names.append(name)
        return name

    yield register
    for name in names:
        del formats.FORMATS[name]


def halved(w):
    return Stored(w / 2)


@pytest.mark.parametrize(
    ("name", "format", "changes"),
    [
        ("same", FLOAT32, {}),
        ("halved", FLOAT32, {"round": halved, "fill": None}),
        ("bf", BFLOAT16, {}),
        ("eighth", INT8, {}),
        ("over_int8", FLOAT32, {"embedding": "int8", "lookup": None}),
    ],
)
def test_a_new_format_computes_what_its_plain_form_says(registered, name, format, changes):
    params = convert(random_params(), packer(registered(format, name, **changes)))
    assert params["wte"].T.dtype == changes.get("embedding", name)
    fast, plain = (CachedModel(params, HPARAMS, logits_themselves, new) for new in (runtime.new_pass, PlainPass))
    x = np.arange(7)
    actual, expected = fast(x, 3), plain(x, 3)
    rounds_rows = format.rows is INT8.rows or "embedding" in changes
    assert np.max(np.abs(actual - expected)) <= (0.1 if rounds_rows else 1e-4) * np.max(np.abs(expected))
    float32 = CachedModel(random_params(), HPARAMS, logits_themselves, PlainPass)(x, 3)
    assert np.allclose(expected, float32, rtol=1e-3, atol=1e-4) == (name == "same")


def test_a_fill_that_gives_other_bits_is_refused(registered):
    dtype = registered(FLOAT32, "halved", round=halved)
    line = refusal(PackedWeight.packed, np.ones((3, 5), np.float32), dtype)
    assert "the weight format halved contradicts itself: fill does not give" in line


def test_flags_memory_and_verify_know_it(registered, run, run_verify):
    dtype = registered(FLOAT32, "small", weight_bytes=0.25, help="a quarter")
    assert "small (a quarter)" in usage()
    assert "--dtype small would fit" in refusal(memory.check, [(LARGE, "float32")], free=2 * 10**9)
    for tree in (None, "2,1"):
        plain, speculative = texts(run(tree=tree, dtype=dtype, draft_dtype=dtype, quiet=True))
        assert plain == speculative
    status, out = run_verify(dtype=dtype, draft_dtype=dtype)
    assert status == 0
    assert "Summary: no loss found" in out


@pytest.mark.parametrize("flag", ["dtype", "draft_dtype"])
def test_jax_refuses_it_in_its_words(registered, run, flag):
    pytest.importorskip("jax")
    dtype = registered(FLOAT32, "numpy_only", weight_bytes=0.25)
    assert "numpy_only are for --engine numpy: it is a toy" in refusal(run, engine="jax", threads=None, **{flag: dtype})
    line = refusal(memory.check, [(LARGE, "float32")], 5 * 10**9, jax=True)
    assert "--dtype bfloat16 would fit" in line  # and not the toy, which is smaller


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"multiply": None, "product": None}, r"the weight format toy lacks product \(.*; multiply \(builds a step"),
        ({"name": "int8", "embedding": "int8"}, "int8 is registered already"),
        ({"lookup": None}, "cannot have an embedding in toy: that is no format with a lookup"),
        ({"embedding": "nowhere"}, "cannot have an embedding in nowhere"),
        ({"step": 3}, "a step of 3 inputs does not fit rows of blocks of 32"),
        ({"rows": INT8.rows}, "a step of 1 inputs does not fit"),
        ({"step_bytes": lambda cpu: cpu.lanes}, "its tile is uint8"),
        ({"untile": BFLOAT16.untile}, "untile does not give back"),
        ({"widen": lambda stored: stored.numbers / 2}, "product does not multiply by what widen gives"),
    ],
)
def test_what_lacks_a_part_or_contradicts_itself_is_refused_when_it_is_registered(changes, why):
    before = dict(formats.FORMATS)
    toy = dataclasses.replace(FLOAT32, **{"name": "toy", "embedding": "toy"} | changes)
    assert re.search(why, refusal(formats.register, toy))
    assert before == formats.FORMATS


def test_a_kernel_that_is_not_its_plain_product_is_refused_before_it_is_used(registered):
    def doubled(words, xs, tile, sums):
        sums = FLOAT32.multiply(words, xs, tile, sums)
        return FLOAT32.multiply(words, xs, tile, sums)

    dtype = registered(FLOAT32, "twice", multiply=doubled)
    line = refusal(runtime.new_pass, convert(random_params(), packer(dtype)), HPARAMS)
    assert "the kernel of the weight format twice does not give what" in line


def test_no_format_of_that_name():
    assert "no weight format 'float64': it is one of float32, bfloat16, int8, int4" in refusal(packer, "float64")
