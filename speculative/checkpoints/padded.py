"""A model padded to a larger shape: it computes the logits of the small one, and a token costs what the shape costs.

The settings of such a model name the small one, a folder beside its own, as padded_from. A model grows in

- Width. Each channel of the residual stream is repeated, so often that at least two channels are left over. Those get
  the mean of the others. So layer norm finds the same mean, and a standard deviation that is smaller by a factor. All
  weights that write to the stream are larger by that factor. Weights that read it are divided by the repetitions.
- Heads, hidden units and layers. Those that the small model lacks have weights of 0.
- Vocabulary. The new tokens should be strings of bytes that UTF-8 never uses, so no text has them. Nor does a model
  choose them: the last layer norm sets two of the channels that are left over to 1 and -1. Each token of the small
  model has the same weight for both, so they cancel; the weights of the new ones make their logits -200.
- Positions. Those beyond the small context repeat its last one.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from speculative.checkpoints.tensors import by_threads, checkpoint_shapes, nested

UNLIKELY = -200.0  # the logit of a new token: at temperature 1 its probability is 0 in float32
WRITES = "wte|wpe|c_proj"  # parameters whose last axis is the residual stream
READS = "(c_attn|c_fc)/w"  # parameters whose first axis is the residual stream
GAIN, BIAS = "ln_./g", "ln_./b"  # of a layer norm


@dataclass(frozen=True)
class Padding:
    """How a model with hparams old becomes one with hparams new."""

    old: dict
    new: dict

    @property
    def times(self) -> int:
        """Number of times that each channel is repeated."""
        return (self.new["n_embd"] - 2) // self.old["n_embd"]

    @property
    def n_left(self) -> int:
        """Number of channels that are left over."""
        return self.new["n_embd"] - self.times * self.old["n_embd"]

    @property
    def scale(self) -> float:
        """The factor by which the residual stream is larger."""
        n_embd = self.new["n_embd"]
        return math.sqrt(n_embd / (n_embd - self.n_left))

    def pad(self, name: str, a: np.ndarray | None) -> np.ndarray:
        """Return a parameter of the new model. a: the old one, None if the old model lacks this layer."""
        shape = checkpoint_shapes(self.new)[name]
        grown = np.zeros(shape, np.float32)
        if a is not None:
            put_into_corner(grown, self.widened(name, a), n_parts=3 if "c_attn" in name else 1)
        self.fill(name, grown)
        return grown

    def fill(self, name: str, grown: np.ndarray) -> None:
        """Put in what the old model lacks: positions, tokens, and the two channels by which tokens are unlikely."""
        if name == "wpe":
            n_ctx = self.old["n_ctx"]
            grown[n_ctx:] = grown[n_ctx - 1]
        elif name == "wte":
            new_tokens = grown[self.old["n_vocab"] :]  # [n, new n_embd], a view
            new_tokens[:, -2] = UNLIKELY / 2
            new_tokens[:, -1] = -UNLIKELY / 2
        elif name == "ln_f/g":
            grown /= self.scale * self.times  # wte reads the stream too, at the scale at which it writes
            grown[-2:] = 0
        elif name == "ln_f/b":
            grown /= self.scale * self.times
            grown[-2:] = 1, -1

    def widened(self, name: str, a: np.ndarray) -> np.ndarray:
        """Return a parameter with as many channels of the residual stream as the new model has."""
        if re.search(WRITES, name):
            columns = self.scale * a.T
            mean = np.mean(columns, axis=0, keepdims=True, dtype=np.float64)
            return self.repeated(columns, np.asarray(mean, np.float32)).T
        nothing = np.zeros_like(a[:1])
        if re.search(READS, name):
            return self.repeated(a / self.times, nothing)
        if re.search(GAIN, name):
            return self.repeated(a / self.scale, nothing)
        if re.search(BIAS, name):
            return self.repeated(a, nothing)
        return a

    def repeated(self, a: np.ndarray, left_over: np.ndarray) -> np.ndarray:
        """[old n_embd, ...], [1, ...] -> [new n_embd, ...]"""
        return np.concatenate([a] * self.times + [left_over] * self.n_left)


def put_into_corner(grown: np.ndarray, a: np.ndarray, n_parts: int) -> None:
    """Write a to the beginning of each axis of grown. Of a last axis with n_parts (queries, keys and values, each with
    its heads first), to the beginning of each part."""
    a = a.reshape(*a.shape[:-1], n_parts, -1)
    parts = grown.reshape(*grown.shape[:-1], n_parts, -1)  # a view
    corner = [slice(n) for n in a.shape]
    parts[tuple(corner)] = a


def small_folder(folder: str, config: dict) -> str | None:
    """Return the folder of the model that this one is padded from; None for a model with weights of its own."""
    name = config.get("padded_from")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        return None
    return os.path.join(os.path.dirname(os.path.abspath(folder)), name)


def build_padded(padding: Padding, tensors: dict[str, np.ndarray], convert: Callable, progress: Callable) -> dict:
    """Pad the tensors {name: array} of the small model -> the nested dict that gpt2.gpt2 takes.

    convert and progress are called for each tensor, as in build_params: only few padded arrays exist at a time.
    """

    def padded(name: str):
        return convert(name, padding.pad(name, tensors.get(name)))

    return nested(by_threads(padded, checkpoint_shapes(padding.new), progress))
