"""The settings of a model: hparams.json or config.json. One that changes the model is applied, or refused by name.

A setting that changes the tensors (cross attention, pruned heads, quantized weights, an output matrix that is not wte)
shows in their names, shapes and types, which are compared as they are read. Here are the others; names beyond these are
ignored, as in transformers. Three of them change the weights as they are read (settings_in_weights), so gpt2.py need
not know of them, and neither does any faster way to compute it.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.names import HPARAMS
from speculative.support.errors import UserError, first_line
from speculative.support.files import naming
from speculative.support.terminal import one_line

EPSILON = 1e-5  # the epsilon of gpt2.py's layer norm
SIZES = {  # OpenAI's names, and those of transformers
    "n_vocab": ["vocab_size"],
    "n_ctx": ["n_positions", "max_position_embeddings"],
    "n_embd": ["n_embd", "hidden_size"],
    "n_head": ["n_head", "num_attention_heads"],
    "n_layer": ["n_layer", "num_hidden_layers"],
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
    "attention_head_type": ["multihead"],
}
# Settings of models whose weights cannot be read as GPT-2's.
QUANTIZED = "the weights are quantized: use the model that was quantized, with dtype int8"
OTHER_KINDS = {
    "quantization_config": QUANTIZED,
    "quantization": QUANTIZED,
    "multi_query": "its heads share keys and values (multi-query attention), which GPT-2's do not",
    "auto_map": "the model has code of its own, which is not run: if it computes as GPT-2 does, delete auto_map there",
}
OTHER_VALUES = {"attention_head_type": "; multi-query attention is not GPT-2's"}
# Settings by which transformers changes a text at every temperature, with the values that change nothing.
PENALTIES = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beams"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens", "diversity_penalty"), 0),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"), None),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "force_words_ids", "constraints"), None),
    **dict.fromkeys(("exponential_decay_length_penalty", "penalty_alpha", "guidance_scale"), None),
}


def read_object(path: str) -> dict:
    """Return the JSON object in a file. Raises UserError."""
    try:
        with naming(path):
            content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:
        raise bad_file(path, f"cannot be read as JSON ({first_line(error)})") from None
    return content


def read_config(path: str, content: dict) -> dict:
    """Return all settings of a file with this content, with the sizes under OpenAI's names. Raises UserError for a
    setting that is not honoured."""
    config = {name: value for name, value in content.items() if value is not None}
    left_out = HPARAMS["124M"] if Path(path).name == "config.json" else {}  # as in transformers
    for name, theirs in SIZES.items():
        sizes = [content[other] for other in theirs if other in content]
        if len(sizes) == 2 and sizes[0] != sizes[1]:
            raise UserError(f"{path}: {' and '.join(theirs)} should be the same number")
        sizes.append(content.get(name, left_out.get(name)))
        config[name] = sizes[0]
    check(config, path)
    return config


def check(config: dict, path: str) -> None:
    """Raise UserError for a setting that is not honoured."""
    for name, honoured in HONOURED.items():
        value = config.get(name, honoured[0])
        if type(value) is not type(honoured[0]) or value not in honoured:
            supported = f"from 1 to {honoured[-1]}" if isinstance(honoured, range) else f"in {honoured}"
            supported += OTHER_VALUES.get(name, "")
            raise UserError(f"{path}: {name} is {json.dumps(value):.50}, and is supported only {supported}")
    for name, meaning in OTHER_KINDS.items():
        value = config.get(name)
        if value and not (name == "auto_map" and "AutoModel" not in str(value)):  # not if it names a tokenizer
            raise UserError(f"{path}: its {name} says that {meaning}")
    epsilon = config.get("layer_norm_epsilon", EPSILON)
    if type(epsilon) is not float or not 1e-12 <= epsilon <= 1:
        raise UserError(f"{path}: layer_norm_epsilon is {epsilon!s:.50}, and is supported only from 1e-12 to 1.0")
    n_embd = config["n_embd"]
    n_head = config["n_head"]
    if n_embd % n_head:
        raise UserError(f"{path}: n_embd {n_embd} does not divide into n_head {n_head} heads")


def say_what_is_not_applied(folder: str) -> None:
    """Print the penalties and bans by which transformers would change a text of this model: in
    generation_config.json, or in config.json if that is not there."""
    paths = [os.path.join(folder, name) for name in ("generation_config.json", "config.json")]
    path = next(filter(os.path.isfile, paths), None)
    settings = read_object(path) if path else {}
    asked = [name for name, usual in PENALTIES.items() if settings.get(name) and settings[name] != usual]
    if asked:
        line = f"{path}: its penalties and bans are not applied: {', '.join(asked)}"
        print(one_line(line), file=sys.stderr)


def load_hparams(path: str) -> dict:
    """Read hparams.json, or Hugging Face's config.json: see sizes_of. Raises UserError."""
    return sizes_of(read_config(path, read_object(path)))


def sizes_of(config: dict) -> dict:
    """Return {n_vocab, n_ctx, n_embd, n_head, n_layer} of all settings.

    If they are not GPT-2's, n_inner (the width between the two layers of ffn) and activation_function ("gelu" or
    "relu") too. stand_in is there if the model is not the official one of its name: it says which model it is.
    """
    hparams = {name: config[name] for name in SIZES}
    n_inner = config.get("n_inner", 4 * config["n_embd"])
    if n_inner != 4 * config["n_embd"]:
        hparams["n_inner"] = n_inner
    activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    if activation != "gelu_new":
        hparams["activation_function"] = activation
    stand_in = one_line(str(config.get("stand_in", ""))[:200])
    if stand_in:
        hparams["stand_in"] = stand_in
    return hparams


def settings_in_weights(config: dict) -> Callable[[str, np.ndarray], np.ndarray] | None:
    """Return change(name, array) for arrays by which gpt2.py honours settings that it does not have; None if there are
    none.

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

    def change(name: str, array: np.ndarray) -> np.ndarray:
        if "c_attn" in name:  # "h0/attn/c_attn/w"
            layer = int(name[1 : name.index("/")])
            c = longer / (layer + 1) if by_layer else longer
            factors = np.where(np.arange(3 * n) < n, c, 1)  # [3*n_embd]
            return array * factors.astype(np.float32)  # [..., 3*n_embd]
        if "c_proj" in name or name in ("wte", "wpe"):
            return array * s
        return array / s if "ln_f" in name else array

    return None if s == longer == 1 and not by_layer else change
