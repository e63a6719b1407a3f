"""The forward pass against an independent one: Hugging Face's, on a random GPT-2."""

import numpy as np
import pytest
from tiny import HPARAMS, random_params

from gpt2 import gpt2

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", exc_type=ImportError)


def state_dict(params):
    """Our nested dict under Hugging Face's names; its conv1d weights are [n_in, n_out], as ours."""
    names = {"g": "weight", "w": "weight", "b": "bias"}

    def flatten(prefix, node):
        if isinstance(node, dict):
            for key, child in node.items():
                yield from flatten([*prefix, names.get(key, key)], child)
        else:
            yield ".".join(prefix), torch.from_numpy(node)

    tensors = {"wte.weight": torch.from_numpy(params["wte"]), "wpe.weight": torch.from_numpy(params["wpe"])}
    tensors |= dict(flatten(["ln_f"], params["ln_f"]))
    for i, block in enumerate(params["blocks"]):
        tensors |= dict(flatten(["h", str(i)], block))
    return tensors


def test_the_logits_are_those_of_transformers():
    params = random_params()
    sizes = {key: HPARAMS[key] for key in ("n_embd", "n_head", "n_layer")}
    config = transformers.GPT2Config(vocab_size=HPARAMS["n_vocab"], n_positions=HPARAMS["n_ctx"], **sizes)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.transformer.load_state_dict(state_dict(params), strict=True)
    ids = np.random.default_rng(0).integers(0, HPARAMS["n_vocab"], HPARAMS["n_ctx"])
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(gpt2(ids, **params, n_head=HPARAMS["n_head"]), expected, rtol=1e-4, atol=1e-4)
