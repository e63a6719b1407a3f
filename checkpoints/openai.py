"""OpenAI's weights: a TensorFlow checkpoint, model.ckpt.index and model.ckpt.data-00000-of-00001."""

import os
from collections.abc import Callable

from checkpoints.tensors import bad_file, build_params
from plumbing.errors import UserError, first_line
from plumbing.extras import advice


def load_gpt2_params_from_tf_ckpt(
    tf_ckpt_path: str, hparams: dict, convert: Callable | None = None, progress: Callable | None = None
) -> dict:
    """The checkpoint's tensors as the params of gpt2.gpt2. TensorFlow checks the CRC32C of each as it reads it.

    tf_ckpt_path: models/124M/model.ckpt, for example. convert, progress: as in tensors.build_params. Raises UserError.
    """
    tf = import_tensorflow()
    try:
        reader = tf.train.load_checkpoint(tf_ckpt_path)
        variables = reader.get_variable_to_shape_map()
    except Exception as error:  # its kind depends on where the damage is
        raise bad_file(f"{tf_ckpt_path}.index", f"damaged ({first_line(error)})") from error
    # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
    prefix = "model/"
    shapes = {name.removeprefix(prefix): tuple(shape) for name, shape in variables.items() if name.startswith(prefix)}
    data = f"{tf_ckpt_path}.data-00000-of-00001"
    return build_params(data, shapes, lambda name: reader.get_tensor(f"model/{name}"), hparams, convert, progress)


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
            f"OpenAI's checkpoints need tensorflow: {advice('tensorflow')}, or use --source huggingface"
        ) from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    return tensorflow
