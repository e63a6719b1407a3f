"""From logits to the distribution that is sampled: the same function for draft and target, before p meets q."""

import numpy as np

from gpt2 import softmax


def to_distribution(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
    """Softmax of logits / temperature. Temperature 0 is its limit: all on the largest logit, the lowest id on a tie."""
    if temperature == 0:
        one_hot = np.zeros_like(logits)
        one_hot[np.arange(len(logits)), np.argmax(logits, axis=-1)] = 1
        return one_hot
    return softmax(logits / temperature)
