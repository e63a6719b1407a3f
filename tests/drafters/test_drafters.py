"""The proposals of each drafter: prompt lookup, n-grams, heads, several joined, and one with another vocabulary."""

import itertools
import json
import shutil

import numpy as np
import pytest
from checkpoint_files import MODELS
from hub_folders import CONFIG, random_tensors, write_folder
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tiny import counting_target, decoded, one_hot, refusal
from tokenizer_files import make_tokenizer

from speculative import load_pair
from speculative.drafters import first_of
from speculative.drafters.heads import FILE, fingerprint
from speculative.drafters.lookup import lookup_tree, prompt_lookup
from speculative.drafters.ngram import ngram_log_model
from speculative.drafters.staged import staged
from speculative.run.decode import after_prompt
from speculative.sampling import Proposal, token_by_token
from speculative.trees import Tree
from utils import load_encoder_hparams_and_params

# ---- Prompt lookup and n-grams ---------------------------------------------------------------------------------------

ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids.filter(len), st.integers(0, 7))
def test_prompt_lookup_finds_what_a_plain_search_finds(x, k):
    """The last place of the longest match, read on as if the text after it were repeated."""
    proposal = prompt_lookup(4)(np.array(x), k)
    expected = []
    for n in range(1, min(3, len(x) - 1) + 1):
        for place in range(len(x) - n):
            if x[place : place + n] == x[-n:]:
                expected = [*itertools.islice(itertools.cycle(x[place + n :]), k)]
    assert proposal.tokens == expected
    assert np.asarray(proposal.p).tolist() == one_hot(*expected, n_vocab=4).tolist()


def plain_ngram(text, x, n_vocab):
    """The definition, counted by hand: the text and x are two sequences, and no n-gram spans both."""
    p = [(text.count(t) + x.count(t) + 1 / n_vocab) / (len(text) + len(x) + 1) for t in range(n_vocab)]
    for n in range(2, min(3, len(x) + 1) + 1):
        context = x[len(x) - n + 1 :]
        followed_by = [s[i + n - 1] for s in (text, x) for i in range(len(s) - n + 1) if s[i : i + n - 1] == context]
        types = len(set(followed_by))
        if followed_by:
            p = [(followed_by.count(t) + types * p[t]) / (len(followed_by) + types) for t in range(n_vocab)]
    return p


@given(ids, ids.filter(len), st.data())
def test_ngram_is_its_definition_whatever_it_saw_before(text, x, data):
    log_model = ngram_log_model(4, text)
    cut = data.draw(st.integers(1, len(x)))
    for seen in (x, x[:cut], x[:cut] + x):
        [log_p] = log_model(seen)
        np.testing.assert_allclose(np.exp(log_p), plain_ngram(text, seen, 4), rtol=1e-5)


def test_ngram_counts_in_the_users_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Sherlock Holmes rubbed his eyes. " * 20)
    session = load_pair("tiny-draft", "tiny-target", MODELS, drafter="ngram", ngram_text=str(path), threads=1)
    drafted = session.drafter(np.random.default_rng(0))(np.array(session.encode("Sherlock Holmes")), 4)
    assert session.encoder.decode(drafted.tokens).startswith(" rubbed his")


# ---- Several ---------------------------------------------------------------------------------------------------------


def test_the_first_that_has_anything_proposes_and_the_others_are_not_asked():
    asked = []
    nothing, one, other = Proposal([], []), Proposal([1], [[0, 1]], ["one"]), Proposal([2], [[1, 0]])
    drafts = [lambda x, k, proposal=proposal: asked.append(proposal) or proposal for proposal in (nothing, one, other)]
    assert first_of(drafts)([0], 1) == one
    assert asked == [nothing, one]
    assert first_of([drafts[0], drafts[0]])([0], 1) == nothing
    nobody = lambda x, widths: Tree("")  # noqa: E731
    assert first_of([nobody, lookup_tree(3)])(np.array([1, 2, 1]), [2, 1]).tokens == [2, 1]


def test_a_drafter_after_the_first_call_proposes_nothing_in_it():
    draft = after_prompt(lambda x, k: Proposal([k], [[1.0]]), n=1)
    assert [len(draft([0], 3).tokens), *draft([0, 1], 3).tokens, *draft([0, 1, 2], 2).tokens] == [0, 3, 2]


def test_each_token_of_a_level_has_the_name_of_its_proposer():
    """An accepted token is the inner drafter's. A resampled or bonus token is the level's own."""

    def inner(x, k):
        """Right about the first token of each proposal."""
        tokens = [(int(x[-1]) + 1 + i + (i >= 1)) % 7 for i in range(k)]
        return Proposal(tokens, one_hot(*tokens), ["inner"] * k)

    rng = np.random.default_rng(0)
    proposal = staged("middle", counting_target, lambda: inner, 2, rng, token_by_token)(np.array([0]), 5)
    assert proposal.tokens == [1, 2, 3, 4, 5]
    assert proposal.source == ["inner", "middle", "inner", "middle", "middle"]


# ---- Heads -----------------------------------------------------------------------------------------------------------


def test_the_bundled_heads_guess_well():
    session = load_pair("nowhere", "tiny-target", MODELS, drafter="heads", threads=1)
    x = session.encode('"From the first, two facts were very obvious to me,')
    steps = [*session.steps("speculative", x, 100, np.random.default_rng(0))]
    assert steps[0].n_drafted == 0  # the target has not been called on this text yet
    assert 100 / len(steps) > 1.4


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"target": "0" * 64}, "was trained for another target, of the same shape"),
        ({"w": (2, 12, 12)}, "w and b are (2, 12, 12) and (2, 32), not [n, 32, 32] and [n, 32]"),
        ({"value": np.nan}, "holds NaN or infinity"),
        ({}, None),
    ],
)
def test_heads_of_another_target_are_one_line(tiny_pair, tmp_path, about, said):
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    _, hparams, params = load_encoder_hparams_and_params("target", str(models))
    about = {"w": (2, 32, 32), "value": 0.0, "target": fingerprint(hparams, params["ln_f"])} | about
    tensors = {"w": np.full(about["w"], about["value"], np.float16), "b": np.zeros((2, 32), np.float16)}
    save_file(tensors, models / "target" / FILE, metadata={"target": about["target"]})
    if said is None:
        assert load_pair("nowhere", "target", models, drafter="heads", threads=1)
    else:
        line = refusal(load_pair, "nowhere", "target", models, drafter="heads", threads=1)
        assert said in line
        assert str(models / "target" / FILE) in line


def test_a_session_refuses_heads_of_another_target_each_time(tiny_pair, tmp_path):
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    tensors = {"w": np.zeros((2, 32, 32), np.float16), "b": np.zeros((2, 32), np.float16)}
    save_file(tensors, models / "target" / FILE, metadata={"target": "0" * 64})
    pair = load_pair("draft", "target", models, threads=1)
    for _ in range(2):
        assert "was trained for another target" in refusal(pair.changed, drafter="heads")


# ---- A draft with another end of the vocabulary, or another context --------------------------------------------------

ADDED = ["[PAD]", "<|user|>"]
# The target's ids and the tokens that were added to it, and the draft's. They share the ids below 2048.
ENDS = [(2064, [], 2048, []), (2048, [], 2064, []), (2050, ADDED, 2048, []), (2050, ADDED, 2060, ADDED[::-1])]


def write_model(folder, n_vocab, added=(), n_layer=2, n_ctx=48):
    config = CONFIG | {"vocab_size": n_vocab, "n_layer": n_layer, "n_positions": n_ctx}
    write_folder(folder, config, random_tensors(config), vocabulary=False)
    make_tokenizer(added=added).save(str(folder / "tokenizer.json"))


@pytest.fixture
def two(tmp_path):
    def two(ends, n_ctx=(48, 48), **options):
        n_target, of_target, n_draft, of_draft = ends
        write_model(tmp_path / "target", n_target, of_target, n_ctx=n_ctx[0])
        write_model(tmp_path / "draft", n_draft, of_draft, n_layer=1, n_ctx=n_ctx[1])
        return load_pair(str(tmp_path / "draft"), str(tmp_path / "target"), threads=1, **options)

    return two


@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_a_draft_with_another_end_of_the_vocabulary_loses_nothing(two, ends):
    session = two(ends)
    prompt = "To be[PAD] or<|user|> not to be"
    for options in ({}, {"tree": (2, 1)}):
        other = session.changed(**options)
        assert decoded(other.speculative(prompt, 12)) == decoded(session.autoregressive(prompt, 12))
    draft = session.changed(temperature=1).model("draft")
    x = session.encode(prompt)
    p = draft(x, 3)
    assert p.shape == (3, session.encoder.n_vocab)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    ids = draft.network.hparams["vocabulary_map"]
    assert ids == (2048, session.encoder.n_vocab, 2047)
    assert (p[:, ids.n_shared :] == 0).all()
    as_read = [ids.unknown if token >= ids.n_shared else token for token in x]  # the draft reads a stand-in
    assert np.array_equal(p, draft(as_read, 3))


def test_another_vocabulary_is_refused(two, tmp_path):
    two((2048, [], 2048, []))
    path = tmp_path / "draft" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"].reverse()
    path.write_text(json.dumps(tokenizer))
    line = refusal(load_pair, str(tmp_path / "draft"), str(tmp_path / "target"))
    assert "have different vocabularies, so one cannot draft for the other" in line


@pytest.mark.parametrize(("n_ctx", "named"), [((48, 20), "draft"), ((20, 48), None)])
def test_the_smaller_context_bounds_the_run_and_is_named(two, tmp_path, n_ctx, named):
    session = two((2048, [], 2048, []), n_ctx)
    N = 20 - len(session.encode("To be"))
    assert len(decoded(session.speculative("To be", N))) == N
    whose = f" that the {named} {tmp_path / named} has" if named else ""
    assert f"exceed the context of 20 tokens{whose}: " in refusal(session.speculative, "To be", N + 1)
