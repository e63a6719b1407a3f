"""Its inference() at temperature 0.5; the models encode and decode nothing."""

from types import SimpleNamespace

import torch
from lmflow.pipeline.inferencer import SpeculativeInferencer

from benchmarks.samplers.networks import Network


class Decoder(Network):
    def get_backend_model(self):
        return self

    def inference(self, ids, **_):
        return SimpleNamespace(scores=[self(ids).logits[:, -1]])

    def encode(self, ids, **_):
        return ids

    decode = encode


def speculative_sampling(x, draft_model, target_model, N, K):
    loop = SpeculativeInferencer.__new__(SpeculativeInferencer)
    loop.inferencer_args = SimpleNamespace(device="cpu")
    return loop.inference(Decoder(target_model, 0.5), Decoder(draft_model, 0.5), torch.tensor([x]), 0.5, K, N)
