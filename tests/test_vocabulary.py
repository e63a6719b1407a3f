"""A draft whose vocabulary ends in another way than the target's, and one with another context."""

import json

import numpy as np
import pytest
from test_checkpoints import CONFIG, TINY, make_tokenizer, random_tensors, write_folder
from tiny import decoded, logits_themselves, refusal

from speculative import load_pair
from speculative.checkpoints.loading import load_encoder_and_hparams
from speculative.engines.vocabulary import share
from speculative.filters import Filters

N_TOKENS = 2048  # of the bundled vocabulary
ADDED = ["[PAD]", "<|user|>"]
OTHERS = (2050, ADDED, 2060, ADDED[::-1])
# The model's ids, the tokens that were added, and the same of a draft that shares the ids below N_TOKENS: with padding
# of one or of both, and with tokens added to one or to both.
ENDS = [
    (2064, [], 2048, []),
    (2048, [], 2064, []),
    (2064, [], 2080, []),
    (2050, ADDED, 2048, []),
    (2048, [], 2050, ADDED),
]


def write_model(folder, n_vocab, added=(), n_layer=2, n_ctx=48):
    config = CONFIG | {"vocab_size": n_vocab, "n_layer": n_layer, "n_positions": n_ctx}
    write_folder(folder, config, random_tensors(config), vocabulary=False)
    make_tokenizer(added=added).save(str(folder / "tokenizer.json"))


@pytest.fixture
def pair_of(tmp_path):
    """The same as load_pair, of two folders whose first layer is the same."""

    def load(ends, **options):
        n_target, of_target, n_draft, of_draft = ends
        write_model(tmp_path / "target", n_target, of_target)
        write_model(tmp_path / "draft", n_draft, of_draft, n_layer=1)
        return load_pair(str(tmp_path / "draft"), str(tmp_path / "target"), **options).pair

    return load


OPTIONS = [{"K": 4}, {"tree": (2, 1)}, {"K": 4, "temperature": 1.0}]


@pytest.mark.parametrize(
    ("ends", "options"), [*((ends, OPTIONS[0]) for ends in ENDS), *((OTHERS, options) for options in OPTIONS)], ids=str
)
def test_such_a_draft_loses_nothing(pair_of, ends, options):
    pair = pair_of(ends, **{"temperature": 0.0} | options)
    x = pair.encoder.encode("To be[PAD] or<|user|> not to be")
    steps = list(pair.speculative(x, 20, np.random.default_rng(0)))
    assert len(decoded(steps)) == 20
    assert sum(step.drafted for step in steps)
    if pair.filters.temperature == 0:
        assert decoded(steps) == decoded(pair.autoregressive(x, 20, np.random.default_rng(0)))
    draft = pair.models["draft"].with_probs(Filters(1.0))
    p = np.asarray(draft(x, 3))
    assert p.shape == (3, pair.encoder.n_vocab)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    n_shared = draft.hparams["shared"].n_shared
    assert n_shared >= N_TOKENS
    assert (p[:, n_shared:] == 0).all()


def test_such_a_draft_loses_nothing_on_the_device(pair_of):
    pytest.importorskip("jax")
    pair = pair_of(OTHERS, engine="jax", temperature=0.0, K=3)
    x = pair.encoder.encode("To be[PAD] or<|user|> not to be")
    both = [decoder(x, 12, np.random.default_rng(0)) for decoder in (pair.speculative, pair.autoregressive)]
    assert decoded(both[0]) == decoded(both[1])


def test_the_draft_is_told_a_stand_in_for_what_it_does_not_know(pair_of, tmp_path):
    """The draft's own logits of the shared ids. A token that it does not know is replaced by its stand-in."""
    pair = pair_of((2050, ADDED, 2056, []), draft_dtype="float32")
    alone = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"), drafter="prompt_lookup").pair.target
    logits = pair.models["draft"].with_probs(logits_themselves)([5, 2049, 7, 2048], 4)
    own = alone.with_probs(logits_themselves)([5, 2047, 7, 2047], 4)
    assert logits.shape == (4, 2050)
    assert np.array_equal(logits[:, :N_TOKENS], own[:, :N_TOKENS])
    assert (logits[:, N_TOKENS:] == -np.inf).all()


def test_other_merges_are_refused(pair_of, tmp_path):
    pair_of((2048, [], 2048, []))
    path = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"].reverse()
    path.write_text(json.dumps(tokenizer))
    assert "different vocabularies" in refusal(load_pair, str(tmp_path / "draft"), str(tmp_path / "target"))


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
    session = load_pair(str(tmp_path / "draft"), str(tmp_path / "target"))
    N = 20 - len(session.encode("To be"))
    assert len(decoded(session.speculative("To be", N))) == N
    whose = f" that the {named} {tmp_path / named} has" if named else ""
    assert f"exceed the context of 20 tokens{whose}: " in refusal(session.speculative, "To be", 40)
