"""A session: greedy texts are the target's to the bit, whatever drafts; seeds, stop texts, threads, changed options."""

import contextlib
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import zip_longest
from math import isclose

import numpy as np
import pytest
from checkpoint_files import MODELS
from hypothesis import example, given
from hypothesis import strategies as st
from registered import COMPOUND, RULE_NAMES, drafts_trees
from tiny import decoded, encoder_of, one_hot, refusal

import speculative
from encoder import END_OF_TEXT, StreamDecoder
from speculative import load_pair
from speculative.checkpoints import weights
from speculative.checkpoints.tokenizer import redirecting
from speculative.drafters import DRAFTERS
from speculative.drafters.base import proposal_of
from speculative.drafters.user import is_called_as
from speculative.engines.c.engine import CEngine
from speculative.engines.network import LOCK, CachedNetwork
from speculative.law.samplers import following
from speculative.rules import parse_rule
from speculative.run.options import Options, make_options
from speculative.run.session import Session
from speculative.sampling import Proposal, speculative_sampling, token_by_token
from speculative.verify.checks import check_greedy

PROMPT = "It was upon a bitterly cold night in the winter of the year, a cold night in the"


@pytest.fixture(scope="module")
def greedy(pair):
    """The text with which the target alone goes on."""
    return decoded(pair.autoregressive(PROMPT, 40))


LONG = "a" + " a" * 235  # a token each: there is room for 20 more


@pytest.fixture(scope="module")
def last(pair):
    """The last tokens of the context."""
    return decoded(pair.autoregressive(LONG, 20))


# ---- Nothing is lost, to the bit -------------------------------------------------------------------------------------

LOOKAHEADS = [{"K": 1}, {"K": 7}, {"K": "auto"}, {"tree": (2, 2, 1)}]
HOW = [{"drafter": drafter} | lookahead for drafter in [*DRAFTERS, *COMPOUND] for lookahead in LOOKAHEADS[1:]]
HOW += [{"drafter": drafter, "K": 1} for drafter in ("model", "prompt_lookup", "int8/model")]
HOW += [{"accept": accept} | lookahead for accept in RULE_NAMES for lookahead in LOOKAHEADS[1::2]]
HOW += [{"fast": True}]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_the_greedy_text_is_the_targets(pair, greedy, last, options):
    """To the bit, with exactly N tokens, to the end of the context, whatever drafts and whatever the rule."""
    if "tree" in options and not (
        drafts_trees(options.get("drafter", "model")) and parse_rule(options.get("accept", "token")).takes_trees
    ):
        assert "tree" in refusal(pair.changed, **options)
        return
    session = pair.changed(**options)
    for N in (24, 5) if "tree" in options else (24, 1):
        steps = [*session.speculative(PROMPT, N)]
        assert decoded(steps) == greedy[:N]
        assert all(len(step.source) == step.drafted for step in steps)
    if "accept" in options:  # a rule does not know of the context
        return
    room = 10 if "tree" in options else 20  # a tree has 10 nodes
    assert decoded(session.speculative(LONG, room)) == last[:room]
    assert "exceed the context" in refusal(session.speculative, LONG, room + 1)


@pytest.mark.parametrize(("dtype", "drafter"), [("bfloat16", "int8/model"), ("int8", "int4"), ("int4", "model")])
def test_the_greedy_text_of_a_rounded_target_is_its_own(dtype, drafter):
    session = load_pair("tiny-draft", "tiny-target", MODELS, threads=1, dtype=dtype, drafter=drafter, K=3)
    assert decoded(session.speculative(PROMPT, 40)) == decoded(session.autoregressive(PROMPT, 40))


# ---- Random numbers --------------------------------------------------------------------------------------------------


COPY = {"drafter": "int8/model", "K": (4, 2)}
LONG_PROMPT = " ".join([PROMPT] * 3)  # which the target reads before its copy drafts


@pytest.mark.parametrize("options", [{}, COPY], ids=str)
def test_a_seed_gives_a_text_and_each_sample_has_random_numbers_of_its_own(pair, options):
    warm, other = (pair.changed(temperature=1, seed=seed, **options) for seed in (5, 6))
    samples = [decoded(warm.speculative(PROMPT, 20, sample=number)) for number in range(3)]
    assert len({*map(tuple, samples)}) == 3
    assert decoded(other.speculative(PROMPT, 20)) != samples[1]  # as it would be with seed + number
    assert decoded(other.autoregressive(PROMPT, 20)) != decoded(warm.autoregressive(PROMPT, 20, sample=1))
    together = [*warm.decode_ids("speculative", [warm.encode(PROMPT)] * 3, 20)]
    assert [decoded(step for step in together if step.text_index == number) for number in range(3)] == samples


# ---- Several decodes at a time ---------------------------------------------------------------------------------------


TURNS = [*LOOKAHEADS[1:], {"drafter": "heads"}, {"drafter": "heads", "tree": (2, 1)}, COPY, COPY | {"temperature": 1}]


@pytest.mark.parametrize("options", TURNS, ids=str)
def test_decodes_that_share_their_models_may_take_turns_and_run_in_threads(pair, options):
    session = pair.changed(**options)
    prompts = [PROMPT, "Holmes", LONG_PROMPT]
    expected = [decoded(session.speculative(prompt, 10)) for prompt in prompts]
    if not session.options.temperature:
        assert expected == [decoded(pair.autoregressive(prompt, 10)) for prompt in prompts]
    by_turns = zip_longest(*(session.speculative(prompt, 10) for prompt in prompts))
    assert [decoded(filter(None, steps)) for steps in zip(*by_turns, strict=True)] == expected
    with ThreadPoolExecutor(len(prompts)) as pool:
        for _ in range(2):
            assert [*pool.map(lambda prompt: decoded(session.speculative(prompt, 10)), prompts)] == expected


def test_a_users_function_may_decode_in_a_thread_pool(pair, greedy):
    """A lock that one thread holds for all of a step would never be given back."""
    pool = ThreadPoolExecutor(1)

    def elsewhere(x, k):
        tokens = pool.submit(lambda: decoded(pair.speculative("It", 2))).result(timeout=60)[:k]
        return tokens, one_hot(*tokens, n_vocab=pair.encoder.n_vocab)

    assert decoded(pair.changed(drafter=elsewhere).speculative(PROMPT, 12)) == greedy[:12]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("lock", [LOCK, redirecting], ids=["LOCK", "redirecting"])
def test_a_forked_child_does_not_wait_for_a_lock_of_its_parents_thread(lock):
    taken = threading.Event()

    def hold():
        with lock:
            taken.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert lock.acquire(timeout=5)  # in the parent too
    lock.release()


@pytest.mark.parametrize("drafter", ["model", "int8/prompt_lookup+model"])
def test_a_session_goes_on_after_ctrl_c_while_costs_are_measured(pair, greedy, monkeypatch, drafter):
    """Whichever call is interrupted, nothing of the measurement counts, or all of it."""
    left = []  # an entry for each call before the one that is interrupted

    def interrupted(function):
        def call(*given):
            if left and not left.pop():
                raise KeyboardInterrupt
            return function(*given)

        return call

    monkeypatch.setattr(CachedNetwork, "logits", interrupted(CachedNetwork.logits))
    monkeypatch.setattr(CEngine, "window_seconds", interrupted(CEngine.window_seconds))
    n_interrupted = 0
    for n_before in range(0, 20, 3):
        session = pair.changed(drafter=drafter, K="auto")
        left[:] = [False, *[True] * n_before]
        with contextlib.suppress(KeyboardInterrupt):
            [*session.speculative(PROMPT, 12)]
        n_interrupted += not left
        left.clear()  # a decode of fewer calls was not interrupted
        assert decoded(session.speculative(PROMPT, 12)) == greedy[:12]
    assert n_interrupted > 3


# ---- Options ---------------------------------------------------------------------------------------------------------


def test_options_change_and_the_models_stay(pair):
    other = pair.changed(K="8/2", temperature="0.7", drafter="model/ngram")
    assert (other.options.K, other.options.temperature, other.options.drafter) == ((8, 2), 0.7, "model/ngram")
    assert other.models is pair.models
    assert other.changed(K=None, temperature=None, drafter=None).options == pair.options
    tree = pair.changed(K=8).changed(tree="2,1")
    assert tree.options.tree == (2, 1)
    assert [tree.changed(**other).options.tree for other in ({"tree": None}, {"K": 8})] == [None, None]
    assert (tree.changed(fast=True).options.tree, tree.changed(fast=True).changed(fast=False).options.K) == (None, 4)
    warm = pair.changed(temperature=1)
    fast = warm.changed(fast=True)
    assert fast.options.accept == "block"
    assert fast.changed(K=2).options == warm.changed(K=2).options  # nothing is left of --fast


def test_models_are_loaded_when_they_are_asked_for():
    session = load_pair("nowhere", "tiny-target", MODELS, drafter="ngram", threads=1)
    assert {*session.models.loaded} == {"target", "ngram"}
    other = session.changed(drafter="int8")
    assert {*session.models.loaded} == {"target", "ngram", "int8"}
    assert other.models["target"] is session.models["target"]
    assert "nowhere" in refusal(session.changed, drafter="model")


# ---- Stop texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"tree": (2, 2, 1)}, {"drafter": "int8/model", "K": (6, 2)}], ids=str)
def test_a_stop_text_ends_both_decoders_alike(pair, greedy, options):
    """Wherever it stands: at the beginning of a token, inside it, or across two."""
    whole = pair.encoder.decode(greedy)
    for i in range(3, len(whole) - 3, 23):
        stop = whole[i : i + 3]
        session = pair.changed(stop=stop, **options)
        expected = decoded(session.autoregressive(PROMPT, 40))
        steps = [*session.speculative(PROMPT, 40)]
        assert decoded(steps) == expected == greedy[: len(expected)]
        assert "".join(step.text for step in steps) == whole.partition(stop)[0]
        assert stop in pair.encoder.decode(expected)
        assert stop not in pair.encoder.decode(expected[:-1])
        for step in steps:  # drafts after the stop text count as proposed, and not as accepted
            assert len(step.source) == step.drafted
            assert len(step.pieces) == len(step.tokens) >= max(step.accepted, len(step.alpha))


ENCODER = encoder_of("the", "re", " end", ".,", "é")


STOPS = st.text(alphabet="the .,é\n", min_size=1, max_size=4)


@given(st.text(alphabet="the rnd.,é\n", max_size=30), st.lists(STOPS, max_size=3))
@example("a thee", ["theen", "e"])  # the second is there before the first can be ruled out
@example("a theen", ["theen", "e"])
def test_a_text_ends_before_the_first_stop_text(text, stops):
    stream = StreamDecoder(ENCODER, *(stops if len(stops) == 1 else [tuple(stops)]))
    shown = [stream.push([token]) for token in ENCODER.encode(text)]
    expected = min((text.partition(stop)[0] for stop in stops), key=len, default=text)
    assert "".join([*shown, stream.flush()]) == expected
    if len(stops) < 2:
        assert stream.stopped == (expected != text)


def test_the_end_of_a_text_in_a_prompt_is_its_token_if_special(pair):
    """OpenAI's encoder, which the bundled pair has, takes it for plain text."""
    plain, special = pair.encode(f"a{END_OF_TEXT}b"), pair.changed(special=True).encode(f"a{END_OF_TEXT}b")
    assert special == [plain[0], pair.encoder.eot, plain[-1]]
    assert pair.encoder.eot not in plain


@pytest.mark.parametrize(
    ("stop", "eot", "shown"),
    [
        (None, ENCODER.eot, f"{END_OF_TEXT}a{END_OF_TEXT}b"),
        ("the end", ENCODER.eot, f"{END_OF_TEXT}a{END_OF_TEXT}b"),
        (END_OF_TEXT, ENCODER.eot, f"{END_OF_TEXT}a"),
        (("the end", END_OF_TEXT), ENCODER.eot, f"{END_OF_TEXT}a"),
        (END_OF_TEXT, -1, ""),  # of a model without an end token
    ],
)
def test_a_text_that_is_to_end_there_ends_at_the_token_of_the_end(stop, eot, shown):
    """Its characters are another text, if there is such a token."""
    encoder = copy(ENCODER)
    encoder.eot, encoder.ends = eot, {eot} - {-1}
    stream = StreamDecoder(encoder, stop)
    ids = [*ENCODER.encode(f"{END_OF_TEXT}a"), ENCODER.eot, *ENCODER.encode("b")]
    assert stream.push(ids) + stream.flush() == shown
    assert stream.stopped == (END_OF_TEXT in (stop or ()))


# ---- A user's function as the target ---------------------------------------------------------------------------------


@pytest.fixture
def as_function(pair):
    """function, options -> a session whose target is the function. all_rows is the pair's own target, which gives all
    rows as in the blog's code."""
    target = pair.changed(temperature=1).model("target")

    def all_rows(x, n_last):
        return target(x, len(x))

    def load(function=all_rows, **options):
        given = {"models_dir": MODELS, "draft_model_size": "tiny-draft", "threads": 1} | options
        return load_pair(target=function, **{"encoder": pair.encoder} | given)

    return load


@pytest.mark.parametrize(
    "how", [{}, {"drafter": "ngram", "K": "auto"}, {"drafter": "prompt_lookup+model"}, {"tree": "2,1"}]
)
def test_a_function_may_be_the_target(as_function, greedy, how):
    session = as_function(**how)
    assert decoded(session.autoregressive(PROMPT, 12)) == greedy[:12]
    assert decoded(session.speculative(PROMPT, 12)) == greedy[:12]


def test_a_function_is_compared_and_shown_as_a_model_is(as_function, pair, greedy):
    session = as_function()
    warm = {"temperature": 1, "top_p": 0.9, "seed": 5}
    expected, found = (decoded(one.changed(**warm).speculative(PROMPT, 12)) for one in (pair, session))
    assert found == expected
    run = session.compare(PROMPT, 12, repeats=1)
    assert run.text == pair.encoder.decode(greedy[:12])
    assert "The target all_rows is a function of yours" in repr(run)
    assert "Target all_rows" not in repr(run)
    assert "# none: the target all_rows came from Python" in run.html()
    greedily = check_greedy(session, [np.array(session.encode(PROMPT))], 8)
    assert greedily.passed
    assert not session.exact


TARGETS = [
    (
        lambda x, n_last: np.zeros((n_last, 2048)),
        {},
        "the model returned rows that are not distributions (entries of at least 0 whose sum is 1), perhaps logits",
    ),
    (
        lambda x, n_last: np.eye(2048)[[0] * n_last] + np.array([0.004, -0.004] + [0.0] * 2046),
        {},
        "the model returned rows that are not distributions (entries of at least 0 whose sum is 1), perhaps logits",
    ),
    (
        lambda x, n_last: [[1.0]],
        {},
        "the model returned list: model(x, n_last=4) has to return a float array of NumPy, [4, n_vocab]",
    ),
    (
        lambda x, n_last: np.eye(9)[[0] * n_last],
        {},
        "the target lambda returned rows of 9 tokens, and the encoder has 2048",
    ),
    (lambda x, n_last: EYE[:0], {}, "the model returned float64[0, 2048]: model(x, n_last=4) has to return"),
    ("124M", {}, "target is a function target(x, n_last) -> distributions: name a model by target_model_size"),
    (
        isclose,
        {"encoder": None},
        "a function as the target needs the encoder of its tokens, as encoder.get_encoder gives it",
    ),
    (isclose, {"dtype": "int8"}, "dtype has no effect here: the target is a function"),
    (isclose, {"target_model_size": "355M"}, "target_model_size has no effect here: the target is a function"),
    (
        isclose,
        {"drafter": "int8"},
        "drafter int8 needs the target's weights, and a function has none: try prompt_lookup",
    ),
    (
        isclose,
        {"drafter": "heads"},
        "drafter heads needs the target's weights, and a function has none: try prompt_lookup",
    ),
    (lambda x: EYE, {}, "lambda is called as model(x, n_last), and takes other parameters: give it these"),
]


@pytest.mark.parametrize(("function", "options", "line"), TARGETS)
def test_a_function_that_cannot_be_the_target_is_one_clear_line(as_function, function, options, line):
    said = refusal(lambda: [*as_function(function, **options).speculative(PROMPT, 4)])
    assert said.startswith(line)


# ---- A user's function -----------------------------------------------------------------------------------------------


EYE = np.eye(2048)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda x, k: ([1] * (k + 1), EYE[[1] * (k + 1)]), "proposes 5 tokens, and 4 were asked for"),
        (lambda x, k: ([1], np.eye(5)[[1]]), "gives p of shape (1, 5) for 1 tokens: it should be (1, 2048)"),
        (lambda x, k: None, "should return (tokens, p), not None"),
        (lambda x, k: {"tokens": [1], "p": EYE[[1]]}, "should return (tokens, p), not {'tokens': [1], 'p': array("),
        (lambda x, k: ([1],), "should return (tokens, p), not ([1],)"),
        (lambda x, k: ([1.5], EYE[[1]]), "[1.5] are not token ids"),
        (lambda x, k: (["1"], EYE[[1]]), "['1'] are not token ids"),
        (lambda x, k: ([2048], EYE[[1]]), "proposes the token 2048: ids go from 0 to 2047"),
        (lambda x, k: ([-1], EYE[[1]]), "proposes the token -1"),
        (lambda x, k: ([1], np.full((1, 2048), np.nan)), "gives rows of p that are not distributions"),
        (lambda x, k: ([1], -EYE[[1]]), "gives rows of p that are not distributions"),
        (lambda x, k: ([1], EYE[[1]] / 2), "gives rows of p that are not distributions"),
        (lambda x, k: ([1], EYE[[2]]), "proposes a token whose p is 0: the token must be drawn from p"),
        (lambda x, k: ([1], EYE[[2]] + 1e-50), "proposes a token whose p is 0: the token must be drawn from p"),
        (lambda x, k: ([1], EYE[[1]] + 0.5j), "should return (tokens, p): p is complex128"),
    ],
)
def test_a_function_that_breaks_the_contract_is_one_clear_line(pair, function, line):
    said = refusal(lambda: [*pair.changed(drafter=function).speculative(PROMPT, 20)])
    assert said.startswith("the drafter lambda ")
    assert line in said


CALLED = "lambda is called as {}, and takes other parameters: give it these"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda pair: pair.changed(drafter=lambda x: x), CALLED.format("draft(x, k)")),
        (lambda pair: pair.changed(accept=lambda q: q), CALLED.format("accept(proposal, q, rng)")),
        (lambda pair: pair.changed(temperature="1_0"), "temperature must be a number of at least 0, not '1_0'"),
        (lambda pair: pair.changed(temperature="\u0664"), "temperature must be a number of at least 0, not "),
        (lambda pair: pair.batch("a text", 4), "prompts must be a list of texts: give a single one as [prompt]"),
        (lambda pair: pair.batch(5, 4), "prompts must be a list of texts: give a single one as [prompt]"),
        (lambda pair: pair.batch(["a text"], 4, "greedy"), "name must be one of autoregressive, speculative"),
        (lambda pair: pair.decode("greedy", ["a text"], 4), "decoder must be one of autoregressive, speculative"),
        (lambda pair: pair.speculative(["a text"], 4), "the prompt must be a text in UTF-8, not ['a text']"),
        (lambda pair: pair.steps("greedy", [1], 4, None), "decoder must be one of autoregressive, speculative"),
        (lambda pair: pair.model("drafft"), "role must be one of target, draft, not 'drafft'"),
        (lambda pair: load_pair(demo=True, encoder=3), "encoder is for a target that is a function: leave it out"),
        (lambda pair: pair.compare("a text", 4, 0), "repeats must be a whole number of at least 1, not 0"),
    ],
)
def test_a_call_that_cannot_be_meant_is_one_clear_line(pair, call, line):
    assert refusal(call, pair).startswith(line)


@pytest.mark.parametrize("accept", ["token", "block"])
def test_a_function_may_write_to_its_x_and_return_lists_and_whole_numbers(pair, greedy, accept):
    def careless(x, k):
        token = float(x[-1])
        x[:] = 0
        return [token] * k, np.eye(2048, dtype=int)[[int(token)] * k].tolist()

    assert decoded(pair.changed(drafter=careless, accept=accept).speculative(PROMPT, 20)) == greedy[:20]


@pytest.mark.parametrize("drafter", ["int8", "int8/model", "int8/prompt_lookup+model"])
def test_a_drafter_of_ones_own_loop_leaves_the_targets_cache_alone(pair, drafter):
    session = pair.changed(drafter=drafter)
    x = session.encode(PROMPT)
    target = session.model("target")
    rng = np.random.default_rng(0)
    [*speculative_sampling(x, session.drafter(rng, target), target, 20, 4, rng)]
    assert all(call.n_read <= 5 for call in [*target.log][1:])


def test_a_function_may_not_tell_its_parameters(pair):
    assert is_called_as(slice, "draft(x, k)")
    session = pair.changed(drafter=slice)
    assert "the drafter slice should return (tokens, p), not slice(" in refusal(list, session.speculative(PROMPT, 4))


def test_a_function_may_be_told_when_to_stop_and_return_a_proposal(pair, greedy):
    """As our own drafters do. K auto asks it, and a function as the target, for no text that is not the decode's."""
    asked, answers = [], []

    def draft(x, k, go_on=None):
        asked.append(x)
        tokens = [int(x[-1])] * k
        if go_on:
            answers.append(go_on(3.0))
        return Proposal(tokens, np.eye(2048, dtype=np.float32)[tokens], margins=[3.0] * k)

    def target(x, n_last):
        asked.append(x)
        return rows(x, n_last)

    rows = pair.changed(temperature=1).model("target")
    session = load_pair(target=target, encoder=pair.encoder, drafter=draft, K="auto")
    x = pair.encode(PROMPT)
    assert decoded(session.steps("speculative", x, 12, np.random.default_rng(0))) == greedy[:12]
    assert answers
    assert all(text[: len(x)].tolist() == x for text in asked)
    again = load_pair(target=target, encoder=pair.encoder, drafter=draft, K="auto")
    assert len(again.drafter(np.random.default_rng(0))(x, 4).tokens) <= 4


def test_a_batch_is_compared_with_the_memory_and_names_the_prompt_that_does_not_fit(pair, monkeypatch):
    assert refusal(pair.batch, ["It", "word " * 900], 8).startswith("prompt 2: the prompt's ")
    monkeypatch.setattr(type(pair.engine), "free_bytes", lambda engine: 10**6)
    said = refusal(pair.batch, ["It"] * 50, 8)
    assert said.startswith("the caches of 50 texts need ")
    assert said.endswith(" texts at a time would fit")


def test_a_functions_rows_are_normalised():
    """Rows in float16 do not sum to exactly 1."""
    p = np.random.default_rng(0).dirichlet(np.ones(2048), size=3).astype(np.float16)
    proposal = proposal_of((p.argmax(axis=1), p), 3, 2048, "rough")
    np.testing.assert_allclose(proposal.p.sum(axis=1), 1, rtol=1e-6)


def takes_all(proposal, q, rng):
    return [*proposal.tokens, int(rng.choice(q.shape[1], p=q[-1]))]


def test_a_rule_may_be_a_function(pair, monkeypatch):
    """It is token_by_token's twin here; one that takes every draft is told from it, by its own claim and by its law."""

    def careful(proposal, q, rng):
        return token_by_token(proposal, q, rng)

    careful.lossless = True
    mine = pair.changed(accept=careful, temperature=1)
    assert decoded(mine.speculative(PROMPT, 20)) == decoded(pair.changed(temperature=1).speculative(PROMPT, 20))
    run = pair.changed(accept=takes_all, temperature=1).compare(PROMPT, 20)
    says = "The texts differ.\nThe rule takes_all does not claim to keep the target's distribution."
    assert f"{says} speculative.law(takes_all) tells if it does." in repr(run)
    assert "takes_all" in run.html()
    monkeypatch.setattr(following, "CASES", following.CASES[::16])
    speculative.law(takes_all)
    assert f"{says} Not lossless: the distribution" in repr(mine.changed(accept=takes_all).compare(PROMPT, 20))
    tree = "--accept careful tests a chain, and --tree drafts a tree: leave one of them out".replace("--", "")
    assert refusal(mine.changed, tree="2,1") == tree
    assert pair.changed(accept=lambda proposal, q, rng: [7]).compare(PROMPT, 4).r > 0  # q of 7 is 0
    assert pair.changed(accept=lambda proposal, q, rng: [*np.argsort(rng.random(size=1))]).compare(PROMPT, 4).r > 0


@pytest.mark.parametrize("returned", [[], [1] * 9, [0, 0, 0], [2.5], [2048], None, "ab"])
def test_a_rule_that_breaks_the_contract_is_one_clear_line(pair, returned):
    said = refusal(lambda: [*pair.changed(accept=lambda proposal, q, rng: returned).speculative(PROMPT, 20)])
    assert said.startswith("the rule lambda ")


def always(token):
    def echo(x, k):
        return [token] * k, EYE[[token] * k]

    return echo


def test_the_name_of_a_function_belongs_to_its_session(pair):
    def drafts(session):
        return session.drafter(np.random.default_rng(0))([1, 2, 3], 2).tokens

    first = pair.changed(drafter=always(1))
    second = first.changed(drafter=always(2))
    assert drafts(first.changed(drafter="echo+prompt_lookup")) == [1, 1]
    assert drafts(second.changed(drafter="echo+prompt_lookup")) == [2, 2]
    assert drafts(second.changed(temperature=1)) == [2, 2]
    assert "drafter 'echo' is unknown; there are model, " in refusal(pair.changed, drafter="echo")
    assert "echo" not in DRAFTERS
    model = always(1)
    model.__name__ = "model"
    assert pair.changed(drafter=model).options.drafter == "model_function"


# ---- The package -----------------------------------------------------------------------------------------------------


def test_the_package_gives_what_it_lists():
    assert all(getattr(speculative, name) for name in speculative.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'load_pears'"):
        _ = speculative.load_pears


@pytest.mark.parametrize(
    ("options", "prompts", "in_place"),
    [
        ({}, ["It was"], True),
        ({}, [], False),  # a session that goes on
        ({"n_tokens_to_generate": 230}, ["It was"], False),
        ({"n_samples": 9}, ["It was"], False),
        ({"verify": True}, ["It was"], False),
        ({"dtype": "int8"}, ["It was"], False),
    ],
    ids=str,
)
def test_a_short_command_uses_float32_where_it_lies(options, prompts, in_place, monkeypatch):
    """And the memory of what it uses there is not given back."""
    forgotten = []
    monkeypatch.setattr(weights, "forget_pages", lambda tensor: forgotten.append(tensor.shape))
    models = {"target_model_size": "tiny-target", "draft_model_size": "tiny-draft", "models_dir": str(MODELS)}
    session = Session(make_options(Options, models | options), prompts=prompts, quiet=True)
    if not session.engine.packs:
        pytest.skip("there is no C compiler")
    w = session.models["target"].params["blocks"][0]["mlp"]["c_fc"]["w"]
    assert isinstance(w, np.ndarray) == in_place
    n_forgotten = forgotten.count((192, 4 * 192))  # of both models: the draft has one such matrix, which is rounded
    assert n_forgotten == (1 if in_place else 13)


@pytest.mark.parametrize(("options", "stays"), [({"engine": "numpy"}, True), ({}, False), ({"dtype": "int8"}, False)])
def test_a_model_that_is_written_over_while_it_is_loaded(options, stays, tiny_pair, tmp_path):
    """What stays in the file is looked at before each decode. The rest is a copy, which no longer depends on it."""
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    session = load_pair("draft", "target", models_dir=str(models), **options)
    before = decoded(session.speculative("the thing", 6))
    path = models / "target" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5000:] = content[-10000:-5000]  # other numbers
    with open(path, "r+b") as f:
        f.write(content)
    os.utime(path, (1, 1))
    if stays:
        for decode in (session.speculative, session.autoregressive):
            line = refusal(decode, "the thing", 6)
            assert line == f"{path}: written to while the model uses it: load the model once more"
        os.unlink(path)  # a file that is replaced stays as it is as long as it is mapped
        session.autoregressive("the thing", 6)
    else:
        assert decoded(session.speculative("the thing", 6)) == before
