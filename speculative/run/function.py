"""A user's function as the target: model(x, n_last) -> distributions, in the place of a network."""

from collections.abc import Callable

import numpy as np

from speculative.drafters.user import check_parameters
from speculative.engines.network import Network
from speculative.sampling import as_distributions
from speculative.support.errors import UserError


def function_network(function: Callable, n_vocab: int, name: str) -> Network:
    """Return the logarithms of a function's distributions as a network: temperature and filters apply to them as to
    logits. function(x, n_last) -> [n_last or more, n_vocab]. name: of the function, in messages."""
    check_parameters(function, "model(x, n_last)")

    def log_rows(x, n_last=1):  # [n] -> [n_last, n_vocab]
        """Call the function. Raises UserError if it does not return distributions over the vocabulary."""
        returned = function(np.array(x), n_last)  # a copy, as it may change x
        rows = as_distributions(returned, n_last)  # [n_last, n_vocab]
        n_returned = rows.shape[1]
        if n_returned != n_vocab:
            raise UserError(f"{name} returned rows of {n_returned} tokens, and the encoder has {n_vocab}")
        with np.errstate(divide="ignore"):
            return np.log(rows, dtype=np.float32)

    return Network(log_rows)
