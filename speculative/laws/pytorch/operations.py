"""PyTorch's operations on unknown numbers, by their kinds: move, compute, find the largest, draw, or refuse.

An unknown number is a NaN with a code in it (tensors.py), so that PyTorch itself can move it. An operation that
computes with it would lose the code: it is done here, number by number, or refused.

A kind is a function kind(unknown, call) -> what the operation returns. unknown: the tensors.UnknownTensors, which reads
and writes unknown numbers in tensors.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from speculative.laws.generators import TRANSFORMS, UnknownGenerator, draw_indices
from speculative.laws.races import largest_first
from speculative.laws.uniform import NotFollowed
from speculative.laws.unknown import UnknownNumber, computed

ATEN = torch.ops.aten
N_VALUES = {torch.float16: 2**11, torch.bfloat16: 2**8}  # that PyTorch's uniform numbers have, if they are few
# Operations that move numbers, or read none of their tensor, beside all that are views. (See name_of.)
MOVE_NAMES = """
    clone cat stack index index_select gather take masked_select where masked_fill masked_scatter scatter copy flip
    roll repeat select_scatter slice_scatter index_copy index_fill constant_pad_nd lift_fresh _unsafe_view
    contiguous _reshape_alias _reshape_copy resize empty_like zeros_like ones_like full_like new_empty new_zeros
    new_ones new_full fill zero
"""
MOVES = {*MOVE_NAMES.split()}


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

    @property
    def is_in_place(self) -> bool:
        """Whether it writes into its first tensor."""
        return self.operation.overloadpacket.__name__.endswith("_")

    def run(self):
        return self.operation(*self.args, **self.kwargs)

    def given(self) -> dict[str, Any]:
        """The parameters by name, with their defaults."""
        defaults = {about.name: about.default_value for about in self.operation._schema.arguments}
        return defaults | dict(zip(defaults, self.args, strict=False)) | self.kwargs


def tensors_in(given) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [thing for thing in tree_leaves(given) if isinstance(thing, torch.Tensor)]


@cache
def kind_of(operation) -> Callable:
    name = name_of(operation)
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return draw
    if operation is ATEN.view.dtype or "reduce" in operation._overloadname:  # the bits of another type, or sums
        return refuse
    if name in MOVES or operation.is_view:
        return move
    if torch.Tag.pointwise in functional(operation).tags:
        return compute
    return OTHERS.get(name, refuse)


def move(unknown, call):
    """Let PyTorch move the numbers: first to the type of the result, as a code is a NaN of one type."""
    types = {tensor.dtype for tensor in tensors_in([call.args, call.kwargs]) if tensor.dtype.is_floating_point}
    if call.is_in_place:
        types.add(call.args[0].dtype)
    if len(types) > 1:
        # Only PyTorch knows which type several give: a first run tells it, whatever becomes of the codes there.
        dtype = call.args[0].dtype if call.is_in_place else tensors_in(call.run())[0].dtype
        to_dtype = partial(of_dtype, unknown, dtype)
        call = Call(call.operation, *tree_map(to_dtype, (call.args, call.kwargs)))
    return call.run()


def of_dtype(unknown, dtype: torch.dtype, given):
    """What an operation is given: a tensor with unknown numbers in this type, all else as it is."""
    if not isinstance(given, torch.Tensor) or given.dtype == dtype or not unknown.codes_of(given).any():
        return given
    return convert(unknown, Call(ATEN._to_copy.default, (given,), {"dtype": dtype}))


def put(unknown, call):
    """Put numbers into their places, without adding them to what is there."""
    kind = refuse if call.given()["accumulate"] else move
    return kind(unknown, call)


def refuse(unknown, call):
    check_known(unknown, call.name, [call.args, call.kwargs])
    return call.run()


def check_known(unknown, name: str, given) -> None:
    """Raise NotFollowed if there are unknown numbers in the tensors that the operation of this name is given."""
    if any(unknown.codes_of(tensor).any() for tensor in tensors_in(given)):
        raise NotFollowed(f"torch's {name} of random numbers cannot be followed")


# ---- Compute ---------------------------------------------------------------------------------------------------------


class Elementwise(NamedTuple):
    """An operation as a function of numbers, for uniform.Formula."""

    operation: Any
    tensors: tuple  # the indices of its tensors among the parameters
    named: tuple  # of (name, value), the parameters by name

    def __call__(self, *parameters):
        inputs = list(parameters)
        for i in self.tensors:
            inputs[i] = torch.as_tensor(inputs[i], dtype=torch.float64)
        return self.operation(*inputs, **dict(self.named)).numpy()[()]


def compute(unknown, call):
    """Compute each unknown number by itself: the result at an index is a function of the operands there."""
    at = tuple(i for i, given in enumerate(call.args) if isinstance(given, torch.Tensor))
    objects = [unknown.objects_of(call.args[i]) for i in at]  # copies, as the operation may write into the tensor
    operands = np.broadcast_arrays(*objects)  # each in the shape of the result
    result = call.run()  # NaN where an operand is unknown
    named = tuple((name, x) for name, x in call.kwargs.items() if name != "out")
    function = Elementwise(functional(call.operation), at, named)
    changed = {}
    for index in np.ndindex(operands[0].shape):
        numbers = [operand[index] for operand in operands]
        if any(isinstance(number, UnknownNumber) for number in numbers):
            inputs = list(call.args)
            for i, number in zip(at, numbers, strict=True):
                inputs[i] = number
            changed[index] = computed(function, inputs)
    return unknown.write(result, changed)


def convert(unknown, call):
    """Convert to another type: to one of whole numbers by forks."""
    result = call.run()
    if result.dtype == torch.bool:
        return compute(unknown, Call(ATEN.ne.Scalar, (call.args[0], 0), {}))
    numbers = unknown.objects_of(call.args[0])
    changed: dict = {}
    for index, number in np.ndenumerate(numbers):
        if isinstance(number, UnknownNumber):
            changed[index] = number if result.dtype.is_floating_point else int(number)
    return unknown.write(result, changed)


@cache
def functional(operation):
    """The operation that returns what this one may write into its first operand, or into `out`."""
    packet = getattr(ATEN, name_of(operation), None)
    overload = operation._overloadname.removesuffix("_out")
    if overload == "out":
        overload = "Tensor" if "Tensor" in packet.overloads() else "default"
    return getattr(packet, overload, operation)


# ---- Find the largest, or an interval --------------------------------------------------------------------------------


def find_largest(unknown, call):
    """Argmax, max along an axis, topk, sort and their opposites: a fork for each row."""
    given = call.given()
    tensor, dim = given["self"], given.get("dim")
    if dim is None and call.name in ("max", "min"):  # of all numbers, without an index
        return refuse(unknown, call)
    if dim is None:
        tensor, dim = tensor.reshape(-1), 0
    n = tensor.shape[dim] if call.name == "sort" else given.get("k", 1)
    keys = unknown.objects_of(tensor) if is_falling(call.name, given) else -unknown.objects_of(tensor)
    found = np.apply_along_axis(largest_first, dim, keys, n)  # the shape of the tensor, n along dim
    indices = torch.from_numpy(found.astype(np.int64))
    values = tensor.gather(dim, indices)
    if not given.get("keepdim", True):
        values, indices = values.squeeze(dim), indices.squeeze(dim)
    return indices if call.name in ("argmax", "argmin") else (values, indices)


def is_falling(name: str, given: dict) -> bool:
    """Whether the operation of this name gives the largest first: sort and topk have a parameter for it."""
    match name:
        case "sort":
            return given["descending"]
        case "topk":
            return given["largest"]
    return name in ("argmax", "max")


def search(unknown, call):
    """Fork: between two of the edges, which may be others for each row. Bucketize has its parameters the other way."""
    given = call.given()
    edges = given.get("sorted_sequence", given.get("boundaries"))  # [n_edges], or [..., n_edges] for [..., n] numbers
    numbers = unknown.objects_of(given["self"])  # [..., n]
    rows = edges.double().expand(*numbers.shape[:-1], edges.shape[-1]).numpy()  # [..., n_edges]
    is_right = given["right"] or given.get("side") == "right"
    is_below = np.less_equal if is_right else np.less
    n_below = torch.empty(numbers.shape, dtype=torch.int64)  # [..., n]
    for index, number in np.ndenumerate(numbers):
        row = rows[index[:-1]]  # [n_edges]
        n_below[index] = sum(bool(is_below(edge, number)) for edge in row)
    return n_below


OTHERS: dict[str, Callable] = {"_to_copy": convert, "index_put": put}
OTHERS |= dict.fromkeys(("argmax", "argmin", "max", "min", "topk", "sort"), find_largest)
OTHERS |= dict.fromkeys(("searchsorted", "bucketize"), search)


# ---- Draw ------------------------------------------------------------------------------------------------------------


def draw(unknown, call):
    """Draw numbers that are not known: each is one of the numbers of its generator's state."""
    given = call.given()
    rng = generator_in(given.get("generator"))
    if call.name == "multinomial":
        return draw_multinomial(unknown, rng, given)
    if call.name == "bernoulli":
        tensor = given["self"]
        chances = given.get("p", tensor)  # a number, or a tensor
        check_known(unknown, call.name, chances)
        numbers = rng.binomial(1, np.asarray(chances, float), size=tuple(tensor.shape))
        result = tensor if call.is_in_place else torch.empty_like(tensor)
    else:
        result = call.run()  # PyTorch knows its shape and type
        numbers = draw_like(rng, call.name, given, result)
    return unknown.write(result, dict(np.ndenumerate(numbers)))


def draw_multinomial(unknown, rng: UnknownGenerator, given: dict):  # -> [..., n]
    """Draw n indices for each row of weights."""
    weights = given["self"]  # [..., n_weights]
    *shape, n_weights = weights.shape
    n = given["num_samples"]
    check_known(unknown, "multinomial", weights)
    indices = []
    for row in weights.reshape(-1, n_weights).tolist():
        indices += draw_indices(rng, row, n, given["replacement"])
    return torch.tensor(indices).reshape(*shape, n)


def draw_like(rng: UnknownGenerator, name: str, given: dict, result: torch.Tensor):
    """Draw the numbers of the operation of this name, as many as in its result. Raises NotFollowed if it is none of
    these."""
    u = rng.random(tuple(result.shape))
    if n_values := N_VALUES.get(result.dtype):
        for index, number in np.ndenumerate(u):  # np.floor of the array would ask for ints, by forks
            u[index] = np.floor(number * n_values) / n_values
    match name:
        case "rand" | "rand_like":
            return u
        case "uniform":
            return TRANSFORMS["uniform"](u, given["from"], given["to"])
        case "exponential":
            return TRANSFORMS["expovariate"](u, given["lambd"])
        case "randint" | "randint_like" | "random":
            low, high = given.get("low", given.get("from")), given.get("high", given.get("to"))
            if high is not None:
                return rng.integers(low or 0, high, size=u.shape)
    raise NotFollowed(f"torch.{name}() cannot be followed")


def generator_in(generator: torch.Generator | None) -> UnknownGenerator:
    """A generator of unknown numbers, which are those of this one's state. It goes on to another state."""
    generator = torch.default_generator if generator is None else generator
    state = generator.get_state().numpy().tobytes()
    torch.empty(1).uniform_(generator=generator)
    return UnknownGenerator(f"torch {hash(state)}")
