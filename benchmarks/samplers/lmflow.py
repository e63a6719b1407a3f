"""Its inference() at temperature 0.5; the models encode and decode nothing."""

from types import SimpleNamespace

import torch
from lmflow.pipeline.inferencer import SpeculativeInferencer

from benchmarks.samplers.networks import Network

TEMPERATURE = 0.5


def hf_decoder(model):
    net = Network(model, TEMPERATURE)
    return SimpleNamespace(
        get_backend_model=lambda: net,
        inference=lambda ids, **_: SimpleNamespace(scores=[net(ids).logits[:, -1]]),
        encode=lambda x, return_tensors: torch.tensor([x]),
        decode=lambda ids: ids,
    )


def speculative_sampling(x, draft_model, target_model, N, K):
    loop = SpeculativeInferencer.__new__(SpeculativeInferencer)
    loop.inferencer_args = SimpleNamespace(device="cpu")
    return loop.inference(hf_decoder(target_model), hf_decoder(draft_model), x, TEMPERATURE, K, N)
