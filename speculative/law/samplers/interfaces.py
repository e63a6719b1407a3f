"""The random models of a case in the forms that people's models have.

A text comes as a list, an array or a tensor, [n] or [1, n]. A model returns a row for each token that it is given, or
the last row alone: probabilities, as in the blog, or logits. What it returns also has `.logits`, and as a tensor
`.past_key_values`, as in Hugging Face's library.
"""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from speculative.law.unknown import is_tensor


def array_batch(ids) -> np.ndarray:  # [n] -> [1, n]
    return np.array([ids])


def tensor(ids):  # [n] -> [n]
    import torch

    return torch.tensor([*ids], dtype=torch.long)


def tensor_batch(ids):  # [n] -> [1, n]
    return tensor(ids)[None]


class Interface(NamedTuple):
    """How a text is given, and what a model returns."""

    text: Callable  # text(ids) -> x
    has_logits: bool = False
    has_one_row: bool = False


INTERFACES = (
    Interface(np.array),
    Interface(list),
    Interface(tensor),
    Interface(tensor_batch),
    Interface(tensor_batch, has_logits=True),
    Interface(tensor, has_logits=True),
    Interface(np.array, has_logits=True),
    Interface(list, has_logits=True),
    Interface(list, has_one_row=True),
    Interface(array_batch),
    Interface(array_batch, has_logits=True),
)


def interfaces() -> list[Interface]:
    """Return the interfaces that can be tried."""
    missing = () if "torch" in sys.modules else (tensor, tensor_batch)
    return [interface for interface in INTERFACES if interface.text not in missing]


class Rows(np.ndarray):
    """Logits [n, n_vocab] or [batch, n, n_vocab], as an array and as its attribute."""

    @property
    def logits(self) -> np.ndarray:
        return np.asarray(self)

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else super().__getitem__(key)


class AnyModel:
    """A model that takes what it is given, and returns it as it was given."""

    training = False

    def __init__(self, model: Callable, n_vocab: int, interface: Interface):
        self.model = model
        self.n_vocab = n_vocab
        self.interface = interface
        self.config = SimpleNamespace(vocab_size=n_vocab, eos_token_id=None, pad_token_id=None)
        self.config.is_encoder_decoder = False
        self.generation_config = self.config

    def itself(self, *_, **__) -> "AnyModel":
        return self

    eval = train = to = cpu = cuda = float = half = bfloat16 = requires_grad_ = itself

    def parameters(self) -> Iterator:
        """PyTorch's, of which people ask device and dtype: one without numbers."""
        import torch

        yield torch.nn.Parameter(torch.empty(0))

    @property
    def device(self):
        return next(self.parameters()).device if "torch" in sys.modules else "cpu"

    @property
    def dtype(self):
        return next(self.parameters()).dtype if "torch" in sys.modules else np.dtype(np.float32)

    def __call__(self, x=None, n_last: object = 0, **named):
        x = named.get("input_ids") if x is None else x
        n_last = n_last if isinstance(n_last, int) else 0
        if is_tensor(x):
            return self.of_tensor(x, n_last, named.get("past_key_values"))
        if np.ndim(x) < 2:
            return self.returned(self.model(x, n_last))  # rows [n, n_vocab]
        texts = [self.model(text, n_last) for text in x]
        return self.returned(np.stack(texts))  # rows [batch, n, n_vocab]

    forward = __call__

    def of_tensor(self, x, n_last: int, cache):
        from speculative.law.samplers.outputs import Output, tokens_in

        texts = []
        for new in x.reshape(-1, x.shape[-1]).tolist():
            before = tokens_in(cache, new)
            texts.append(self.model([*before, *new], n_last or len(new)))
        rows = np.stack(texts) if x.dim() > 1 else texts[0]  # [batch, n, n_vocab] or [n, n_vocab]
        return Output.of(rows, self.returned(rows), x, cache)

    def returned(self, rows: np.ndarray) -> np.ndarray:  # [..., n, n_vocab]
        rows = rows[..., -1, :] if self.interface.has_one_row else rows
        return np.log(rows).view(Rows) if self.interface.has_logits else rows
