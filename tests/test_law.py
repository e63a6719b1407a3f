"""The law: whatever is registered, the output is the target's exactly; and each mistake that is planted shows.

Rules, drafters and filters are tested because they are registered. Each test goes along every path of a decode.
"""

from functools import partial
from itertools import groupby
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
from enumeration import World, text_distribution
from tiny import plant, python

import speculative
from speculative import loading, sampling
from speculative.drafters import DRAFTERS
from speculative.filters import Filters
from speculative.law import check as check_law
from speculative.law.cases import CASES, law_of_model
from speculative.law.check import decoder_of
from speculative.law.paths import EXACT, distance, law_of
from speculative.law.texts import law_of_texts, somebodys_code
from speculative.rules import RULES, parse_rule
from speculative.support.errors import UserError

COMPOUND = ["prompt_lookup+model", "prompt_lookup+ngram", "model/ngram", "int8/model", "model/prompt_lookup+ngram"]
COMPOUND += ["model/ngram/prompt_lookup", "int8/prompt_lookup+model"]
RULE_NAMES = [name if limits is None else f"{name}:0.3" for name, (_, limits) in RULES.items()]
LOSSLESS = [name for name in RULE_NAMES if parse_rule(name).lossless]
WITH_LOOKAHEAD = [(name, K) for name in RULE_NAMES for K in (2, "tree") if K != "tree" or parse_rule(name).accept_tree]


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


DECODES = [
    (drafter, accept, K)
    for drafter in [*DRAFTERS, "users", *COMPOUND]
    for accept in LOSSLESS
    for K in (1, 2, "auto", "tree")
    if K != "tree" or (parse_rule(accept).accept_tree and drafts_trees(drafter))
]


@pytest.mark.parametrize(("drafter", "accept", "K"), DECODES)
def test_the_output_is_the_targets(world, drafter, accept, K):
    short = drafter != "heads" and (K == "tree" or (K == "auto" and drafter != "model"))
    assert world(drafter=drafter, accept=accept, **lookahead_of(K, drafter)).distance(3 if short else 4) < EXACT


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_p": 0.6}], ids=str)
def test_the_output_of_fast_is_the_targets(world, monkeypatch, options, large):
    monkeypatch.setattr(loading, "LARGE_BYTES", 0 if large else 1e9)  # a large target has a copy, which drafts
    made = world(fast=True, **options)
    assert made.session.options.drafter == "int8/" * large + "prompt_lookup+model"
    assert made.distance(4) < EXACT


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

        paths = law_of(first).items()
        accepted = sum(weight * passed for (passed, _), weight in paths)
        assert accepted == pytest.approx(sum(weight * chance for (_, chance), weight in paths), abs=EXACT)


def test_block_verification_keeps_more_than_token_by_token(world):
    for seed in range(3):
        kept = {}
        for accept in ("token", "block"):
            made = world(seed=seed, accept=accept, K=3)
            drafts = law_of(lambda rng, made=made: next(made.steps(4, rng)).accepted)
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
    ("drafters.heads:head_drafter", "p[:m], [NAME]", "p[:m][::-1], [NAME]", HEADS),
    ("drafters.staged:staged", "[*step.q[:n]]", "[*step.proposal.p[: step.accepted], step.q[-1]]", {"K": (2, 1), "drafter": "model/ngram"}),
    ("drafters:first_of", "if len(proposal.tokens) > n_before", "if len(proposal.tokens) and proposal.p[0][proposal.tokens[0]] > 0.4", CHAIN | {"drafter": "model+prompt_lookup"}),
    ("user_functions:proposal_of", "(p / sums)", "(p**2 / np.sum(p**2, -1, keepdims=True))", CHAIN | {"drafter": "users"}),
    ("lookahead:AutoK.drafter_of", "n = len(x)", "proposal = proposal if len(x) % 2 or not len(proposal.p) or proposal.p[0].max() == proposal.p[0][proposal.tokens[0]] else Proposal([], [])\n        n = len(x)", {"K": "auto"}),
    ("drafters.model:model_drafter", "if not stop.go_on(sure[-1]):", "if p_i[tokens[-1]] < 0.4 and (tokens.pop(), p.pop(), sure.pop()):", {"K": "auto"}),
    ("session:PythonDecoders.calls", "drafter = s.drafter(rng, target=target)", "rng, other = __import__('enumeration').twins(rng)\n        drafter = s.drafter(other, target=target)", CHAIN),
]  # fmt: skip


@pytest.mark.parametrize(("place", "old", "new", "options"), MISTAKES)
def test_a_planted_mistake_shows(world, monkeypatch, place, old, new, options):
    plant(monkeypatch, place, old, new)

    def distance(seed):
        try:
            return world(seed=seed, **options).distance(4 if options in (BLOCK, HEADS) else 3)
        except UserError:  # no token was drawn from such a p
            return 1.0

    assert any(distance(seed) > 1e-4 for seed in range(6))


# ---- Anyone's function ----------------------------------------------------------------------------------------------

IN_THE_BLOGS_FORM = """
import math
import random
from random import random as from_random

import numpy as np

OF_A_MODULE = np.random.default_rng(0)
TWIN = np.random.default_rng(0)

def positive_part(x):
    kept = np.where(x > 0, x, 0)
    return kept / np.sum(kept)

def draw(p):
    return np.random.choice(np.arange(p.shape[-1]), p=p)

def top(p, k):
    kept = np.where(p >= np.sort(p)[..., -k:][..., :1], p, 0)
    return kept / kept.sum(-1, keepdims=True)

def nucleus(p, share):
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order].astype(float)) - p[order]
    return positive_part(np.where(np.isin(np.arange(len(p)), order[before < share]), p, 0))

def at_least(p, least):
    kept = np.where(p >= least, p, 0)
    return kept / kept.sum(-1, keepdims=True)

def tempered(p, t):
    kept = p ** (1 / t)
    return kept / kept.sum(-1, keepdims=True)

def rounded(p):
    bits = (p.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return bits / bits.sum(-1, keepdims=True)

def speculative_sampling(x, draft_model, target_model, N, K):
    T = len(x) + N
    full = False
    while len(x) < T:
        n = len(x)
        x_draft = x
        for _ in range(K):
            x_draft = np.append(x_draft, draw(draft_model(x_draft)[-1]))
        p = draft_model(x_draft)
        q = target_model(x_draft)
        full = True
        for i in range(n - 1, len(x_draft) - 1):
            j = x_draft[i + 1]
            if np.random.random() < min(1, q[i][j] / p[i][j]):
                x = np.append(x, j)
            else:
                x = np.append(x, draw(positive_part(q[i] - p[i])))
                full = False
                break
        if full:
            x = np.append(x, draw(q[-1]))
    return x
"""

DRAFT = "draw(draft_model(x_draft)[-1])"
P, Q = "p = draft_model(x_draft)", "q = target_model(x_draft)"
TEST, RATIO = "np.random.random() < min(1, q[i][j] / p[i][j])", "q[i][j] / p[i][j]"
REST, LEFT = "draw(positive_part(q[i] - p[i]))", "q[i] - p[i]"
BONUS = "draw(q[-1])"
BREAK = "full = False\n                break"
APPEND = "x = np.append(x, j)"

# fmt: off
MISTAKES_OF_ANYONE = [
    # (a part of the cause if it is named, what stands there, what stands there by mistake, ...)
    # drafts
    ("the drafts are not drawn from the draft model's", DRAFT, "np.argmax(draft_model(x_draft)[-1])"),
    ("the drafts are not drawn from the draft model's", DRAFT, "draw(top(draft_model(x_draft)[-1], 2))"),
    ("the drafts are not drawn from the draft model's", DRAFT, "draw(rounded(draft_model(x_draft)[-1]))"),
    ("the drafts are not drawn from the draft model's", DRAFT, "draw(tempered(draft_model(x_draft)[-1], 0.7))"),
    (None, DRAFT, "draw(draft_model(x)[-1])"),
    ("the drafts are not drawn from the draft model's", DRAFT, "draw(draft_model(x_draft)[-2:][0])"),
    (None, DRAFT, "draw(draft_model(x_draft[1:] if full else x_draft)[-1])"),
    (None, DRAFT, "draw(draft_model(np.delete(x_draft, n - 2) if full else x_draft)[-1])"),
    (None, DRAFT, "draw(draft_model(np.r_[x[:-1], j, x_draft[n:]] if n > T - N and not full else x_draft)[-1])"),
    (None, P, "p = top(draft_model(x_draft), 2)"),
    (None, P, "p = tempered(draft_model(x_draft), 1.3)"),
    (None, P, "p = np.roll(draft_model(x_draft), 1, 0)"),
    (None, "        p = draft", "        x_draft = x_draft[: len(x_draft) - (K > 1 and draft_model(x_draft[:-1])[-1][x_draft[-1]] < 0.3)]\n        p = draft"),
    # the target's rows
    ("after a full acceptance the target's last row", Q, Q + "\n        q[n - 1] = last[-1] if full else q[n - 1]\n        last = q"),
    ('without their unlikely tokens', Q, "q = top(target_model(x_draft), 2)"),
    ('without their unlikely tokens', Q, "q = np.array([nucleus(row, 0.9) for row in target_model(x_draft)])"),
    ('without their unlikely tokens', Q, "q = at_least(target_model(x_draft), 0.02)"),
    (None, Q, "q = at_least(target_model(x_draft), 0.0005)"),
    ('without their unlikely tokens', Q, "q = target_model(x_draft)\n        q = at_least(q, 0.05 * q.max(-1, keepdims=True))"),
    ('at another temperature', Q, "q = tempered(target_model(x_draft), 0.9)"),
    ('without their unlikely tokens', Q, "q = top(target_model(x_draft), min(50, p.shape[1]))"),
    (None, Q, "q = target_model(x_draft).astype(np.float16).astype(float)\n        q /= q.sum(-1, keepdims=True)"),
    (None, Q, "q = np.vstack([target_model(x_draft)[:2], target_model(x_draft[1:])[1:]])"),
    (None, Q, "q = target_model(x_draft[-4:])\n        q = np.vstack([q[:1]] * (len(x_draft) - len(q)) + [q])"),
    ("after a rejection the target's cache holds the", Q, "q = target_model(np.r_[x[:-1], j, x_draft[n:]] if n > T - N and not full else x_draft)"),
    # the test
    ('every draft is accepted', RATIO, "1"),
    ('the test is p / q', RATIO, "p[i][j] / max(q[i][j], 1e-9)"),
    ('the test is q alone', RATIO, "q[i][j]"),
    (None, RATIO, "p[i][j]"),
    ('the test reads the row of q after the draft', RATIO, "q[i + 1][j] / p[i][j]"),
    (None, RATIO, "q[max(0, i - 1)][j] / p[i][j]"),
    ('the test reads the last row of q for each draft', RATIO, "q[-1][j] / p[i][j]"),
    ('the test reads the first row of q for each draft', RATIO, "q[n - 1][j] / p[i][j]"),
    (None, RATIO, "q[i][j] / p[i - 1][j]"),
    (None, RATIO, "q[i][j] / p[n - 1][j]"),
    (None, RATIO, "(q[i][j] / p[i][j]) ** 0.5"),
    (None, RATIO, "q[i][j] / p[i][j] + 0.01"),
    (None, RATIO, "q[i][j] / (p[i][j] + 1e-5)"),
    (None, RATIO, "q[i][j] / max(p[i][j], 1e-3)"),
    (None, RATIO, "1.1 * q[i][j] / p[i][j]"),
    (None, "min(1, ", "min(0.9, "),
    ('the test is the wrong way round', "np.random.random() <", "np.random.random() >"),
    (None, "np.random.random() <", "0.5 <"),
    (None, "np.random.random() <", "0.99 * np.random.random() <"),
    ('the test has no random number', TEST, "q[i][j] >= p[i][j]"),
    ("a draft is accepted if it is the target's", TEST, "j == np.argmax(q[i])"),
    (None, TEST, "q[i][j] > 0.1"),
    (None, TEST, "np.random.random() < q[i][j] / p[i][j] or np.random.random() < 0.1"),
    ('a draft of probability 0 to the target is', TEST, "q[i][j] == 0 or " + TEST),
    (None, TEST, "j == 0 or " + TEST),
    (None, TEST, "j > 2 and n > T - N or " + TEST),
    ('the first draft of a window is accepted untested', TEST, "i == n - 1 or " + TEST),
    ('from the second draft of a window on they are', TEST, "i > n - 1 or " + TEST),
    ('from the third draft of a window on they are', TEST, "i > n or " + TEST),
    ('the last token of the text is accepted untested', TEST, "len(x) == T - 1 or " + TEST),
    (None, TEST, "len(x) == T - N or " + TEST),
    (None, TEST, "q[i][j] > 0.99 or " + TEST),
    (None, TEST, "i > n + 1 or " + TEST),
    (None, TEST, "j > 1 and trust or " + TEST, "full = True\n", "trust, full = full, True\n"),
    ('more than N tokens are added', "    T = len", "    x = x[-3:]\n    T = len"),
    (None, TEST, "len(x) > 5 or " + TEST),
    (None, TEST, "abs(q[i] - p[i]).max() < 0.01 or " + TEST),
    ('after a full acceptance every draft is accepted', "        full = True\n", "        trust = full\n        full = True\n", TEST, "trust or " + TEST),
    ('one random number tests all drafts of a window', "        full = True\n", "        full = True\n        u = np.random.random()\n", "np.random.random() <", "u <"),
    ('the test is the product of the ratios so far', RATIO, "np.prod([q[k][x_draft[k + 1]] / p[k][x_draft[k + 1]] for k in range(n - 1, i + 1)])"),
    (None, "min(1, q[i][j] / p[i][j])", "min(1, q[i][j] / p[i][j]) * (1 if i == n - 1 else min(1, q[i - 1][x_draft[i]] / p[i - 1][x_draft[i]]))"),
    # the token that replaces a rejected draft
    ('from q', LEFT, "q[i]"),
    ('from p', LEFT, "p[i]"),
    ('the residual is max(0, p - q)', LEFT, "p[i] - q[i]"),
    ('the residual is |q - p|', LEFT, "abs(q[i] - p[i])"),
    ("the residual subtracts a number, the draft's p", LEFT, "q[i] - p[i][j]"),
    (None, LEFT, "q[i] - 0.5 * p[i]"),
    (None, REST, "draw(top(positive_part(q[i] - p[i]), min(20, p.shape[1])))"),
    ('the residual reads the row of q after the draft', LEFT, "q[i + 1] - p[i]"),
    ('the residual reads the last row of p', LEFT, "q[i] - p[len(x_draft) - 2]"),
    ('the residual reads the first rows of q and p', LEFT, "q[n - 1] - p[n - 1]"),
    (None, LEFT, "np.maximum(q[i] - p[i], 0) ** 2"),
    (None, LEFT, "np.maximum(q[i] - p[i], 1e-3)"),
    ('from q without it', LEFT, "np.where(np.arange(len(q[i])) == j, 0, q[i])"),
    ('the residual keeps q where it is above p,', LEFT, "np.where(q[i] > p[i], q[i], 0)"),
    ('a rejected draft is replaced by the likeliest', REST, "np.argmax(q[i] - p[i])"),
    ('the residual is not normalised before the draw', REST, "min(np.searchsorted(np.cumsum(np.maximum(q[i] - p[i], 0)), np.random.random()), len(q[i]) - 1)"),
    (None, REST, "draw(np.maximum(q[i] - p[i], 0) / (np.maximum(q[i] - p[i], 0).sum() + 1e-4))"),
    ('the random number of the test is used again to', TEST, "(u := np.random.random()) < min(1, q[i][j] / p[i][j])", REST, "np.searchsorted(np.cumsum(positive_part(q[i] - p[i])), u)"),
    # the bonus token
    ('the bonus token is drawn from the row of q', BONUS, "draw(q[-2])"),
    ('the bonus token is drawn from the first row of q', BONUS, "draw(q[n - 1])"),
    (None, BONUS, "draw(p[-1])"),
    (None, BONUS, "draw(q[-1]) if len(x) < 8 else np.argmax(q[-1])"),
    (None, BONUS, "draw(q[-1 - twice])", "    full = False\n    while", "    full, twice = False, False\n    while", "full = True\n", "twice, full = full or twice, True\n"),
    ("the bonus token is the target's likeliest", BONUS, "np.argmax(q[-1])"),
    (None, BONUS, "draw(tempered(q[-1], 0.8))"),
    (None, BONUS, "draw(top(q[-1], 2))"),
    ('the bonus token is the last draft again', BONUS, "x_draft[-1]"),
    # the window
    ('a token too many', "if full:", "if True:"),
    ('the drafts after a rejected one are still tested', BREAK, "full = False"),
    ('the drafts after a rejected one are still tested', BREAK, "pass"),
    ('more than N tokens are added', APPEND, "x = np.append(x, j) if i < n + 1 else np.append(x, [j, j])"),
    ('the accepted drafts are dropped if a later one', "x = np.append(x, draw(positive", "x = np.append(x[:n], draw(positive"),
    (None, "x = np.append(x, draw(positive", "x = np.append(x_draft[:i + 1 + (i > n)], draw(positive"),
    (None, "return x", "return np.append(x[:T - N], x[T - N:][::-1])"),
    # random numbers
    ('random numbers are used twice', P, "np.random.seed(7)\n        " + P),
    ('random numbers are used twice', P, P + "\n        gen = np.random.default_rng(K)", TEST, TEST.replace("np.random.random()", "gen.random()"), BONUS, "gen.choice(len(q[-1]), p=q[-1])"),
    ('random numbers are used twice', P, P, TEST, TEST.replace("np.random.random()", "np.random.default_rng(i - n + 1).random()")),
    ('random numbers are used twice', TEST, TEST.replace("np.random.random()", "np.random.default_rng(5).random()")),
    ('random numbers are used twice', DRAFT, "np.searchsorted(np.cumsum(draft_model(x_draft)[-1].astype(float)), OF_A_MODULE.random())", TEST, TEST.replace("np.random", "TWIN")),
    ('random numbers are used twice', "full = False\n    while", "full = False\n    one, two = np.random.default_rng(1), np.random.default_rng(1)\n    while", DRAFT, "one.choice(len(draft_model(x_draft)[-1]), p=draft_model(x_draft)[-1])", TEST, TEST.replace("np.random.random()", "two.random()")),
    ("the drafts are not drawn from the draft model's", "np.random.choice(np.arange(p.shape[-1]), p=p)", "np.random.choice(np.arange(p.shape[-1]), size=2, p=p).max()"),
    ("the drafts are not drawn from the draft model's", "np.random.choice(np.arange(p.shape[-1]), p=p)", "np.random.choice(np.arange(p.shape[-1]), size=min(2, np.sum(p > 0)), replace=False, p=p)[-1]"),
    ("the drafts are not drawn from the draft model's", "np.random.choice(np.arange(p.shape[-1]), p=p)", "int(np.argmax(np.cumsum(p) > np.random.uniform(0.05, 1)))"),
    ("the drafts are not drawn from the draft model's", "np.random.choice(np.arange(p.shape[-1]), p=p)", "int(np.argmax(np.log(p) + 0.9 * np.random.gumbel(size=len(p))))"),
]
# fmt: on


def planted(source, name, *replaced):
    """The function of this name in the source, with these texts replaced."""
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in source
        source = source.replace(old, new)
    names = {}
    exec(source, names)
    return names[name]


def in_the_blogs_form(*replaced):
    return planted(IN_THE_BLOGS_FORM, "speculative_sampling", *replaced)


def first_wrong(function, cases=CASES):
    """The first case whose law is not the target's, if any of those that are small enough."""
    decode = decoder_of(function, {})
    with somebodys_code():
        for case in cases:
            law = law_of_texts(decode, case)
            if distance(law, law_of_model(case.models()[1], case.N, case.prompt)) > EXACT:
                return case
    return None


@pytest.mark.parametrize("replaced", [row[1:] for row in MISTAKES_OF_ANYONE])
def test_a_mistake_in_the_blogs_loop_is_seen(replaced):
    assert first_wrong(in_the_blogs_form(*replaced))


@pytest.mark.slow
def test_the_cause_is_named_for_half_of_the_mistakes_and_never_another_one():
    named = 0
    some = MISTAKES_OF_ANYONE[::4]
    for words, *replaced in some:
        cause = check_law.check_law(in_the_blogs_form(*replaced)).cause
        assert cause is None or (words and words in cause), (cause, words, replaced)
        named += cause is not None
    assert named >= len(some) / 2


NAMED = [row for row in MISTAKES_OF_ANYONE if row[0]]


@pytest.mark.parametrize(("words", "replaced"), [(words, replaced) for words, *replaced in NAMED[::6]])
def test_a_cause_is_named(few_cases, words, replaced):
    assert words in check_law.check_law(in_the_blogs_form(*replaced)).words.partition("Usual cause: ")[2]


ONLY_SEEN_BY = {
    # the line of CASES: a mistake that no other line sees
    "small": ("    T = len", "    x = x[-3:]\n    T = len"),
    "near": (TEST, "abs(q[i] - p[i]).max() < 0.001 and p[i].max() < q[i].max() and len(p[i]) > 2 or " + TEST),
    "surer": (TEST, "q[i][j] > 0.99 and len(p[i]) > 2 or " + TEST),
    "coarse": (TEST, "q[i][j] == 0 and len(p[i]) < 5 or " + TEST),
    "small 5": (TEST, "len(p[i]) == 5 and j > 2 and n > T - N or " + TEST),
    "pairs": (TEST, "j > 1 and trust or " + TEST, "full = True\n", "trust, full = full, True\n"),
    "chain": (TEST, "i > n and K == 3 or " + TEST),
    "long": (TEST, "i > n + 1 or " + TEST),
    "wide": (Q, "q = top(target_model(x_draft), min(50, p.shape[1]))"),
}


@pytest.mark.slow
def test_each_line_of_the_cases_sees_a_mistake_that_only_it_sees():
    lines = [[*cases] for _, cases in groupby(CASES, key=lambda case: case[:5])]
    assert len(lines) == len(ONLY_SEEN_BY)
    for line, replaced in zip(lines, ONLY_SEEN_BY.values(), strict=True):
        function = in_the_blogs_form(*replaced)
        assert first_wrong(function, line)
        assert first_wrong(function, [case for case in CASES if case not in line]) is None, replaced


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(check_law, "CASES", CASES[::5])


def echo(x, k):  # a drafter
    return [0] * k, np.eye(3)[[0] * k]


def test_what_is_right_is_lossless_and_a_rule_as_it_says_itself(few_cases):
    rules = [parse_rule(name) for name in RULE_NAMES]
    right = [in_the_blogs_form(), sampling.speculative_sampling, sampling.sample, sampling.max_fn, echo]
    assert [check_law.check_law(function).lossless for function in right] == [True] * len(right)
    assert [check_law.check_law(rule.accept).lossless for rule in rules] == [rule.lossless for rule in rules]


U, CHOICE = "np.random.random()", "np.random.choice(np.arange(p.shape[-1]), p=p)"
IN_OTHER_STYLES = [
    # (what stands there, what stands there in another style)
    (U, "OF_A_MODULE.random()"),
    (U, "from_random()"),
    (U, "OF_A_MODULE.random(dtype=np.float32)"),
    (f"{U} <", f"1 - {U} <="),
    (TEST, f"np.log(np.random.uniform(size=1)[0]) < np.log({RATIO})"),
    (TEST, f"-math.log({U}) > -math.log(max({RATIO}, 1e-30))"),
    (TEST, f"float({U}) < float({RATIO})"),
    (TEST, f"math.log(np.clip({U}, 1e-9, 1)) < np.log({RATIO})"),
    (TEST, "np.random.uniform(-1, 0) * -p[i][j] < q[i][j]"),
    (TEST, f"1 / {U} > p[i][j] / max(q[i][j], 1e-30)"),
    (TEST, f"np.random.binomial(1, min(1, {RATIO}))"),
    (CHOICE, "np.argmax(np.log(p) + np.random.gumbel(size=len(p)))"),
    (CHOICE, "np.argmax(np.log(p) - np.log(-np.log(np.random.uniform(size=len(p)))))"),
    (CHOICE, "np.argmax(p / np.random.exponential(size=len(p)))"),
    (CHOICE, f"int(np.sum({U} > np.cumsum(p / p.sum(), dtype=float)))"),
    (CHOICE, "random.choices(range(len(p)), weights=p)[0]"),
    ("    T = len", "    rng = np.random.Generator(np.random.PCG64(7))\n    T = len", U, "rng.random()"),
    ("    T = len", "    rng = np.random.RandomState(123)\n    T = len", U, "rng.rand()"),
    ("    T = len", "    random.seed(5)\n    T = len", U, "random.random()"),
    ("    return x", "    return tuple(x[T - N :])"),
    ("    return x", "    return np.array([x])"),
    ("    return x", "    yield from x"),
]  # fmt: skip


@pytest.mark.parametrize("replaced", IN_OTHER_STYLES)
def test_a_right_loop_in_another_style_is_lossless(few_cases, replaced):
    assert speculative.law(in_the_blogs_form(*replaced)).lossless


# ---- The ways of others -----------------------------------------------------------------------------------------------

WAYS = """
import numpy as np

def race(weights, rng):  # an exponential time for each id: the first one wins
    return int(np.argmax(weights / rng.exponential(size=len(weights))))

def rows(proposal, q):
    m = len(proposal.tokens)
    tokens = np.array(proposal.tokens, int)
    p = np.reshape(proposal.p, (m, q.shape[1]))
    return m, tokens, p, q[np.arange(m), tokens] / p[np.arange(m), tokens]

def gpt_fast(proposal, q, rng):  # all drafts are tested at once, the first failure counts
    m, tokens, p, ratios = rows(proposal, q)
    failed = np.flatnonzero(rng.random(m) > np.minimum(1, ratios))
    if not len(failed):
        return [*tokens, race(q[-1], rng)]
    n = failed[0]
    return [*tokens[:n], race(np.maximum(q[n] - p[n], 0), rng)]

def transformers(proposal, q, rng):  # the accepted ones are counted up to the first failure
    m, tokens, p, ratios = rows(proposal, q)
    n = int(np.sum(np.cumsum(rng.uniform(size=m) > ratios) < 1))
    rest = np.clip(q[n] - p[n], 0, None) if n < m else q[n]
    return [*tokens[:n], rng.choice(len(rest), p=rest / rest.sum())]

def vllm(proposal, q, rng):  # the replacement of each place is drawn in advance
    m, tokens, p, ratios = rows(proposal, q)
    recovered = [race(np.maximum(q[i] - p[i], 0), rng) for i in range(m)]
    bonus = race(q[-1], rng)
    for i in range(m):
        if rng.random() > ratios[i]:
            return [*tokens[:i], recovered[i]]
    return [*tokens, bonus]

def mlx_lm(proposal, q, rng):  # the target draws its own tokens: a draft is accepted if it is the same one
    tokens = []
    for draft, row in zip([*proposal.tokens, None], q):
        tokens.append(int(rng.choice(len(row), p=row)))
        if tokens[-1] != draft:
            break
    return tokens

def llama_cpp(proposal, q, rng):  # the likeliest candidates come first, and the residual is a list of candidates
    def drawn(weights):
        order = np.argsort(-weights, kind="stable")
        below = np.cumsum(weights[order].astype(float))
        return int(order[np.argmax(below > rng.random() * below[-1])])
    tokens = []
    for j, p_i, q_i in zip(proposal.tokens, proposal.p, q):
        if rng.random() > q_i[j] / p_i[j]:
            return [*tokens, drawn(np.maximum(q_i - p_i, 0))]
        tokens.append(j)
    return [*tokens, drawn(q[-1])]
"""

OF_WAYS = [
    # (the way, what stands there, what stands there by mistake)
    ("gpt_fast", "n = failed[0]", "n = failed[-1]"),
    ("transformers", "np.sum(np.cumsum(rng.uniform(size=m) > ratios) < 1)", "np.sum(rng.uniform(size=m) <= ratios)"),
    ("vllm", "race(np.maximum(q[i] - p[i], 0), rng)", "race(q[i], rng)"),
    ("mlx_lm", "tokens.append(int(rng.choice(len(row), p=row)))", "tokens.append(int(np.argmax(row)))"),
    ("llama_cpp", "drawn(np.maximum(q_i - p_i, 0))", "drawn(np.maximum(q_i - p_i[j], 0))"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "old", "new"), OF_WAYS)
def test_the_way_of_others_is_lossless_and_with_a_mistake_it_is_not(way, old, new):
    assert first_wrong(planted(WAYS, way)) is None
    assert first_wrong(planted(WAYS, way, old, new))


def test_a_generator_in_a_default_argument_a_partial_and_a_method_are_followed(few_cases):
    hidden = np.random.default_rng(2)

    def with_default(p, gen=np.random.default_rng(3)):  # noqa: B008
        return sampling.sample(p, gen)

    drawer = SimpleNamespace(rng=np.random.default_rng(1))
    right = [with_default, partial(with_default), MethodType(lambda self, p: sampling.sample(p, self.rng), drawer)]
    right.append(lambda p: sampling.sample(p, hidden))
    assert all(speculative.law(function).lossless for function in right)


CANNOT_TELL = [
    # (what stands in the place of the loop's first line, a part of what is said)
    ("raise SystemExit(0)", "line 6: SystemExit: 0"),
    ("raise ValueError('\\x1b[31m')", "line 6: ValueError: "),
    ("return [*x, *[2.5] * N]", "not ids below 3"),
    ("return None", "it returned NoneType, not tokens"),
    ("while np.random.random() < 0.5: pass", "more than 500 random numbers: is a loop without a bound?"),
    ("return x", "it returned 0 new tokens in place of 1"),
    ("while True: target_model(x)", "no progress: 1,000 calls of a model without a random number"),
    ("for _ in range(20): np.random.random() < 0.5", "more than 2,000 paths"),
    ("np.random.randint(100_000)", "one of more than 2,000"),
    ("return [*x, *[secrets.randbelow(3)] * N]", "random numbers cannot be followed"),
    ("return [*x, *[int(HIDDEN.rng.random() * 3)] * N]", "random numbers cannot be followed"),
    ("return [*x, *[int(np.random.normal() > 0)] * N]", "line 6: normal() cannot be followed"),
    ("return [*x, *[int(np.float64(np.random.random()) * 2)] * N]", "a random number as a float cannot be followed"),
    ("import jax; return [*x, *[int(jax.random.bernoulli(jax.random.PRNGKey(0)))] * N]", "jax"),
    ("raise KeyboardInterrupt", "line 6: KeyboardInterrupt"),
]


@pytest.mark.parametrize(("line", "said"), CANNOT_TELL)
def test_what_cannot_be_told_is_said_in_one_line(line, said):
    names = {}
    text = f"import secrets\nimport numpy as np\nclass HIDDEN:\n    rng = np.random.default_rng(5)\ndef mine(x, draft_model, target_model, N, K):\n    {line}\n    return [*x, *[0] * N]\n"
    exec(compile(text, "mine.py", "exec"), names)
    with pytest.raises(UserError) as error:
        check_law.check_law(names["mine"])
    assert said in str(error.value)
    assert str(error.value).isprintable()


def test_a_loop_of_our_form_adds_exactly_n_tokens():
    def one_more(x, draft, target_model, N, K, rng):
        return sampling.speculative_sampling(x, draft, target_model, N + 1, K, rng)

    assert check_law.check_law(one_more).words.endswith("Usual cause: more than N tokens are added.")


@pytest.mark.parametrize(
    ("word", "status", "said"),
    [
        ("{file}:positive_part", 0, "Lossless"),
        ("{file}:top", 2, "error: the parameters (p, k) are not those of a sampler"),
        (
            "{file}:nothing",
            2,
            "has no function nothing: it has positive_part, draw, top, nucleus, at_least, tempered, rounded, speculative_sampling",
        ),
        ("{unknown}", 2, "random numbers cannot be followed: draw from rng, np.random or random"),
        ("missing.py", 2, "error: missing.py is not a file"),
    ],
)
def test_the_command(word, status, said, tmp_path):
    (tmp_path / "mine.py").write_text(IN_THE_BLOGS_FORM)
    unknown = IN_THE_BLOGS_FORM.replace("np.random.random()", "random.SystemRandom().random()")
    (tmp_path / "unknown.py").write_text(unknown)
    done = python("-m", "speculative", "law", word.format(file=tmp_path / "mine.py", unknown=tmp_path / "unknown.py"))
    assert done.returncode == status
    assert said in done.stdout + done.stderr
