"""Folders as Hugging Face's library writes them: settings, a tokenizer, and weights in one file or several."""

import json
import math

import numpy as np
from checkpoint_files import write_safetensors
from scipy.special import erf
from tiny import ROOT, random_arrays
from tokenizer_files import make_tokenizer

import gpt2
from speculative.checkpoints.weights import checkpoint_shapes, nested

TINY = ROOT / "models" / "tiny-target"


CONFIG = {"model_type": "gpt2", "vocab_size": 70, "n_positions": 24, "n_embd": 12, "n_head": 3, "n_layer": 3}


SETTINGS = [
    {},
    {"n_inner": None, "n_ctx": 9, "pruned_heads": {}, "attn_pdrop": 0.1, "architectures": ["GPT2LMHeadModel"]},
    {"activation_function": "gelu"},
    {"activation_function": "relu"},
    {"activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 0.1},
    {"layer_norm_epsilon": 1e-12},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True, "n_layer": 12, "reorder_and_upcast_attn": True},
    {"n_inner": 100},
    {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-3, "n_inner": 77},
]


def sizes(config):
    """The sizes of the tensors, as checkpoint_shapes takes them."""
    n_inner = config.get("n_inner") or 4 * config["n_embd"]
    return config | {"n_vocab": config["vocab_size"], "n_ctx": config["n_positions"], "n_inner": n_inner}


def random_tensors(config):
    """{OpenAI's name: array} for this config.json."""
    return random_arrays(sizes(config), scale=0.4)


def write_folder(folder, config, tensors, n_parts=1, vocabulary=True):
    """config.json, a tokenizer.json, and the weights in so many files, as some are: with wte once more, and masks."""
    masks = {f"h{i}/attn/b": np.ones((1, 1, 9, 9), np.uint8) for i in range(config["n_layer"])}
    tensors = masks | {"lm_head": tensors["wte"].copy()} | tensors
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"model-{i + 1:05}-of-{n_parts:05}.safetensors" for i in range(n_parts)]
    write_shards_index(folder, [*names, names[0]])  # several tensors are in one file
    for i, name in enumerate(names if n_parts > 1 else ["model.safetensors"]):
        write_safetensors(folder / name, dict([*tensors.items()][i::n_parts]), prefix="transformer.")
    if vocabulary:
        make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def plain_logits(config, tensors, ids):
    """The oracle: Hugging Face's GPT-2 with all its settings, made of the parts of gpt2.py, in float64."""
    params = nested({name: tensors[name].astype(np.float64) for name in checkpoint_shapes(sizes(config))})
    eps = config.get("layer_norm_epsilon", 1e-5)
    activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    longer = 1 if config.get("scale_attn_weights", True) else math.sqrt(config["n_embd"] // config["n_head"])
    x = params["wte"][ids] + params["wpe"][: len(ids)]
    for i, block in enumerate(params["blocks"]):
        c = longer / (i + 1 if config.get("scale_attn_by_inverse_layer_idx") else 1)
        scaled = lambda q, k, v, c=c: gpt2.attention(c * q, k, v)  # noqa: E731
        x = x + gpt2.mha(gpt2.layer_norm(x, **block["ln_1"], eps=eps), **block["attn"], n_head=3, attend=scaled)
        x = x + gpt2.ffn(gpt2.layer_norm(x, **block["ln_2"], eps=eps), **block["mlp"], activation=activation)
    return gpt2.layer_norm(x, **params["ln_f"], eps=eps) @ params["wte"].T


ACTIVATIONS = {
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), gpt2.gelu),
}


IDS = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], CONFIG["n_positions"])


def write_shards_index(folder, names):
    weight_map = {f"tensor {i}": name for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
