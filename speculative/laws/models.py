"""The random models of a case in the forms that people's models have.

A text comes as a list, an array, or a tensor [n] or [1, n]. A model returns a row for each token that it is given:
probabilities, as in the blog, or logits. What it returns as a tensor also has `.logits` and `.past_key_values`, as in
Hugging Face's library.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from speculative.laws.unknown import is_tensor


def tensor(ids, *shape: int) -> Any:
    import torch

    return torch.tensor([*ids], dtype=torch.long).reshape(*shape, -1)


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
        from speculative.laws.outputs import Output, tokens_in

        cache = named.get("past_key_values")
        n_last = n_last if isinstance(n_last, int) else 0
        texts = []
        for new in x.reshape(-1, x.shape[-1]).tolist():
            before = tokens_in(cache, new)
            texts.append(self.model([*before, *new], n_last or len(new)))
        rows = np.stack(texts) if x.dim() > 1 else texts[0]  # [1, n, n_vocab] or [n, n_vocab]
        return Output.of(rows, self.returned(rows), x, cache)

    forward = __call__

    def returned(self, rows: np.ndarray) -> np.ndarray:
        return np.log(rows) if self.way.returns_logits else rows
