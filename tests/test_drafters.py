"""Every drafter: what it proposes, and that the loop's output is the target's, exactly, whoever drafts."""

import itertools
import re
from functools import cache

import numpy as np
import pytest
from conftest import MODELS
from drafting import Network, drafter_of, prepared
from enumeration import distance_from_target, random_model, remembered
from hypothesis import given
from hypothesis import strategies as st
from speculative.drafters.level import level
from tiny import N_VOCAB, counting_target, one_hot, refusal

from speculative import drafters, load_pair
from speculative.cli.verifying import verify_session
from speculative.drafters import KINDS, first_of, first_tree_of, is_model, needs, parse_drafter
from speculative.drafters.base import NOTHING, Proposal
from speculative.drafters.lookup import lookup_tree, prompt_lookup
from speculative.drafters.ngram import ngram_log_model
from speculative.filters import Filters
from speculative.lookahead import AutoK, decode_chain
from speculative.trees import regular

slow = pytest.mark.slow

LEVELS = ["model/ngram", "model/prompt_lookup", "ngram/prompt_lookup", "model/prompt_lookup+ngram"]
LEVELS += ["model/ngram/prompt_lookup"]
NAMES = [*KINDS, "prompt_lookup+model", "prompt_lookup+ngram", *LEVELS]


# Prompt lookup and n-grams

ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids.filter(len), st.integers(0, 7), st.integers(1, 3))
def test_prompt_lookup_finds_what_a_plain_search_finds(x, k, n_max):
    """The last place of the longest match, read on as if what followed it were repeated."""
    tokens, p, by = prompt_lookup(4, n_max)(np.array(x), k)
    expected = []
    for n in range(1, min(n_max, len(x) - 1) + 1):
        for place in range(len(x) - n):
            if x[place : place + n] == x[-n:]:
                expected = [*itertools.islice(itertools.cycle(x[place + n :]), k)]
    assert tokens == expected
    assert by == ["prompt_lookup"] * len(expected)
    assert p.dtype == np.float32
    assert np.asarray(p).tolist() == one_hot(*expected, n_vocab=4).tolist()


def plain_ngram(text, x, n_vocab, n_max):
    """The definition, counted by hand: the text and x are two sequences, no n-gram spans both."""
    p = [(text.count(t) + x.count(t) + 1 / n_vocab) / (len(text) + len(x) + 1) for t in range(n_vocab)]
    for n in range(2, min(n_max, len(x) + 1) + 1):
        context = x[len(x) - n + 1 :]
        followed_by = [s[i + n - 1] for s in (text, x) for i in range(len(s) - n + 1) if s[i : i + n - 1] == context]
        types = len(set(followed_by))
        if followed_by:
            p = [(followed_by.count(t) + types * p[t]) / (len(followed_by) + types) for t in range(n_vocab)]
    return p


@given(ids, ids.filter(len), st.integers(1, 4), st.data())
def test_ngram_is_its_definition_whatever_it_saw_before(text, x, n_max, data):
    log_model = ngram_log_model(4, text, n_max)
    cut = data.draw(st.integers(1, len(x)))
    for seen in (x, x[:cut], x[:cut] + x):
        [log_p] = log_model(seen)
        assert log_p.dtype == np.float32
        np.testing.assert_allclose(np.exp(log_p), plain_ngram(text, seen, 4, n_max), rtol=1e-5)


def test_ngram_keys_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="5-grams over 50257"):
        ngram_log_model(50257, [1, 2], n_max=5)


# Several, and their names


def test_the_first_that_has_anything_proposes():
    asked = []
    one = Proposal([1], [[0, 1]], ["one"])
    nothing, says_one, other = (lambda x, k, said=said: asked.append(said) or said for said in (NOTHING, one, "other"))
    assert first_of(nothing, says_one, other)([0], 1) == one
    assert asked == [NOTHING, one]  # the rest draw nothing
    assert len(first_of(nothing, nothing)([0], 1).tokens) == 0
    x = np.array([1, 2, 1])
    nobody = lambda x, shape: drafters.Tree([int(x[-1])], by="nobody")  # noqa: E731
    for order in ((nobody, lookup_tree(3)), (lookup_tree(3), nobody)):
        tree = first_tree_of(*order)(x, regular([2, 1]))
        assert (tree.tokens, tree.by) == ([1, 2, 1], "prompt_lookup")
    assert first_tree_of(nobody, nobody)(x, regular([2])).tokens == [1]


def test_a_name_is_levels_of_kinds():
    named = [[kind.name for kind in kinds] for kinds in parse_drafter("model/self/prompt_lookup+ngram")]
    assert named == [["model"], ["self"], ["prompt_lookup", "ngram"]]
    drafters = ["model", "ngram", "prompt_lookup+model", "model/ngram", "ngram/prompt_lookup+heads"]
    assert [needs(name, "draft") for name in drafters] == [True, False, True, True, False]
    assert [is_model(name) for name in drafters] == [True, False, False, False, False]


UNKNOWN = f": there are {', '.join(KINDS)}; "
WRONG = ["", "Model", "model+", "ngram+nothing", "a b", "/", "model/", "/model", "model//ngram"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *((name, UNKNOWN) for name in WRONG),
        ("prompt_lookup/model", "drafts for prompt_lookup, which has no model: model, "),
        ("model/heads/ngram", "drafts for heads, which has no model: "),
        ("model+ngram/prompt_lookup", "+ stands before a /: it may join drafters of the last level alone"),
        ("model/ngram+self/prompt_lookup", "+ stands before a /"),
        ("model/ngram+model", "model stands twice"),
        ("staged", "--drafter staged is now written model/ngram"),
        ("prompt_lookup+staged_lookup", "--drafter staged_lookup is now written model/prompt_lookup"),
        ("ngrm", "(did you mean ngram?)"),
        ("model/" * 10**5, "unknown drafter ''"),
        ("a" * 10**6, "there are model, "),
        ("a\n\u202eb/model", "there are model, "),
        ("model+" + "ngram+" * 10**5 + "ngram/self", "ngram stands twice"),
    ],
)
def test_what_the_grammar_refuses_in_a_line(name, line):
    said = refusal(parse_drafter, name)
    assert line in said
    assert len(said) < 500


# Levels


def says(name, right):
    """A drafter of the model that counts, whose first `right` tokens of each proposal are the ones that come."""

    def draft(x, k):
        tokens = [(int(x[-1]) + 1 + i + (i >= right)) % N_VOCAB for i in range(k)]
        return Proposal(tokens, one_hot(*tokens), [name] * k)

    return draft


def test_each_token_of_a_level_is_its_proposers():
    """Whatever the level accepts is the inner drafter's; what it resamples, or adds as a bonus, is its own."""
    rng = np.random.default_rng(0)
    one = level("middle", counting_target, says("inner", 1), 2, rng)
    assert one([0], 5)[::2] == ([1, 2, 3, 4, 5], ["inner", "middle", "inner", "middle", "middle"])
    two = level("outer", counting_target, one, 3, rng)  # the middle one is always right
    assert two([0], 6)[::2] == ([1, 2, 3, 4, 5, 6], [*("inner", "middle", "middle"), "outer", "middle", "outer"])
    auto = level("outer", counting_target, says("inner", 9), AutoK(clock=lambda: 0.0), rng)
    for begin, k in itertools.product(range(30), range(4)):  # one proposal's lesson may be a window of no drafts
        tokens, p, by = auto([begin % N_VOCAB], k)
        assert tokens == [(begin + 1 + i) % N_VOCAB for i in range(k)]
        assert len(by) == len(p) == k
        assert {*by} <= {"inner", "outer"}


# The output distribution, computed and not sampled


@cache
def tempered(seed, temperature):
    def model(x, n_last):
        with np.errstate(divide="ignore"):
            return Filters(temperature)(np.log(random_model(seed, 3)(x, n_last)))

    return remembered(model)


# Every K with drafts that are one-hot and that may be any token, and with sharper and flatter ones where K is 2.
@pytest.mark.parametrize(("K", "temperature"), [(1, 0), (2, 0), (3, 1), (2, 0.5), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_output_is_the_targets_exactly(name, K, temperature, tmp_path):
    target, verdicts = random_model(7, 3), np.zeros(2, int)  # [accepted, rejected], over all paths
    N = min(K + 2, 4)
    network = Network(3)
    models = {"draft": tempered(1007, temperature), "copy": tempered(2007, temperature), "target": network}
    parts = {"filters": Filters(temperature), "models": models, "greedy": temperature == 0}
    parts |= {"prepared": prepared(name, tmp_path, network, [0, 1, 2, 0, 1, 1])}
    proposers = set()

    def decode(rng):
        drafter = drafter_of(name, rng, 3, **parts).chain

        def draft(x, k):
            proposal = drafter(x, k)
            assert len(proposal.by) == len(proposal.tokens)
            proposers.update(proposal.by)
            return proposal

        for step in decode_chain([0, 1, 0, 1], draft, target, N, K, rng):
            verdicts[:] += [step.accepted, step.accepted < step.drafted]
            yield step

    assert distance_from_target(decode, target, [0, 1, 0, 1], N) < 1e-6
    assert verdicts.min() > 0
    parts_of_it = {*re.split(r"[+/]", name)}
    assert proposers <= parts_of_it
    if (K, temperature) == (3, 1) and name.count("/") < 2:  # there is room for what the innermost proposes
        assert proposers == parts_of_it


# For the others the distribution is computed above; here it is seen with a real vocabulary and its caches.
@pytest.mark.parametrize("name", [n if n == "model/ngram" else pytest.param(n, marks=slow) for n in NAMES])
def test_nothing_is_lost_on_the_bundled_pair(name, capsys):
    pair = load_pair("tiny-draft", "tiny-target", MODELS, drafter=name, K=2, temperature=1, top_k=3)
    prompt = "It was upon a bitterly cold night in the winter of"
    verify_session(pair.changed(n_tokens_to_generate=10), prompt, (), draws=50)
    assert "Verdict: no loss found" in capsys.readouterr().out
