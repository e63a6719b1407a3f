"""N + 1, since a call that drafts nothing divides by zero."""

from sampling.speculative_decoding import speculative_generate
from utils.logits_processor import MultinomialProcessor

from benchmarks.samplers.networks import Network


def speculative_sampling(x, draft_model, target_model, N, K):
    models = Network(draft_model), Network(target_model)
    text, _ = speculative_generate(
        x.tolist(), *models, None, K, MultinomialProcessor(1.0), N + 1, eos_tokens_id=-1, first_target=False
    )
    return [*x, *text]
