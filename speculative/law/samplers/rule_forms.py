"""Rules of all forms as rule(proposal, q, rng) -> tokens: ours, the paper's with somebody's max_fn, those of others."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from speculative.filters import GREEDY
from speculative.law.samplers.functions import Function
from speculative.sampling import Proposal, sample
from speculative.support.errors import UserError


def as_ours(function: Function, proposal: Proposal, q, rng):
    return function(rng, proposal=proposal, q=q)


def with_residual(max_fn: Callable, proposal: Proposal, q, rng) -> list:
    """The paper's rule with somebody's max_fn(x)."""
    tokens: list = []
    for j, p_i, q_i in zip(proposal.tokens, proposal.p, q, strict=False):  # [n_vocab] each
        is_accepted = rng.random() < q_i[j] / p_i[j]
        if not is_accepted:
            rest = max_fn(q_i - p_i)  # [n_vocab]
            own = rng.choice(len(rest), p=rest)
            return [*tokens, own]
        tokens.append(j)
    return [*tokens, sample(q[-1], rng)]


def as_hugging_face(function: Function, proposal: Proposal, q, rng):
    """The tokens of a rule with the parameters of Hugging Face's: logits of one text, and the text so far with its
    drafts."""
    check_drafts(proposal)
    m = len(proposal.tokens)
    return function(
        rng,
        candidate_input_ids=tensor_of([[0, *proposal.tokens]]),  # [1, n + m]
        candidate_logits=tensor_of(np.log(proposal.p)[None]),  # [1, m, n_vocab]
        candidate_length=m,
        new_logits=tensor_of(np.log(q)[None]),  # [1, m + 1, n_vocab]
        is_done=False,
        is_done_candidate=False,
    )


# ---- vLLM's ----------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """The drafts of all texts, the rows from which they were drawn and by which they are judged, and the bonus tokens,
    which are drawn before."""

    ids: Any  # [batch, m], or [n_drafts] if it is flat
    p: Any  # [batch, m, n_vocab], or [n_drafts, n_vocab]
    q: Any  # the same
    bonus: list  # [batch, 1]
    counts: list[int]  # [batch], the number of drafts of each text


def batch_of(proposal: Proposal, q, bonus: int) -> Batch:
    """A batch of this text alone."""
    return Batch(proposal.tokens[None], proposal.p[None], q[None, :-1], [[bonus]], [len(proposal.tokens)])


def flat_batch_of(proposal: Proposal, q, bonus: int) -> Batch:
    """A flat batch of two texts, whose drafts follow each other. The first text has one draft, of which both are sure.

    ids  first  draft 0  draft 1 ...
    p    sure   p[0]     p[1]    ...
    q    sure   q[0]     q[1]    ...
    """
    sure = GREEDY(q[:1])  # [1, n_vocab]
    first = int(np.argmax(sure))
    ids = np.append(first, proposal.tokens)  # [1 + m]
    p = np.concatenate([sure, proposal.p])  # [1 + m, n_vocab]
    q_drafts = np.concatenate([sure, q[:-1]])  # [1 + m, n_vocab]
    return Batch(ids, p, q_drafts, [[first], [bonus]], [1, len(proposal.tokens)])


def as_vllm(function: Function, proposal: Proposal, q, rng):
    """The tokens of a rule with the parameters of vLLM's."""
    check_drafts(proposal)
    is_flat = bool({"num_draft_tokens", "cu_num_draft_tokens"} & function.names.keys())
    make_batch = flat_batch_of if is_flat else batch_of
    batch = make_batch(proposal, q, sample(q[-1], rng))
    metadata = SimpleNamespace(all_greedy=False, all_random=True, generators={}, top_k=None, top_p=None)
    metadata.temperature = tensor_of(np.ones(len(batch.counts), np.float32))
    result = function(
        rng,
        draft_token_ids=tensor_of(batch.ids),
        num_draft_tokens=batch.counts,
        max_spec_len=max(batch.counts),
        cu_num_draft_tokens=tensor_of(np.cumsum(batch.counts)),
        draft_probs=tensor_of(batch.p),
        target_probs=tensor_of(batch.q),
        target_with_bonus_probs=tensor_of(q[None]),
        bonus_token_ids=tensor_of(batch.bonus),
        sampling_metadata=metadata,
        seeded_seqs=None,
    )
    return np.asarray(result)[-1]  # [K + 1], -1 after the end


def check_drafts(proposal: Proposal) -> None:
    """Raise UserError if there is no draft."""
    if not len(proposal.tokens):
        raise UserError("it is not called without a draft")


def tensor_of(numbers):
    import torch

    return torch.from_numpy(np.array(numbers))
