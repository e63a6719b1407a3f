"""From parameters to models of the NumPy engine."""

from collections.abc import Callable, Sequence

import numpy as np

from speculative.engines import packed, runtime
from speculative.engines.model import Model
from speculative.engines.tree_cache import TreeNetwork


def create_model_fn(params: dict, hparams: dict, to_probs: Callable, name: str = "the model") -> Model:
    """A network -> a function from tokens to distributions. Packs weights if they are not packed. name: in messages."""
    return Model(TreeNetwork(packed.pack(params, packed.packer("float32")), hparams, runtime.new_pass, name), to_probs)


def load_networks(read: Callable, hparams: dict, dtypes: Sequence[str], names: Sequence[str]) -> list[TreeNetwork]:
    """A network in each of these formats, from one reading: read(convert) gives the parameters as load_params does.

    Each tensor is packed for all of them before the next is read. Norms, biases and positions are the same arrays.
    """
    packers = [packed.packer(dtype) for dtype in dtypes]
    params = read(lambda name, array: Copies(pack(name, array) for pack in packers))
    return [packed_network(one_of_each(params, i), hparams, name) for i, name in enumerate(names)]


def packed_network(params: dict, hparams: dict, name: str) -> TreeNetwork:
    """A network whose weights are packed. Raises UserError if NaN or infinity among them shows in the logits of a pass,
    which is cheaper than a look at each weight."""
    network = TreeNetwork(params, hparams, runtime.new_pass, name)
    # Warm-up: the first call of each kind allocates memory and starts threads.
    for n_last in (1, 5):  # a row; a window of rows
        network.logits(np.zeros(min(8, network.n_ctx), int), min(n_last, network.n_ctx))
    runtime.tune(params, hparams)
    network.forget()
    return network


class Copies(tuple):
    """A tensor in several formats."""


def one_of_each(params, i: int):
    """The i-th format of every tensor in a nested dict."""
    if isinstance(params, Copies):
        return params[i]
    if isinstance(params, dict):
        return {name: one_of_each(value, i) for name, value in params.items()}
    return [one_of_each(value, i) for value in params]
