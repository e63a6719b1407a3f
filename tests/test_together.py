"""Texts that are decoded together are those that each would be alone, to the bit."""

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from copy import copy
from dataclasses import replace

import pytest
from conftest import MODELS

from speculative import UserError, load_pair
from speculative.engines.c.library import library
from speculative.engines.together import Closed, Strand
from speculative.run.decode_parts import DecodeParts
from speculative.run.loops import PythonLoops


def counting(strand_of, events, faults=()):
    """A function that waits at these events, and returns the answers."""
    answers = []

    def function():
        for event in events:
            answers.append(strand_of[0].wait_at(event))
            if event in faults:
                raise ValueError(event)

    return function, answers


def test_a_strand_runs_in_turn_with_its_caller():
    strands = []
    function, answers = counting(strands, "abc")
    strands.append(Strand(function))
    seen = []
    strands[0].resume()
    while not strands[0].has_ended:
        seen.append(strands[0].event)
        strands[0].resume(strands[0].event.upper())
    assert (seen, answers) == (["a", "b", "c"], ["A", "B", "C"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_strand_that_waits_cannot_go_on_after_a_fork_and_is_closed():
    """SIGALRM ends a child that hangs."""
    strands = []
    strands.append(Strand(counting(strands, "abc")[0]))
    strands[0].resume()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)
            with pytest.raises(UserError, match="before a fork"):
                strands[0].resume()
            strands[0].close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    strands[0].resume()
    assert strands[0].event == "b"


def test_an_error_is_raised_where_the_strand_is_resumed():
    strands = []
    strands.append(Strand(counting(strands, "ab", faults="a")[0]))
    strands[0].resume()
    with pytest.raises(ValueError, match="a"):
        strands[0].resume()
    assert strands[0].has_ended


def test_a_strand_that_is_closed_ends_where_it_waits_and_leaves_no_thread():
    before = threading.active_count()
    ended = []
    strands = []

    def function():
        try:
            strands[-1].wait_at("a")
        except Closed:
            ended.append(True)
            raise

    for begun in (True, False):
        strands.append(Strand(function))
        if begun:
            strands[-1].resume()
        strands[-1].close()
    assert ended == [True]
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    assert threading.active_count() <= before + 1


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of signals")
def test_ctrl_c_may_come_anywhere():
    """A strand that is interrupted in any place of its caller can be closed, and its thread ends."""
    rng = random.Random(0)
    armed = []

    def interrupt(*about):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            strands = []
            strands.append(Strand(counting(strands, range(1000))[0]))
            with contextlib.suppress(KeyboardInterrupt):
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-3))
                while not strands[0].has_ended:  # where Python ignores an error, as in a finalizer, it goes on
                    strands[0].resume()
                armed.clear()
            strands[0].close()
            assert strands[0].has_ended or not strands[0].process
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- Texts -----------------------------------------------------------------------------------------------------------

PROMPTS = ["It was upon a bitterly cold night", "Holmes", "The door of the old house was open, and the light", "the"]
PROMPTS += ["When he had gone, the lady of the house, who had been there for an hour, turned to the boy and said"]
N = 14
KINDS = [  # of decodes, over what the engine has
    {"drafter": "model", "K": 3},
    {"drafter": "model", "K": 5, "accept": "block", "top_p": 0.9},
    {"drafter": "model", "tree": (2, 2), "min_p": 0.02},
    {"drafter": "model", "K": 3, "accept": "lenient:0.5", "top_k": 20},
    {"drafter": "model", "K": 3, "accept": "typical:0.3", "eta": 0.001},
    {"drafter": "prompt_lookup+model", "K": 4, "draft_temperature": 0.5},
    {"drafter": "ngram", "K": 3},
    {"drafter": "int8", "K": 4},
    {"drafter": "int8", "tree": (2, 1)},
    {"drafter": "int8/int4", "K": (4, 3)},
    {"drafter": "int8/prompt_lookup+model", "K": (6, 3)},
    {"drafter": "bfloat16/int8/model", "K": (6, 3, 2), "accept": "block"},
    {"drafter": "heads", "K": 3},
]


@pytest.fixture(scope="module")
def tiny():
    if not library():
        pytest.skip("there is no compiler")
    return load_pair("tiny-draft", "tiny-target", models_dir=str(MODELS), threads=2)


def texts_of(steps, n_texts=5):
    texts = [[] for _ in range(n_texts)]
    for step in steps:
        texts[step.text_index].append((step.tokens, step.drafted, step.accepted, step.alpha, step.text))
    return texts


def batch_of(session, size, sampled):
    session = copy(session)
    session.plan = replace(session.plan, batch=size)
    session.loops = PythonLoops(DecodeParts(session.plan, session.models))
    return texts_of(session.batch(sampled, N))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind.values())))
def test_a_text_of_a_batch_is_the_one_that_it_is_alone(kind, temperature, tiny):
    """Its tokens, drafts and chances, whatever the texts beside it, with more prompts than seats and with fewer."""
    if temperature == 0:
        kind = {name: value for name, value in kind.items() if name not in ("top_p", "top_k", "min_p", "eta")}
    try:
        session = tiny.changed(temperature=temperature, seed=3, **kind)
    except UserError as error:  # heads are not bundled
        pytest.skip(str(error))
    alone = [texts_of(session.speculative(prompt, N, sample=i), 1)[0] for i, prompt in enumerate(PROMPTS)]
    assert batch_of(session, 2, PROMPTS) == alone
    assert batch_of(session, 8, PROMPTS) == alone


def test_a_text_that_ends_makes_room_for_the_next_prompt(tiny):
    """A stop text ends some texts early. Meanwhile the others go on, two in each call of the target."""
    session = tiny.changed(stop="e")
    log = session.models["target"].log
    log.clear()
    texts = batch_of(session, 2, PROMPTS)
    assert all("e" not in "".join(text for *_, text in steps) for steps in texts)
    n_texts = [call.n_texts for call in log]
    assert sum(n_texts) == sum(map(len, texts))
    assert n_texts == sorted(n_texts, reverse=True)  # two, until a single text is left


@pytest.mark.parametrize("n_steps", [0, 1, 5])
def test_a_batch_that_nobody_asks_on_ends_its_threads(n_steps, tiny):
    before = threading.active_count()
    steps = tiny.batch(PROMPTS, N)
    for _ in range(n_steps):
        next(steps)
    steps.close()
    time.sleep(0.1)
    assert threading.active_count() <= before + 1  # the engine's worker


def test_an_error_in_one_text_is_the_batchs(tiny):
    def draft(x, k):
        raise UserError("no drafts today") if len(x) > 5 else ValueError

    session = tiny.changed(drafter=draft)
    with pytest.raises(UserError, match="no drafts today"):
        [*session.batch(PROMPTS[:1] * 3, N)]


def test_a_prompt_that_does_not_fit_is_left_out_with_a_line(command, tmp_path):
    words = ["--target_model_size=tiny-target", "--draft_model_size=tiny-draft", "--batch=2", "-n=5"]
    long = "word " * 400
    for prompts, n_texts in ((["the", long, "Holmes", "It"], 3), ([long, long], 0)):
        (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        status, out, err = command(*words, f"--models_dir={MODELS}", f"--prompt_file={tmp_path}/prompts.jsonl")
        assert status == (0 if n_texts else 2)
        assert out.count("Text = ") == 2 * n_texts
        fault = r"the prompt's \d+ tokens and 5 more exceed the context of 256 tokens: shorten"
        assert re.search(rf"prompt 2 is left out: {fault}" if n_texts else rf"error: {fault}", err)


def test_gpt2_itself_takes_one_text_at_a_time():
    words = {"models_dir": str(MODELS), "engine": "numpy"}
    session = load_pair("tiny-draft", "tiny-target", **words)
    with pytest.raises(UserError, match="together with engine c or jax"):
        session.batch(PROMPTS, N)
