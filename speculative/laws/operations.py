"""PyTorch's operations on unknown numbers, by their kinds: move, compute, rank, draw, or refuse.

A kind is a function kind(unknown, call) -> what the operation returns. unknown: the tensors.UnknownTensors, which reads
and writes unknown numbers in tensors.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from speculative.laws.races import largest_first
from speculative.laws.traced import LAWS, TracedRandom, places_of
from speculative.laws.unknown import Computed, UnknownNumber
from speculative.support.errors import UserError

ATEN = torch.ops.aten
N_VALUES = {torch.float16: 2**11, torch.bfloat16: 2**8}  # that PyTorch's uniform numbers have, if they are few
# Operations that move numbers, or read none of their tensor, beside all that are views. (See name_of.)
MOVES = {
    *("clone", "cat", "stack", "index", "index_select", "gather", "take", "masked_select", "where", "masked_fill"),
    *("masked_scatter", "index_put", "scatter", "copy", "flip", "roll", "repeat", "select_scatter", "slice_scatter"),
    *("index_copy", "index_fill", "constant_pad_nd", "lift_fresh", "_unsafe_view", "contiguous", "_reshape_alias"),
    *("_reshape_copy", "resize", "empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros"),
    *("new_ones", "new_full", "fill", "zero"),
}


def name_of(operation) -> str:
    """The operation's name, without that of its overload and the "_" of those that work in place."""
    return operation.overloadpacket.__name__.removesuffix("_")


class Call(NamedTuple):
    """A call of an operation."""

    operation: Any
    args: tuple
    kwargs: dict

    @property
    def name(self) -> str:
        return name_of(self.operation)

    def run(self):
        return self.operation(*self.args, **self.kwargs)

    def given(self) -> dict[str, Any]:
        """The parameters by name, with their defaults."""
        defaults = {about.name: about.default_value for about in self.operation._schema.arguments}
        return defaults | dict(zip(defaults, self.args, strict=False)) | self.kwargs


def tensors_in(given) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]


@cache
def kind_of(operation) -> Callable:
    name = name_of(operation)
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return draw
    if name in MOVES or operation.is_view:
        return move
    if torch.Tag.pointwise in operation.tags:
        return compute
    return OTHERS.get(name, refuse)


def move(unknown, call):
    if call.operation is not ATEN.copy_.default:
        return unknown.note(call.run())
    to, source = call.args[:2]
    if to.dtype != source.dtype:
        source = convert(unknown, Call(ATEN._to_copy.default, (source,), {"dtype": to.dtype}))
    return unknown.note(to.copy_(source))


def refuse(unknown, call):
    check_known(unknown, call.name, [call.args, call.kwargs])
    return call.run()


def check_known(unknown, name: str, given) -> None:
    """Raise UserError if there are unknown numbers in the tensors that the operation of this name is given."""
    if any(unknown.codes_of(tensor).any() for tensor in tensors_in(given)):
        raise UserError(f"torch's {name} of random numbers cannot be followed")


# ---- Compute ---------------------------------------------------------------------------------------------------------


class Elementwise(NamedTuple):
    """An operation as a function of numbers, for unknown.Computed."""

    operation: Any
    tensors: tuple  # the places of its tensors among the parameters
    named: tuple  # of (name, value), the parameters by name

    @property
    def __name__(self) -> str:  # type: ignore[override]
        return self.operation.__name__

    def __call__(self, *parameters):
        inputs = list(parameters)
        for i in self.tensors:
            inputs[i] = torch.as_tensor(inputs[i], dtype=torch.float64)
        return self.operation(*inputs, **dict(self.named)).numpy()[()]


def compute(unknown, call):
    """Compute each unknown number by itself, one step on."""
    at = tuple(i for i, given in enumerate(call.args) if isinstance(given, torch.Tensor))
    objects = [unknown.objects_of(call.args[i]) for i in at]  # copies, as one may be written into
    operands = np.broadcast_arrays(*objects)
    result = call.run()
    named = tuple((name, x) for name, x in call.kwargs.items() if name != "out")
    function = Elementwise(functional(call.operation), at, named)
    changed = {}
    for place in np.ndindex(operands[0].shape):
        inputs = list(call.args)
        for i, operand in zip(at, operands, strict=True):
            inputs[i] = operand[place]
        unknown_at = [i for i in at if isinstance(inputs[i], UnknownNumber)]
        if len(unknown_at) > 1:
            raise UserError(f"two random numbers in one formula ({call.name}) cannot be followed")
        for i in unknown_at:
            step = Computed(function, tuple(inputs[:i]), tuple(inputs[i + 1 :]))
            changed[place] = inputs[i].then(step)
    return unknown.write(result, changed)


def convert(unknown, call):
    """Convert to another type: to one of whole numbers by forks."""
    numbers = unknown.objects_of(call.args[0])
    result = call.run()
    is_whole = not result.dtype.is_floating_point and result.dtype != torch.bool
    changed = {}
    for place, number in np.ndenumerate(numbers):
        if isinstance(number, UnknownNumber):
            changed[place] = int(number) if is_whole else number
    return unknown.write(result, changed)


@cache
def functional(operation):
    """The operation that returns what this one may write into its first operand, or into `out`."""
    overload = operation._overloadname.removesuffix("out").removesuffix("_")
    return getattr(getattr(ATEN, name_of(operation)), overload or "default")


# ---- Rank ------------------------------------------------------------------------------------------------------------


def rank(unknown, call):
    """Argmax, max along an axis, topk, sort and their opposites: a fork for each row."""
    given = call.given()
    tensor, dim = given["self"], given.get("dim")
    if dim is None and call.name in ("max", "min"):  # of all numbers, without a place
        return refuse(unknown, call)
    if dim is None:
        tensor, dim = tensor.reshape(-1), 0
    match call.name:
        case "topk":
            k, is_falling = given["k"], given["largest"]
        case "sort":
            k, is_falling = tensor.shape[dim], given["descending"]
        case name:
            k, is_falling = 1, name in ("argmax", "max")
    objects = unknown.objects_of(tensor)
    places = np.apply_along_axis(largest_first, dim, objects if is_falling else -objects, k)
    places = torch.from_numpy(places.astype(np.int64))
    values = unknown.note(tensor.gather(dim, places))
    if not given.get("keepdim", True):
        values, places = values.squeeze(dim), places.squeeze(dim)
    return places if call.name in ("argmax", "argmin") else (values, places)


def search(unknown, call):
    """Fork: between two of the edges, which may be others for each row. Bucketize has its parameters the other way."""
    given = call.given()
    edges = given.get("sorted_sequence", given.get("boundaries"))
    numbers = unknown.objects_of(given["self"])
    rows = edges.double().expand(*numbers.shape[:-1], edges.shape[-1]).numpy()
    is_right = given["right"] or given.get("side") == "right"
    is_below = np.less_equal if is_right else np.less
    places = torch.empty(numbers.shape, dtype=torch.int64)
    for place, number in np.ndenumerate(numbers):
        row = rows[place[:-1]]
        places[place] = sum(bool(is_below(edge, number)) for edge in row)
    return places


OTHERS: dict[str, Callable] = {"_to_copy": convert}
OTHERS |= dict.fromkeys(("argmax", "argmin", "max", "min", "topk", "sort"), rank)
OTHERS |= dict.fromkeys(("searchsorted", "bucketize"), search)


# ---- Draw ------------------------------------------------------------------------------------------------------------


def draw(unknown, call):
    """Draw numbers that are not known: each is one of the numbers of its generator's state."""
    given = call.given()
    rng = generator_in(given.get("generator"))
    if call.name == "multinomial":
        return draw_places(unknown, rng, given)
    if call.name == "bernoulli":
        tensor = given["self"]
        chances = given.get("p", tensor)  # a number, or a tensor
        check_known(unknown, call.name, chances)
        numbers = rng.binomial(1, np.asarray(chances, float), size=tuple(tensor.shape))
        is_in_place = call.operation.overloadpacket is ATEN.bernoulli_
        result = tensor if is_in_place else torch.empty_like(tensor)
    else:
        result = call.run()  # PyTorch knows its shape and type
        numbers = uniform_law(rng, call.name, given, result)
    return unknown.write(result, dict(np.ndenumerate(numbers)))


def draw_places(unknown, rng: TracedRandom, given: dict):
    """Draw n places for each row of weights, as torch.multinomial."""
    weights, n = given["self"], given["num_samples"]
    check_known(unknown, "multinomial", weights)
    rows = weights.detach().double().reshape(-1, weights.shape[-1]).numpy()
    places = [places_of(rng, row, n, given["replacement"]) for row in rows]
    return torch.tensor(places).reshape(*weights.shape[:-1], n)


def uniform_law(rng: TracedRandom, name: str, given: dict, result: torch.Tensor):
    """Numbers by the law of the operation, in the shape of its result. Raises UserError if it is none of these."""
    u = rng.random(tuple(result.shape))
    if n_values := N_VALUES.get(result.dtype):
        for place, number in np.ndenumerate(u):  # np.floor of the array would ask for ints, by forks
            u[place] = np.floor(number * n_values) / n_values
    match name:
        case "rand" | "rand_like":
            return u
        case "uniform":
            return LAWS["uniform"](u, given["from"], given["to"])
        case "exponential":
            return LAWS["expovariate"](u, given["lambd"])
        case "randint" | "random":
            low, high = given.get("low", given.get("from")), given.get("high", given.get("to"))
            if high is not None:
                return rng.integers(low or 0, high, size=u.shape)
    raise UserError(f"torch.{name}() cannot be followed")


def generator_in(generator: torch.Generator | None) -> TracedRandom:
    """A generator of unknown numbers, which are those of this one's state. It goes on to another state."""
    generator = torch.default_generator if generator is None else generator
    state = generator.get_state().numpy().tobytes()
    torch.empty(1).uniform_(generator=generator)
    return TracedRandom(f"torch {hash(state)}")
