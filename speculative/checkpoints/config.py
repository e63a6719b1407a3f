"""The settings of a model: hparams.json or config.json. Each is honoured, or refused in a line that names it.

Three settings of Hugging Face's GPT-2 change the weights as they are read. So gpt2.py need not know of them, and
neither does any faster way to compute it (see absorb).
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculative.checkpoints.tensors import bad_file
from speculative.support.errors import UserError, first_line
from speculative.support.files import read_small

# Far above any GPT-2, yet low enough that no wrong number can ask for absurd amounts of memory.
LIMITS = {"n_vocab": 2**20, "n_ctx": 2**16, "n_embd": 2**15, "n_head": 2**10, "n_layer": 2**10}
MOST_INNER = 2**17
# Hugging Face's names for these. The first that is there counts.
NAMES = {
    "n_vocab": ("vocab_size",),
    "n_ctx": ("n_positions", "max_position_embeddings"),
    "n_embd": ("hidden_size",),
    "n_head": ("num_attention_heads",),
    "n_layer": ("num_hidden_layers",),
}
# The same function has several names there.
ACTIVATIONS = {
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"), "gelu_new"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    "relu": "relu",
}
EPSILON = 1e-5  # of gpt2.py's layer norm
EPSILONS = 1e-12, 1.0  # from, to

# {setting: (the supported values in words, whether a value is one)}. Most of them mean the same as no setting. With
# reorder_and_upcast_attn attention is computed in float32, as it always is here.
MUST_BE = {
    "model_type": ("gpt2", lambda value: value == "gpt2"),
    "activation_function": (
        f"one of {', '.join(ACTIVATIONS)}",
        lambda value: type(value) is str and value in ACTIVATIONS,
    ),
    "layer_norm_epsilon": (
        f"a number from {EPSILONS[0]} to {EPSILONS[1]:.0f}",
        lambda value: type(value) in (int, float) and EPSILONS[0] <= value <= EPSILONS[1],
    ),
    "n_inner": (
        f"null or a whole number from 1 to {MOST_INNER}",
        lambda value: value is None or (type(value) is int and 1 <= value <= MOST_INNER),
    ),
    "scale_attn_weights": ("true or false", lambda value: type(value) is bool),
    "scale_attn_by_inverse_layer_idx": ("true or false", lambda value: type(value) is bool),
    "reorder_and_upcast_attn": ("true or false", lambda value: type(value) is bool),
    "tie_word_embeddings": ("true: the output matrix is wte", lambda value: value is True),
    "add_cross_attention": ("false: there is no encoder to attend to", lambda value: value is False),
    "quantization_config": ("null: weights are read as float32, float16 or bfloat16", lambda value: value is None),
    "pruned_heads": ("empty", lambda value: not value),
    **dict.fromkeys(
        ("torch_dtype", "dtype"),
        (
            "float32, float16 or bfloat16",
            lambda value: value in (None, "auto", "float32", "float16", "bfloat16"),
        ),
    ),
}


def read_object(path: str | Path) -> dict:
    """A file that holds a JSON object. Raises UserError."""
    try:
        found = json.loads(read_small(path))
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        return found
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_file(path, f"cannot be read as JSON ({first_line(error)})") from error


def read_config(path: str) -> dict:
    """All settings, with the sizes under OpenAI's names. Raises UserError for one that is not honoured."""
    config = read_object(path)
    for name, limit in LIMITS.items():
        value = next((config[alias] for alias in (*NAMES[name], name) if alias in config), None)
        if type(value) is not int or not 1 <= value <= limit:
            raise bad_file(path, f"{name} is {value!r:.50}, not a whole number from 1 to {limit}")
        config[name] = value
    if config["n_embd"] % config["n_head"]:
        raise bad_file(path, f"n_embd {config['n_embd']} does not divide into n_head {config['n_head']} heads")
    for name, (must_be, holds) in MUST_BE.items():
        if name in config and not holds(config[name]):
            raise UserError(f"{path}: {name} is {json.dumps(config[name])[:50]}, and is supported only as {must_be}")
    return config


def load_hparams(path: str) -> dict:
    """hparams.json, or Hugging Face's config.json -> {n_vocab, n_ctx, n_embd, n_head, n_layer}, each a sane int.

    Where they are not GPT-2's, n_inner (the width between the two layers of ffn) and activation_function ("gelu" or
    "relu") too.
    """
    config = read_config(path)
    hparams = {name: config[name] for name in LIMITS}
    if config.get("n_inner") not in (None, 4 * config["n_embd"]):
        hparams["n_inner"] = config["n_inner"]
    activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    if activation != "gelu_new":
        hparams["activation_function"] = activation
    return hparams


def absorb(config: dict, convert: Callable | None = None) -> Callable | None:
    """convert(name, array) -> the same for arrays that are first changed to honour the settings gpt2.py does not have.

    scale_attn_weights and scale_attn_by_inverse_layer_idx: scores that are c times GPT-2's are those of queries that
    are c times as long, so c goes into the columns of c_attn that make the queries.

    layer_norm_epsilon: x / sqrt(var(x) + eps) is s x / sqrt(var(s x) + 1e-5) with s = sqrt(1e-5 / eps). So what is
    written to the residual stream (wte, wpe, both c_proj) is made s times as large, and what the last layer norm gives
    1/s times: it meets wte once more.
    """
    n = config["n_embd"]
    s = math.sqrt(EPSILON / config.get("layer_norm_epsilon", EPSILON))
    longer = 1.0 if config.get("scale_attn_weights", True) else math.sqrt(n // config["n_head"])
    by_layer = config.get("scale_attn_by_inverse_layer_idx", False)
    if s == longer == 1 and not by_layer:
        return convert

    def absorbed(name, array):
        *path, last = name.split("/")  # ["h0", "attn", "c_attn"] and "w", or [] and "wte"
        layer = path[-1] if path else last
        if layer == "c_attn":
            c = longer / (int(path[0][1:]) + 1 if by_layer else 1)
            array = array * np.where(np.arange(3 * n) < n, c, 1).astype(np.float32)  # [..., 3*n_embd]
        elif layer in ("wte", "wpe", "c_proj"):
            array = array * s
        elif layer == "ln_f":
            array = array / s
        return convert(name, array) if convert else array

    return absorbed
