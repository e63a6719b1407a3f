"""Its speculative_decoding(), the loop beside which it measures, at temperature 1."""

from types import SimpleNamespace

import torch
from src.engine import Decoding

from benchmarks.samplers.networks import Network


def speculative_sampling(x, draft_model, target_model, N, K):
    args = SimpleNamespace(max_tokens=N, gamma=K, temp=1, top_k=0, top_p=0)
    loop = SimpleNamespace(args=args, num_acc_tokens=[], accelerator=SimpleNamespace(is_main_process=False))
    loop.draft_model, loop.target_model = Network(draft_model), Network(target_model)
    loop.vocab_size = loop.target_model.config.vocab_size
    return Decoding.speculative_decoding(loop, torch.tensor([x]))[0]
