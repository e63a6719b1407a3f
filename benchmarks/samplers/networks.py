"""The law's models in the forms of PyTorch's libraries: they return logits, and their cache is the text itself."""

import inspect
import sys
from functools import partial
from types import SimpleNamespace

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


# ---- Kernels of Triton, each line of which is done by PyTorch, so that their numbers can be followed -----------------


class Pointer:
    """A place in a tensor, or places: what a kernel has for a tensor that it is given."""

    def __init__(self, tensor: torch.Tensor, place=0):
        """tensor: [n]. place: [] or [n_places]."""
        self.tensor = tensor
        self.place = place
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, n):
        return Pointer(self.tensor, self.place + n)

    def __sub__(self, n):
        return self + -n


class Index:
    """The index of the largest number of a block that begins at 0. Nobody asks which it is until it is read."""

    def __init__(self, index: torch.Tensor):
        self.index = index

    def __radd__(self, begin):
        return self if begin == 0 else begin + self.index


class Kernel:
    """A kernel, which runs once for each place of a grid: kernel[grid](*args)."""

    def __init__(self, function):
        self.function = function
        self.arg_names = [*inspect.signature(function).parameters]

    def __getitem__(self, grid: tuple[int, ...]):
        return partial(self.launch, grid)

    def launch(self, grid, *args, **named):
        given = dict(zip(self.arg_names, args, strict=False)) | named
        given = {name: given[name] for name in self.arg_names}  # without options, as num_warps
        for name, value in given.items():
            if isinstance(value, torch.Tensor):
                given[name] = Pointer(value.view(-1))
        for Language.place in np.ndindex(*grid):
            self.function(**given)


class Language:
    """triton.language, as far as it is asked for."""

    place: tuple = ()  # in the grid
    constexpr, int32, int64, float32, float64 = int, torch.int32, torch.int64, torch.float32, torch.float64
    zeros, where = torch.zeros, torch.where

    def program_id(axis):
        return Language.place[axis]

    def arange(begin, end):  # of a block: the law's vocabularies end before
        return torch.arange(begin, min(end, begin + 64))

    def full(shape, value, dtype):
        return torch.full(shape, value, dtype=dtype)

    def load(pointer, mask=None, other=0):
        if mask is None:
            return pointer.tensor[pointer.place]
        return torch.where(mask, pointer.tensor[torch.where(mask, pointer.place, 0)], other)

    def store(pointer, value):
        pointer.tensor[pointer.place] = value.index if isinstance(value, Index) else value

    def maximum(x, y):
        return torch.maximum(*map(torch.as_tensor, (x, y)))

    def minimum(x, y):
        return x if isinstance(x, Index) else min(x, y)  # an index is below the length

    def max(x, axis, return_indices):  # the first number stands for the largest, which is compared with -inf alone
        return x[0], Index(x.argmax(axis))


def import_triton() -> None:
    """Let Triton be imported, and vLLM's names for it."""

    def jit(function=None, **_):
        return jit if function is None else Kernel(function)

    triton = SimpleNamespace(jit=jit, language=Language)
    vllm = SimpleNamespace(tl=Language, triton=triton, HAS_TRITON=False)
    sys.modules.update({"triton": triton, "triton.language": Language, "vllm.triton_utils": vllm})
