"""From parameters to what decodes on the NumPy engine: a function from tokens to distributions."""

from collections.abc import Callable

import numpy as np

from speculative.engines import packed, runtime
from speculative.engines.plain import CachedModel


def create_model_fn(params: dict, hparams: dict, to_probs: Callable) -> CachedModel:
    """A network -> a function from tokens to distributions, with a cache of its own. Packs what is not packed yet."""
    runtime.warm_up()
    return CachedModel(packed.pack(params, packed.packer("float32")), hparams, to_probs, runtime.new_pass)


def load_model(read: Callable, hparams: dict, dtype: str, to_probs: Callable) -> CachedModel:
    """The same from read(convert), which gives the parameters as utils.load_params does, packed as they are read."""
    model = create_model_fn(read(packed.packer(dtype)), hparams, to_probs)
    # The first call of each kind pays for memory and threads that the later ones find ready: it is not timed.
    for n_last in (1, 5):  # a row; a window of rows
        model(np.zeros(min(8, model.n_ctx), int), min(n_last, model.n_ctx))
    return model
