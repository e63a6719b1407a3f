"""A draft whose vocabulary ends in another way than the target's, and one with another context."""

import json
from functools import partial

import numpy as np
import pytest
from test_checkpoints import CONFIG, TINY, make_tokenizer, random_tensors, write_folder

from plumbing.errors import UserError
from speculative.cli.load import load_id_pair
from speculative.engines.vocabulary import share
from speculative.filters import Filters
from utils import load_encoder_and_hparams

N_TOKENS = 2048  # of the bundled vocabulary
# The model's ids, the tokens that were added, and the same of a draft that shares the ids below N_TOKENS.
ENDS = {
    "the target is padded": (2064, [], 2048, []),
    "the draft is padded": (2048, [], 2064, []),
    "both are": (2064, [], 2080, []),
    "the target has more tokens": (2050, ["[PAD]", "<|user|>"], 2048, []),
    "the draft has more tokens": (2048, [], 2050, ["[PAD]", "<|user|>"]),
    "each has others": (2050, ["[PAD]", "<|user|>"], 2060, ["<|user|>", "[PAD]"]),
}


def write_model(folder, n_vocab, added=(), n_layer=2, n_ctx=48, seed=0, **settings):
    config = CONFIG | {"vocab_size": n_vocab, "n_layer": n_layer, "n_positions": n_ctx, **settings}
    write_folder(folder, config, random_tensors(config, seed), vocabulary=False)
    make_tokenizer(added=added).save(str(folder / "tokenizer.json"))


@pytest.fixture(params=ENDS.values(), ids=list(ENDS))
def pair_of(request, tmp_path):
    """load_id_pair of two folders, whose first layer is the same."""
    n_target, of_target, n_draft, of_draft = request.param
    write_model(tmp_path / "target", n_target, of_target)
    write_model(tmp_path / "draft", n_draft, of_draft, n_layer=1)
    return partial(load_id_pair, str(tmp_path / "draft"), str(tmp_path / "target"))


def decoded(steps):
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("options", [{"K": 4}, {"tree": (2, 1)}], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_such_a_draft_loses_nothing(pair_of, temperature, options):
    pair = pair_of(temperature=temperature, **options)
    x = pair.encoder.encode("To be[PAD] or<|user|> not to be")
    n = pair.encoder.n_vocab
    steps = list(pair.speculative(x, 20, np.random.default_rng(0)))
    assert len(decoded(steps)) == 20 and sum(step.drafted for step in steps)
    if temperature == 0:
        assert decoded(steps) == decoded(pair.autoregressive(x, 20, np.random.default_rng(0)))
    draft = pair.models["draft"].with_probs(Filters(1.0))
    p = np.asarray(draft(x, 3))
    assert p.shape == (3, n)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    n_shared = draft.hparams["shared"].n_shared
    assert n_shared >= N_TOKENS and (p[:, n_shared:] == 0).all()


@pytest.mark.parametrize("pair_of", [ENDS["each has others"]], indirect=True, ids=["each has others"])
def test_so_it_is_on_the_device(pair_of):
    pytest.importorskip("jax")
    pair = pair_of(engine="jax", temperature=0.0, K=3)
    x = pair.encoder.encode("To be[PAD] or<|user|> not to be")
    assert decoded(pair.speculative(x, 12, np.random.default_rng(0))) == decoded(
        pair.autoregressive(x, 12, np.random.default_rng(0))
    )


def test_what_the_draft_is_told(tmp_path):
    """Its own logits of the shared ids, for the text with its stand-in for what it does not know."""
    write_model(tmp_path / "target", 2050, ["[PAD]", "<|user|>"])
    write_model(tmp_path / "draft", 2056, n_layer=1)
    pair = load_id_pair(str(tmp_path / "draft"), str(tmp_path / "target"), draft_dtype="float32")
    alone = load_id_pair(str(tmp_path / "target"), str(tmp_path / "draft"), drafter="prompt_lookup").target
    x = [5, 2049, 7, 2048]
    logits = pair.models["draft"].with_probs(lambda logits: logits)(x, 4)
    own = alone.with_probs(lambda logits: logits)([5, 2047, 7, 2047], 4)
    assert logits.shape == (4, 2050)
    assert np.array_equal(logits[:, :N_TOKENS], own[:, :N_TOKENS])
    assert (logits[:, N_TOKENS:] == -np.inf).all()


def test_other_differences_are_refused(tmp_path):
    write_model(tmp_path / "target", 2048)
    write_model(tmp_path / "draft", 2048)
    path = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["he"], vocab["th"] = vocab["in"], vocab["he"] = vocab["he"], vocab["in"]
    vocab.pop("th")
    tokenizer["model"]["merges"] = []
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="different vocabularies"):
        load_id_pair(str(tmp_path / "draft"), str(tmp_path / "target"))


def test_the_bundled_form_and_hugging_faces_are_one_vocabulary(tmp_path):
    write_model(tmp_path / "draft", 2064, ["[PAD]"])
    bundled, _ = load_encoder_and_hparams(TINY.name, str(TINY.parent))
    theirs, _ = load_encoder_and_hparams("draft", str(tmp_path))
    assert share(bundled, theirs) == (2048, 2048, 2047)
    assert share(theirs, bundled) == (2048, 2064, 2047)


@pytest.mark.parametrize(("n_target", "n_draft", "named"), [(48, 20, "draft"), (20, 48, "target"), (20, 20, None)])
def test_the_smaller_context_bounds_the_run_and_is_named(n_target, n_draft, named, tmp_path):
    write_model(tmp_path / "target", 2048, n_ctx=n_target)
    write_model(tmp_path / "draft", 2048, n_layer=1, n_ctx=n_draft)
    draft, target = str(tmp_path / "draft"), str(tmp_path / "target")
    pair = load_id_pair(draft, target, prompts=["To be"], n_tokens_to_generate=10)
    x = pair.encoder.encode("To be")
    assert len(decoded(pair.speculative(x, 20 - len(x), np.random.default_rng(0)))) == 20 - len(x)
    with pytest.raises(UserError) as caught:
        load_id_pair(draft, target, prompts=["To be"], n_tokens_to_generate=40)
    whose = f" that the {named} {tmp_path / named} has" if named else ""
    assert f"exceed the context of 20 tokens{whose}: " in str(caught.value)
