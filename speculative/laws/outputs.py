"""What a model returns to somebody who works with PyTorch: a tensor, with the attributes of Hugging Face's outputs."""

from typing import Any

import numpy as np
import torch

from speculative.laws.caches import KeyValues, tokens_in


class Output(torch.Tensor):
    """Rows of probabilities or of logits. The attributes are made when they are asked for."""

    rows: np.ndarray  # [n, n_vocab] or [1, n, n_vocab], probabilities
    x: torch.Tensor  # the tokens that it was given
    cache: Any

    __torch_function__ = torch._C._disabled_torch_function_impl  # what is computed from it is an ordinary tensor

    @classmethod
    def of(cls, rows: np.ndarray, returned: np.ndarray, x: torch.Tensor, cache: Any) -> "Output":
        output = torch.Tensor._make_subclass(cls, torch.from_numpy(returned))
        output.rows, output.x, output.cache = rows, x, cache
        return output

    @property
    def logits(self) -> torch.Tensor:
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(self.rows))

    @property
    def past_key_values(self) -> Any:
        """The cache, with the tokens of this call. One of Hugging Face's has taken them in already."""
        if hasattr(self.cache, "update"):
            return self.cache
        new = self.x.reshape(-1).tolist()
        return KeyValues.of([*tokens_in(self.cache, new), *new])
