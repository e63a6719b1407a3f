"""The law: whatever is registered, the output is the target's exactly; and each mistake that is planted shows.

Rules, drafters and filters are tested because they are registered. Each test goes along every path of a decode.
"""

from functools import partial

import pytest
from enumeration import World, output_distribution, text_distribution
from tiny import plant

from speculative.drafters import DRAFTERS
from speculative.filters import Filters
from speculative.rules import RULES, parse_rule
from speculative.support.errors import UserError

COMPOUND = ["prompt_lookup+model", "prompt_lookup+ngram", "model/ngram", "int8/model", "model/prompt_lookup+ngram"]
COMPOUND += ["model/ngram/prompt_lookup"]
RULE_NAMES = [name if limits is None else f"{name}:0.3" for name, (_, limits) in RULES.items()]
LOSSLESS = [name for name in RULE_NAMES if parse_rule(name).lossless]
WITH_LOOKAHEAD = [(name, K) for name in RULE_NAMES for K in (2, "tree") if K != "tree" or parse_rule(name).tree]
EXACT = 1e-6  # two distributions that differ by rounding alone


@pytest.fixture
def world(monkeypatch):
    return partial(World, monkeypatch)


def lookahead_of(K, drafter):
    """The options of a lookahead: a tree, auto, or a number for each level."""
    if K == "tree":
        return {"tree": (2, 1)}
    return {"K": K if K == "auto" else (K, 1, 1)[: drafter.count("/") + 1]}


def drafts_trees(drafter):
    return drafter != "users" and "/" not in drafter and all(DRAFTERS[name].tree for name in drafter.split("+"))


CASES = [
    (drafter, accept, K)
    for drafter in [*DRAFTERS, "users", *COMPOUND]
    for accept in LOSSLESS
    for K in (1, 2, "auto", "tree")
    if K != "tree" or (parse_rule(accept).tree and drafts_trees(drafter))
]


@pytest.mark.parametrize(("drafter", "accept", "K"), CASES)
def test_the_output_is_the_targets(world, drafter, accept, K):
    short = drafter != "heads" and (K == "tree" or (K == "auto" and drafter != "model"))
    assert world(drafter=drafter, accept=accept, **lookahead_of(K, drafter)).distance(3 if short else 4) < EXACT


def test_k_that_chooses_itself_takes_several_values(world):
    made = world(K="auto")
    seen = set()

    def decode(rng):
        for step in made.steps(4, rng):
            seen.add(step.drafted)
            yield step

    text_distribution(decode)
    assert seen >= {0, 1, 2}


FILTERED = [{name: SOME} for name, SOME in {"temperature": 0.5, "top_k": 2, "top_p": 0.6, "min_p": 0.4}.items()]
FILTERED += [{"draft_temperature": 0}, {"draft_temperature": 2, "top_p": 0.6}, {"temperature": 0}]


def test_every_filter_is_among_them():
    assert {name for options in FILTERED for name in options} >= {*Filters._fields}


@pytest.mark.parametrize(("accept", "K"), [(name, K) for name, K in WITH_LOOKAHEAD if name in LOSSLESS])
@pytest.mark.parametrize("filters", FILTERED, ids=str)
def test_the_output_is_the_targets_under_every_filter(world, filters, accept, K):
    assert world(accept=accept, **filters, **lookahead_of(K, "model")).distance(3) < EXACT


# ---- Rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("accept", "K"), WITH_LOOKAHEAD)
def test_a_rule_is_lossless_if_it_says_so_and_only_then(world, accept, K):
    distance = max(world(seed=seed, accept=accept, **lookahead_of(K, "model")).distance(3) for seed in range(3))
    assert distance < EXACT if parse_rule(accept).lossless else distance > 1e-3


@pytest.mark.parametrize(("accept", "K"), WITH_LOOKAHEAD)
def test_the_chance_of_acceptance_is_how_often_it_happens(world, accept, K):
    """Of the first draft, over all paths. (A tree's first siblings: one of them.)"""
    for seed in range(3):
        made = world(seed=seed, accept=accept, draft_temperature=0.7, **lookahead_of(K, "model"))

        def first(rng, made=made):
            step = next(made.steps(3, rng))
            return step.accepted > 0, made.session.rule.chances(step)[0]

        paths = output_distribution(first).items()
        accepted = sum(weight * passed for (passed, _), weight in paths)
        assert accepted == pytest.approx(sum(weight * chance for (_, chance), weight in paths), abs=EXACT)


def test_block_verification_keeps_more_than_token_by_token(world):
    for seed in range(3):
        kept = {}
        for accept in ("token", "block"):
            made = world(seed=seed, accept=accept, K=3)
            drafts = output_distribution(lambda rng, made=made: next(made.steps(4, rng)).accepted)
            kept[accept] = sum(n * chance for n, chance in drafts.items())
        assert kept["block"] > kept["token"]


# ---- Mistakes that must show -----------------------------------------------------------------------------------------


CHAIN = {"K": 2}
BLOCK = {"K": 3, "accept": "block"}
HEADS = CHAIN | {"drafter": "heads"}  # they draft from the second call on
TREE = {"tree": (2, 1)}

MISTAKES = [
    # (where, what stands there, what stands there by mistake, options with which it shows)
    ("sampling:token_by_token", "rng.random() < ratio(q[i], p[i], j)", "rng.random() < 0.7", CHAIN),
    ("sampling:token_by_token", "ratio(q[i], p[i], j)", "1 / max(1e-9, ratio(q[i], p[i], j))", CHAIN),
    ("sampling:token_by_token", "ratio(q[i], p[i], j)", "ratio(q[i + 1], p[i], j)", CHAIN),
    ("sampling:token_by_token", "residual(q[i], p[i])", "q[i]", CHAIN),
    ("sampling:token_by_token", "residual(q[i], p[i])", "residual(q[i], p[i].max())", CHAIN),
    ("sampling:token_by_token", "residual(q[i], p[i])", "residual(p[i], q[i])", CHAIN),
    ("sampling:token_by_token", "sample(q[-1], rng)", "sample(q[max(0, len(q) - 2)], rng)", CHAIN),
    ("sampling:speculative_sampling", "min(K, T - n - 1)", "K", CHAIN),
    ("sampling:max_fn", "x_max / max(x_max.sum(), np.finfo(x.dtype).tiny)", "x_max", TREE),
    ("trees:sibling_by_sibling", "remaining = residual_fn(remaining, p)", "pass", TREE),
    ("trees:sibling_by_sibling", "sample(remaining, rng)", "sample(q[node], rng)", TREE),
    ("trees:sibling_by_sibling", "sample(q[node], rng)", "sample(q[0], rng)", TREE),
    ("drafters.model:drawn_siblings", "yield token, p", "yield token, p * 0 + 1 / len(p)", TREE),
    ("rules:block_chances", "min(1.0, w[-1] * ratio(q[i - 1], proposal.p[i - 1], j))", "w[-1] * ratio(q[i - 1], proposal.p[i - 1], j)", BLOCK),
    ("rules:block_chances", "np.maximum(w[i] * q[i] - proposal.p[i], 0)", "abs(w[i] * q[i] - proposal.p[i])", BLOCK),
    ("rules:block_chances", "s / (s + (1 - w[i]))", "float(s > 0)", BLOCK),
    ("rules:block_chances", "w[i] * q[i] - proposal.p[i]", "w[i] * q[i] - proposal.p[i - 1]", BLOCK),
    ("rules:block_residual", "residual(w[i] * q[i]", "residual(q[i]", BLOCK),
    ("rules:block_by_block", "            n_accepted = i", "            n_accepted = i\n        else:\n            break", BLOCK),
    ("drafters.model:model_drafter", "sample(p_i, rng)", "sample(p_i**2, rng)", CHAIN),
    ("drafters.model:model_drafter", "return Proposal(tokens, p", "return Proposal(tokens[: sum(r[t] > 0.3 for r, t in zip(p, tokens))], p", CHAIN),
    ("drafters.lookup:prompt_lookup", "one_hot(tokens, n_vocab)", "np.full((k, n_vocab), 1 / n_vocab)", CHAIN | {"drafter": "prompt_lookup"}),
    ("drafters.heads:head_drafter", "p, [NAME]", "p[::-1], [NAME]", HEADS),
    ("drafters.staged:staged", "[*step.q[: len(step.tokens)]]", "[*step.proposal.p[: step.accepted], step.q[-1]]", {"K": (2, 1), "drafter": "model/ngram"}),
    ("drafters:first_of", "if len(proposal.tokens) > n_before", "if len(proposal.tokens) and proposal.p[0][proposal.tokens[0]] > 0.4", CHAIN | {"drafter": "model+prompt_lookup"}),
    ("drafters.user_function:checked", "(p / sums)", "(p**2 / np.sum(p**2, -1, keepdims=True))", CHAIN | {"drafter": "users"}),
    ("lookahead:AutoK.around", "n = len(x)", "proposal = proposal if len(x) % 2 or not len(proposal.p) or proposal.p[0].max() == proposal.p[0][proposal.tokens[0]] else Proposal([], [])\n        n = len(x)", {"K": "auto"}),
    ("session:Session.speculative_steps", "drafter = self.drafter(rng, target=target)", "rng, other = __import__('enumeration').twins(rng)\n    drafter = self.drafter(other, target=target)", CHAIN),
]  # fmt: skip


@pytest.mark.parametrize(("place", "old", "new", "options"), MISTAKES)
def test_a_planted_mistake_shows(world, monkeypatch, place, old, new, options):
    plant(monkeypatch, place, old, new)

    def distance(seed):
        try:
            return world(seed=seed, **options).distance(4 if options in (BLOCK, HEADS) else 3)
        except UserError:  # no token was drawn from such a p
            return 1.0

    assert any(distance(seed) > 1e-4 for seed in range(4))
