"""One-hot rows without their zeros: what a distribution is at temperature 0.

Over the 50,257 tokens of GPT-2 it takes longer to write down the zeros, to add them up and to search the sum than it
takes a small draft model to compute a token.
"""

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Lazy(NDArrayOperatorsMixin):
    """An object that does a few things itself, and becomes an array for everything else."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        arrays = (np.asarray(value) if isinstance(value, Lazy) else value for value in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str):
        if name.startswith("__"):  # by which NumPy asks what this is
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


class OneHot(Lazy):
    """np.eye(n_vocab)[ids], [*ids.shape, n_vocab]. Its numbers and rows are cheap, and what the sampling loop asks."""

    def __init__(self, ids, n_vocab: int, dtype=np.float32):  # [...]
        self.ids = np.asarray(ids)
        self.n_vocab = n_vocab
        self.dtype = np.dtype(dtype)
        self.shape = (*self.ids.shape, n_vocab)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key):
        if not isinstance(key, int | np.integer | slice) or (self.ids.ndim == 0 and isinstance(key, slice)):
            return np.asarray(self)[key]
        if self.ids.ndim:
            return OneHot(self.ids[key], self.n_vocab, self.dtype)
        if not -self.n_vocab <= key < self.n_vocab:
            raise IndexError(f"{key} is no token: there are {self.n_vocab}")
        return self.dtype.type(key % self.n_vocab == int(self.ids))

    def __array__(self, dtype=None, copy=None):  # -> [..., n_vocab]
        array = np.zeros(self.shape, dtype or self.dtype)
        np.put_along_axis(array, self.ids[..., None], 1, axis=-1)
        return array

    # sampling.max_fn(q - p) of two rows: their difference, what is above 0 of it, the sum of that, and its share.

    def __sub__(self, other):
        if isinstance(other, OneHot) and self.ids.ndim == other.ids.ndim == 0:
            return Difference(self, other)
        return super().__sub__(other)

    def sum(self, *args, **options):
        return np.asarray(self).sum(*args, **options) if args or options else self.dtype.type(self.ids.size)

    def __truediv__(self, other):
        return self if np.isscalar(other) and other == 1 else super().__truediv__(other)

    def any(self, *args, **options):
        return np.asarray(self).any(*args, **options) if args or options else self.ids.size > 0

    # np.cumsum and np.searchsorted ask their argument for a method of that name. So sampling.sample works as it stands.

    def cumsum(self, **options) -> "Staircase":
        """The cumulative probabilities of one row."""
        return Staircase(int(self.ids), self.n_vocab)


class Difference(Lazy):
    """One row less another: 1 at one token, -1 at another."""

    def __init__(self, row: OneHot, other: OneHot):
        self.row = row
        self.other = other
        self.dtype = row.dtype

    def __array__(self, dtype=None, copy=None):  # -> [n_vocab]
        return np.asarray(self.row, dtype) - np.asarray(self.other, dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        above_0 = ufunc is np.maximum and inputs[0] is self and np.isscalar(inputs[1]) and inputs[1] == 0
        if above_0 and self.row.ids != self.other.ids:
            return self.row
        return super().__array_ufunc__(ufunc, method, *inputs, **options)


class Staircase:
    """The cumulative probabilities of a one-hot row: 0 before the token, 1 from there on."""

    def __init__(self, token: int, n_vocab: int):
        self.token = token
        self.n_vocab = n_vocab

    def __getitem__(self, i: int) -> float:
        return float(i % self.n_vocab >= self.token)

    def searchsorted(self, u: float, side: str = "left", sorter=None) -> int:
        """The number of values below u, or with side="right" at or below u."""
        if u < 0 or (u == 0 and side == "left"):
            return 0
        return self.token if u < 1 or (u == 1 and side == "left") else self.n_vocab
