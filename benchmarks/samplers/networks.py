"""The law's models in the forms of PyTorch's libraries: they return logits, and their cache is the text itself."""

from types import SimpleNamespace

import numpy as np
import torch


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


def in_batch(proposal, q) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drafts [1, m], the rows that they were drawn from [1, m, n_vocab] and the target's [1, m + 1, n_vocab]."""
    p, q = (torch.tensor(np.array(rows, np.float64))[None] for rows in (proposal.p, q))
    return torch.tensor([list(proposal.tokens)]), p, q


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
