"""Every rule of acceptance in the registry: its law, what its steps record, and its twins for trees and for JAX."""

import numpy as np
import pytest
from enumeration import distance_from_target, output_distribution, random_model, text_distribution, total_variation
from tiny import decoded, one_hot, value_for

from speculative.accept import RULES
from speculative.drafters.level import level
from speculative.drafters.model import model_drafter, model_tree
from speculative.sampling import autoregressive_sampling, speculative_sampling, token_at
from speculative.trees import TreeStep, by_paths, regular, tree_speculative_sampling


@pytest.fixture(params=RULES)
def name(request):
    return request.param


@pytest.fixture
def rule(name):
    flag = RULES[name].flag
    return RULES[name].make(value_for(flag)) if flag else RULES[name].make()


def chain(rule, target, model, N, rng, greedy=False):
    return speculative_sampling([1], model_drafter(model, rng), target, N, 2, rng, rule.chain)


def tree(rule, target, model, N, rng, greedy=False):
    if rule.tree is None:
        pytest.skip("it is for chains only")
    draft = model_tree(by_paths(model), rng, greedy)
    return tree_speculative_sampling([1], draft, by_paths(target), N, regular([2, 1]), rng, rule.tree)


both = pytest.mark.parametrize("decode", [chain, tree])
MODELS = [(random_model(seed, 3), random_model(seed + 1000, 3)) for seed in range(3)]


@both
def test_a_rule_is_lossless_where_it_says_so_and_nowhere_else(rule, decode):
    distances = [
        distance_from_target(lambda rng, pair=pair: decode(rule, *pair, 3, rng), pair[0], [1], 3) for pair in MODELS
    ]
    if rule.lossless:
        assert max(distances) < 1e-6
    else:
        assert max(distances) > 1e-3


def test_a_level_inside_drafts_its_models_own_text_whatever_the_rule(rule):
    for target, model in MODELS:

        def drafted(rng, target=target, model=model):
            draft = level("a level", target, model_drafter(model, rng), 2, rng, accept=rule.inner)
            return tuple(draft([1], 3).tokens)

        expected = text_distribution(lambda rng, target=target: autoregressive_sampling([1], target, 3, rng))
        assert total_variation(output_distribution(drafted), expected) < 1e-6


@both
def test_greedy_texts_are_the_targets_whatever_the_rule(rule, decode):
    def greedy(model):
        return lambda x, n_last=1: one_hot(*model(x, n_last).argmax(axis=-1), n_vocab=3)

    for target, model in MODELS:
        target, rng = greedy(target), np.random.default_rng(0)
        expected = decoded(autoregressive_sampling([1], target, 20, rng))
        assert decoded(decode(rule, target, greedy(model), 20, rng)) == expected


def n_passed(step):
    """The depth of the last draft that passed. In a chain an earlier failure need not be the end."""
    if isinstance(step, TreeStep):
        return sum(test.passed for test in step.tests)
    return max([i for i, test in enumerate(step.tests, start=1) if test.passed], default=0)


@both
def test_what_a_step_records_is_what_happened(rule, decode):
    target, model = MODELS[0]
    outcomes = set()
    for step in decode(rule, target, model, 300, np.random.default_rng(0)):
        assert step.tokens[-1] == token_at(*step.own)
        drafts = set(map(int, step.proposal.tokens))
        assert drafts.issuperset(step.tokens[: step.accepted])
        assert n_passed(step) == step.accepted
        assert all(0 <= test.u < 1 for test in step.tests)
        assert all(0 <= chance <= 1 + 1e-6 for chance in rule.chances(step))
        outcomes.add(step.accepted)
    assert len(outcomes) > 1


@both
def test_the_chance_of_acceptance_is_how_often_it_comes(rule, decode):
    """At the first place, over all paths. Siblings are the likeliest tokens, and not drawn."""
    for target, model in MODELS:
        sums = np.zeros(2)

        def first(rng, target=target, model=model):
            step = next(decode(rule, target, model, 3, rng, greedy=True))
            return step.accepted > 0, round(rule.chances(step)[0], 9)

        for outcome, weight in output_distribution(first).items():
            sums += weight * np.array(outcome)
        assert sums[0] == pytest.approx(sums[1], abs=1e-6)


def test_jax_has_it_too_or_it_says_why_not(name):
    pytest.importorskip("jax")
    from speculative.engines.jax import sampling

    assert name in sampling.RULES or (RULES[name].flag.only_engine, bool(RULES[name].flag.why)) == ("numpy", True)
