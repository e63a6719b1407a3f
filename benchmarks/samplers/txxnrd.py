"""Its _verify_and_accept_tokens() with drafts of our loop; it draws no token after a window whose drafts all stay."""

import torch
from speculative_decoding.algorithms.optimized_speculative_decoding_v2 import OptimizedSpeculativeDecoderV2


def speculative_sampling(x, draft_model, target_model, N, K):
    text = [*map(int, x)]
    while len(text) < len(x) + N:
        n, path = len(text), list(text)
        for _ in range(K):
            path.append(int(torch.multinomial(torch.tensor(draft_model(path)[-1]), 1)))
        logits = [torch.tensor(model(path)[n - 1 : -1]).double().log()[None] for model in (draft_model, target_model)]
        verify = OptimizedSpeculativeDecoderV2._verify_and_accept_tokens
        text += verify(None, torch.tensor([path[n:]]), *logits)[0][0].tolist()
    return text
