"""An n-gram storage that proposes the draft's likeliest token."""

from types import SimpleNamespace

import torch
from ngram_assisted.ngram_assisted import ngram_assisted_speculative_generate
from utils.logits_processor import MultinomialProcessor

from benchmarks.samplers.networks import Network


def speculative_sampling(x, draft_model, target_model, N, K):
    def next_token(text):
        return torch.tensor(draft_model(text[0])[-1].argmax()), torch.tensor([True])

    storage = SimpleNamespace(next_token=next_token, update=lambda *_: None, initialize=lambda *_: None)
    processor = MultinomialProcessor(1.0)
    text, _ = ngram_assisted_speculative_generate(
        x.tolist(), storage, Network(target_model), None, K, 1, processor, N, eos_tokens_id=-1
    )
    return [*x, *text]
