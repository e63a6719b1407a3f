"""The weights of a model, by OpenAI's names: as its files have them, or padded from those of a smaller model."""

from collections.abc import Callable
from typing import Any

import numpy as np

from speculative.checkpoints.config import load_hparams, read_config, settings_in_weights
from speculative.checkpoints.crc32c import warn_about
from speculative.checkpoints.disk import Note, state_of
from speculative.checkpoints.folder import Checkpoint, look
from speculative.checkpoints.padded import Padding
from speculative.checkpoints.shapes import checkpoint_shapes, nested
from speculative.checkpoints.tensors import Index, array_of, by_threads, check_names, check_shapes, forget_pages
from speculative.support.errors import UserError


class StoredWeights:
    """The tensors of a checkpoint. Those of files that an earlier run found right are not checked again."""

    def __init__(self, index: Index, hparams: dict, change: Callable | None = None):
        """change(name, array): applies settings that gpt2.py does not have (config.py). Raises UserError."""
        self.index = index
        self.shapes = checkpoint_shapes(hparams)
        self.change = change
        check_names(index, self.shapes)
        check_shapes(index, self.shapes)
        self.note = Note(sorted(index.items()))
        self.is_checked = self.note.exists()
        if not self.is_checked:
            warn_about(sum(tensor.n_bytes for tensor in index.values() if tensor.crc32c is not None))

    def array(self, name: str) -> np.ndarray:  # -> float32 [*shapes[name]]
        """Read a tensor: the mapped file itself if it holds float32. Raises UserError."""
        array = array_of(self.index[name], name, self.is_checked).reshape(self.shapes[name])
        return self.change(name, array) if self.change else array

    def forget(self, name: str) -> None:
        """Give back the memory of a tensor that is not read any more."""
        forget_pages(self.index[name])

    def finish(self) -> None:
        """Note that all is right. Raises UserError if a file has changed since it was opened."""
        for tensor in {tensor.path: tensor for tensor in self.index.values()}.values():
            if state_of(tensor.path) != tensor.file.state:
                raise UserError(f"{tensor.path}: changed while it was read")
        if not self.is_checked:
            self.note.write()


class PaddedWeights:
    """The same of a model that is padded from a smaller one: see padded.py."""

    def __init__(self, small: StoredWeights, small_hparams: dict, hparams: dict):
        self.small = small
        self.shapes = checkpoint_shapes(hparams)
        self.padding = Padding(small_hparams, hparams)
        self.finish = small.finish

    def array(self, name: str) -> np.ndarray:
        return self.padding.pad(name, self.small.array(name) if name in self.small.shapes else None)

    def forget(self, name: str) -> None:
        if name in self.small.shapes:
            self.small.forget(name)


Weights = StoredWeights | PaddedWeights


def open_weights(files: Checkpoint, hparams: dict) -> Weights:
    """Open the weights of a complete model. Raises UserError if the tensors are not those of the settings."""
    index = files.read_index([files.path(name) for name in files.weights])
    if not files.padded_from:
        config = read_config(files.path(files.settings), files.content)
        return StoredWeights(index, hparams, settings_in_weights(config))
    small = look(files.padded_from)
    small_hparams = load_hparams(small.path(small.settings), small.content)
    return PaddedWeights(StoredWeights(index, small_hparams), small_hparams, hparams)


def read_all(weights: Weights, convert: Callable = lambda name, array: array) -> dict[str, Any]:
    """Read the tensors, each in a thread -> the nested dict that gpt2.gpt2 takes, of convert(name, array). Raises
    UserError."""

    def read(name: str) -> Any:
        array = weights.array(name)
        value = convert(name, array)
        if value is not array:
            weights.forget(name)
        return value

    values = by_threads(read, weights.shapes)
    weights.finish()
    return nested(values)
