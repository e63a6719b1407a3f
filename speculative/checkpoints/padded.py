"""A model padded to a larger shape: it computes the logits of the small one, and a token costs what the shape costs.

The settings of such a model name the small one, a folder beside its own, as padded_from. A model grows in

- Width. Each channel of the residual stream is repeated, so often that at least two channels are left over. Those get
  the mean of the others. So layer norm finds the same mean, and a standard deviation that is smaller by a factor. All
  weights that write to the stream are larger by that factor. Weights that read it are divided by the repetitions.
- Heads, hidden units and layers. Those that the small model lacks have weights of 0.

The last layer norm sets two of the channels that are left over to 1 and -1. Each token has the same weight for both, so
they cancel. benchmarks/full_size.py adds tokens, whose weights do not.
"""

import math
import re

import numpy as np

from speculative.checkpoints.weights import Change, Index, Weights, checkpoint_shapes

WRITES = "wte|wpe|c_proj"  # parameters whose last axis is the residual stream
READS = "(c_attn|c_fc)/w"  # parameters whose first axis is the residual stream
GAIN, BIAS = "ln_./g", "ln_./b"  # the names of a layer norm's parameters


def cannot_be_padded(old: dict, new: dict) -> str:
    """Return why a model with hparams old cannot become one with hparams new; "" if it can."""
    for name in ("n_vocab", "n_ctx", "n_layer", "n_head"):
        if new[name] < old[name]:
            return f"{name} should be at least {old[name]}, not {new[name]}"
    if new["n_embd"] < old["n_embd"] + 2:
        return f"n_embd should be at least {old['n_embd'] + 2}, not {new['n_embd']}"
    width = old["n_embd"] // old["n_head"]  # of a head, which keeps it
    if new["n_embd"] != width * new["n_head"]:
        return f"n_embd / n_head should be {width}"
    return ""


class Padding:
    """How a model with hparams old becomes one with hparams new."""

    def __init__(self, old: dict, new: dict):
        self.old = old
        self.new = new
        self.shapes = checkpoint_shapes(new)
        n_embd = new["n_embd"]
        self.times = (n_embd - 2) // old["n_embd"]  # each channel is repeated so often
        self.n_left = n_embd - self.times * old["n_embd"]  # channels that are left over
        self.scale = math.sqrt(n_embd / (n_embd - self.n_left))  # the factor by which the residual stream is larger

    def pad(self, name: str, a: np.ndarray | None) -> np.ndarray:
        """Return a parameter of the new model. a: the old one, None if the old model lacks this layer."""
        grown = np.zeros(self.shapes[name], np.float32)
        if a is not None:
            put_into_corner(grown, self.widened(name, a), n_parts=3 if "c_attn" in name else 1)
        if "ln_f" in name:
            grown /= self.scale * self.times  # wte reads the stream too, at the scale at which it writes
        if name == "ln_f/b":
            grown[-2:] = 1, -1
        return grown

    def widened(self, name: str, a: np.ndarray) -> np.ndarray:
        """Return a parameter with as many channels of the residual stream as the new model has."""
        if re.search(WRITES, name):
            columns = self.scale * a.T
            mean = np.mean(columns, axis=0, keepdims=True, dtype=np.float64)
            return self.repeated(columns, np.asarray(mean, np.float32)).T
        if re.search(READS, name):
            a = a / self.times
        elif re.search(GAIN, name):
            a = a / self.scale
        elif not re.search(BIAS, name):
            return a
        return self.repeated(a, np.zeros_like(a[:1]))

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


class PaddedWeights(Weights):
    """The weights of a padded model. The files hold those of the small one."""

    def __init__(self, index: Index, padding: Padding, change: Change | None = None):
        super().__init__(index, padding.old, change)
        self.padding = padding
        self.shapes = padding.shapes

    def array(self, name: str) -> np.ndarray:  # -> float32 [*shapes[name]]
        return self.padding.pad(name, super().array(name) if name in self.stored_shapes else None)
