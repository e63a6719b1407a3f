"""The settings of a model: hparams.json or config.json. One that changes the model is applied, or refused by name.

A setting that changes the tensors (cross attention, pruned heads, quantized weights, an output matrix that is not wte)
shows in their names, shapes and types, which are compared as they are read. Here are the others. Three of them change
the weights as they are read (see absorb), so gpt2.py need not know of them, and neither does any faster way to compute
it.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculative.checkpoints.disk import bad_file
from speculative.support.errors import UserError, first_line
from speculative.support.files import naming
from speculative.support.terminal import one_line

EPSILON = 1e-5  # of gpt2.py's layer norm
# The sizes: the one that transformers gives a model whose config.json leaves it out, and its names there.
SIZES: dict[str, tuple] = {
    "n_vocab": (50257, "vocab_size"),
    "n_ctx": (1024, "n_positions", "max_position_embeddings"),
    "n_embd": (768, "n_embd", "hidden_size"),
    "n_head": (12, "n_head", "num_attention_heads"),
    "n_layer": (12, "n_layer", "num_hidden_layers"),
}
# Hugging Face has several names for a function.
ACTIVATIONS = {"gelu_new": "gelu_new", "gelu": "gelu", "gelu_python": "gelu", "relu": "relu"}
ACTIVATIONS |= dict.fromkeys(("gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"), "gelu_new")
# The values that are honoured.
HONOURED = {
    **dict.fromkeys((*SIZES, "n_inner"), range(1, 2**19)),
    "n_layer": range(1, 2**10),
    "model_type": ["gpt2"],
    "activation_function": [*ACTIVATIONS],
    "scale_attn_weights": [True, False],
    "scale_attn_by_inverse_layer_idx": [True, False],
}


def read_object(path: str) -> dict:
    """Return the JSON object in a file. Raises UserError."""
    try:
        with naming(path):
            content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad_file(path, f"cannot be read as JSON ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise bad_file(path, "cannot be read as JSON (it is not an object)")
    return content


def read_config(path: str) -> dict:
    """Return all settings, with the sizes under OpenAI's names. Raises UserError for one that is not honoured."""
    found = read_object(path)
    config = {name: value for name, value in found.items() if value is not None}
    for ours, (size, *names) in SIZES.items():
        given = [found[name] for name in names if name in found]
        if given[1:] and given[0] != given[1]:
            raise UserError(f"{path}: {' and '.join(names)} should be the same number")
        config[ours] = (given or [found.get(ours, size if Path(path).name == "config.json" else None)])[0]
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method", "?") if isinstance(quantized, dict) else "?"
        fault = f"quantized by {str(method)[:50]!r}, and are read only as they were before"
        raise UserError(f"{path}: its quantization_config says that the weights are {fault}; --dtype int8 rounds those")
    for name, honoured in HONOURED.items():
        value = config.get(name, honoured[0])
        if type(value) is not type(honoured[0]) or value not in honoured:
            supported = f"from 1 to {honoured[-1]}" if isinstance(honoured, range) else f"in {honoured}"
            raise UserError(f"{path}: {name} is {json.dumps(value)[:50]}, and is supported only {supported}")
    epsilon = config.get("layer_norm_epsilon", EPSILON)
    if type(epsilon) is not float or not 1e-12 <= epsilon <= 1:
        raise UserError(f"{path}: layer_norm_epsilon is {str(epsilon)[:50]}, and is supported only from 1e-12 to 1.0")
    if config["n_embd"] % config["n_head"]:
        raise UserError(f"{path}: n_embd {config['n_embd']} does not divide into n_head {config['n_head']} heads")
    return config


def load_hparams(path: str) -> dict:
    """Read hparams.json, or Hugging Face's config.json -> {n_vocab, n_ctx, n_embd, n_head, n_layer}.

    If they are not GPT-2's, n_inner (the width between the two layers of ffn) and activation_function ("gelu" or
    "relu") too. stand_in is there if the model is not the official one of its name: what it is instead.
    """
    config = read_config(path)
    hparams = {name: config[name] for name in SIZES}
    of_gpt2 = {"n_inner": 4 * config["n_embd"], "activation_function": "gelu_new", "stand_in": ""}
    more = {name: config.get(name, usual) for name, usual in of_gpt2.items()}
    more["activation_function"] = ACTIVATIONS[more["activation_function"]]
    more["stand_in"] = one_line(str(more["stand_in"])[:200])
    return hparams | {name: value for name, value in more.items() if value != of_gpt2[name]}


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
        if "c_attn" in name:  # "h0/attn/c_attn/w"
            c = longer / (int(name[1 : name.index("/")]) + 1 if by_layer else 1)
            array = array * np.where(np.arange(3 * n) < n, c, 1).astype(np.float32)  # [..., 3*n_embd]
        elif "c_proj" in name or name in ("wte", "wpe"):
            array = array * s
        elif "ln_f" in name:
            array = array / s
        return convert(name, array)

    return absorbed
