"""PyTorch's operations on unknown numbers, by their kinds: move, compute, rank, draw, or refuse.

A kind is a function kind(unknown, call) -> what the operation returns. numbers: the tensors.UnknownTensors, which reads
and writes unknown numbers in tensors.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from speculative.laws.races import largest_first
from speculative.laws.traced import LAWS, TracedRandom, places_of
from speculative.laws.unknown import Computed, UnknownNumber
from speculative.support.errors import UserError

ATEN = torch.ops.aten
N_VALUES = {torch.float16: 2**11, torch.bfloat16: 2**8}  # that PyTorch's uniform numbers have, if they are few

# Operations that move numbers, beside all that are views.
MOVES = {
    *("clone", "cat", "stack", "index", "index_select", "gather", "take", "masked_select", "where", "masked_fill"),
    *("masked_fill_", "masked_scatter", "index_put", "index_put_", "scatter", "scatter_", "copy_", "flip", "roll"),
    *("repeat", "select_scatter", "slice_scatter", "index_copy", "index_copy_", "index_fill", "constant_pad_nd"),
    *("lift_fresh", "_unsafe_view", "contiguous", "_reshape_alias", "_reshape_copy", "resize_"),
}
# Operations that read no numbers of their tensor.
BLANK = {"empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full"}
BLANK |= {"fill_", "zero_"}


class Call(NamedTuple):
    """A call of an operation."""

    operation: Any
    args: tuple
    kwargs: dict

    @property
    def name(self) -> str:
        """The operation's name without that of its overload."""
        return self.operation.overloadpacket.__name__

    def run(self) -> Any:
        return self.operation(*self.args, **self.kwargs)

    def given(self) -> dict[str, Any]:
        """The parameters by name, with their defaults."""
        arguments = self.operation._schema.arguments
        given = {argument.name: argument.default_value for argument in arguments}
        names = [argument.name for argument in arguments]
        return given | dict(zip(names, self.args, strict=False)) | self.kwargs


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for part in given:
            yield from tensors_in(part)
    elif isinstance(given, dict):
        yield from tensors_in([*given.values()])


@cache
def kind_of(operation) -> Callable:
    name = operation.overloadpacket.__name__
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return draw
    if name in BLANK:
        return leave
    if name in MOVES or operation.is_view:
        return move
    if torch.Tag.pointwise in operation.tags or name == "_to_copy":
        return compute
    return RANKING.get(name, refuse)


def leave(unknown, call: Call):
    return call.run()


def move(unknown, call: Call):
    if call.name != "copy_":
        return unknown.note(call.run())
    to, source = call.args[:2]
    if to.dtype != source.dtype:
        source = compute(unknown, Call(ATEN._to_copy.default, (source,), {"dtype": to.dtype}))
    return unknown.note(to.copy_(source))


def refuse(unknown, call: Call):
    if any(unknown.codes_of(tensor).any() for tensor in tensors_in([call.args, call.kwargs])):
        raise UserError(f"torch's {call.name} of random numbers cannot be followed")
    return call.run()


# ---- Compute ---------------------------------------------------------------------------------------------------------


class Elementwise(NamedTuple):
    """An operation as a function of numbers, for unknown.Computed."""

    operation: Any
    tensors: tuple[int, ...]  # the places of its tensors among the parameters
    named: tuple[tuple[str, Any], ...]
    dtype: torch.dtype | None  # to which it is rounded, if that is a half type

    @property
    def __name__(self) -> str:  # type: ignore[override]
        return self.operation.__name__

    def __call__(self, *parameters):
        inputs = list(parameters)
        for i in self.tensors:
            inputs[i] = torch.as_tensor(inputs[i], dtype=torch.float64)
        result = self.operation(*inputs, **dict(self.named))
        if self.dtype:
            result = result.to(self.dtype).double()
        return result.numpy() if result.dim() else result.numpy()[()]


# NumPy's functions of the same numbers, which take less time for one.
NUMPYS: dict[str, np.ufunc] = {
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "neg": np.negative},
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "log": np.log, "exp": np.exp},
}


class Operand(NamedTuple):
    """A tensor that an operation reads, in the shape of its result."""

    values: np.ndarray
    codes: np.ndarray  # 0 if the number is known

    def at(self, place: tuple, unknown) -> Any:
        code = self.codes[place]
        return unknown.numbers[code - 1] if code else float(self.values[place])


def operand_of(unknown, tensor: torch.Tensor, shape: tuple) -> Operand:
    """A copy of a tensor, as the operation may write into it."""
    values = tensor.detach().to(torch.float64, copy=True).expand(shape).numpy()
    return Operand(values, np.broadcast_to(unknown.codes_of(tensor), shape))


def compute(unknown, call: Call):
    """Compute each unknown number by itself, one step on."""
    at = tuple(i for i, given in enumerate(call.args) if isinstance(given, torch.Tensor))
    shape = np.broadcast_shapes(*(tuple(call.args[i].shape) for i in at))
    operands = {i: operand_of(unknown, call.args[i], shape) for i in at}
    n_unknown = np.sum([operand.codes > 0 for operand in operands.values()], axis=0)  # [shape]
    if np.any(n_unknown > 1):
        raise UserError(f"two random numbers in one formula ({call.name}) cannot be followed")
    result = call.run()
    changed = {}
    for place in map(tuple, np.argwhere(n_unknown)):
        inputs = list(call.args)
        for i in at:
            inputs[i] = operands[i].at(place, unknown)
        changed[place] = step(call, inputs, at, result.dtype)
    return unknown.write(result, changed)


def step(call: Call, inputs: list, at: tuple, dtype: torch.dtype) -> Any:
    """Return what the operation makes of its inputs, of which one is unknown."""
    i = next(i for i, given in enumerate(inputs) if isinstance(given, UnknownNumber))
    number = inputs[i]
    half = dtype if dtype in N_VALUES else None
    if call.name == "_to_copy" and not half and dtype != torch.bool:
        return number if dtype.is_floating_point else int(number)
    function: Any = Elementwise(functional(call.operation), at, named(call), half)
    if call.name in NUMPYS and not function.named and not half:
        function = NUMPYS[call.name]
    before = tuple(inputs[:i])
    after = tuple(inputs[i + 1 :])
    return number.then(Computed(function, before, after))


def named(call: Call) -> tuple:
    """The parameters by name that change numbers. They are computed in float64."""
    kept = {name: x for name, x in call.kwargs.items() if name not in ("out", "dtype", "device", "layout")}
    if "dtype" in call.kwargs:
        kept["dtype"] = torch.float64
    return tuple(kept.items())


@cache
def functional(operation):
    """The operation that returns what this one writes into its first operand, or into `out`."""
    name, overload = operation.overloadpacket.__name__, operation._overloadname
    written = overload.removesuffix("_out").removesuffix("out") or "default"
    if name.endswith("_") or written != overload:
        return getattr(getattr(ATEN, name.removesuffix("_")), written)
    return operation


# ---- Rank ------------------------------------------------------------------------------------------------------------


def ranked(unknown, tensor, k: int, dim: int, is_falling: bool) -> torch.Tensor:
    """The places of the k largest numbers along an axis, else of the smallest: a fork for each row."""
    objects = unknown.objects_of(tensor)
    objects = objects if is_falling else -objects
    places = np.apply_along_axis(lambda row: np.array(largest_first(row, k)), dim, objects)
    return torch.from_numpy(places.astype(np.int64))


def argmax(unknown, call: Call):
    """Argmax and argmin."""
    given = call.given()
    tensor, dim = given["self"], given["dim"]
    is_falling = call.name == "argmax"
    if dim is None:
        return ranked(unknown, tensor.reshape(-1), 1, 0, is_falling)[0]
    places = ranked(unknown, tensor, 1, dim, is_falling)
    return places if given["keepdim"] else places.squeeze(dim)


def maximum(unknown, call: Call):
    """Max and min along an axis, which give the values too. Of all numbers: their largest value is refused."""
    given = call.given()
    if "dim" not in given:
        return refuse(unknown, call)
    tensor, dim = given["self"], given["dim"]
    places = ranked(unknown, tensor, 1, dim, call.name == "max")
    values = unknown.note(tensor.gather(dim, places))
    return (values, places) if given["keepdim"] else (values.squeeze(dim), places.squeeze(dim))


def sort(unknown, call: Call):
    """Sort and topk."""
    given = call.given()
    tensor, dim = given["self"], given["dim"]
    is_falling = given["descending"] if call.name == "sort" else given["largest"]
    places = ranked(unknown, tensor, given.get("k", tensor.shape[dim]), dim, is_falling)
    return unknown.note(tensor.gather(dim, places)), places


def searchsorted(unknown, call: Call):
    """Fork: between two of the edges, which may be others for each row. Bucketize has its parameters the other way."""
    given = call.given()
    edges = given.get("sorted_sequence", given.get("boundaries"))
    objects = unknown.objects_of(given["self"])
    is_right = given["right"] or given.get("side") == "right"
    is_below = np.less_equal if is_right else np.less
    rows = np.broadcast_to(edges.detach().double().numpy(), (*objects.shape[:-1], edges.shape[-1]))
    places = np.zeros(objects.shape, np.int64)
    for place in np.ndindex(objects.shape):
        row = rows[place[:-1]]
        places[place] = sum(bool(is_below(edge, objects[place])) for edge in row)
    return torch.from_numpy(places)


RANKING: dict[str, Callable] = {
    **dict.fromkeys(("argmax", "argmin"), argmax),
    **dict.fromkeys(("max", "min"), maximum),
    **dict.fromkeys(("topk", "sort"), sort),
    **dict.fromkeys(("searchsorted", "bucketize"), searchsorted),
}


# ---- Draw ------------------------------------------------------------------------------------------------------------


def draw(unknown, call: Call):
    """Draw numbers that are not known: each is one of the numbers of its generator's state."""
    if call.name not in DRAWS:
        raise UserError(f"torch.{call.name.strip('_')}() cannot be followed")
    given = call.given()
    return DRAWS[call.name](unknown, generator_in(given.get("generator")), call, given)


def generator_in(generator: torch.Generator | None) -> TracedRandom:
    """A generator of unknown numbers, which are those of this one's state. It goes on to another state."""
    generator = torch.default_generator if generator is None else generator
    state = generator.get_state().numpy().tobytes()
    torch.empty(1).uniform_(generator=generator)
    return TracedRandom(f"torch {hash(state)}")


def fill(unknown, rng, tensor: torch.Tensor, law: Callable = lambda u: u) -> torch.Tensor:
    """Fill a tensor with numbers of a law, a function of a number that is uniform in [0, 1)."""
    n_values = N_VALUES.get(tensor.dtype)
    rounded = Computed(Elementwise(ATEN._to_copy.default, (0,), (), tensor.dtype))

    def number() -> Any:
        if not n_values:
            return law(rng.random())
        x = law(np.floor(rng.random() * n_values) / n_values)
        return x.then(rounded) if isinstance(x, UnknownNumber) else x

    return unknown.write(tensor, {place: number() for place in np.ndindex(tensor.shape)})


def rand(unknown, rng, call, given):
    return fill(unknown, rng, call.run())  # PyTorch knows its shape and type


def uniform_(unknown, rng, call, given):
    low, high = given["from"], given["to"]
    return fill(unknown, rng, given["self"], lambda u: LAWS["uniform"](u, low, high))


def exponential_(unknown, rng, call, given):
    return fill(unknown, rng, given["self"], lambda u: LAWS["expovariate"](u, given["lambd"]))


def bernoulli(unknown, rng, call, given):
    """Torch.bernoulli, whose chances are its first tensor if there is no p; and tensor.bernoulli_."""
    tensor = given["self"]
    chances = torch.as_tensor(given.get("p", tensor))
    if unknown.codes_of(chances).any():
        raise UserError("torch.bernoulli() of random chances cannot be followed")
    p = chances.detach().double().expand(tensor.shape).numpy()
    drawn = {place: LAWS["binomial"](rng.random(), 1, p[place]) for place in np.ndindex(p.shape)}
    return unknown.write(tensor if call.name == "bernoulli_" else torch.empty_like(tensor), drawn)


def multinomial(unknown, rng, call, given):
    weights, n = given["self"], given["num_samples"]
    if unknown.codes_of(weights).any():
        raise UserError("torch.multinomial() of random weights cannot be followed")
    *shape, n_weights = weights.shape
    rows = weights.detach().double().reshape(-1, n_weights).numpy()
    places = [places_of(rng, row, n, given["replacement"]) for row in rows]
    return torch.tensor(places, dtype=torch.int64).reshape(*shape, n)


def randint(unknown, rng, call, given):
    """Torch.randint, and tensor.random_."""
    low, high = given.get("low", given.get("from", 0)), given.get("high", given.get("to"))
    if high is None:
        raise UserError("torch's random_() without a limit cannot be followed")
    result = call.run()
    return unknown.write(result, {place: int(rng.integers(low or 0, high)) for place in np.ndindex(result.shape)})


DRAWS: dict[str, Callable] = {
    **dict.fromkeys(("rand", "rand_like"), rand),
    **dict.fromkeys(("bernoulli", "bernoulli_"), bernoulli),
    **dict.fromkeys(("randint", "random_"), randint),
    "uniform_": uniform_,
    "exponential_": exponential_,
    "multinomial": multinomial,
}
