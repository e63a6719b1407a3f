"""The target's own copy as the draft: what it is, that it costs one reading, and that nothing is lost by it."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import decoded, refusal

from speculative import load_pair
from speculative.decoding import lookaheads
from speculative.engines import devices, formats, models, packed
from speculative.engines.library import library
from speculative.filters import GREEDY
from speculative.lookahead import AutoK
from speculative.sampling import autoregressive_sampling

SMALLER = [
    (dtype, copy)
    for dtype in formats.FORMATS
    for copy in formats.FORMATS
    if formats.find(copy).weight_bytes < formats.find(dtype).weight_bytes
]
PROMPTS = ["the", "in the thin", "tin inn in the"]


def loaded(tiny_pair, **options):
    return load_pair("draft", "target", models_dir=tiny_pair, **options).pair


def greedy(pair, x, N):
    return decoded(autoregressive_sampling(x, pair.target, N, np.random.default_rng(0)))


@pytest.mark.parametrize(("dtype", "self_dtype"), SMALLER)
@pytest.mark.parametrize("drafter", ["self", "self/model"])
def test_the_text_is_the_targets_to_the_bit(tiny_pair, dtype, self_dtype, drafter):
    if not library():
        pytest.skip("without a compiler rows depend on their number")
    pair = loaded(tiny_pair, drafter=drafter, dtype=dtype, self_dtype=self_dtype)
    for number, (K, inner_K) in enumerate([(1, 17), (2, 3), (8, 4), (17, 1), (16, "auto"), ("auto", "auto")]):
        Ks = (K, inner_K) if "/" in drafter else K
        lookahead, inner = lookaheads(Ks, None, drafter)
        pair.__dict__.update(lookahead=lookahead, inner_K=inner)  # the same weights with another K
        x = pair.encoder.encode(PROMPTS[number % len(PROMPTS)])
        expected = greedy(pair, x, 40)
        assert decoded(pair.speculative(x, 40, np.random.default_rng(number))) == expected, Ks


class Noting(AutoK):
    """Notes when it learns what windows and drafts cost."""

    def __init__(self, learned):
        super().__init__()
        self.learned = learned

    def know(self, *costs):
        self.learned.append(self)
        super().know(*costs)


def test_a_level_is_measured_after_those_that_draft_for_it(tiny_pair):
    learned = []
    pair = loaded(tiny_pair, drafter="self/model/prompt_lookup", K=(8, 4, 2))
    Ks = Noting(learned), Noting(learned), Noting(learned)
    pair = replace(pair, lookahead=Ks[0], inner_K=Ks[1:])
    levels = pair.levels()
    assert [level.K for level in levels] == [*Ks]
    assert [level.model for level in levels] == [pair.target, pair.models["copy"], pair.models["draft"]]
    x = pair.encoder.encode("in the thin in the thin in the")
    assert [by[-1] for by in (level.draft(x, 1).by for level in levels)] == ["self", "model", "prompt_lookup"]
    pair.ready([x], 9)
    assert learned == [*reversed(Ks)]


@pytest.mark.parametrize("self_dtype", ["bfloat16", "int8"])
def test_the_copy_computes_what_the_format_computes(tiny_pair, self_dtype):
    copy = loaded(tiny_pair, drafter="self", self_dtype=self_dtype).models["copy"].with_probs(GREEDY)
    alone = loaded(tiny_pair, drafter="prompt_lookup", dtype=self_dtype).target
    for model in (copy, alone):
        model.to_probs = lambda logits: logits
    for x in ([1, 2, 3], list(range(60))):
        assert np.array_equal(copy(x, 3), alone(x, 3))


def test_each_tensor_is_read_once_and_what_is_not_rounded_is_shared(bundled):
    _, hparams, params = bundled["tiny-draft"]
    read = []

    def reading(convert):
        def counted(name, array):
            read.append(name)
            return convert(name, array)

        return packed.pack(params, counted)

    target, copy = models.load_models(reading, hparams, ["float32", "int8"], [GREEDY, GREEDY], ["target", "copy"])
    assert len(read) == 4 + 12 * len(params["blocks"])
    assert target.params["ln_f"]["g"] is copy.params["ln_f"]["g"]
    assert target.params["wpe"] is copy.params["wpe"]
    if library():
        assert copy.weight_bytes < target.weight_bytes / 3


def test_a_copy_of_as_many_bytes_is_refused(tiny_pair):
    for dtype, self_dtype, other in (("int8", "float32", "--self_dtype int4"), ("int4", "auto", "another --drafter")):
        line = refusal(loaded, tiny_pair, drafter="self", dtype=dtype, self_dtype=self_dtype)
        assert line.startswith(f"a copy takes fewer bytes than the target, which is in {dtype} here: take {other}")
    line = refusal(devices.choose_self_dtype, "float64", "float32", "numpy")
    assert line.startswith("there is no weight format 'float64'")
