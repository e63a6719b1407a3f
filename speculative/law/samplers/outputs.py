"""The outputs of a model for somebody who works with PyTorch: a tensor, with the attributes of Hugging Face's outputs.

Keys and values are the tokens themselves, so that whatever is cut off a cache is forgotten.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from speculative.law.pytorch.codes import WITHOUT_FUNCTION, make_subclass


class KeyValues(list):
    """A cache of one layer, [(keys, values)], [1, 1, n, 1] each."""

    def get_seq_length(self, layer: int = 0) -> int:
        return self[0][0].shape[2]

    def crop(self, n: int) -> None:
        """Forget the tokens from n on; if n is below 0, the last ones."""
        self[0] = tuple(part[:, :, :n] for part in self[0])


def keys_of(ids: list[int]) -> torch.Tensor:  # [n] -> [1, 1, n, 1]
    return torch.tensor(ids, dtype=torch.long).reshape(1, 1, -1, 1)


def tokens_in(cache: Any, new: list[int]) -> list[int]:
    """The tokens that a cache holds before the new ones. A cache of Hugging Face's also takes in the new ones."""
    if not cache:
        return []
    if not hasattr(cache, "update"):
        return cache[0][0].reshape(-1).tolist()
    keys = keys_of(new)
    keys, _ = cache.update(keys, keys, 0)
    return keys.reshape(-1).tolist()[: -len(new)]


class Output(torch.Tensor):
    """Rows of probabilities or of logits. The attributes are made when they are asked for."""

    rows: np.ndarray  # [n, n_vocab] or [1, n, n_vocab], probabilities
    x: torch.Tensor  # the tokens that it was given
    cache: Any

    # What is computed from it is an ordinary tensor.
    __torch_function__ = WITHOUT_FUNCTION

    @classmethod
    def of(cls, rows: np.ndarray, returned: np.ndarray, x: torch.Tensor, cache: Any) -> "Output":
        output = make_subclass(cls, torch.from_numpy(returned))
        output.rows, output.x, output.cache = rows, x, cache
        return output

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else super().__getitem__(key)

    @property
    def logits(self) -> torch.Tensor:
        return torch.from_numpy(np.log(self.rows))

    @property
    def past_key_values(self):
        """The cache, with the tokens of this call. One of Hugging Face's has taken them in already."""
        if hasattr(self.cache, "update"):
            return self.cache
        new = self.x.reshape(-1).tolist()
        keys = keys_of([*tokens_in(self.cache, new), *new])
        return KeyValues([(keys, keys)])


# ---- For a file that makes somebody's function a sampler -------------------------------------------------------------


class Network:
    """A model in Hugging Face's form: network(input_ids, past_key_values).logits [1, n, n_vocab]."""

    device = torch.device("cpu")
    max_seq_length = 64

    def __init__(self, model, temperature: float = 1.0):
        """model(x) -> [n, n_vocab] probabilities. temperature: the one by which the sampler divides the logits."""
        self.model = model
        self.temperature = temperature
        n_vocab = model([0]).shape[1]
        self.config = SimpleNamespace(vocab_size=n_vocab, block_size=self.max_seq_length, max_position_embeddings=64)

    def rows(self, text, n: int):  # [n_text] -> [1, n, n_vocab]
        """The logits after each of the last n tokens of a text, in float64."""
        if n == 0:
            return torch.empty(1, 0, self.config.vocab_size)
        probabilities = torch.tensor(self.model(text.flatten()))[-n:]  # [n, n_vocab]
        return self.temperature * probabilities.double().log()[None]

    def __call__(self, input_ids, past_key_values=None, use_cache=True, **_):
        text = input_ids.reshape(1, 1, input_ids.numel(), 1)  # as the keys of a layer: [1, heads, n_text, n_embd]
        if past_key_values:
            text = torch.cat([past_key_values[0][0], text], dim=2)
        logits = self.rows(text, input_ids.numel())
        return SimpleNamespace(logits=logits, past_key_values=[(text, text)] if use_cache else None)


def tensors_of(proposal, q) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drafts [1, m], the rows that they were drawn from [1, m, n_vocab] and the target's [1, m + 1, n_vocab]."""
    p, q = (torch.tensor(np.array(rows, np.float64))[None] for rows in (proposal.p, q))
    return torch.tensor([list(proposal.tokens)]), p, q
