"""From parameters to what decodes on the NumPy engine: functions from tokens to distributions."""

from collections.abc import Callable, Sequence

import numpy as np

from checkpoints.tensors import bad_file
from speculative.engines import packed, runtime
from speculative.engines.plain import CachedModel


def create_model_fn(params: dict, hparams: dict, to_probs: Callable) -> CachedModel:
    """A network -> a function from tokens to distributions, with a cache of its own. Packs what is not packed yet."""
    runtime.warm_up()
    return CachedModel(packed.pack(params, packed.packer("float32")), hparams, to_probs, runtime.new_pass)


def load_models(
    read: Callable, hparams: dict, dtypes: Sequence[str], to_probs: Sequence[Callable]
) -> list[CachedModel]:
    """A model in each of these formats, from one reading: read(convert) gives the parameters as load_params does.

    Each tensor is packed for all of them before the next is read. Norms, biases and positions are the same arrays.
    """
    packers = [packed.packer(dtype) for dtype in dtypes]
    params = read(lambda name, array: Copies(pack(name, array) for pack in packers))
    models = []
    for i, to_probs_fn in enumerate(to_probs):
        models.append(create_model_fn(one_of_each(params, i), hparams, to_probs_fn))
        warm_up(models[-1])
    return models


def mapped_model(params: dict, hparams: dict, to_probs: Callable, path: str) -> CachedModel:
    """A model whose packed weights lie on the disk, in the file `path`. A NaN or infinity among them shows in the
    logits of a pass (but for -inf before a ReLU), which is cheaper than a look at each weight. Raises UserError."""
    model = create_model_fn(params, hparams, lambda logits: logits)
    logits = warm_up(model)  # [n_last, n_vocab]
    if "shared" in hparams:
        logits = logits[:, : hparams["shared"].n_shared]  # the target's other ids have -inf
    if not np.isfinite(logits).all():
        raise bad_file(path, "the packed weights hold NaN or infinity")
    model.to_probs = to_probs
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


def warm_up(model: CachedModel) -> np.ndarray:  # -> [n_last, n_vocab], of the last call
    """The first call of each kind pays for memory and threads that the later ones find ready: it is not timed."""
    for n_last in (1, 5):  # a row; a window of rows
        rows = model(np.zeros(min(8, model.n_ctx), int), min(n_last, model.n_ctx))  # [n_last, n_vocab]
    runtime.tune(model.params, model.hparams)
    return rows
