"""The edges of the context, and a thousand decodes in one process."""

import os
import threading

import pytest
from tiny import decoded, refusal

from speculative import load_pair
from speculative.engines import memory

HOW = [
    {"K": 16},
    {"K": "auto"},
    {"drafter": "prompt_lookup+ngram"},
    {"drafter": "int8/model", "K": (8, 3)},
    {"drafter": "heads"},
]


@pytest.mark.parametrize("how", [{}, *(pytest.param(how, marks=pytest.mark.slow) for how in HOW)], ids=str)
def test_a_text_of_a_token_may_fill_the_context(how):
    session = load_pair(demo=True, **how)
    N = session.n_ctx - 1
    texts = [decoded(decode("a", N)) for decode in both(session)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == N
    assert all("exceed the context" in refusal(decode, "a", N + 1) for decode in both(session))


def both(session):
    return session.autoregressive, session.speculative


@pytest.mark.slow
def test_many_decodes_in_one_process_take_no_more_memory():
    """Memory, open files and threads do not grow, and the last text is the first."""
    session = load_pair(demo=True, temperature=1)

    def decode():
        return [[step.text for step in one("It was", 12)] for one in both(session)]

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
