"""OpenAI's weights: a TensorFlow checkpoint, model.ckpt.index and model.ckpt.data-00000-of-00001."""

import contextlib
import os
from collections.abc import Callable, Iterator

from speculative.checkpoints.bundle import has_crc32c, open_bundle
from speculative.checkpoints.tensors import bad_file, build_params
from speculative.support import extras
from speculative.support.errors import UserError, first_line


def load_gpt2_params_from_tf_ckpt(
    tf_ckpt_path: str,
    hparams: dict,
    convert: Callable | None = None,
    progress: Callable | None = None,
    open_fn: Callable | None = None,
) -> dict:
    """The checkpoint's tensors as the params of gpt2.gpt2. The CRC32C of each is checked as it is read.

    tf_ckpt_path: models/124M/model.ckpt, for example. convert, progress: as in tensors.build_params. open_fn: one of
    those that choose_open_fn chooses from. Raises UserError.
    """
    open_fn = open_fn or choose_open_fn()
    with open_fn(tf_ckpt_path) as (variables, read):
        # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
        prefix = "model/"
        shapes = {name.removeprefix(prefix): shape for name, shape in variables.items() if name.startswith(prefix)}
        data = f"{tf_ckpt_path}.data-00000-of-00001"
        return build_params(data, shapes, lambda name: read(prefix + name), hparams, convert, progress)


def choose_open_fn() -> Callable:
    """What opens a checkpoint: open_bundle, or TensorFlow where google-crc32c has no compiled form. Raises UserError
    where there is neither."""
    if has_crc32c():
        return open_bundle
    what = "OpenAI's form of a checkpoint, without google-crc32c (--source huggingface has another form),"
    extras.check(what, ["tensorflow"])
    return open_by_tensorflow


@contextlib.contextmanager
def open_by_tensorflow(tf_ckpt_path: str) -> Iterator[tuple[dict[str, tuple], Callable]]:
    """({name: shape}, read), read(name) being an array [*shape]. Raises UserError."""
    tf = import_tensorflow()
    try:
        reader = tf.train.load_checkpoint(tf_ckpt_path)
        variables = reader.get_variable_to_shape_map()
    except Exception as error:  # its kind depends on where the damage is
        raise bad_file(f"{tf_ckpt_path}.index", f"damaged ({first_line(error)})") from error
    yield {name: tuple(shape) for name, shape in variables.items()}, reader.get_tensor


def import_tensorflow():
    """Imports tensorflow, without the log lines that its C++ side writes while that takes place."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow
    except ImportError as error:
        raise UserError(
            f"OpenAI's checkpoints need tensorflow: {extras.advice('tensorflow')}, or use --source huggingface"
        ) from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    return tensorflow
