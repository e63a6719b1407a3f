"""A draft model whose vocabulary is the target's except for its end: padding there, or other tokens added to it.

It is given the target's ids and gives logits for the target's ids. A token that it lacks has the probability 0 as a
draft, so nothing is lost; if the text holds such a token, the draft reads another one.
"""

from types import ModuleType
from typing import NamedTuple

import numpy as np

from speculative.blog.encoder import Encoder


class VocabularyMap(NamedTuple):
    """The ids that a draft shares with its target, and the one that it reads for others: its
    hparams["vocabulary_map"]."""

    n_shared: int  # the ids below it
    n_vocab: int  # the target's
    unknown: int  # the id that the draft reads in place of all others


def map_vocabulary(target: Encoder, draft: Encoder) -> VocabularyMap | None:
    """None if the vocabularies differ in more than padding and tokens added at the end."""
    n_shared = 0
    most = min(target.n_vocab, draft.n_vocab)
    while n_shared < most and target.id_to_bytes[n_shared] == draft.id_to_bytes[n_shared]:
        n_shared += 1
    if has_words_from(n_shared, target) or has_words_from(n_shared, draft) or target.merges != draft.merges:
        return None
    has_eot = 0 <= draft.eot < n_shared
    return VocabularyMap(n_shared, target.n_vocab, draft.eot if has_eot else 0)


def has_words_from(first: int, encoder: Encoder) -> bool:
    """Return whether a token from this id on is neither padding nor added."""
    return any(encoder.id_to_bytes[i] and i not in encoder.added for i in range(first, encoder.n_vocab))


def to_draft(tokens, by: VocabularyMap, np: ModuleType = np):  # [n] -> [n]
    """The target's ids as the draft reads them. np: numpy, or jax.numpy."""
    return np.where(np.asarray(tokens) < by.n_shared, tokens, by.unknown)


def to_target(logits, by: VocabularyMap, np: ModuleType = np):  # [n, the draft's n_vocab] -> [n, n_vocab]
    n_more = by.n_vocab - by.n_shared
    return np.pad(logits[:, : by.n_shared], ((0, 0), (0, n_more)), constant_values=-np.inf)
