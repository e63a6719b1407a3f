"""From parameters to what decodes on the NumPy engine: functions from tokens to distributions."""

from collections.abc import Callable, Sequence

import numpy as np

from speculative.engines import packed, runtime
from speculative.engines.plain import CachedModel


def create_model_fn(params: dict, hparams: dict, to_probs: Callable, name: str = "the model") -> CachedModel:
    """A network -> a function from tokens to distributions, with a cache of its own. Packs what is not packed yet.
    name: what a message calls it."""
    runtime.warm_up()
    return CachedModel(packed.pack(params, packed.packer("float32")), hparams, to_probs, runtime.new_pass, name)


def load_models(
    read: Callable, hparams: dict, dtypes: Sequence[str], to_probs: Sequence[Callable], names: Sequence[str]
) -> list[CachedModel]:
    """A model in each of these formats, from one reading: read(convert) gives the parameters as load_params does.

    Each tensor is packed for all of them before the next is read. Norms, biases and positions are the same arrays.
    """
    packers = [packed.packer(dtype) for dtype in dtypes]
    params = read(lambda name, array: Copies(pack(name, array) for pack in packers))
    models = []
    for i, (of_one, name) in enumerate(zip(to_probs, names, strict=True)):
        models.append(packed_model(one_of_each(params, i), hparams, of_one, name))
    return models


def packed_model(params: dict, hparams: dict, to_probs: Callable, name: str) -> CachedModel:
    """A model whose weights are packed already. Raises UserError where a NaN or infinity among them shows in the logits
    of a pass (but for -inf before a ReLU), which is cheaper than a look at each weight."""
    model = CachedModel(params, hparams, to_probs, runtime.new_pass, name)
    # The first call of each kind pays for memory and threads that the later ones find ready: it is not timed.
    for n_last in (1, 5):  # a row; a window of rows
        model(np.zeros(min(8, model.n_ctx), int), min(n_last, model.n_ctx))
    runtime.tune(params, hparams)
    return model


class Copies(tuple):
    """A tensor in several formats."""


def one_of_each(params, i: int):
    """The i-th format of every tensor in a nested dict."""
    if isinstance(params, Copies):
        return params[i]
    if isinstance(params, dict):
        return {name: one_of_each(value, i) for name, value in params.items()}
    return [one_of_each(value, i) for value in params]
