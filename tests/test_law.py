"""The law: whatever is registered, the output is the target's exactly; and each mistake that is planted shows.

Rules, drafters and filters are tested because they are registered. Each test goes along every path of a decode.
"""

from functools import partial
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
from speculative.law.paths import EXACT, law_of
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


CASES = [
    (drafter, accept, K)
    for drafter in [*DRAFTERS, "users", *COMPOUND]
    for accept in LOSSLESS
    for K in (1, 2, "auto", "tree")
    if K != "tree" or (parse_rule(accept).accept_tree and drafts_trees(drafter))
]


@pytest.mark.parametrize(("drafter", "accept", "K"), CASES)
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
    ("drafters.heads:head_drafter", "p, [NAME]", "p[::-1], [NAME]", HEADS),
    ("drafters.staged:staged", "[*step.q[: len(step.tokens)]]", "[*step.proposal.p[: step.accepted], step.q[-1]]", {"K": (2, 1), "drafter": "model/ngram"}),
    ("drafters:first_of", "if len(proposal.tokens) > n_before", "if len(proposal.tokens) and proposal.p[0][proposal.tokens[0]] > 0.4", CHAIN | {"drafter": "model+prompt_lookup"}),
    ("user_functions:checked", "(p / sums)", "(p**2 / np.sum(p**2, -1, keepdims=True))", CHAIN | {"drafter": "users"}),
    ("lookahead:AutoK.drafter_of", "n = len(x)", "proposal = proposal if len(x) % 2 or not len(proposal.p) or proposal.p[0].max() == proposal.p[0][proposal.tokens[0]] else Proposal([], [])\n        n = len(x)", {"K": "auto"}),
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

    assert any(distance(seed) > 1e-4 for seed in range(4))


# ---- Anyone's function ----------------------------------------------------------------------------------------------

IN_THE_BLOGS_FORM = """
from random import random as from_random

import numpy as np

OF_A_MODULE = np.random.default_rng(0)

def positive_part(x):
    kept = np.where(x > 0, x, 0)
    return kept / np.sum(kept)

def draw(p):
    return np.random.choice(np.arange(p.shape[-1]), p=p)

def top(p, k):
    kept = np.where(p >= np.sort(p)[-k], p, 0)
    return kept / kept.sum()

def bfloat16(p):
    bits = p.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32) / bits.view(np.float32).sum()

def speculative_sampling(x, draft_model, target_model, N, K):
    T = len(x) + N
    while len(x) < T:
        n = len(x)
        x_draft = x
        for _ in range(K):
            x_draft = np.append(x_draft, draw(draft_model(x_draft)[-1]))
        p, q = draft_model(x_draft), target_model(x_draft)
        all_accepted = True
        for i in range(n - 1, n - 1 + K):
            j = x_draft[i + 1]
            if np.random.random() < min(1, q[i][j] / p[i][j]):
                x = np.append(x, j)
            else:
                x = np.append(x, draw(positive_part(q[i] - p[i])))
                all_accepted = False
                break
        if all_accepted:
            x = np.append(x, draw(q[-1]))
    return x
"""

REPORTED = [
    # (what stands there, what people wrote, a part of the cause)
    ("draw(draft_model(x_draft)[-1])", "np.argmax(draft_model(x_draft)[-1])", "not drawn from the p"),
    ("draw(draft_model(x_draft)[-1])", "draw(top(draft_model(x_draft)[-1], 1))", "not drawn from the p"),
    ("draw(draft_model(x_draft)[-1])", "draw(bfloat16(draft_model(x_draft)[-1]))", "not drawn from the p"),
    ("q[i] - p[i])", "q[i] - p[i][j])", "subtracts a number"),
    ("draw(positive_part(q[i] - p[i]))", "draw(q[i])", "a draw from q, not from"),
    ("positive_part(q[i] - p[i])", "positive_part(p[i] - q[i])", "max(0, p - q)"),
    ("positive_part(q[i] - p[i])", "positive_part(abs(q[i] - p[i]))", "|q - p|"),
    ("q[i][j] / p[i][j]", "p[i][j] / max(q[i][j], 1e-9)", "p / q"),
    ("q[i][j] / p[i][j]", "q[i + 1][j] / p[i][j]", "the row of q after the draft"),
    ("q[i][j] / p[i][j]", "q[i][j]", "q alone"),
    ("q[i][j] / p[i][j]", "1.0", "every draft"),
    ("draw(q[-1])", "draw(q[-2])", "the row of q before the last"),
    ("draw(q[-1])", "draw(p[-1])", None),
    ("if all_accepted:", "if True:", "a token too many"),
    ("p, q = draft", "np.random.seed(7)\n        p, q = draft", "used twice"),
    ("np.append(x, draw(q[-1]))", "np.append(x, np.argmax(q[-1]))", None),
]


def in_the_blogs_form(old="", new=""):
    assert old in IN_THE_BLOGS_FORM
    names = {}
    exec(IN_THE_BLOGS_FORM.replace(old, new) if old else IN_THE_BLOGS_FORM, names)
    return names["speculative_sampling"]


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(check_law, "CASES", check_law.CASES[::5])


@pytest.mark.parametrize(("old", "new", "cause"), REPORTED)
def test_a_reported_mistake_is_found_with_its_cause(few_cases, old, new, cause):
    verdict = check_law.check_law(in_the_blogs_form(old, new))
    assert not verdict.lossless
    assert cause in verdict.words.partition("Usual cause: ")[2] if cause else "cause" not in verdict.words


def echo(x, k):  # a drafter
    return [0] * k, np.eye(3)[[0] * k]


def test_what_is_right_is_lossless_and_a_rule_as_it_says_itself(few_cases):
    rules = [parse_rule(name) for name in RULE_NAMES]
    right = [in_the_blogs_form(), sampling.speculative_sampling, sampling.sample, sampling.max_fn, echo]
    right += [in_the_blogs_form("np.random.random()", each) for each in ("OF_A_MODULE.random()", "from_random()")]
    assert [check_law.check_law(function).lossless for function in right] == [True] * len(right)
    assert [check_law.check_law(rule.accept).lossless for rule in rules] == [rule.lossless for rule in rules]


IN_OTHER_STYLES = [
    # (what stands there, what stands there in another style)
    ("np.random.random() <", "1 - np.random.random() <="),
    ("np.random.random() < min(1, q[i][j] / p[i][j])", "np.log(np.random.uniform(size=1)[0]) < np.log(q[i][j] / p[i][j])"),
    ("np.random.random() < min(1, q[i][j] / p[i][j])", "np.random.uniform(-1, 0) * -p[i][j] < q[i][j]"),
    ("np.random.random() < min(1, q[i][j] / p[i][j])", "np.random.binomial(1, min(1, q[i][j] / p[i][j]))"),
    ("np.random.choice(np.arange(p.shape[-1]), p=p)", "np.argmax(np.log(p) + np.random.gumbel(size=len(p)))"),
    ("np.random.choice(np.arange(p.shape[-1]), p=p)", "np.argmax(p / np.random.exponential(size=len(p)))"),
    ("np.random.choice(np.arange(p.shape[-1]), p=p)", "int(np.sum(np.random.random() > np.cumsum(p / p.sum(), dtype=float)))"),
    ("    return x", "    return tuple(x[T - N :])"),
    ("    return x", "    return np.array([x])"),
]  # fmt: skip

SEEN_SINCE = [
    # (what stands there, what a case of its own sees)
    ("q = draft_model(x_draft), target_model(x_draft)", "q = draft_model(x_draft), np.where((q := target_model(x_draft)) < 0.05 * q.max(-1, keepdims=True), 0, q)"),
    ("np.random.random() < min", "i > n or np.random.random() < min"),
    ("np.random.random() < min", "len(x) > 5 or np.random.random() < min"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), IN_OTHER_STYLES)
def test_a_right_loop_in_another_style_is_lossless(few_cases, old, new):
    assert speculative.law(in_the_blogs_form(old, new)).lossless


@pytest.mark.parametrize(("old", "new"), SEEN_SINCE)
def test_a_mistake_that_needs_its_own_case_is_seen(old, new):
    verdict = check_law.check_law(in_the_blogs_form(old, new))
    assert not verdict.lossless
    assert verdict.case in check_law.CASES


def test_a_generator_in_a_default_argument_a_partial_and_a_method_are_followed(few_cases):
    def with_default(p, gen=np.random.default_rng(3)):  # noqa: B008
        return sampling.sample(p, gen)

    drawer = SimpleNamespace(rng=np.random.default_rng(1))
    right = [with_default, partial(with_default), MethodType(lambda self, p: sampling.sample(p, self.rng), drawer)]
    assert all(speculative.law(function).lossless for function in right)


CANNOT_TELL = [
    # (what stands in the place of the loop's first line, a part of what is said)
    ("raise SystemExit(0)", "line 4: SystemExit: 0"),
    ("raise ValueError('\\x1b[31m')", "line 4: ValueError: "),
    ("return [*x, *[2.5] * N]", "not ids below 3"),
    ("return None", "it returned NoneType, not tokens"),
    ("return x", "it returned 0 new tokens in place of 1"),
    ("while True: target_model(x)", "no progress: 1,000 calls of a model without a random number"),
    ("for _ in range(20): np.random.random() < 0.5", "more than 5,000 paths"),
    ("return [*x, *[int(np.random.mtrand._rand.random() * 3)] * N]", "random numbers cannot be followed"),
]


@pytest.mark.parametrize(("line", "said"), CANNOT_TELL)
def test_what_cannot_be_told_is_said_in_one_line(line, said):
    names = {}
    text = (
        f"import numpy as np\n\ndef mine(x, draft_model, target_model, N, K):\n    {line}\n    return [*x, *[0] * N]\n"
    )
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
            "has no function nothing: it has positive_part, draw, top, bfloat16, speculative_sampling",
        ),
        ("{unknown}", 2, "error: some of its random numbers cannot be followed: draw from rng, np.random or random"),
        ("missing.py", 2, "error: missing.py is not a file"),
    ],
)
def test_the_command(word, status, said, tmp_path):
    (tmp_path / "mine.py").write_text(IN_THE_BLOGS_FORM)
    unknown = IN_THE_BLOGS_FORM.replace("np.random.random()", "(np.random.mtrand._rand.random())")
    (tmp_path / "unknown.py").write_text(unknown)
    done = python("-m", "speculative", "law", word.format(file=tmp_path / "mine.py", unknown=tmp_path / "unknown.py"))
    assert done.returncode == status
    assert said in done.stdout + done.stderr
