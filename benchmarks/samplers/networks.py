"""The law's models in the forms of PyTorch's libraries: they return logits, and their cache is the text itself."""

import numpy as np
import torch

from speculative.law.samplers.outputs import Network


class Placed(Network):
    """A model which is told the places of its tokens: network(ids, input_pos) -> logits [1, n, n_vocab]."""

    modules = list  # none

    def __init__(self, model, text=()):
        """text: the tokens whose keys and values its cache holds."""
        super().__init__(model)
        self.config.model_type = None
        self.setup_caches()
        self.text[: len(text)] = torch.tensor(text)

    def setup_caches(self, **_):
        self.text = torch.zeros(self.max_seq_length, dtype=torch.long)

    def __call__(self, idx, input_pos, **_):
        end = int(input_pos[-1]) + 1
        self.text[end - idx.numel() : end] = idx.flatten()
        return self.rows(self.text[:end], idx.numel())


def moved_up(model, n: int):
    """The model with its tokens moved up by n, for samplers that stop at the first ones."""
    return lambda x: np.pad(model(np.maximum(np.array(x) - n, 0)), ((0, 0), (n, 0)))


def by_windows(window, x, N) -> list[int]:
    """Decode N tokens or more. window(text) -> the tokens that follow it."""
    text = [*map(int, x)]
    while len(text) < len(x) + N:
        text += map(int, window(text))
    return text


def greedy(model, text: list[int], n: int) -> list[int]:
    """The text with n tokens more, each the model's likeliest."""
    for _ in range(n):
        text = [*text, int(model(text)[-1].argmax())]
    return text


def decode_with_paths(choose, x, draft_model, target_model, N, K) -> list[int]:
    """Decode with two paths of K drafts: they begin with the draft's two likeliest tokens, and go on greedily.

    choose(logits [2, K + 1, n_vocab], candidates [2, K + 1], from the text's last token on) -> the path, how many of
    its drafts stay, and the token after them.
    """

    def window(text):
        firsts = draft_model(text)[-1].argsort()[::-1][:2]
        paths = [greedy(draft_model, [*text, int(j)], K - 1) for j in firsts]
        candidates = torch.tensor(paths)[:, len(text) - 1 :]
        rows = torch.stack([torch.tensor(target_model(path)[len(text) - 1 :]) for path in paths])
        best, n_accepted, token = choose(rows.double().log(), candidates)
        return [*candidates[best, 1 : n_accepted + 1], token]

    return by_windows(window, x, N)


def from_last(drafts: torch.Tensor) -> torch.Tensor:  # [1, m] -> [1, m + 1]
    """The drafts after the text's last token, which is 0."""
    return torch.nn.functional.pad(drafts, (1, 0))


class Unpinned:
    """PyTorch, whose tensors are not pinned: that needs an accelerator."""

    def __getattr__(self, name):
        function = getattr(torch, name)
        if name not in ("arange", "full", "ones", "tensor"):
            return function
        return lambda *args, pin_memory=False, **options: function(*args, **options)
