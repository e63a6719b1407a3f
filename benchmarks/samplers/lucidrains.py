"""Without its cut to the likeliest tokens."""

import torch
from speculative_decoding.speculative_decoding import speculative_decoding

from benchmarks.samplers.networks import Network


def net(model):
    return lambda ids, **_: (Network(model)(ids).logits, (ids[..., None], None))


def speculative_sampling(x, draft_model, target_model, N, K):
    nets = net(target_model), net(draft_model)
    ids, _ = speculative_decoding(*nets, torch.tensor([x]), len(x) + N, K, filter_thres=0)
    return torch.cat([torch.tensor(x), ids[0]])
