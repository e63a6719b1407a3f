"""A user's function as the target: model(x, n_last) -> distributions, in the place of a network."""

from collections.abc import Callable

import numpy as np

from speculative.engines.network import Network
from speculative.sampling import as_distributions
from speculative.support.errors import UserError
from speculative.user import check_parameters


class FunctionNetwork(Network):
    """The logarithms of a function's distributions, to which temperature and filters apply as to logits."""

    weight_bytes = 0

    def __init__(self, function: Callable, n_vocab: int, name: str):
        """function(x, n_last) -> [n_last or more, n_vocab]. name: of the function, in messages."""
        check_parameters(function, "model(x, n_last)")
        super().__init__(self.log_rows)
        self.function = function
        self.n_vocab = n_vocab
        self.name = name

    def log_rows(self, x, n_last: int = 1):  # [n] -> [n_last, n_vocab]
        """Call the function. Raises UserError if it does not return distributions over the vocabulary."""
        returned = self.function(np.array(x), n_last)  # a copy, as it may change x
        rows = as_distributions(returned, n_last)  # [n_last, n_vocab]
        n_vocab = rows.shape[1]
        if n_vocab != self.n_vocab:
            raise UserError(f"{self.name} returned rows of {n_vocab} tokens, and the encoder has {self.n_vocab}")
        with np.errstate(divide="ignore"):
            return np.log(rows, dtype=np.float32)
