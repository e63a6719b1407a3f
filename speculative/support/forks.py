"""Locks in a process that forks."""

import os
from typing import Any


def taken_at_forks(lock: Any) -> Any:
    """Take the lock before each fork, and give it back in both processes, as the module logging does: else a child
    would wait for ever for a lock that another thread of its parent held. Return the lock."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_child=lock.release, after_in_parent=lock.release)
    return lock
