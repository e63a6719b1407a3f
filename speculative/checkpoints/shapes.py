"""The parameters of a GPT-2: their names, their shapes, and the nested dict of them."""

import math

Shape = tuple[int, ...]
Shapes = dict[str, Shape]  # the shapes of tensors by name


def checkpoint_shapes(hparams: dict) -> Shapes:
    """Return {name: shape} of every parameter."""
    n = hparams["n_embd"]
    n_inner = hparams.get("n_inner", 4 * n)
    block: Shapes = {
        "ln_1/g": (n,),
        "ln_1/b": (n,),
        "ln_2/g": (n,),
        "ln_2/b": (n,),
        "attn/c_attn/w": (n, 3 * n),
        "attn/c_attn/b": (3 * n,),
        "attn/c_proj/w": (n, n),
        "attn/c_proj/b": (n,),
        "mlp/c_fc/w": (n, n_inner),
        "mlp/c_fc/b": (n_inner,),
        "mlp/c_proj/w": (n_inner, n),
        "mlp/c_proj/b": (n,),
    }
    shapes: Shapes = {"wte": (hparams["n_vocab"], n), "wpe": (hparams["n_ctx"], n)}
    for i in range(hparams["n_layer"]):
        for name, shape in block.items():
            shapes[f"h{i}/{name}"] = shape
    return shapes | {"ln_f/g": (n,), "ln_f/b": (n,)}


def parameter_count(hparams: dict) -> int:
    """Return the number of parameters. Each takes 4 bytes as float32."""
    return sum(math.prod(shape) for shape in checkpoint_shapes(hparams).values())


def nested(values: dict) -> dict:
    """{"h0/ln_1/g": value, ...} -> {"blocks": [{"ln_1": {"g": value}}, ...], ...}, as gpt2.gpt2 takes it."""
    params: dict = {}
    for name, value in values.items():
        *keys, last = name.split("/")
        inner = params
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = value
    n_layer = sum(name.startswith("h") for name in params)
    params["blocks"] = [params.pop(f"h{i}") for i in range(n_layer)]
    return params
