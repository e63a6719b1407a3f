"""Texts that are decoded together are those that each would be alone, to the bit."""

import contextlib
import contextvars
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace

import pytest
from checkpoint_files import MODELS
from tiny import ROOT

from speculative import UserError, load_pair
from speculative.engines.c.cache import Cache
from speculative.engines.c.library import compiles
from speculative.run import batch
from speculative.run.steps import Times

# ---- Texts -----------------------------------------------------------------------------------------------------------

PROMPTS = ["It was upon a bitterly cold night", "Holmes", "The door of the old house was open, and the light", "the"]
PROMPTS += ["When he had gone, the lady of the house, who had been there for an hour, turned to the boy and said"]
N = 9
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
    if not compiles():
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


def test_a_text_that_ends_makes_room_for_the_next_prompt(tiny, monkeypatch):
    """A stop text ends some texts early. Meanwhile the others go on, two in each call of the target."""
    session = tiny.changed(stop="e")
    logs = []
    monkeypatch.setattr(batch, "Times", lambda logs_by_role: logs.append(logs_by_role["target"]) or Times(logs_by_role))
    texts = batch_of(session, 2, PROMPTS)
    assert all("e" not in "".join(text for *_, text in steps) for steps in texts)
    n_texts = [call.n_texts for call in logs[0]]
    assert sum(n_texts) == sum(map(len, texts))
    assert n_texts == sorted(n_texts, reverse=True)  # two, until a single text is left


@pytest.mark.parametrize("n_steps", [0, 1, 5])
def test_a_batch_that_nobody_asks_on_gives_back_its_caches(n_steps, tiny, monkeypatch):
    """At once, and not when Python next collects garbage."""
    made = []
    new_cache = Cache.__init__

    def watched(cache, hparams):
        new_cache(cache, hparams)
        made.append(weakref.ref(cache))

    monkeypatch.setattr(Cache, "__init__", watched)
    gc.disable()
    try:
        steps = tiny.batch(PROMPTS, N)
        for _ in range(n_steps):
            next(steps)
        assert bool(made) == bool(n_steps)
        steps.close()
        assert [cache() for cache in made] == [None] * len(made)
    finally:
        gc.enable()


PROGRAM = """
import sys, threading
from speculative import load_pair
def draft(x, k):
    if len(x) > 12 and END == "in a draft":
        raise SystemExit(5)
    return [int(x[-1])] * k, np.eye(n_vocab, dtype=np.float32)[[int(x[-1])] * k]
import numpy as np
session = load_pair("tiny-draft", "tiny-target", models_dir=MODELS, drafter=draft)
n_vocab = session.encoder.n_vocab
steps = session.batch(["It was upon", "Holmes"], 14)
next(steps)
if END == "by an error":
    raise ValueError("an error")
if END == "by sys.exit":
    sys.exit(5)
if END == "in a draft":
    [*steps]
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("by an error", 1), ("by sys.exit", 5), ("in a draft", 5)])
def test_a_program_ends_while_a_batch_is_under_way(end, status):
    program = f"MODELS, END = {str(MODELS)!r}, {end!r}{PROGRAM}"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=120)
    assert run.returncode == status, run.stderr


def test_a_users_function_runs_in_the_callers_thread_with_its_context(tiny):
    variable = contextvars.ContextVar("variable")
    variable.set("the caller's")
    seen = set()

    def draft(x, k):
        seen.add((variable.get(None), threading.current_thread()))
        return [], []

    steps = tiny.changed(drafter=draft).batch(PROMPTS[:2], N)
    next(steps)
    assert seen == {("the caller's", threading.current_thread())}
    variable.set("the caller's new one")
    seen.clear()
    list(steps)
    assert seen == {("the caller's new one", threading.current_thread())}


def test_a_batch_goes_on_only_in_the_thread_that_began_it(tiny):
    steps = tiny.batch(PROMPTS[:2], N)
    next(steps)
    with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match="in the thread that began it"):
        pool.submit(lambda: [*steps]).result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_batch_goes_on_after_a_fork_in_both_processes(tiny):
    expected = texts_of(tiny.batch(PROMPTS[:2], N), 2)
    steps = tiny.batch(PROMPTS[:2], N)
    first = next(steps)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)  # ends a child that hangs
            status = int(texts_of([first, *steps], 2) != expected)
        finally:
            os._exit(status)
    assert texts_of([first, *steps], 2) == expected
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of signals")
def test_ctrl_c_may_come_anywhere_in_a_batch(tiny):
    """Also while a user's function waits. The next batch is not disturbed."""
    expected = texts_of(tiny.batch(PROMPTS[:3], 6), 3)
    waiting = tiny.changed(drafter=lambda x, k: time.sleep(60) or ([], []))
    rng = random.Random(0)
    for session in [*[tiny] * 12, waiting]:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):  # for one that comes when the batch has just ended
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-2))
            with contextlib.suppress(KeyboardInterrupt):
                [*session.batch(PROMPTS[:3], 6)]
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert texts_of(tiny.batch(PROMPTS[:3], 6), 3) == expected


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
