"""Two candidates at each place, drawn without replacement as in its select_best_children()."""

import torch
from specdec.spec_SI import SpecInfer

from benchmarks.samplers.networks import by_windows


def speculative_sampling(x, draft_model, target_model, N, K):
    def window(text):
        p, q = (torch.tensor(model(text)[-1]) for model in (draft_model, target_model))
        drafts = torch.multinomial(p, min(2, int((p > 0).sum())))
        _, token = SpecInfer._inference_step(q, p, range(len(drafts)), drafts)
        return [token]

    return by_windows(window, x, N)
