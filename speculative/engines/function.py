"""A user's function as the target: model(x, n_last) -> distributions, in the place of a network."""

from collections.abc import Callable

import numpy as np

from speculative.engines.model import Network
from speculative.sampling import as_distributions
from speculative.support.errors import UserError
from speculative.trees import Tree, by_paths


class FunctionNetwork(Network):
    """The logarithms of a function's distributions, to which temperature and filters apply as to logits."""

    weight_bytes = 0

    def __init__(self, function: Callable, n_vocab: int, name: str):
        """function(x, n_last) -> [n_last or more, n_vocab]. name: of the function, in messages."""
        super().__init__(self.log_rows)
        self.function = function
        self.n_vocab = n_vocab
        self.name = name

    def log_rows(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """Call the function. Raises UserError if it does not return distributions over the vocabulary."""
        rows = as_distributions(self.function(np.array(x), n_last), n_last)  # [n_last, n_vocab]; of a copy of x
        if rows.shape[1] != self.n_vocab:
            raise UserError(f"{self.name} returned rows of {rows.shape[1]} tokens, and the encoder has {self.n_vocab}")
        with np.errstate(divide="ignore"):
            return np.log(rows, dtype=np.float32)

    def tree_logits(self, x, tree: Tree, nodes=None) -> np.ndarray:  # [n], [m] -> [m, n_vocab]
        """The rows after these nodes (default: all), path by path."""
        return by_paths(self.log_rows)(x, tree, nodes)

    def forget(self) -> None:
        """A function has no cache of ours."""
