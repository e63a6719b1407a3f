"""A thousand decodes in one process."""

import os
import threading

import pytest

from speculative import load_pair
from speculative.engines import memory


@pytest.mark.slow
def test_many_decodes_in_one_process_take_no_more_memory():
    """Memory, open files and threads do not grow, and the last text is the first."""
    session = load_pair(demo=True, temperature=1)

    def decode():
        return [[step.text for step in one("It was", 12)] for one in (session.autoregressive, session.speculative)]

    def taken():
        kilobytes = memory.read_bytes("/proc/self/status", "VmRSS:") or 0
        return kilobytes, len(os.listdir("/proc/self/fd")) if kilobytes else 0, threading.active_count()

    first = decode()
    for _ in range(20):
        decode()
    before = taken()
    assert all(decode() == first for _ in range(500))
    after = taken()
    assert after[1:] == before[1:], (before, after)
    assert after[0] - before[0] < 4096, (before, after)  # 4 MB: the allocator's own
