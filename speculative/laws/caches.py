"""The caches of a random model for somebody who works with PyTorch: keys and values are the tokens themselves."""

from typing import Any


def tensor(ids, *shape: int) -> Any:
    import torch

    return torch.tensor([*ids], dtype=torch.long).reshape(*shape, -1)


class KeyValues(list):
    """A cache of one layer, [(keys, values)], [1, 1, n, 1] each."""

    @classmethod
    def of(cls, ids: list[int]) -> "KeyValues":
        keys = tensor(ids, 1, 1).unsqueeze(-1)
        return cls([(keys, keys)])

    def get_seq_length(self, layer: int = 0) -> int:
        return self[0][0].shape[2]

    def crop(self, n: int) -> None:
        """Forget the tokens from n on; if n is below 0, the last ones."""
        self[0] = tuple(part[:, :, :n] for part in self[0])


def tokens_in(cache: Any, new: list[int]) -> list[int]:
    """The tokens that a cache holds, after whom the new ones come. A cache of Hugging Face's takes them in."""
    if not cache:
        return []
    if hasattr(cache, "update"):
        keys = tensor(new, 1, 1).unsqueeze(-1)
        keys, _ = cache.update(keys, keys, 0)
    else:
        keys = cache[0][0]
    ids = keys.reshape(-1).tolist()
    return ids[: len(ids) - len(new)] if hasattr(cache, "update") else ids
