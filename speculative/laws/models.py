"""The random models of a case in the forms that people's models have.

A text comes as a list, an array, or a tensor [n] or [1, n]. A model returns a row for each token that it is given:
probabilities, as in the blog, or logits. What it returns as a tensor also has `.logits` and `.past_key_values`, as in
Hugging Face's library. Keys and values are the tokens themselves, so that whatever is cut off the cache is forgotten.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from speculative.laws.caches import tensor, tokens_in
from speculative.laws.unknown import is_tensor


class Way(NamedTuple):
    """How a text is given, and what a model returns."""

    text: Callable  # text(ids) -> x
    returns_logits: bool
    needs_torch: bool = False


WAYS = (
    Way(np.array, False),
    Way(list, False),
    Way(tensor, False, True),
    Way(lambda ids: tensor(ids, 1), False, True),
    Way(lambda ids: tensor(ids, 1), True, True),
    Way(tensor, True, True),
    Way(np.array, True),
)


def ways() -> list[Way]:
    """Those that can be tried."""
    return [way for way in WAYS if "torch" in sys.modules or not way.needs_torch]


class AnyModel:
    """A model that takes what it is given, and returns it as it was given."""

    device = "cpu"
    training = False

    def __init__(self, model: Callable, n_vocab: int, way: Way):
        self.model = model
        self.n_vocab = n_vocab
        self.way = way
        self.config = SimpleNamespace(vocab_size=n_vocab, eos_token_id=None, pad_token_id=None)

    def eval(self) -> "AnyModel":
        return self

    def __call__(self, x=None, n_last: Any = 0, **named) -> Any:
        x = named.get("input_ids") if x is None else x
        if not is_tensor(x):
            return self.returned(self.model(x, n_last))
        cache = named.get("past_key_values")
        n_last = n_last if isinstance(n_last, int) else 0
        if x.dim() < 2:
            return self.output(self.rows(x, cache, n_last), x, cache)
        rows = [self.rows(text, cache, n_last) for text in x]
        return self.output(np.stack(rows), x, cache)

    forward = __call__

    def rows(self, x, cache, n_last: int) -> np.ndarray:  # [n] -> [n, n_vocab]
        new = x.tolist()
        before = tokens_in(cache, new)
        return self.model([*before, *new], n_last or len(new))

    def returned(self, rows: np.ndarray) -> np.ndarray:
        if not self.way.returns_logits:
            return rows
        with np.errstate(divide="ignore"):
            return np.log(rows)

    def output(self, rows: np.ndarray, x, cache) -> Any:
        from speculative.laws.outputs import Output

        return Output.of(rows, self.returned(rows), x, cache)
