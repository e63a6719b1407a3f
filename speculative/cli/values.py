"""The types of values that the rooms of the method know."""

import re

from plumbing.arguments import *  # noqa: F403
from plumbing.arguments import integer, one_of
from speculative.drafters import drafter_names
from speculative.trees import MOST_NODES, n_nodes


def lookahead(value: str) -> int | str:
    try:
        return value if value == "auto" else integer(1)(value)
    except ValueError as must_be:
        raise ValueError(f"{must_be}, or auto") from None


def tree(value: str) -> tuple[int, ...] | str:
    """ "2,2,1" -> (2, 2, 1), children by depth."""
    if value == "auto":
        return value
    widths = value.split(",")
    if not all(re.fullmatch("[1-9][0-9]?", width) for width in widths) or n_nodes(list(map(int, widths))) > MOST_NODES:
        raise ValueError(f"children by depth, as 2,2,1, of at most {MOST_NODES} nodes in all, or auto")
    return tuple(map(int, widths))


def drafter(value: str) -> str:
    drafter_names(value)  # raises UserError, which says what there is
    return value


dtype = one_of("float32", "bfloat16", "int8")
draft_dtype = one_of("float32", "bfloat16", "int8", "auto")
engine = one_of("numpy", "jax", "auto")
