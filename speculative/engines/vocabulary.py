"""A draft model whose vocabulary is the target's except for its end: padding there, or other tokens added to it.

It is given the target's ids and gives logits for the target's ids. A token that it lacks has the probability 0 as a
draft, so nothing is lost; if the text holds such a token, the draft reads another one.
"""

from types import ModuleType
from typing import NamedTuple

import numpy as np

from speculative.blog.encoder import Encoder


class Shared(NamedTuple):
    """The ids that a draft shares with its target, as hparams["shared"] of the draft."""

    n_shared: int  # the ids below it
    n_vocab: int  # the target's
    unknown: int  # the id that the draft reads in place of all others


def share(encoder: Encoder, drafts: Encoder) -> Shared | None:
    """encoder: the target's. None if the vocabularies differ in more than padding and tokens added at the end."""
    ids = range(min(encoder.n_vocab, drafts.n_vocab))
    n_shared = next((i for i in ids if encoder.id_to_bytes[i] != drafts.id_to_bytes[i]), len(ids))
    for one in (encoder, drafts):
        if any(one.id_to_bytes[i] and i not in one.added for i in range(n_shared, one.n_vocab)):
            return None
    if encoder.merges != drafts.merges:
        return None
    return Shared(n_shared, encoder.n_vocab, drafts.eot if 0 <= drafts.eot < n_shared else 0)


def to_draft(tokens, shared: Shared, np: ModuleType = np):  # [n] -> [n]
    """The target's ids as the draft reads them. np: numpy, or jax.numpy."""
    return np.where(np.asarray(tokens) < shared.n_shared, tokens, shared.unknown)


def to_target(logits, shared: Shared, np: ModuleType = np):  # [n, the draft's n_vocab] -> [n, n_vocab]
    n_more = shared.n_vocab - shared.n_shared
    return np.pad(logits[:, : shared.n_shared], ((0, 0), (0, n_more)), constant_values=-np.inf)
