"""Every drafter: what it proposes, and that the loop's output is the target's, exactly, whoever drafts."""

import importlib
import itertools
from functools import cache

import numpy as np
import pytest
from enumeration import broken, distance_from_target, output_distribution, random_model, remembered, total_variation
from hypothesis import given
from hypothesis import strategies as st
from tiny import HPARAMS, N_VOCAB, convert, counting_target, one_hot, random_params

from plumbing.errors import UserError
from speculative import drafters
from speculative.drafters import KINDS, first_of, first_tree_of, is_model, make_drafter, needs, parse_drafter
from speculative.drafters.base import NOTHING, Parts, Proposal
from speculative.drafters.level import level
from speculative.drafters.lookup import lookup_tree, prompt_lookup
from speculative.drafters.model import model_drafter
from speculative.drafters.ngram import ngram_model
from speculative.engines.packed import packer
from speculative.engines.plain import CachedModel
from speculative.engines.runtime import new_pass
from speculative.filters import GREEDY, Filters
from speculative.lookahead import AutoK, decode_chain
from speculative.sampling import autoregressive_sampling, speculative_sampling
from speculative.trees import regular

slow = pytest.mark.slow
level_module = importlib.import_module("speculative.drafters.level")  # a function has its name

LEVELS = ["model/ngram", "model/prompt_lookup", "ngram/prompt_lookup", "model/prompt_lookup+ngram"]
LEVELS += ["model/ngram/prompt_lookup"]
NAMES = [*(name for name in KINDS if name != "heads"), "prompt_lookup+model", "prompt_lookup+ngram", *LEVELS]


def log_itself(log_p):
    """What ngram.KIND prepares: the filters are applied to it later."""
    return log_p


def log_identity(log_p):
    return np.exp(log_p)


# Prompt lookup


@pytest.mark.parametrize(
    ("x", "k", "expected"),
    [
        ([1, 2, 3, 4], 4, []),  # nothing stood before
        ([5], 4, []),
        ([1, 2, 9, 1, 2, 8, 1, 2], 1, [8]),  # the last of two places
        ([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 2, [7, 2]),  # three tokens, before the two that stood later
        ([4, 3, 9, 5, 3], 2, [9, 5]),  # one token will do
        ([1, 2, 3, 1, 2, 3], 7, [1, 2, 3, 1, 2, 3, 1]),  # as if x repeated for ever
        ([6, 6], 3, [6, 6, 6]),
        ([1, 2, 1], 0, []),
    ],
)
def test_prompt_lookup(x, k, expected):
    tokens, p, by = prompt_lookup(10)(x, k)
    assert tokens == expected and by == ["prompt_lookup"] * len(expected)
    assert p.dtype == np.float32 and np.asarray(p).tolist() == one_hot(*expected, n_vocab=10).tolist()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 3))
def test_prompt_lookup_finds_what_a_plain_search_finds(x, n_max):
    tokens = prompt_lookup(3, n_max)(np.array(x), 1).tokens
    for n in range(min(n_max, len(x) - 1), 0, -1):
        places = [i for i in range(len(x) - n) if x[i : i + n] == x[-n:]]
        if places:
            assert tokens == [x[places[-1] + n]]
            return
    assert tokens == []


# N-grams


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


ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids, ids.filter(len), st.integers(1, 4))
def test_ngram_is_its_definition(text, x, n_max):
    [p] = ngram_model(4, log_identity, text, n_max)(x)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p, plain_ngram(text, x, 4, n_max), rtol=1e-5)


@given(ids, ids.filter(len), st.floats(0, 5))
def test_ngram_rows_sum_to_1_at_every_temperature(text, x, temperature):
    p = ngram_model(4, Filters(temperature=temperature), text)(x, n_last=len(x))
    np.testing.assert_allclose(p.sum(axis=-1), 1, atol=1e-6)
    assert (p > 0).all() or temperature < 0.5  # so close to 0 a probability may be too small for a float32
    if temperature == 0:
        assert ((p == 0) | (p == 1)).all()


def test_ngram_remembers_no_x():
    """x grows, is cut back and is replaced: the rows are those of a model that has seen nothing else."""
    used = ngram_model(5, log_identity, [1, 2, 3])
    for x in ([1, 2, 1, 2], [1, 2, 1, 2, 3, 3], [1, 2, 1, 4], [4], [1, 2, 1, 2]):
        assert used(x).tolist() == ngram_model(5, log_identity, [1, 2, 3])(x).tolist()


def test_ngram_by_hand():
    # Nothing but one token: a uniform distribution that weighs 1, and one 0.
    np.testing.assert_allclose(ngram_model(4, log_identity)([0]), [[1.25 / 2, 0.25 / 2, 0.25 / 2, 0.25 / 2]])
    # After 0 1 0: singles (2.25, 1.25, .25, .25) / 4; once a 1 came after 0, so half of it is that.
    np.testing.assert_allclose(
        ngram_model(4, log_identity)([0, 1, 0]), [[2.25 / 8, 1.25 / 8 + 0.5, 0.25 / 8, 0.25 / 8]]
    )


def test_ngram_keys_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="5-grams over 50257"):
        ngram_model(50257, log_identity, [1, 2], n_max=5)


# first_of, names


def test_first_of():
    one = Proposal([1], [[0, 1]], ["one"])
    two = Proposal([0], [[1, 0]], ["two"])
    nothing, says_one, says_two = (lambda x, k, said=said: said for said in (NOTHING, one, two))
    assert first_of(nothing, says_one, says_two)([0], 1) == one
    assert first_of(says_two, says_one)([0], 1) == two
    assert len(first_of(nothing, nothing)([0], 1).tokens) == 0


def test_what_is_not_asked_draws_nothing():
    asked = []
    first_of(prompt_lookup(3), lambda x, k: asked.append(k) or NOTHING)([1, 1], 2)
    assert asked == []


def test_first_tree_of():
    x = np.array([1, 2, 1])
    said = [lambda x, shape: drafters.Tree([int(x[-1])], by="nobody"), lookup_tree(3)]
    for order in (said, said[::-1]):
        tree = first_tree_of(*order)(x, regular([2, 1]))
        assert tree.tokens == [1, 2, 1] and tree.by == "prompt_lookup"
    assert first_tree_of(said[0], said[0])(x, regular([2])).tokens == [1]


def test_names():
    def named(text):
        return [[kind.name for kind in kinds] for kinds in parse_drafter(text)]

    assert named("model") == [["model"]] and named("prompt_lookup+model") == [["prompt_lookup", "model"]]
    assert named("model/ngram") == [["model"], ["ngram"]]
    assert named("model/self/prompt_lookup+ngram") == [["model"], ["self"], ["prompt_lookup", "ngram"]]
    assert needs("prompt_lookup+model", "draft") and needs("model", "draft") and needs("model/ngram", "draft")
    assert not needs("prompt_lookup", "draft") and not needs("ngram/prompt_lookup+heads", "draft")
    assert is_model("model") and not any(map(is_model, ["prompt_lookup+model", "model/ngram", "ngram"]))


@pytest.mark.parametrize(
    "name", ["", "Model", "model+", "ngram+nothing", "a b", "/", "model/", "/model", "model//ngram"]
)
def test_a_name_that_does_not_exist(name):
    with pytest.raises(UserError, match=f"unknown drafter .*there are {', '.join(KINDS)}; "):
        parse_drafter(name)


@pytest.mark.parametrize(
    ("name", "line"),
    [
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
    with pytest.raises(UserError) as caught:
        parse_drafter(name)
    said = str(caught.value)
    assert line in said and len(said) < 500 and said.isprintable()


# Levels


def test_a_level_gives_its_models_own_rows_and_exactly_k():
    model = random_model(3, 4)
    rng = np.random.default_rng(0)
    x, inner_accepted = [1, 2, 1, 2], 0
    for k in [*range(6)] * 20:
        calls = []
        draft = level(
            "outer", lambda x, n_last, calls=calls: calls.append(0) or model(x, n_last), prompt_lookup(4), 2, rng
        )
        tokens, p, by = draft(x, k)
        assert len(tokens) == len(p) == k == len(by)
        assert {*by} <= {"outer", "prompt_lookup"} and by.count("outer") == len(calls)  # a token of its own a call
        inner_accepted += k - len(calls)
        if k:
            assert np.array(p).tolist() == model([*x, *tokens[:-1]], n_last=k).tolist()
    assert inner_accepted > 0


def test_a_levels_tokens_are_distributed_as_its_models():
    model, x = random_model(5, 3), [1, 0, 1]
    expected = output_distribution(lambda rng: tuple(model_drafter(model, rng)(x, 4).tokens))
    actual = output_distribution(lambda rng: tuple(level("outer", model, prompt_lookup(3), 2, rng)(x, 4).tokens))
    assert len(expected) > 4
    assert total_variation(expected, actual) < 1e-6


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
    none = level("outer", counting_target, says("inner", 0), 3, rng)
    assert none([0], 3).by == ["outer"] * 3


@pytest.mark.parametrize("k", range(4))
def test_a_level_whose_k_chooses_itself(k):
    """With what it has learned in one proposal, the next may begin with a window of no drafts."""
    auto, rng = AutoK(clock=lambda: 0.0), np.random.default_rng(0)
    draft = level("outer", counting_target, says("inner", 9), auto, rng)
    for begin in range(30):
        tokens, p, by = draft([begin % N_VOCAB], k)
        assert tokens == [(begin + 1 + i) % N_VOCAB for i in range(k)]
        assert len(by) == len(p) == k and {*by} <= {"inner", "outer"}


def distances_of_levels(n_levels, level):
    """Over a vocabulary of two: the target's law against that of a decode with so many levels of drafting."""
    for seed in range(3):
        target, outer, middle, innermost = (random_model(1000 * i + seed, 2) for i in range(4))
        models = [outer, middle][: n_levels - 1]

        def decode(rng, target=target, models=models, innermost=innermost):
            draft = model_drafter(innermost, rng, "innermost")
            for K, model in enumerate(models[::-1], start=1):
                draft = level("a level", model, draft, K, rng)
            return speculative_sampling([1], draft, target, 4, 3, rng)

        yield distance_from_target(decode, target, [1], 4)


@pytest.mark.parametrize("n_levels", [2, 3])
def test_two_and_three_levels_are_exact(n_levels):
    assert max(distances_of_levels(n_levels, level)) < 1e-6


ROWS = "p += [*q[: len(step.tokens)]]"
LEVEL_MUTANTS = {
    "the bonus forgotten": ("tokens += step.tokens", "tokens += step.tokens[: step.drafted] or step.tokens"),
    "the inner draft's p": (ROWS, "p += [*proposal.p, *q[len(proposal.p) :]][: len(step.tokens)]"),
    "the window's last row for all": (ROWS, "p += [q[-1]] * len(step.tokens)"),
}


@pytest.mark.parametrize("n_levels", [2, 3])
@pytest.mark.parametrize("mutant", LEVEL_MUTANTS)
def test_a_broken_level_is_seen(mutant, n_levels):
    module = broken(level_module, *LEVEL_MUTANTS[mutant])
    assert max(distances_of_levels(n_levels, module.level)) > 1e-3


# The output distribution, computed and not sampled


@cache
def tempered(seed, temperature):
    def model(x, n_last):
        with np.errstate(divide="ignore"):
            return Filters(temperature)(np.log(random_model(seed, 3)(x, n_last)))

    return remembered(model)


@cache
def small_ngram(to_probs=log_itself):
    return remembered(ngram_model(3, to_probs, [0, 1, 2, 0, 1, 1]))


def parts(name, rng, temperature):
    models = {"draft": tempered(1007, temperature), "copy": tempered(2007, temperature)}
    return Parts(
        3, rng, Filters(temperature), models=models, prepared={"ngram": small_ngram()}, inner_K=(1,) * name.count("/")
    )


# Every K with drafts that are one-hot and that may be any token, and with sharper and flatter ones where K is 2.
@pytest.mark.parametrize(("K", "temperature"), [*itertools.product([1, 2, 3], [0, 1]), (2, 0.5), (2, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_output_is_the_targets_exactly(name, K, temperature):
    target, verdicts = random_model(7, 3), np.zeros(2, int)  # [accepted, rejected], over all paths
    N = min(K + 2, 4)

    def decode(rng):
        draft = make_drafter(name, parts(name, rng, temperature)).chain
        for step in decode_chain([0, 1, 0, 1], draft, target, N, K, rng):
            verdicts[:] += [step.accepted, step.accepted < step.drafted]
            yield step

    assert distance_from_target(decode, target, [0, 1, 0, 1], N) < 1e-6
    assert verdicts.min() > 0


@pytest.mark.parametrize("mistake", ["not one-hot", "without temperature", "inner rows"])
def test_a_made_up_p_is_seen(mistake):
    target, lookup = random_model(7, 3), prompt_lookup(3)
    raw, sharp = small_ngram(Filters()), small_ngram(Filters(0.5))

    def decode(rng):
        def draft(x, k):
            if mistake == "not one-hot":
                tokens, p, by = lookup(x, k)
                return Proposal(tokens, np.asarray(p) * np.float32(0.5) + np.float32(0.5 / 3), by)
            drawn_from = level("model", tempered(7, 0.5), model_drafter(raw, rng), 1, rng)
            if mistake == "without temperature":
                drawn_from = model_drafter(sharp, rng)
            tokens = drawn_from(x, k).tokens
            return Proposal(tokens, raw(np.append(x, tokens).astype(int), k + 1)[:k] if k else [])

        return speculative_sampling([0, 1, 0, 1], draft, target, 4, 2, rng)

    assert distance_from_target(decode, target, [0, 1, 0, 1], 4) > 1e-3


# Greedy equality on networks, and a chi-square on the bundled pair


def network(seed):
    return CachedModel(random_params(seed=seed), HPARAMS, GREEDY)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_output_is_the_targets_for_every_drafter_and_k(name):
    target, draft_model = network(0), network(1)
    for prompt in ([3, 1, 4, 1, 5], [9, 9, 9], [2, 7, 2, 7, 2]):
        N = HPARAMS["n_ctx"] - len(prompt)
        run = lambda steps: [t for s in steps for t in s.tokens]  # noqa: E731
        expected = run(autoregressive_sampling(prompt, target, N, np.random.default_rng(0)))
        for K in [*range(1, 9), "auto"]:
            rng = np.random.default_rng(0)
            models = {"draft": draft_model, "copy": network(0)}
            prepared = {"ngram": ngram_model(50, log_itself, [1, 2, 3])}
            inner_K = (4,) * name.count("/")
            parts = Parts(50, rng, GREEDY, greedy=True, models=models, prepared=prepared, inner_K=inner_K)
            draft = make_drafter(name, parts).chain
            lookahead = AutoK() if K == "auto" else K
            assert run(decode_chain(prompt, draft, target, N, lookahead, rng)) == expected


def chi_square(name, target, draft_model, n_vocab, to_probs, prompt, runs, rng):
    """(statistic, degrees of freedom) of the loop's 3 tokens against their exact probabilities under the target."""
    probability = {(): 1.0}
    for _ in range(3):
        rows = {head: target([*prompt, *head])[0] for head in probability}
        probability = {
            (*h, int(t)): w * float(rows[h][t]) for h, w in probability.items() for t in np.flatnonzero(rows[h])
        }
    prepared = {"ngram": ngram_model(n_vocab, log_itself)}
    models = {"draft": draft_model, "copy": draft_model}
    inner_K = (2,) * name.count("/")
    parts = Parts(n_vocab, rng, to_probs, models=models, prepared=prepared, inner_K=inner_K)
    draft = make_drafter(name, parts).chain
    counts = dict.fromkeys(probability, 0)
    for _ in range(runs):
        steps = speculative_sampling(prompt, draft, target, 3, 2, rng)
        counts[tuple(t for s in steps for t in s.tokens)] += 1  # a KeyError is an output of probability 0
    frequent = [h for h, w in probability.items() if w * runs >= 5]
    rest = 1 - sum(probability[h] for h in frequent)
    cells = [(counts[h], probability[h]) for h in frequent]
    cells += [(runs - sum(n for n, _ in cells), rest)] if rest * runs >= 1 else []
    return sum((n - w * runs) ** 2 / (w * runs) for n, w in cells), len(cells) - 1


# For the others the distribution is computed above; here it is seen with a real vocabulary and its caches.
@pytest.mark.parametrize("name", [n if n in ("model", "model/ngram") else pytest.param(n, marks=slow) for n in NAMES])
def test_chi_square_on_the_bundled_pair(bundled, name):
    to_probs = Filters(temperature=1, top_k=3)
    target, draft_model = (
        CachedModel(convert(params, packer("float32")), hparams, to_probs, new_pass)
        for _, hparams, params in bundled.values()
    )
    encoder = bundled["tiny-target"][0]
    prompt = encoder.encode("It was upon a bitterly cold night in the winter of")
    rng = np.random.default_rng(0)
    statistic, n = chi_square(name, target, draft_model, encoder.n_vocab, to_probs, prompt, 300, rng)
    # Wilson and Hilferty 1931: (chi^2 / n)^(1/3) is about normal; 3.7 sigmas leave 1 in 10,000
    assert n >= 4
    assert (statistic / n) ** (1 / 3) < 1 - 2 / (9 * n) + 3.7 * (2 / (9 * n)) ** 0.5
