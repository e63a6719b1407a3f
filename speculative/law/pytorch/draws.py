"""PyTorch's operations that draw: each gives unknown numbers, which are those of its generator's state.

A generator keeps its class; a draw moves its state on, as PyTorch's own would. The state tells which numbers come next,
so that two generators of one seed have the same. Nothing gives the states back afterwards, nor that of PyTorch's own
generator.
"""

import numpy as np
import torch

from speculative.law.generators import TRANSFORMS, UnknownGenerator, draw_indices
from speculative.law.pytorch.codes import N_VALUES, write
from speculative.law.pytorch.operations import Call, check_known
from speculative.law.uniform import NotFollowed


def draw(call: Call):
    """Draw the numbers of an operation: a kind, as those of operations.py."""
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
