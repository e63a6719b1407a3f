"""Somebody's function, whose parameters are told by their names, and the ids in whatever it returns."""

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import is_dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from speculative.law.forks import WALK
from speculative.sampling import NOT_IDS, whole_numbers
from speculative.support.errors import UserError

LENGTHS = ("N", "K")
RANDOM = ("rng", "seed", "key", "torch_generator")
OUR_NAMES = {
    **dict.fromkeys(("max_new_tokens", "num_tokens", "n_tokens", "n_tokens_to_generate"), "N"),
    **dict.fromkeys(("k", "gamma", "lookahead", "num_speculative_tokens"), "K"),
    **dict.fromkeys(("generator", "gen", "random_state"), "rng"),
    **dict.fromkeys(("rng_key", "prng_key"), "key"),
    **dict.fromkeys(("draft_tokens", "draft_ids"), "draft_token_ids"),
    "probs": "p",
}


class Function:
    """Somebody's function, whose parameters are told by their names."""

    def __init__(self, function: Callable):
        self.function = function
        self.name = getattr(function, "__name__", "function")
        self.names: dict = {}  # {a parameter: our name for it}
        for name, parameter in inspect.signature(function).parameters.items():
            ours = OUR_NAMES.get(name, name)
            if ours == "rng" and takes_torch(function, name, parameter):
                ours = "torch_generator"
            # A generator, N and K may have defaults, which the check does not want; what else has one keeps it.
            if is_needed(parameter) or ours in ("rng", "torch_generator", *LENGTHS):
                self.names[name] = ours

    def __call__(self, rng, **given):
        """Call it with those of these values, by our names, that it takes. Raises UserError if it takes more."""
        n_before = WALK.of_path.get(self, 0)  # calls in this text: each has a new seed
        WALK.of_path[self] = n_before + 1
        given |= {"rng": rng, "seed": n_before}
        if "key" in self.names.values():
            import jax

            given["key"] = jax.random.PRNGKey(n_before)
        if "torch_generator" in self.names.values():
            import torch

            given["torch_generator"] = torch.Generator().manual_seed(2**40 + n_before)
        missing = self.names.values() - given.keys()
        if missing:
            raise UserError(f"there is no value for the parameter {min(missing)}")
        return self.function(**{name: given[ours] for name, ours in self.names.items()})


def takes_torch(function: Callable, name: str, parameter: inspect.Parameter) -> bool:
    """Whether a parameter of this name is a generator of PyTorch's: by its annotation, or as its module has PyTorch."""
    annotation = str(parameter.annotation)
    if re.search(r"torch|np\.|numpy|random", annotation):
        return "torch" in annotation
    if name in ("random_state", "rng"):  # NumPy's names
        return False
    function = inspect.unwrap(getattr(function, "func", function))
    names = getattr(function, "__globals__", {})
    return any(map(is_torch, [*names.values()]))


def is_torch(thing: Any) -> bool:
    return isinstance(thing, ModuleType) and thing.__name__ == "torch"


def is_needed(parameter: inspect.Parameter) -> bool:
    """Whether a function is not called without this parameter."""
    takes_any = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not takes_any


def decoding_method(thing: Any) -> Callable:
    """The method of an object that decodes: __call__, forward as in PyTorch's modules, or the only one that it has.
    Raises UserError."""
    classes = [kind for kind in type(thing).__mro__ if not kind.__module__.startswith("torch.")]
    methods = {name for kind in classes for name, method in vars(kind).items() if inspect.isfunction(method)}
    if "__call__" in methods or isinstance(thing, partial):
        return thing
    public = sorted(name for name in methods if not name.startswith("_"))
    name = "forward" if "forward" in public else public[0] if len(public) == 1 else ""
    if not name:
        name = type(thing).__name__
        raise UserError(
            f"{name} has the methods {', '.join(public) or 'none'}: add the one that decodes, {name}.METHOD"
        )
    return getattr(thing, name)


# ---- What it returns -------------------------------------------------------------------------------------------------


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
    """Return the part of a result that holds the ids."""
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
