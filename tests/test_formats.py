"""A weight format that is registered while the program runs works everywhere, or is refused in a line."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import HPARAMS, convert, logits_themselves, random_params

import main
from plumbing.errors import UserError
from speculative.cli import verifying
from speculative.cli.flags import usage
from speculative.cli.load import load_pair
from speculative.engines import formats, memory, runtime
from speculative.engines.formats import BFLOAT16, FLOAT32, INT8
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel, PlainPass
from speculative.measure import verify

PROMPT = "the thing in"
LARGE = {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 1600, "n_layer": 48}
REFUSAL = "it is a toy"


@pytest.fixture
def registered():
    """register(format, **changes) -> its name, until the test ends."""
    names = []

    def register(format, **changes):
        changes = {"name": f"toy{len(formats.FORMATS)}", "jax": REFUSAL, **changes}
        changes = {"embedding": changes["name"], **changes}
        formats.register(dataclasses.replace(format, **changes))
        names.append(changes["name"])
        return names[-1]

    yield register
    for name in names:
        del formats.FORMATS[name]


def halved(w):
    return formats.Stored(w / 2)


@pytest.mark.parametrize(
    ("format", "name", "changes"),
    [(FLOAT32, "same", {}), (FLOAT32, "halved", {"round": halved}), (BFLOAT16, "bf", {}), (INT8, "eighth", {})],
)
def test_a_new_format_computes_what_its_plain_form_says(registered, format, name, changes):
    dtype = registered(format, name=name, **changes)
    params = convert(random_params(), packer(dtype))
    hparams = HPARAMS
    fast, plain = (CachedModel(params, hparams, logits_themselves, new) for new in (runtime.new_pass, PlainPass))
    x = np.arange(7)
    actual, expected = fast(x, 3), plain(x, 3)
    tolerance = 0.1 if format.rounds_rows else 1e-4
    assert np.max(np.abs(actual - expected)) <= tolerance * np.max(np.abs(expected))
    float32 = CachedModel(random_params(), hparams, logits_themselves, PlainPass)(x, 3)
    assert np.allclose(expected, float32, rtol=1e-3, atol=1e-4) == (name == "same")


def test_one_whose_embedding_is_stored_in_another(registered):
    dtype = registered(FLOAT32, name="over_int8", embedding="int8", lookup=None)
    params = convert(random_params(), packer(dtype))
    assert params["wte"].T.dtype == "int8"
    fast, plain = (CachedModel(params, HPARAMS, logits_themselves, new) for new in (runtime.new_pass, PlainPass))
    x = np.arange(7)
    assert np.max(np.abs(fast(x, 2) - plain(x, 2))) < 0.1 * np.max(np.abs(plain(x, 2)))


def test_flags_memory_and_verify_know_it(registered, tiny_pair, capsys):
    dtype = registered(FLOAT32, name="small", weight_bytes=0.25, help="a quarter")
    assert "small (a quarter)" in usage(main.main)
    with pytest.raises(UserError, match="--dtype small would fit"):
        memory.check([(LARGE, "float32")], free=2 * 10**9)
    flags = {"prompt": PROMPT, "target_model_size": "target", "draft_model_size": "draft", "models_dir": tiny_pair}
    run = partial(main.main, **flags, n_tokens_to_generate="4", temperature="0", dtype=dtype, draft_dtype=dtype)
    run()
    run(tree="2,1")
    assert capsys.readouterr().out.count("Speculative Decode") == 2

    pair = load_pair("draft", "target", tiny_pair, dtype=dtype, draft_dtype=dtype)
    decoders = partial(verifying.decoders, SimpleNamespace(engine="numpy", dtype=dtype), pair)
    assert all(check.passed for check in verify.verify(decoders, 1.0, [[5, 6, 7]], 2, 8, draws=25))


@pytest.mark.parametrize("flag", ["dtype", "draft_dtype"])
def test_jax_refuses_it_in_its_words(registered, tiny_pair, flag):
    pytest.importorskip("jax")
    chosen = {flag: registered(FLOAT32, name="numpy_only")}
    flags = {"prompt": PROMPT, "target_model_size": "target", "draft_model_size": "draft", "models_dir": tiny_pair}
    with pytest.raises(UserError, match=f"numpy_only are for --engine numpy: {REFUSAL}"):
        main.main(**flags, engine="jax", n_tokens_to_generate="4", **chosen)
    with pytest.raises(UserError, match="--dtype bfloat16 would fit"):  # and not the toy, which is smaller
        memory.check([(LARGE, "float32")], 5 * 10**9, jax=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"multiply": None, "product": None}, r"the weight format toy lacks product \(.*; multiply \(builds a step"),
        ({"embedding": None}, "lacks embedding"),
        ({"jax": None}, "lacks jax"),
        ({"name": "int8", "embedding": "int8"}, "int8 is registered already"),
        ({"lookup": None}, "cannot have an embedding in toy: that is no format with a lookup"),
        ({"embedding": "nowhere"}, "cannot have an embedding in nowhere"),
        ({"step": lambda cpu: 3}, "a step of 3 inputs does not fit rows of blocks of 32"),
        ({"rounds_rows": True}, "a step of 1 inputs does not fit"),
        ({"tile_bytes": lambda cpu: cpu.lanes}, "its tile is uint8"),
        ({"untile": BFLOAT16.untile}, "untile does not give back"),
        ({"widen": lambda stored: stored.numbers / 2}, "product does not multiply by what widen gives"),
    ],
)
def test_what_lacks_a_part_or_contradicts_itself_is_refused_when_it_is_registered(changes, why):
    before = dict(formats.FORMATS)
    with pytest.raises(UserError, match=why):
        formats.register(dataclasses.replace(FLOAT32, **{"name": "toy", "embedding": "toy"} | changes))
    assert before == formats.FORMATS


def test_a_kernel_that_is_not_its_plain_product_is_refused_before_it_is_used(registered):
    def doubled(words, xs, tile, sums):
        sums = FLOAT32.multiply(words, xs, tile, sums)
        return FLOAT32.multiply(words, xs, tile, sums)

    dtype = registered(FLOAT32, name="twice", multiply=doubled)
    with pytest.raises(UserError, match="the kernel of the weight format twice does not give what"):
        runtime.new_pass(convert(random_params(), packer(dtype)), HPARAMS)


def test_no_format_of_that_name():
    with pytest.raises(
        UserError, match="there is no weight format 'float64': it is one of float32, bfloat16, int8, int4"
    ):
        packer("float64")
