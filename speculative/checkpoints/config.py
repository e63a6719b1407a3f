"""The settings of a model: hparams.json or config.json. Each is honoured, or refused in a line that names it.

Three settings of Hugging Face's GPT-2 change the weights as they are read (see absorb). So gpt2.py need not know of
them, and neither does any faster way to compute it.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculative.checkpoints.tensors import bad_file
from speculative.support.errors import UserError, first_line

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

SIZES = ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer")

# {setting: the values that are honoured}: a list of them, or a range (least, most) of numbers of one type. Those that
# are missing here change nothing in the network, and neither does reorder_and_upcast_attn: attention is always computed
# in float32. Sizes end far above any GPT-2, yet low enough that no wrong number asks for absurd amounts of memory.
HONOURED = {
    **dict(zip(SIZES, [(1, 2**20), (1, 2**16), (1, 2**15), (1, 2**10), (1, 2**10)], strict=True)),
    "n_inner": (1, 2**17),
    "layer_norm_epsilon": (1e-12, 1.0),
    "model_type": ["gpt2"],
    "activation_function": [*ACTIVATIONS],
    "scale_attn_weights": [True, False],
    "scale_attn_by_inverse_layer_idx": [True, False],
    "tie_word_embeddings": [True],  # the output matrix is wte
    "add_cross_attention": [False],
    "quantization_config": [None],
    "pruned_heads": [None, {}],
    "torch_dtype": [None, "auto", "float32", "float16", "bfloat16"],
    "dtype": [None, "auto", "float32", "float16", "bfloat16"],
}


def read_object(path: str) -> dict:
    """Return the JSON object in a file. Raises UserError."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise bad_file(path, f"cannot be read as JSON ({first_line(error)})") from None


def read_config(path: str) -> dict:
    """Return all settings, with the sizes under OpenAI's names. Raises UserError for one that is not honoured."""
    config = read_object(path)
    config |= {name: config[alias] for name, aliases in NAMES.items() for alias in reversed(aliases) if alias in config}
    if config.get("n_inner", 0) is None:  # 4 * n_embd
        del config["n_inner"]
    for name, honoured in HONOURED.items():
        if name not in config and name not in SIZES:
            continue
        value = config.get(name)
        if isinstance(honoured, tuple):
            is_honoured = type(value) is type(honoured[1]) and honoured[0] <= value <= honoured[1]
            supported = f"from {honoured[0]} to {honoured[1]}"
        else:
            is_honoured = value in honoured
            supported = json.dumps(honoured)[1:-1]
        if not is_honoured:
            raise UserError(f"{path}: {name} is {json.dumps(value)[:50]}, and is supported only as {supported}")
    if config["n_embd"] % config["n_head"]:
        raise bad_file(path, f"n_embd {config['n_embd']} does not divide into n_head {config['n_head']} heads")
    return config


def load_hparams(path: str) -> dict:
    """Read hparams.json, or Hugging Face's config.json -> {n_vocab, n_ctx, n_embd, n_head, n_layer}.

    If they are not GPT-2's, n_inner (the width between the two layers of ffn) and activation_function ("gelu" or
    "relu") too. stand_in is there if the model is not the official one of its name: what it is instead.
    """
    config = read_config(path)
    hparams = {name: config[name] for name in SIZES}
    if config.get("n_inner", 4 * config["n_embd"]) != 4 * config["n_embd"]:
        hparams["n_inner"] = config["n_inner"]
    activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    if activation != "gelu_new":
        hparams["activation_function"] = activation
    if "stand_in" in config:
        hparams["stand_in"] = repr(config["stand_in"])[1:201].rstrip("'")  # a stranger may have written it
    return hparams


def absorb(config: dict, convert: Callable) -> Callable:
    """Return convert(name, array) for arrays that it first changes to honour the settings gpt2.py does not have.

    scale_attn_weights and scale_attn_by_inverse_layer_idx: scores that are c times GPT-2's are those of queries that
    are c times as long, so c goes into the columns of c_attn that make the queries.

    layer_norm_epsilon: x / sqrt(var(x) + eps) is s x / sqrt(var(s x) + 1e-5) with s = sqrt(1e-5 / eps). So the weights
    that write to the residual stream (wte, wpe, both c_proj) become s times as large, and those of the last layer norm
    1/s times: its output meets wte once more.
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
        return convert(name, array)

    return absorbed
