"""The law: whatever is registered, the output is the target's exactly; and each mistake that is planted shows.

Rules, drafters and filters are tested because they are registered. Each test goes along every path of a decode.
"""

import contextlib
import importlib
import json
import os
import random
import re
import signal
import sys
import time
from functools import partial
from itertools import chain
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
from enumeration import World, text_distribution
from followed import planted
from registered import COMPOUND, RULE_NAMES, drafts_trees
from tiny import ROOT, python, refusal

import speculative
from speculative import sampling
from speculative.drafters import DRAFTERS
from speculative.engines.c.engine import CEngine
from speculative.filters import Filters
from speculative.law import function_at
from speculative.law import main as check_law
from speculative.law.forks import NotFollowed
from speculative.law.paths import EXACT, NotRepeatable, distance, law_of
from speculative.law.samplers import drawn, following, guard
from speculative.law.samplers.cases import CASES, LINES, interleaved
from speculative.law.samplers.functions import Function
from speculative.law.samplers.guard import as_user_errors, law_of_texts, stand_ins_in
from speculative.law.samplers.mistakes import LOOP, MISTAKES
from speculative.law.samplers.sampler import Sampler
from speculative.law.samplers.shown import case_to_show
from speculative.rules import parse_rule
from speculative.run import load
from speculative.support.errors import UserError

LOSSLESS = [name for name in RULE_NAMES if parse_rule(name).lossless]
WITH_LOOKAHEAD = [(name, K) for name in RULE_NAMES for K in (2, "tree") if K != "tree" or parse_rule(name).takes_trees]


@pytest.fixture
def world(monkeypatch):
    return partial(World, monkeypatch)


def lookahead_of(K, drafter):
    """The options of a lookahead: a tree, auto, or a number for each level."""
    if K == "tree":
        return {"tree": (2, 1)}
    return {"K": K if K == "auto" else (K, 1, 1)[: drafter.count("/") + 1]}


FILTERED = [
    {name: SOME} for name, SOME in {"temperature": 0.5, "top_k": 2, "top_p": 0.6, "min_p": 0.4, "eta": 0.5}.items()
]
FILTERED += [{"draft_temperature": 0}, {"draft_temperature": 2, "top_p": 0.6}, {"temperature": 0}]
DECODES = [
    {"drafter": drafter, "accept": accept} | lookahead_of(K, drafter)
    for drafter in [*DRAFTERS, "users", *COMPOUND]
    for accept in LOSSLESS
    for K in (1, 2, "auto", "tree")
    if K != "tree" or (parse_rule(accept).takes_trees and drafts_trees(drafter))
]
DECODES += [
    {"accept": accept} | filters | lookahead_of(K, "model")
    for filters in FILTERED
    for accept, K in WITH_LOOKAHEAD
    if accept in LOSSLESS
]


def test_every_filter_is_among_them():
    assert {name for options in FILTERED for name in options} >= {*Filters._fields}


def is_slow(options):
    """A drafter sees neither the rule nor the filters, and they do not see the drafter: the quick tests have each
    drafter and each filter with the first rule, and each rule with a few drafters. All copies of the target are alike,
    and the last window of K = 2 is one of K = 1."""
    drafter, K = options.get("drafter"), options.get("K", "tree")
    if drafter in ("float16", "bfloat16", "int4") or (K[0] == 1 and drafter != "model"):
        return True
    is_dear = options["accept"] == "match" and K == "auto"  # it has a path for each pair of tokens
    return options["accept"] != LOSSLESS[0] and (is_dear or drafter not in ("model", "prompt_lookup", "users"))


SOME_SLOW = [pytest.param(o, marks=[pytest.mark.slow] * is_slow(o), id=str(o)) for o in DECODES]


@pytest.mark.parametrize("options", SOME_SLOW)
def test_the_output_is_the_targets(world, options):
    drafter, accept, K = options.get("drafter"), options["accept"], options.get("K")
    is_long = drafter == "heads" or (drafter == "model" and accept != "match" and K == (2,))
    assert world(**options).distance(4 if is_long else 3) < EXACT


@pytest.mark.parametrize("copy_pays", [False, True])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_p": 0.6}], ids=str)
def test_the_output_of_fast_is_the_targets(world, monkeypatch, options, copy_pays):
    monkeypatch.setattr(load, "LARGE_BYTES", 0)  # a large target has a copy, which drafts, if a copy pays
    monkeypatch.setattr(CEngine, "copy_is_quick", lambda engine, N, temperature: copy_pays)
    made = world(fast=True, **options)
    assert made.session.options.drafter == "int8/" * copy_pays + "prompt_lookup+model"
    assert made.distance(3) < EXACT


def test_k_that_chooses_itself_takes_several_values(world):
    made = world(K="auto")
    seen = set()

    def decode(rng):
        for step in made.steps(3, rng):
            seen.add(step.n_drafted)
            yield step

    text_distribution(decode)
    assert seen >= {0, 1, 2}


# ---- Rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("accept", "K"), WITH_LOOKAHEAD)
def test_a_rule_is_lossless_if_it_says_so_and_only_then(world, accept, K):
    distance = max(world(seed=seed, accept=accept, **lookahead_of(K, "model")).distance(3) for seed in range(2))
    assert distance < EXACT if parse_rule(accept).lossless else distance > 1e-3


@pytest.mark.parametrize(("accept", "K"), WITH_LOOKAHEAD)
def test_the_chance_of_acceptance_is_how_often_it_happens(world, accept, K):
    """Of the first draft, over all paths. (A tree's first siblings: one of them.)"""
    for seed in range(2):
        made = world(seed=seed, accept=accept, draft_temperature=0.7, **lookahead_of(K, "model"))

        def first(rng, made=made):
            step = next(made.steps(3, rng))
            return step.n_accepted > 0, made.session.plan.rule.chances(step)[0]

        paths = law_of(first).items()
        accepted = sum(weight * passed for (passed, _), weight in paths)
        assert accepted == pytest.approx(sum(weight * chance for (_, chance), weight in paths), abs=EXACT)


def test_block_verification_keeps_more_than_token_by_token(world):
    for seed in range(3):
        kept = {}
        for accept in ("token", "block"):
            made = world(seed=seed, accept=accept, K=3)
            drafts = law_of(lambda rng, made=made: next(made.steps(4, rng)).n_accepted)
            kept[accept] = sum(n * chance for n, chance in drafts.items())
        assert kept["block"] > kept["token"]


# ---- Anyone's function ----------------------------------------------------------------------------------------------

HELPERS = """
import copy
import math
import os
import pickle
import random
import secrets
import time
import uuid
from random import random as from_random

import numpy as np

OF_A_MODULE = np.random.default_rng(0)
OF_PYTHON = random.Random(0)
OF_SYSTEM = random.SystemRandom()
IN_A_TUPLE = (np.random.default_rng(1), 0)
TWIN = np.random.default_rng(0)

def normalized(p):
    return p / p.sum(-1, keepdims=True)

def top(p, k):
    return normalized(np.where(p >= np.sort(p)[..., -k:][..., :1], p, 0))

def nucleus(p, share):
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order].astype(float)) - p[order]
    return normalized(np.where(np.isin(np.arange(len(p)), order[before < share]), p, 0))

def at_least(p, least):
    return normalized(np.where(p >= least, p, 0))

def tempered(p, t):
    return normalized(p ** (1 / t))

def rounded(p):
    return normalized((p.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32))
"""

TEST, REST, BONUS = "u < q[i][j] / p[i][j]", "max_fn(q[i] - p[i], q[i])", "sample(q[-1])"
FROM = "target_model(x_draft)"
DRAFT, U, RATIO = "sample(p[-1])", "np.random.random()", "q[i][j] / p[i][j]"
CHOICE = "np.random.choice(np.arange(len(p)), p=p)"
Q, WINDOW = "        q = ", "        for i, j"
FILTER = "the tokens follow the target's rows without their unlikely tokens: a filter on one side"
TWICE = "random numbers are used twice: a seed or a generator of the same seed begins again"

# fmt: off
OTHER_MISTAKES = [
    # (the cause if it is named, what stands in LOOP, what stands there by mistake, ...)
    # drafts
    (None, DRAFT, "sample(top(p[-1], 2))"),
    (None, DRAFT, "sample(rounded(p[-1]))"),
    (None, DRAFT, "sample(draft_model(x)[-1])"),
    (None, DRAFT, "sample(draft_model(x_draft[1:] if all_accepted else x_draft)[-1])"),
    (None, DRAFT, "sample(draft_model(x_draft[: n - 2] + x_draft[n - 1 :] if all_accepted else x_draft)[-1])"),
    (None, DRAFT, "sample(draft_model([*x[:-1], j, *x_draft[n:]] if n > T - N and not all_accepted else x_draft)[-1])"),
    (None, Q, "        p = top(np.array(p), 2)\n        q = "),
    (None, Q, "        p = np.roll(p, 1, 0)\n        q = "),
    (None, Q, "        x_draft = x_draft[: len(x_draft) - (K > 1 and p[-1][x_draft[-1]] < 0.3)]\n        q = "),
    # the target's rows
    (FILTER, FROM, f"top({FROM}, 2)"),
    (FILTER, FROM, f"np.array([nucleus(row, 0.9) for row in {FROM}])"),
    (FILTER, FROM, f"at_least({FROM}, 0.0002)"),
    (FILTER, WINDOW, "        q = at_least(q, 0.05 * q.max(-1, keepdims=True))\n        for i, j"),
    ("the tokens follow the target's rows at another temperature: 0.9 times theirs", FROM, f"tempered({FROM}, 0.9)"),
    (FILTER, FROM, f"top({FROM}, min(50, len(p[0])))"),
    (None, WINDOW, "        q = normalized(q.astype(np.float16).astype(float))\n        for i, j"),
    (None, FROM, "np.vstack([target_model(x_draft)[:2], target_model(x_draft[1:])[1:]])"),
    (None, FROM, "np.vstack([target_model(x_draft)[: max(0, len(x_draft) - 4)], target_model(x_draft[-4:])])"),
    # the test
    (None, RATIO, "p[i][j]"),
    (None, RATIO, "q[i][j] / p[i - 1][j]"),
    (None, RATIO, "q[i][j] / p[i][j] + 0.01"),
    (None, RATIO, "q[i][j] / (p[i][j] + 1e-5)"),
    (None, RATIO, "min(0.9, q[i][j] / p[i][j])"),
    (None, RATIO, "min(1, q[i][j] / p[i][j]) * (1 if i == 0 else min(1, q[i - 1][x_draft[n + i - 1]] / p[i - 1][x_draft[n + i - 1]]))"),
    (None, TEST, "0.5 < q[i][j] / p[i][j]"),
    (None, TEST, "0.99 * " + TEST),
    (None, TEST, TEST + " or np.random.random() < 0.1"),
    (None, f"u = {U}", f"u = round({U}, 2)"),
    (None, f"u = {U}", "u = np.random.random(1).astype(np.float16)[0]"),
    (None, TEST, "j == 0 or " + TEST),
    (None, TEST, "j > 2 and n > T - N or " + TEST),
    (None, TEST, "len(x) == T - N or " + TEST),
    (None, TEST, "q[i][j] > 0.99 or " + TEST),
    (None, TEST, "i > 2 or " + TEST),
    (None, TEST, "j > 1 and accepted_once or " + TEST),
    (None, TEST, "len(x) > 5 or " + TEST),
    (None, TEST, "abs(q[i] - p[i]).max() < 0.01 or " + TEST),
    # the token that replaces a rejected draft
    (None, REST, f"top({REST}, min(20, len(p[0])))"),
    (None, REST, "normalized(np.maximum(q[i] - p[i], 1e-3))"),
    (None, REST, "np.maximum(q[i] - p[i], 0) / (np.maximum(q[i] - p[i], 0).sum() + 1e-4)"),
    # the bonus token
    (None, BONUS, "sample(p[-1])"),
    (None, BONUS, "sample(q[-1]) if len(x) < 8 else np.argmax(q[-1])"),
    (None, BONUS, "sample(q[-1 - accepted_once])"),
    (None, "    while", "    count = 0\n    while", BONUS, "sample(q[-1 - (count > 1)])", "accepted_once = True", "count += 1"),
    (None, BONUS, "sample(top(q[-1], 2))"),
    # the window
    (None, "[*x, j]", "[*x, j] if i < 2 else [*x, j, j]"),
    (None, "x, T = [*x], len(x) + N", "x, T = [*x][-3:], len(x) + N"),
    (None, f"[*x, sample({REST})]", f"[*x_draft[: n + i + (i > 0)], sample({REST})]"),
    (None, "return x\n", "return [*x[: T - N], *x[T - N :][::-1]]\n"),
    # random numbers
    (TWICE, Q, "        np.random.seed(7)\n        q = "),
    (TWICE, Q, "        rng = np.random.default_rng(K)\n        q = ", "u = np.random", "u = rng", BONUS, "rng.choice(len(q[-1]), p=q[-1])"),
    (TWICE, f"u = {U}", "u = np.random.default_rng(5).random()"),
    (TWICE, DRAFT, "np.searchsorted(np.cumsum(p[-1].astype(float)), OF_A_MODULE.random())", f"u = {U}", "u = TWIN.random()"),
    (TWICE, "    while", "    one, two = np.random.default_rng(1), np.random.default_rng(1)\n    while", DRAFT, "one.choice(len(p[-1]), p=p[-1])", f"u = {U}", "u = two.random()"),
    (None, CHOICE, "np.random.choice(np.arange(len(p)), size=min(2, np.sum(p > 0)), replace=False, p=p)[-1]"),
    ("used again to draw the replacement", f"u = {U}", "u = OF_A_MODULE.random()", f"sample({REST})", f"copy.deepcopy(OF_A_MODULE_BEFORE).choice(len(p[i]), p={REST})", "            u = ", "            OF_A_MODULE_BEFORE = copy.deepcopy(OF_A_MODULE)\n            u = "),
    ("used again to draw the replacement", f"u = {U}", "state = random.getstate()\n            u = random.random()", f"sample({REST})", f"random.setstate(state) or random.choices(range(len(p[i])), weights={REST})[0]"),
    (None, f"u = {U}", "u = random.randrange(10_000) / 10_000"),
    (None, f"u = {U}", "u = secrets.randbelow(100) / 100"),
    (TWICE, f"u = {U}", "u = np.random.default_rng(int(time.time()) // 10**6).random()"),
    (None, f"u = {U}", "u = np.random.randint(1, 1001) / 1000"),
    (None, CHOICE, "int(np.argmax(np.cumsum(p) > np.random.uniform(0.05, 1)))"),
    (None, CHOICE, "int(np.argmax(np.log(p) + 0.9 * np.random.gumbel(size=len(p))))"),
    (None, CHOICE, "min(range(len(p)), key=lambda i: random.expovariate(p[i] ** 0.9))"),
]
# fmt: on
ALL_MISTAKES = [(mistake.name, *chain(*mistake.edits)) for mistake in MISTAKES] + OTHER_MISTAKES


INTERLEAVED = interleaved(CASES)
FEW_CASES = [case for case in CASES[::16] if case.n_vocab < 64]  # a race of 64 takes long


def in_the_blogs_form(*replaced):
    return planted(HELPERS + LOOP, "speculative_sampling", *replaced)


def first_wrong(function, cases=INTERLEAVED):
    """The first case whose law is not the target's, if any of those that are small enough."""
    decode = Sampler(function).decode
    with stand_ins_in(function):
        return next((case for case in cases if distance(law_of_texts(decode, case), case.law()) > EXACT), None)


def test_a_drafter_may_stop_by_p_and_not_by_what_was_drawn():
    """The two ways of docs/exercises.md, with what it says of them."""
    page = (ROOT / "docs" / "exercises.md").read_text(encoding="utf-8").partition("## 6")[2]
    drops, stops = re.findall(r"^    if (p.*?): break", page, re.MULTILINE)
    drafts = "            x_draft = [*x_draft, sample(p[-1])]\n"
    drawn = "            j = sample(p[-1])\n"
    kept = "            x_draft = [*x_draft, j]\n"
    dropping = f"{drawn}            if {drops.replace('p', 'p[-1]', 1)}:\n                break\n{kept}"
    stopping = f"{drawn}{kept}            if {stops.replace('p', 'p[-1]', 1)}:\n                break\n"
    assert first_wrong(in_the_blogs_form(drafts, stopping), FEW_CASES) is None
    verdict = speculative.law(in_the_blogs_form(drafts, dropping))
    assert f"{verdict.distance:.2f}" == re.search(r"0\.\d\d(?= away)", page)[0]
    assert verdict.cause == "a draft of probability below 0.4 is dropped after it was drawn"


@pytest.mark.parametrize("replaced", [row[1:] for row in ALL_MISTAKES])
def test_a_mistake_in_the_blogs_loop_is_seen(replaced):
    assert first_wrong(in_the_blogs_form(*replaced))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "replaced"), [(words, replaced) for words, *replaced in ALL_MISTAKES[::3]])
def test_a_cause_is_named(words, replaced):
    cause = speculative.law(in_the_blogs_form(*replaced)).cause
    assert words in cause if words else cause is None


BOTH = "min(q[i]) > 0 and min(p[i]) > 0"  # several tokens on both sides
ONLY_SEEN_BY = {
    # what a line of CASES sees: a mistake that no other line sees
    "a prompt of several tokens": ("x, T = [*x], len(x) + N", "x, T = [*x][-3:], len(x) + N"),
    "nearly equal rows, the draft less sure": (TEST, "abs(q[i] - p[i]).max() < 0.001 and p[i].max() < q[i].max() and len(p[i]) > 2 or " + TEST),
    "nearly equal rows, the draft surer": (TEST, "q[i][j] > 0.99 and len(p[i]) > 2 or " + TEST),
    "drafts of probability 0 to the target": (TEST, "q[i][j] == 0 and len(p[i]) < 5 or " + TEST),
    "a fourth token of a vocabulary": (TEST, "len(p[i]) == 5 and j > 2 and n > T - N or " + TEST),
    "a third token after a full acceptance": (TEST, "j > 1 and accepted_once or " + TEST),
    "the third draft after a full acceptance": (TEST, "i > 1 and K == 3 and accepted_once or " + TEST),
    "the fourth draft of a window": (TEST, "i > 2 and K == 4 or " + TEST),
    "a third full acceptance": ("    while", "    count = 0\n    while", BONUS, "sample(q[-1 - (count > 1)])", "accepted_once = True", "count += 1"),
    "the third residual of a draft that is sure": (f"sample({REST})", f"np.argmax({REST}) if i > 1 and max(p[i]) == 1 else sample({REST})"),
    "a residual of more than 50 tokens": (f"sample({REST})", f"sample(top({REST}, min(50, len(p[0]))))"),
    "the second residual, of several tokens": (f"sample({REST})", f"np.argmax({REST}) if i == 1 and {BOTH} and np.sum(q[i] > p[i]) == 2 else sample({REST})"),
    "the third residual, of several tokens": (f"sample({REST})", f"np.argmax({REST}) if i == 2 and {BOTH} and len(p[i]) == 3 else sample({REST})"),
    "the sixth draft of a window": (TEST, "i > 4 or " + TEST),
    "a bonus token among more than 50": (BONUS, "sample(top(q[-1], min(50, len(q[-1]))))"),
    "a draft among more than 50": (DRAFT, "sample(top(p[-1], min(50, len(p[-1]))))"),
}  # fmt: skip


def test_each_line_of_the_cases_names_what_it_sees():
    assert [line.sees for line in LINES] == [*ONLY_SEEN_BY]


def test_the_first_text_shows_whether_it_has_its_prompt():
    first = INTERLEAVED[0]
    assert first.line == LINES[0]
    assert len(first.prompt) > first.N + first.K


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.sees)
def test_a_line_of_the_cases_sees_a_mistake_that_only_it_sees(line):
    function = in_the_blogs_form(*ONLY_SEEN_BY[line.sees])
    cases = line.cases()
    assert first_wrong(function, cases)
    assert first_wrong(function, [case for case in CASES if case not in cases]) is None


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(following, "CASES", FEW_CASES)


@pytest.fixture
def quick_cases(monkeypatch):
    """For loops that differ in how a number is drawn or what is returned, which each case sees."""
    monkeypatch.setattr(following, "CASES", [case for case in FEW_CASES if case.K in (1, 3)])


def echo(x, k):  # a drafter
    return [0] * k, np.eye(3)[[0] * k]


def test_what_is_right_is_lossless_and_a_rule_as_it_says_itself(few_cases):
    rules = [parse_rule(name) for name in RULE_NAMES]
    right = [in_the_blogs_form(), sampling.speculative_sampling, sampling.sample, sampling.max_fn, echo]
    assert [speculative.law(function).lossless for function in right] == [True] * len(right)
    assert [first_wrong(rule.accept, FEW_CASES) is None for rule in rules] == [rule.lossless for rule in rules]


IN_OTHER_STYLES = [
    # (what stands there, what stands there in another style)
    (U, "OF_A_MODULE.random()"),
    (U, "from_random()"),
    (U, "OF_PYTHON.random()"),
    (U, "OF_SYSTEM.random()"),
    (U, "random.SystemRandom().random()"),
    (U, "IN_A_TUPLE[0].random()"),
    (U, "OF_A_MODULE.random(dtype=np.float32)"),
    (U, "np.random.ranf()"),
    (U, "np.random.random(3).astype(np.float32)[0]"),
    (U, "random.getrandbits(53) / 2**53"),
    (U, "secrets.randbelow(10**9) / 10**9"),
    (U, "(time.time(), uuid.uuid4(), secrets.SystemRandom().random())[2]"),
    (U, "random.Random(time.time_ns()).random()"),
    (U, "np.random.default_rng(secrets.randbits(128)).random()"),
    (U, "float(OF_A_MODULE.integers(10**9, size=2)[1] / 10**9)"),
    (U, "(pickle.loads(pickle.dumps(OF_A_MODULE)), OF_A_MODULE.random())[1]"),
    (CHOICE, "np.argmax(np.random.multinomial(1, p, 1)[0])"),
    (CHOICE, "np.argmax(OF_A_MODULE.multinomial(1, np.array([p, p]))[1])"),
    (BONUS, "(order := np.random.permutation(len(q[-1])))[np.random.choice(len(order), p=q[-1][order])]"),
    ("    while", "    order = [0, 1]\n    random.shuffle(order)\n    while"),
    ("sample(max_fn(q[i] - p[i], q[i]))", "rejected(q[i] - p[i], q[i])", "def sample", "def rejected(x, q):\n    try:\n        return np.random.choice(len(x), p=np.maximum(x, 0) / np.maximum(x, 0).sum())\n    except ValueError:\n        return sample(q)\n\ndef sample"),
    (TEST, f"1 - u <= {RATIO}"),
    (TEST, f"np.log(np.random.uniform(size=1)[0]) < np.log({RATIO})"),
    (TEST, f"-math.log(u) > -math.log(max({RATIO}, 1e-30))"),
    (TEST, f"float(u) < float({RATIO})"),
    (TEST, f"math.log(np.clip(u, 1e-9, 1)) < np.log({RATIO})"),
    (TEST, "np.random.uniform(-1, 0) * -p[i][j] < q[i][j]"),
    (TEST, "1 / u > p[i][j] / max(q[i][j], 1e-30)"),
    (TEST, f"np.random.binomial(1, min(1, {RATIO}))"),
    (CHOICE, "np.argmax(np.log(p) + np.random.gumbel(size=len(p)))"),
    (CHOICE, "np.argmax(np.log(p) - np.log(-np.log(np.random.uniform(size=len(p)))))"),
    (CHOICE, "np.argmax(p / np.random.exponential(size=len(p)))"),
    (CHOICE, "np.argsort(-(np.log(p) + np.random.gumbel(size=len(p))))[0]"),
    (CHOICE, "max(range(len(p)), key=lambda i: np.log(p[i]) + np.random.gumbel())"),
    (CHOICE, "min(range(len(p)), key=lambda i: random.expovariate(p[i]))"),
    (CHOICE, "np.argpartition(np.random.exponential(size=len(p)) / p, 0)[0]"),
    (CHOICE, "np.argmax(np.log(p + 1e-20) - np.log(-np.log(np.random.uniform(size=len(p)) + 1e-20) + 1e-20))"),
    (CHOICE, "random.choices(range(len(p)), cum_weights=np.cumsum(p))[0]"),
    ("    while", "    rng, other = np.random.default_rng(3).spawn(2)\n    while", f"u = {U}", "u = rng.random()", CHOICE, "np.random.choice(np.arange(len(p)), p=p)"),
    ("    while", "    one, two = np.random.Generator(np.random.MT19937(0)), np.random.default_rng(0)\n    while", DRAFT, "one.choice(len(p[-1]), p=p[-1])", f"u = {U}", "u = two.random()"),
    ("            accepted_once = True", "            K += 2"),
    ("            accepted_once = True", "            K = 2 * K"),
    (CHOICE, f"int(np.sum({U} > np.cumsum(p / p.sum(), dtype=float)))"),
    (CHOICE, "random.choices(range(len(p)), weights=p)[0]"),
    ("    while", "    rng = np.random.Generator(np.random.PCG64(7))\n    while", f"u = {U}", "u = rng.random()"),
    ("    while", "    rng = np.random.RandomState(123)\n    while", f"u = {U}", "u = rng.rand()"),
    ("    while", "    random.seed(5)\n    while", f"u = {U}", "u = random.random()"),
    ("return x\n", "return tuple(x[T - N :])\n"),
    ("return x\n", "return np.array([x])\n"),
    ("return x\n", "yield from x\n"),
    ("return x\n", "yield x[: T - N]\n    yield x[T - N :]\n"),
    ("return x\n", "return {'ids': x, 'rate': 0.5}\n"),
    ("return x\n", "return np.array(x), 0.5\n"),
    ("import numpy as np", "import dataclasses\nimport numpy as np", "return x\n", "return dataclasses.make_dataclass('Out', ['ids', 'n'])(x, 3)\n"),
    ("return x\n", "return [*x, -1, -1]\n"),
    ("def spec", "async def spec"),
    ("def spec", "async def spec", "return x\n", "yield x[: T - N]\n    yield x[T - N :]\n"),
]  # fmt: skip

PARAMETERS, OF_DRAFT, OF_TARGET = "target_model, N, K)", "draft_model(x_draft)[-1]", f"{FROM}[n - 1 :]"
BEGIN = "    x, T"
IN_OTHER_FORMS = [
    # (what stands there, what stands there in another form)
    (PARAMETERS, "target_model, N, K, generator)", f"u = {U}", "u = generator.random()"),
    (PARAMETERS, "target_model, N, K, random_state)", f"u = {U}", "u = random_state.random()"),
    (PARAMETERS, "target_model, N, K, seed)", BEGIN, "    rng = np.random.default_rng(seed)\n    x, T", f"u = {U}", "u = rng.random()"),
    (PARAMETERS, "target_model, N, K, *more, eos=None, **others)"),
    (PARAMETERS, "target_model, *, N, K=2)"),
    ("x, draft_model, target_model, N, K)", "target_model, draft_model, x, max_new_tokens, gamma)", BEGIN, "    N, K = max_new_tokens, gamma\n    x, T"),
    (PARAMETERS, "target_model, N, K, rng)", "draft_model", "draft"),
    ("x, T", "x.append\n    x, T", OF_DRAFT, f"np.exp({OF_DRAFT})", FROM, f"np.exp({FROM})"),
    (OF_DRAFT, "np.exp(draft_model(np.array([x_draft])).logits[0, -1])", FROM, "np.exp(target_model(x_draft).logits)"),
    (OF_DRAFT, "draft_model(x_draft)", OF_TARGET, "np.array([target_model(x_draft[:m]) for m in range(n, n + len(p) + 1)])"),
    ("[*x], len(x)", "[*x[0]], x.shape[1]"),
    (PARAMETERS, "target_model, N, K, generator=None)", f"u = {U}", "u = generator.random()"),
    (BEGIN, "    draft_model.eval().to(draft_model.device, draft_model.dtype)\n    x, T"),
    (OF_DRAFT, "np.exp(draft_model(x_draft)['logits'][-1])", FROM, "np.exp(target_model(x_draft)['logits'])"),
]  # fmt: skip


@pytest.mark.parametrize("replaced", IN_OTHER_FORMS)
def test_a_right_loop_in_another_form_is_lossless(quick_cases, replaced):
    verdict = speculative.law(in_the_blogs_form(*replaced))
    assert verdict.lossless, str(verdict)


def test_a_class_is_called_and_its_objects_decode(few_cases):
    class Drawer:
        def __init__(self, seed=3):
            self.rng = np.random.default_rng(seed)

        def __call__(self, p):
            return sampling.sample(p, self.rng)

    assert speculative.law(Drawer).lossless


RAISES = [
    # (what is left out, and why; what stands in the loop, what stands there)
    ("N = 1", "ZeroDivisionError: division by zero", BEGIN, "    rate = 1 / (N - 1)\n    x, T"),
    ("a vocabulary of 2", "ValueError: The number of weights", CHOICE, "random.choices(range(3), weights=p)[0]"),
    ("K = 1", "AssertionError", BEGIN, "    assert K > 1\n    x, T"),
    ("a vocabulary of 2", "IndexError: ", "    return np.random.choice(", "    p[2]\n    return np.random.choice("),
]  # fmt: skip


@pytest.mark.parametrize(("out", "error", "old", "new"), RAISES)
def test_the_lengths_in_which_a_function_raises_are_left_out(quick_cases, out, error, old, new):
    verdict = speculative.law(in_the_blogs_form(old, new))
    assert verdict.lossless, str(verdict)
    assert re.search(rf"\nLeft out: {out} \(.*line \d+: {error}", verdict.words)
    assert speculative.law(in_the_blogs_form(old, new, REST, "q[i]")).lossless is False


def test_an_error_that_no_length_explains_is_told(monkeypatch):
    monkeypatch.setattr(following, "CASES", CASES[:8])  # of the same lengths
    monkeypatch.setattr(drawn, "CASES", CASES[:8])
    with pytest.raises(UserError, match="AssertionError"):
        speculative.law(in_the_blogs_form(WINDOW, "        assert q[0].max() > 0.7\n        for i, j"))


def test_what_cannot_be_followed_in_its_own_way_is_not_judged_by_another(few_cases, monkeypatch):
    """As logits its rows would have no random number to follow, and always the same token."""
    monkeypatch.setattr(drawn, "PORTION", 10)
    monkeypatch.setattr(drawn, "MOST_TEXTS", 10)
    keys = "np.nan_to_num(np.log(p), nan=0.0) + np.random.gumbel(size=len(p))"
    of_a_sort = f"sorted(range(len(p)), key=list({keys}).__getitem__)[-1]"
    verdict = speculative.law(in_the_blogs_form(CHOICE, of_a_sort))
    assert verdict.lossless is None, str(verdict)


def test_the_distance_is_the_largest_that_was_seen(few_cases):
    verdict = speculative.law(in_the_blogs_form(TEST, "True"))
    decode = Sampler(in_the_blogs_form(TEST, "True")).decode
    with stand_ins_in(decode):
        far = {case: distance(law_of_texts(decode, case), case.law()) for case in FEW_CASES}
    assert verdict.distance == pytest.approx(max(far.values()))
    assert verdict.distance > far[verdict.case]
    assert f"its texts is up to {verdict.distance:.2g}" in str(verdict)


@pytest.mark.parametrize("replaced", IN_OTHER_STYLES)
def test_a_right_loop_in_another_style_is_lossless(quick_cases, replaced):
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
    # (the way, what stands there, what stands there by mistake, the cause if it is named)
    ("gpt_fast", "n = failed[0]", "n = failed[-1]", None),
    ("transformers", "np.sum(np.cumsum(rng.uniform(size=m) > ratios) < 1)", "np.sum(rng.uniform(size=m) <= ratios)", None),
    ("vllm", "race(np.maximum(q[i] - p[i], 0), rng)", "race(q[i], rng)", "draw from q, not from max(0, q - p)"),
    ("mlx_lm", "tokens.append(int(rng.choice(len(row), p=row)))", "tokens.append(int(np.argmax(row)))", "a filter on one side"),
    ("llama_cpp", "drawn(np.maximum(q_i - p_i, 0))", "drawn(np.maximum(q_i - p_i[j], 0))", None),
]  # fmt: skip


@pytest.mark.parametrize(("way", "old", "new"), [row[:3] for row in OF_WAYS])
def test_the_way_of_others_is_lossless_and_with_a_mistake_it_is_not(way, old, new):
    assert first_wrong(planted(WAYS, way), FEW_CASES) is None
    assert first_wrong(planted(WAYS, way, old, new))


@pytest.mark.slow
@pytest.mark.parametrize(("way", "old", "new", "cause"), OF_WAYS)
def test_the_cause_is_named_in_the_way_of_others(way, old, new, cause):
    assert speculative.law(planted(WAYS, way)).lossless
    verdict = speculative.law(planted(WAYS, way, old, new))
    assert not verdict.lossless
    assert cause in verdict.cause if cause else verdict.cause is None


def test_a_generator_in_a_default_argument_a_partial_and_a_method_are_followed(quick_cases):
    hidden = np.random.default_rng(2)

    def with_default(p, gen=np.random.default_rng(3)):  # noqa: B008
        return sampling.sample(p, gen)

    drawer = SimpleNamespace(rng=np.random.default_rng(1))
    right = [with_default, partial(with_default), MethodType(lambda self, p: sampling.sample(p, self.rng), drawer)]
    right.append(lambda p: sampling.sample(p, hidden) if len(p) else has_no_value_yet)
    assert all(speculative.law(function).lossless for function in right)
    has_no_value_yet = None


CANNOT_TELL = [
    # (what stands in the place of the loop's first line, a part of what is said)
    ("raise SystemExit(0)", "line 2: SystemExit: 0"),
    ("raise ValueError('\\x1b[31m')", "line 2: ValueError: "),
    ("return [*x, *[2.5] * N]", "not ids below 3"),
    ("return None", "it returned None, not ids below 3"),
    ("return ()", "it returned nothing, not ids below 3"),
    ("return [*x, 'a']", "it returned 1, 0, 0, 1, a, not ids below 3"),
    ("return x", "it returned 0 new tokens in place of 1"),
    ("while True: target_model(x)", "no progress: a text takes more than 2,000 random numbers and calls of a model"),
]


@pytest.mark.parametrize(("line", "said"), CANNOT_TELL)
def test_what_cannot_be_told_is_said_in_one_line(line, said):
    names = {}
    text = f"def mine(x, draft_model, target_model, N, K):\n    {line}\n    return [*x, *[0] * N]\n"
    exec(compile(text, "mine.py", "exec"), names)
    with pytest.raises(UserError) as error:
        speculative.law(names["mine"])
    assert said in str(error.value)
    assert str(error.value).isprintable()


def test_a_name_that_was_put_into_the_users_module_is_gone_afterwards():
    function = planted(LOOP, "speculative_sampling")
    names = {**function.__globals__}
    with stand_ins_in(function):
        assert "float" in function.__globals__
    assert function.__globals__ == names


def test_a_library_that_is_imported_meanwhile_keeps_the_real_generators(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    source = "import random\nfrom random import Random, random as draw\nNAME = Random(1).getrandbits(8)\n"
    (tmp_path / "site-packages" / "drawing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")

    def function(rng):
        import drawing  # a finder of ours is asked for it

        return drawing.Random is random.Random, random.Random(1).random() < 0.5

    with stand_ins_in(function):
        law = law_of(function)
    assert law == {(False, True): 0.5, (False, False): 0.5}
    drawing = importlib.import_module("drawing")
    assert random.Random(1).getrandbits(8) == drawing.NAME
    assert (drawing.Random, drawing.draw) == (random.Random, random.random)


def test_only_what_is_computed_counts_as_slow(monkeypatch):
    monkeypatch.setattr(guard, "MOST_SECONDS", (1, 60))
    waits = [2.1]  # seconds, once, as on a busy machine

    def waits_once(p):
        if waits:
            time.sleep(waits.pop())
        return np.random.choice(len(p), p=p)

    with stand_ins_in(waits_once):
        law = law_of_texts(Sampler(waits_once).decode, CASES[0])
    assert distance(law, CASES[0].law()) < EXACT


def test_a_program_that_sees_the_path_before_has_no_law():
    seen = [None]

    def program(rng):
        seen.append(rng.random() < 0.5)
        return tuple(seen[-2:])

    with pytest.raises(NotRepeatable):
        law_of(program)


def test_a_refusal_that_somebodys_code_catches_is_not_forgotten():
    def program(rng):
        with contextlib.suppress(Exception):
            return rng.normal() < 0
        return False

    with pytest.raises(NotFollowed, match="normal"):
        law_of(program)


def test_each_call_in_a_text_has_a_new_seed_and_a_new_key():
    seeds, keys = (Function(eval(f"lambda p, {name}: {name}")) for name in ("seed", "key"))

    def program(rng):
        return seeds(rng, p=0), seeds(rng, p=0), str(keys(rng, p=0)) == str(keys(rng, p=0))

    assert law_of(program) == {(0, 1, False): 1}


def test_the_end_of_the_process_is_no_error_of_its_code():
    with pytest.raises(SystemExit), as_user_errors():
        raise SystemExit(128 + signal.SIGTERM)


DRAWER = """
import math
import os
import uuid
import numpy as np

def drawn(p):
    cumulative = np.cumsum(p, dtype=float)
    return int(np.searchsorted(cumulative, number() * cumulative[-1], side="right"))

def mine(x, draft_model, target_model, N, K):
    for _ in range(N):
        x = [*x, drawn(target_model(x)[-1])]
    return x

def number():
    return NUMBER
"""
NORMAL = "(1 + math.erf(np.random.normal() / math.sqrt(2))) / 2"
DRAWN = [
    # (the expression of a number from 0 to 1, whether it is right, what is said)
    ("int.from_bytes(os.urandom(6), 'big') / 2**48", True, "not from NumPy, Python or PyTorch: os.urandom, line 17"),
    (NORMAL, True, "mine.py, line 17: normal() cannot be followed"),
    ("float.__mul__(1.0, float(np.float64(np.random.random())))", True, "a random number as a float"),
    ("np.random.default_rng(5).normal() % 1", False, "line 17: normal() cannot be followed"),
    (
        "uuid.uuid4().int % 2**50 / 2**51",
        False,
        "some of its random numbers are not from NumPy, Python or PyTorch: uuid",
    ),
]


@pytest.mark.parametrize(("number", "is_right", "said"), DRAWN)
def test_what_cannot_be_followed_is_drawn(monkeypatch, number, is_right, said):
    monkeypatch.setattr(drawn, "PORTION", 60)
    monkeypatch.setattr(drawn, "MOST_TEXTS", 60)
    names = {}
    exec(compile(DRAWER.replace("NUMBER", number), "mine.py", "exec"), names)
    verdict = speculative.law(names["mine"])
    assert verdict.lossless is (None if is_right else False)
    assert said in str(verdict)
    found = (
        "No loss seen in 60 texts of each of 26 cases: a loss above"
        if is_right
        else "Not lossless, by 60 texts, twice."
    )
    assert found in str(verdict)


def test_a_length_that_cannot_be_followed_is_not_left_out(monkeypatch):
    """Such a sampler may be wrong there, and right wherever it can be followed."""
    monkeypatch.setattr(drawn, "PORTION", 60)
    monkeypatch.setattr(drawn, "MOST_TEXTS", 60)

    def mine(x, draft_model, target_model, N, K):
        for _ in range(N):
            row = target_model(x)[-1]
            token = np.random.choice(len(row), p=row) if K < 3 else int(np.random.normal() > 0)
            x = [*x, token]
        return x

    assert str(speculative.law(mine)).startswith("Not lossless, by 60 texts, twice.")


def test_the_case_that_is_shown_is_of_the_smallest_line_and_there_the_furthest():
    smaller, larger = sorted(LINES[3:5], key=lambda line: line.N)
    assert LINES.index(smaller) > LINES.index(larger)
    near, far = smaller.cases()[:2]
    assert case_to_show({larger.cases()[0]: 0.9, near: 0.1, far: 0.2}) == far
    assert case_to_show({larger.cases()[0]: 0.9, near: 0.001, far: 0.002}) == larger.cases()[0]  # where it is plain


def test_of_texts_that_are_drawn_the_smallest_wrong_case_is_shown(monkeypatch):
    monkeypatch.setattr(drawn.Draws, "are_constant", lambda draws: False)
    monkeypatch.setattr(drawn.Draws, "differs_twice", lambda draws, case: True)
    draws = drawn.Draws(None, None)
    draws.counts = dict.fromkeys([LINES[3].cases()[0], LINES[4].cases()[0]])
    draws.find_wrong()
    assert draws.wrong_case.line == LINES[4]


def test_a_loss_that_would_most_likely_have_shown_fails_twice_19_times_out_of_20():
    case, n = CASES[0], 1_000
    freedom = len(case.law())
    added = n * (2 * drawn.detectable(case, n)) ** 2
    statistics = np.random.default_rng(0).noncentral_chisquare(freedom, added, 20_000)
    share = np.mean(drawn.sigmas_of(statistics, freedom) > drawn.SIGMAS)
    assert 0.93 < share**2 < 0.96


def test_a_line_whose_cases_have_too_many_paths_takes_no_more_than_others(monkeypatch):
    tried = []

    def noted(case, *options):
        tried.append(case.line)
        return follow_case(case, *options)

    follow_case = following.follow_case
    monkeypatch.setattr(following, "follow_case", noted)
    monkeypatch.setattr(following, "MOST_NODES", 0)
    monkeypatch.setattr(following, "MOST_PATHS", 20)
    verdict = speculative.law(lambda p: np.random.choice(len(p), p=p))
    assert verdict.lossless
    assert "Not tried: 152 more cases of the same kinds, which have over 20 paths each" in verdict.words
    assert len(tried) == len({*tried}) == len({case.line for case in CASES})


def test_a_case_of_too_many_paths_is_left_out_also_if_it_is_the_first(monkeypatch):
    cases = [next(case for case in CASES if case.K == K) for K in (2, 1)]
    monkeypatch.setattr(following, "CASES", cases)
    monkeypatch.setattr(following, "MOST_PATHS", 500)
    coarsely = in_the_blogs_form(f"u = {U}", "u = np.random.permutation(4)[0] / 4")
    verdict = speculative.law(coarsely)
    assert verdict.case == cases[1]
    assert str(verdict).startswith("Not lossless: the distribution of its texts")


def test_a_loop_of_our_form_adds_exactly_n_tokens(quick_cases):
    def one_more(x, draft, target_model, N, K, rng):
        return sampling.speculative_sampling(x, draft, target_model, N + 1, K, rng)

    assert speculative.law(one_more).words.endswith("Usual cause: more than N tokens are added.")


@pytest.fixture
def files(tmp_path):
    """The paths of a file with the loop, and of one with a mistake in it."""
    paths = {"file": tmp_path / "file.py", "wrong": tmp_path / "wrong.py"}
    paths["file"].write_text(HELPERS + LOOP)
    paths["wrong"].write_text(HELPERS + LOOP.replace(BONUS, "np.argmax(q[-1])"))
    return paths


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("file", 0, "Lossless"), ("wrong", 1, "Usual cause: the bonus token is the target's likeliest, not drawn.")],
)
def test_the_command(name, status, said, files):
    done = python("-m", "speculative", "law", str(files[name]))
    assert done.returncode == status
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("{file}:top", "the parameters (p, k) are not those of a sampler"),
        ("{file}:nuclues", "; did you mean nucleus?"),
        ("{file}:nothing", "has no function nothing: it has normalized, top, nucleus, at_least, tempered, rounded"),
        ("missing.py", "missing.py is not a file"),
    ],
)
def test_what_is_not_a_sampler_is_refused(word, said, files):
    assert said in refusal(check_law, [word.format(**files)])


DRAW = "import numpy as np\n\ndef draw(p):\n    return np.random.choice(len(p), p=p)\n"
IN_CELLS = ["%matplotlib inline\nimport missing\n", f"!pip install x\n{DRAW}", "for _ in range(3):\n    draw(1 / 0)\n"]
RELATIVE = "from ..tools import draw as of_tools\n\ndef draw(p):\n    return of_tools(p)\n"
CLASSES = "class Sampler:\n    def draw(self, p):\n        return draw(p)\n\nclass Two(Sampler):\n    def other(self, p): ...\n"
PLACES = [
    "tools.py:draw",
    "sub/near.py:draw",
    "made.sub.near:draw",
    "cells.ipynb:draw",
    "near.py:Sampler",
    "near.py:Two.draw",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_function_is_found_in_a_file_a_notebook_a_module_and_a_class(place, few_cases, tmp_path, monkeypatch):
    folder = tmp_path / f"made_{PLACES.index(place)}"
    (folder / "sub").mkdir(parents=True)
    (folder / "tools.py").write_text(DRAW)
    (folder / "near.py").write_text(DRAW + CLASSES)
    (folder / "sub" / "near.py").write_text(RELATIVE)
    cells = [{"cell_type": "code", "source": source.splitlines(True)} for source in IN_CELLS]
    (folder / "cells.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    place = place.replace("made", folder.name) if place.startswith("made.") else str(folder / place)
    assert speculative.law(function_at(place)).lossless


def test_an_object_of_several_methods_is_asked_which_one_decodes():
    names = {}
    exec(CLASSES, names)
    assert (
        refusal(lambda: speculative.law(names["Two"]))
        == "Two has the methods draw, other: add the one that decodes, Two.METHOD"
    )


LOOP_WITHOUT_END = """
def mine(p):
    while True:
        j = random.randrange(len(p))
        if random.random() < p[j]:
            return j
"""


def test_a_loop_that_draws_until_something_is_accepted_ends_with_a_bound(monkeypatch):
    monkeypatch.setattr(drawn, "PORTION", 30)
    monkeypatch.setattr(drawn, "MOST_TEXTS", 30)
    verdict = speculative.law(planted("import random\n" + LOOP_WITHOUT_END, "mine"))
    assert verdict.lossless is None
    assert "the paths of a loop that draws until something is accepted have no end" in verdict.words
    assert "a loss above" in verdict.words


FILES_THAT_DO_NOT_END = [
    ("while True:\n    pass", ": it runs for more than 2 s: put the work under if __name__"),
    ("name = input('Your name? ')", "mine.py, line 1: EOFError: EOF when reading a line"),
    ("import os\nos._exit(0)", "mine.py, line 2: it ends the process with os._exit(0), so nothing can be told"),
    (
        "import os\ndef rule(proposal, q, rng):\n    os._exit(0)",
        "mine.py, line 3: it ends the process with os._exit(0)",
    ),
]


@pytest.mark.parametrize(("program", "said"), FILES_THAT_DO_NOT_END)
def test_a_file_that_does_not_end_or_ends_the_process_is_one_line(program, said, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(guard, "SECONDS_AT_IMPORT", (1, 2))
    (tmp_path / "mine.py").write_text(program)
    assert said in refusal(lambda: speculative.law(function_at(f"{tmp_path / 'mine.py'}:rule")))
    if "while" in program:
        assert "mine.py is run, and has not ended after 1 s" in capfd.readouterr().err


PRINTS = "print('one')\n    print('the draft has no eos', end='')\n    "


def test_what_a_function_prints_is_told_if_it_fails():
    failing = in_the_blogs_form(BEGIN, f"    {PRINTS}raise KeyError('eos')\n    x, T")
    assert refusal(lambda: speculative.law(failing)).endswith(
        "KeyError: 'eos'; it had printed: one / the draft has no eos"
    )
    assert speculative.law(in_the_blogs_form(BEGIN, f"    {PRINTS}x, T")).words.startswith("Lossless")


LEAVES_MUCH = """
import atexit, os, threading

atexit.register(lambda: os._exit(0))
threading.Thread(target=threading.Event().wait).start()
if os.fork() == 0:
    os._exit(0)
def rule(proposal, q, rng):
    return [int(q[0].argmax())]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_the_command_ends_with_its_verdict_whatever_a_file_has_left(tmp_path):
    (tmp_path / "mine.py").write_text(LEAVES_MUCH)
    done = python("-m", "speculative", "law", f"{tmp_path / 'mine.py'}:rule", timeout=120)
    assert (done.returncode, done.stdout[:13]) == (1, "Not lossless:")
    assert "os._exit" not in done.stderr


def test_what_a_checked_function_prints_is_not_kept():
    with guard.silenced():
        print("x" * 10_000)
    assert len(guard.PRINTED.end) <= guard.MOST_PRINTED


SHOWN = """import numpy as np


def speculative_sampling(x, draft_model, target_model, N, K):
    x = [*x]
    for _ in range(N):
        q = target_model(x)[-1]
        p = draft_model(x)[-1]
        j = np.random.choice(len(p), p=p)
        if np.random.random() < 2 * q[j] / p[j]:
            x.append(j)
        else:
            x.append(np.random.choice(len(q), p=q))
    return x
"""


def test_a_wrong_verdict_shows_the_first_wrong_token_and_a_path_with_its_lines(tmp_path):
    (tmp_path / "mine.py").write_text(SHOWN)
    words = speculative.law(function_at(f"{tmp_path / 'mine.py'}:speculative_sampling")).words
    after, *path = words[words.index("After") :].splitlines()
    assert after.startswith("After [1, 0, 0, 1] the target has q = [")
    assert "yours gives [" in after
    places = [line.split("  ")[1] for line in path if line.startswith("  ")]
    assert places == ["line 7", "line 8", "line 9", "line 10"]
    assert path[1].endswith("target called with [1, 0, 0, 1]")
    assert " draws " in path[3]
    assert path[4].endswith(": True")
    assert "at least once for each token" in words


def test_a_path_counts_once_in_what_is_saved_however_often_it_is_run():
    for n_forks in (0, 1):
        program = guard.Program(lambda draft, target, case, rng, n=n_forks: [rng.random() < 0.5] * n or [0], CASES[0])
        law_of(program)
        assert sum(effort.weight for effort in program.efforts.values()) == 1


def test_a_verdict_says_what_the_sampler_saves(few_cases):
    assert "of its drafts: " in speculative.law(in_the_blogs_form()).words
    assert "of its drafts: " in speculative.law(parse_rule("token").accept).words
    assert "tokens a call" not in speculative.law(sampling.sample).words
    assert "It never calls the target." in speculative.law(in_the_blogs_form(FROM, "draft_model(x_draft)")).words


@pytest.mark.parametrize(
    ("parameters", "call"),
    [
        (
            "draft_tokens_, draft_probs, target_probs, T",
            "mine(draft_tokens_=drafts, draft_probs=p, target_probs=q, T=...)",
        ),
        ("input_ids, model, assistant, gamma_", "mine(input_ids=x, model=target, assistant=draft, gamma_=K)"),
    ],
)
def test_foreign_parameters_are_answered_with_a_file_that_calls_the_function(parameters, call, tmp_path):
    (tmp_path / "theirs.py").write_text(f"def mine({parameters}):\n    raise KeyError('yes')\n")
    done = python("-m", "speculative", "law", f"{tmp_path / 'theirs.py'}:mine")
    assert done.returncode == 2
    assert "are not those of a sampler" in done.stderr
    assert "from theirs import mine" in done.stdout
    assert call in done.stdout
    compile(done.stdout, "adapter.py", "exec")


def test_a_cause_is_named_in_a_loop_without_a_bonus_token(few_cases):
    without = f"            x = [*x, {BONUS}]\n", ""
    assert speculative.law(in_the_blogs_form(*without)).lossless
    verdict = speculative.law(in_the_blogs_form(*without, REST, "q[i]"))
    assert verdict.cause == "a rejected draft is replaced by a draw from q, not from max(0, q - p)"


def test_small_distances_are_put_down_to_rounding(few_cases):
    verdict = speculative.law(in_the_blogs_form(RATIO, "q[i][j] / (p[i][j] + 1e-5)"))
    assert verdict.words.endswith("All distances are small: rounding, or an epsilon in a quotient; not the method.")
