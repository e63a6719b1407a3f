"""The answer to an operation that is given unknown numbers, or draws them: draw, move, compute, find, or refuse.

PyTorch itself can move a NaN with a code (codes.py). An operation that computes with it would lose the code: it is done
here, number by number, or refused. The package's own file says which is of which kind.

A kind is a function kind(call) -> what the operation returns.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from speculative.law.forks import NotFollowed
from speculative.law.generators import TRANSFORMS, NoDistribution, UnknownGenerator, draw_indices, edges_of
from speculative.law.pytorch.codes import (
    N_VALUES,
    Operation,
    codes_of,
    may_be_unknown,
    objects_of,
    overload_of,
    resolve,
    schema_of,
    write,
)
from speculative.law.races import Race, largest, largest_first, racers, rates_of
from speculative.law.unknown import UnknownNumber, WholeNumber, computed

ATEN = torch.ops.aten
NESTED = (list, tuple, dict)  # types that hold an operation's arguments


def name_of(operation) -> str:
    """The operation's name, without that of its overload and the "_" of those that work in place."""
    return operation.overloadpacket.__name__.removesuffix("_")


class Call(NamedTuple):
    """A call of an operation."""

    operation: Operation
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
        defaults = {argument.name: argument.default_value for argument in schema_of(self.operation).arguments}
        return defaults | dict(zip(defaults, self.args, strict=False)) | self.kwargs


def tensors_in(given) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(given, torch.Tensor):
        return [given]
    if not isinstance(given, NESTED):
        return []
    parts = given.values() if isinstance(given, dict) else given
    return [tensor for part in parts for tensor in tensors_in(part)]


def with_each(change: Callable, given):
    """The same nested lists, tuples and dicts, with change(thing) in the place of each thing in them."""
    if isinstance(given, dict):
        return {name: with_each(change, part) for name, part in given.items()}
    if isinstance(given, NESTED):
        return type(given)([with_each(change, part) for part in given])
    return change(given)


def ask_for_ints(call: Call, kind: Callable, tensors: list[torch.Tensor]) -> None:
    """Fork for those whole numbers that an operation looks at, of all that it is given in these tensors. It does not
    look at what it moves only, and computes with numbers of many values."""
    if not any(map(may_be_unknown, [tensor for tensor in tensors if tensor.dtype == torch.int64])):
        return
    if kind in (move, put) and len({tensor.dtype for tensor in tensors if tensor.dtype != torch.bool}) < 2:
        given = call.given()
        tensors = tensors_in([given.get("index"), given.get("indices")])
    for tensor in tensors:
        resolve(tensor, few=kind in (compute, convert))


# ---- Refuse ----------------------------------------------------------------------------------------------------------


def refuse(call: Call):
    """Refuse unknown numbers; of known ones PyTorch does the operation."""
    check_known(call.name, [call.args, call.kwargs])
    return call.run()


def check_known(name: str, given) -> None:
    """Raise NotFollowed if there are unknown numbers in the tensors that the operation of this name is given."""
    if any(codes_of(tensor).any() for tensor in tensors_in(given)):
        raise NotFollowed(f"torch's {name} of random numbers cannot be followed")


# ---- Move ------------------------------------------------------------------------------------------------------------


def move(call: Call):
    """Let PyTorch move the numbers. A code is a NaN of one type, which PyTorch would lose on the way to another: so
    unknown numbers are brought to the type of the result first."""
    types = {tensor.dtype for tensor in tensors_in([call.args, call.kwargs]) if tensor.dtype.is_floating_point}
    if call.is_in_place:
        types.add(call.args[0].dtype)
    if len(types) > 1:
        to_dtype = partial(of_dtype, dtype_of_result(call))
        args, kwargs = with_each(to_dtype, (call.args, call.kwargs))
        call = Call(call.operation, args, kwargs)
    return call.run()


def dtype_of_result(call: Call) -> torch.dtype:
    """The type of what the operation returns. Which of several types it gives, only PyTorch knows: the operation is run
    to see it, and the numbers of that run are thrown away."""
    if call.is_in_place:
        return call.args[0].dtype
    result = tensors_in(call.run())[0]
    return result.dtype


def of_dtype(dtype: torch.dtype, given):
    """Return an argument of an operation: a tensor with unknown numbers in this type, all else as it is."""
    if not isinstance(given, torch.Tensor) or given.dtype == dtype or not codes_of(given).any():
        return given
    return convert(Call(ATEN._to_copy.default, (given,), {"dtype": dtype}))


def put(call: Call):
    """Put numbers into their places, without adding them to what is there."""
    kind = refuse if call.given()["accumulate"] else move
    return kind(call)


# ---- Compute ---------------------------------------------------------------------------------------------------------


EQUALITIES = {"eq": np.equal, "ne": np.not_equal}


class Elementwise(NamedTuple):
    """An operation as a function of the numbers at an index of its tensors, for forks.Formula."""

    operation: Operation
    places: tuple  # places of the tensors among the arguments
    args: tuple  # the arguments, None in the place of a tensor
    named: tuple  # the arguments by name: (name, value), ...

    def __call__(self, *numbers):
        tensors = [torch.as_tensor(number, dtype=torch.float64) for number in numbers]
        return self.operation(*self.all_given(*tensors), **dict(self.named)).numpy()[()]

    @property
    def name(self) -> str:
        return name_of(self.operation)

    def all_given(self, *numbers) -> list:
        """The arguments with these numbers, or their formulas, in the places of the tensors."""
        args = list(self.args)
        for place, number in zip(self.places, numbers, strict=True):
            args[place] = number
        return args


def elementwise(call: Call) -> Elementwise:
    places = tuple(i for i, given in enumerate(call.args) if isinstance(given, torch.Tensor))
    args = tuple(None if i in places else given for i, given in enumerate(call.args))
    named = tuple((name, given) for name, given in call.kwargs.items() if name != "out")
    return Elementwise(out_of_place(call.operation), places, args, named)


def compute(call: Call):
    """Compute each unknown number by itself: the result at an index is a function of the numbers there."""
    if call.name in EQUALITIES:
        function: Any = EQUALITIES[call.name]
        operands = call.args[:2]
    else:
        function = elementwise(call)
        operands = tuple(call.args[place] for place in function.places)
    # copies, as it may write into the tensor
    objects = [objects_of(x) if isinstance(x, torch.Tensor) else np.asarray(x, object) for x in operands]
    result = call.run()  # NaN where a number is unknown
    together = np.broadcast(*objects)
    changed = {}
    for index, numbers in zip(np.ndindex(together.shape), together, strict=True):
        if any(isinstance(number, UnknownNumber) for number in numbers):
            changed[index] = computed(function, numbers)
    return write(result, changed)


@cache
def out_of_place(operation):
    """The operation that returns what this one may write into its first tensor or into `out`: of add_.Tensor and of
    add.out it is add.Tensor."""
    packet = getattr(ATEN, name_of(operation), operation)
    overload = overload_of(operation).removesuffix("_out")
    if overload == "out":
        overload = "Tensor" if "Tensor" in packet.overloads() else "default"
    return getattr(packet, overload, operation)


def convert(call: Call):
    """Convert to another type: to one of whole numbers by forks."""
    result = call.run()
    if result.dtype == torch.bool:
        return compute(Call(ATEN.ne.Scalar, (call.args[0], 0), {}))
    numbers = objects_of(call.args[0])
    changed: dict = {}
    for index, number in np.ndenumerate(numbers):
        if isinstance(number, UnknownNumber):
            changed[index] = number if result.dtype.is_floating_point else int(number)
    return write(result, changed)


# ---- Find the largest, or an interval --------------------------------------------------------------------------------


def find_largest(call: Call):
    """The largest or the smallest number along an axis, by argmax, argmin, max or min: a fork for each row."""
    given = call.given()
    tensor, dim = given["self"], given.get("dim")
    has_values = call.name in ("max", "min")
    if dim is None and has_values:  # the largest of all numbers, without an index
        return refuse(call)
    if dim is None:
        tensor, dim = tensor.reshape(-1), 0
    if not has_values:
        keys = objects_of(tensor) if call.name == "argmax" else -objects_of(tensor)
        largest = np.apply_along_axis(largest_later, dim, keys)
        result = write(torch.empty(largest.shape, dtype=torch.int64), dict(np.ndenumerate(largest)))
        return result.unsqueeze(dim) if given["keepdim"] else result
    values, indices = first_along(dim, tensor, 1, is_falling=call.name == "max")
    if not given["keepdim"]:
        values, indices = values.squeeze(dim), indices.squeeze(dim)
    return values, indices


def find_order(call: Call):
    """The first numbers along an axis from the largest down or the smallest up, by topk or sort: forks for each row."""
    given = call.given()
    tensor, dim = given["self"], given["dim"]
    if call.name == "topk":
        return first_along(dim, tensor, given["k"], given["largest"])
    return first_along(dim, tensor, tensor.shape[dim], given["descending"])


def first_along(dim: int, tensor: torch.Tensor, n: int, is_falling: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The n largest numbers along an axis, or the n smallest, and their indices."""
    keys = objects_of(tensor) if is_falling else -objects_of(tensor)
    order = np.apply_along_axis(largest_first, dim, keys, n)  # the shape of the tensor, n along dim
    indices = torch.from_numpy(order.astype(np.int64))
    return tensor.gather(dim, indices), indices


def largest_later(row) -> np.ndarray:  # [n] -> []
    """The index of the largest number: of a race a WholeNumber, which forks if somebody asks for it."""
    index = np.empty((), object)
    racing, _ = racers(row)
    if len(racing) < 2:
        index[()] = largest(row)
        return index
    rates = rates_of(racing)
    edges = edges_of(np.array([rates.get(i, 0.0) for i in range(len(row))]).tobytes())
    index[()] = WholeNumber.among(Race(racing), edges)
    return index


def search(call: Call):
    """Fork: between two of the edges, which may be others for each row. Bucketize has its parameters the other way."""
    given = call.given()
    name = "sorted_sequence" if "sorted_sequence" in given else "boundaries"
    edges = given[name]  # [n_edges], or [..., n_edges] for [..., n] numbers
    numbers = objects_of(given["self"])  # [..., n]
    rows = edges.double().expand(*numbers.shape[:-1], edges.shape[-1]).numpy()  # [..., n_edges]
    is_right = given["right"] or given.get("side") == "right"
    is_below = np.less_equal if is_right else np.less
    n_below = torch.empty(numbers.shape, dtype=torch.int64)  # [..., n]
    for index, number in np.ndenumerate(numbers):
        row = rows[index[:-1]]  # [n_edges]
        n_below[index] = sum(bool(is_below(edge, number)) for edge in row)
    return n_below


# ---- Draw ------------------------------------------------------------------------------------------------------------
#
# A generator keeps its class; a draw moves its state on, as PyTorch's own would. The state tells which numbers come
# next, so that two generators of one seed have the same. Nothing gives the states back afterwards, nor that of
# PyTorch's own generator.


class NotProbabilities(NoDistribution, RuntimeError):
    """PyTorch's."""


def draw(call: Call):
    """Draw the numbers of an operation: a kind. Raises NotProbabilities."""
    try:
        return drawn(call)
    except NoDistribution as error:
        raise NotProbabilities(f"probability tensor: {error}") from error


def drawn(call: Call):
    given = call.given()
    rng = generator_in(given.get("generator"))
    if call.name == "multinomial":
        return draw_multinomial(rng, given)
    if call.name == "bernoulli":
        tensor = given["self"]
        chances = given.get("p", tensor)  # a number, or a tensor
        check_known(call.name, chances)
        numbers = rng.binomial(1, np.asarray(chances, float), size=tuple(tensor.shape))
        result = tensor if call.is_in_place else torch.empty_like(tensor)
    else:
        result = call.run()  # PyTorch knows its shape and type
        numbers = draw_like(rng, call.name, given, result)
    return write(result, dict(np.ndenumerate(numbers)))


def draw_multinomial(rng: UnknownGenerator, given: dict):  # -> [..., n]
    """Draw n indices for each row of weights."""
    weights = given["self"]  # [..., n_weights]
    *shape, n_weights = weights.shape
    n = given["num_samples"]
    check_known("multinomial", weights)
    indices: list = []  # each is unknown until somebody asks for it
    for row in weights.reshape(-1, n_weights).tolist():
        if n == 1 or given["replacement"]:
            edges = edges_of(np.array(row, float).tobytes())
            indices += [WholeNumber.among(rng.number().u, edges) for _ in range(n)]
        else:
            indices += draw_indices(rng, row, n, replace=False)
    return write(torch.empty(len(indices), dtype=torch.int64), {(i,): j for i, j in enumerate(indices)}).reshape(
        *shape, n
    )


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
            return TRANSFORMS["uniform"].of_u(u, given["from"], given["to"])
        case "exponential":
            return TRANSFORMS["expovariate"].of_u(u, given["lambd"])
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
