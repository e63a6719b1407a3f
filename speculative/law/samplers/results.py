"""The ids in whatever a function returns."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from dataclasses import is_dataclass

import numpy as np

from speculative.drafters.user import NOT_IDS, whole_numbers
from speculative.support.errors import UserError


def ids_of(result, n_vocab: int) -> list[int]:
    """The ids of what a function returned: a number, a list, a generator, an array or a tensor, with -1 after the end;
    or a list of lists, or a tuple, dict or dataclass that begins with them. Raises UserError."""
    result = unpacked(result)
    with contextlib.suppress(*NOT_IDS):
        ids = whole_numbers(np.ravel(result))
        ids = ids[: ids.index(-1)] if -1 in ids else ids
        if ids and all(0 <= token < n_vocab for token in ids):
            return ids
    words = ", ".join(map(str, result)) or "nothing" if isinstance(result, list) else repr(result)
    raise UserError(f"it returned {words:.60}, not ids below {n_vocab}")


def unpacked(result):
    """What holds the ids in a result."""
    if inspect.isasyncgen(result):
        result = collected(result)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if is_dataclass(result):
        result = vars(result)
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple) and result and np.ndim(result[0]):  # with a rate of acceptance, for instance
        result = result[0]
    if hasattr(result, "__iter__") and not hasattr(result, "ndim"):
        result = [*result]
        if result and hasattr(result[0], "__len__"):  # windows
            result = np.concatenate([np.ravel(part) for part in result])
    return result


async def collected(parts: AsyncIterator) -> list:
    return [part async for part in parts]
