"""OpenAI's weights: a TensorFlow checkpoint, model.ckpt.index and model.ckpt.data-00000-of-00001."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from checkpoints.bundle import open_bundle
from checkpoints.tensors import bad_file, build_params
from plumbing.compiling import has_numba
from plumbing.errors import UserError, first_line
from plumbing.extras import advice


def load_gpt2_params_from_tf_ckpt(
    tf_ckpt_path: str,
    hparams: dict,
    convert: Callable | None = None,
    progress: Callable | None = None,
    open_fn: Callable | None = None,
) -> dict:
    """The checkpoint's tensors as the params of gpt2.gpt2. The CRC32C of each is checked as it is read.

    tf_ckpt_path: models/124M/model.ckpt, for example. convert, progress: as in tensors.build_params. open_fn:
    open_by_tensorflow, or bundle.open_bundle, which is taken where numba is installed: it does without TensorFlow.
    Raises UserError.
    """
    open_fn = open_fn or (open_bundle if has_numba() else open_by_tensorflow)
    with open_fn(tf_ckpt_path) as (variables, read):
        # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
        prefix = "model/"
        shapes = {name.removeprefix(prefix): shape for name, shape in variables.items() if name.startswith(prefix)}
        data = f"{tf_ckpt_path}.data-00000-of-00001"
        return build_params(data, shapes, lambda name: read(prefix + name), hparams, convert, progress)


@contextlib.contextmanager
def open_by_tensorflow(tf_ckpt_path: str) -> Iterator[tuple[dict[str, tuple], Callable]]:
    """({name: shape}, read), read(name) being an array [*shape]. Raises UserError."""
    print("importing TensorFlow, which reads OpenAI's checkpoints without numba ...", file=sys.stderr, flush=True)
    tf = import_tensorflow()
    try:
        reader = tf.train.load_checkpoint(tf_ckpt_path)
        variables = reader.get_variable_to_shape_map()
    except Exception as error:  # its kind depends on where the damage is
        raise bad_file(f"{tf_ckpt_path}.index", f"damaged ({first_line(error)})") from error
    lock = threading.Lock()

    def read(name):
        with lock:
            return reader.get_tensor(name)

    yield {name: tuple(shape) for name, shape in variables.items()}, read


def import_tensorflow():
    """Imports tensorflow, without the log lines that its C++ side writes while that takes place."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow
    except ModuleNotFoundError as error:
        raise UserError(
            f"OpenAI's checkpoints need numba or tensorflow: {advice('tensorflow')}, or use --source huggingface"
        ) from error
    except ImportError as error:
        raise UserError(f"tensorflow cannot be imported ({first_line(error)}): use --source huggingface") from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    return tensorflow
