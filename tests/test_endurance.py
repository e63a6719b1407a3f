"""The edges of the context, and a thousand decodes in one process."""

import os
import threading

import pytest
from tiny import refusal

from speculative import load_pair
from speculative.engines import memory

N_CTX = 256  # of the bundled pair
HOW = [
    {},
    {"K": 16},
    {"K": "auto"},
    {"drafter": "prompt_lookup+ngram"},
    {"drafter": "int8/model", "K": (8, 3)},
    {"drafter": "heads"},
]


CASES = [(N_CTX - 20, how) for how in HOW] + [(1, HOW[0])]
CASES += [pytest.param(1, how, marks=pytest.mark.slow) for how in HOW[1:]]


@pytest.mark.parametrize(("n_prompt", "how"), CASES, ids=str)
def test_a_text_may_fill_the_context_to_its_last_token(n_prompt, how):
    session = load_pair(demo=True, **how)
    prompt = "a" + " a" * (n_prompt - 1)  # a token each
    N = session.n_ctx - n_prompt
    texts = []
    for decode in (session.autoregressive, session.speculative):
        texts.append([token for step in decode(prompt, N) for token in step.tokens])
        assert "exceed the context" in refusal(decode, prompt, N + 1)
    assert texts[0] == texts[1]
    assert len(texts[0]) == N


def test_a_tree_may_fill_the_context_too():
    session = load_pair(demo=True, tree=(2, 2, 1))
    N = session.n_ctx - len(session.encode("It was")) - 10  # its nodes
    assert sum(len(step.tokens) for step in session.speculative("It was", N)) == N
    assert "exceed the context" in refusal(session.speculative, "It was", N + 1)


@pytest.mark.slow
def test_many_decodes_in_one_process_take_no_more_memory():
    """Memory, open files and threads do not grow, and the last text is the first."""
    session = load_pair(demo=True, temperature=1)

    def decode():
        return [[step.text for step in one("It was", 12)] for one in (session.autoregressive, session.speculative)]

    def taken():
        kilobytes = memory.read_number("/proc/self/status", "VmRSS:") or 0
        return kilobytes, len(os.listdir("/proc/self/fd")) if kilobytes else 0, threading.active_count()

    first = decode()
    for _ in range(20):
        decode()
    before = taken()
    assert all(decode() == first for _ in range(500))
    after = taken()
    assert after[1:] == before[1:], (before, after)
    assert after[0] - before[0] < 4096, (before, after)  # 4 MB: the allocator's own
