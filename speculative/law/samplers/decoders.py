"""How somebody's function decodes a text: as a loop, a drafter, sample(p) or a rule.

The rules of all forms (ours, the paper's with somebody's max_fn, those of others) become rule(proposal, q, rng) ->
tokens.

A decoder is decode(draft, target, case, rng) -> the tokens after the prompt. draft and target are the models of the
case; rng gives unknown numbers, or real ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from speculative.drafters.base import proposal_of, with_arrays
from speculative.filters import GREEDY
from speculative.law.forks import WALK, NotFollowed
from speculative.law.generators import NoDistribution
from speculative.law.samplers.functions import Function, ids_of
from speculative.law.samplers.interfaces import AnyModel, Interface
from speculative.sampling import NOTHING, Proposal, autoregressive_sampling, sample, speculative_sampling
from speculative.support.errors import UserError, first_line


@dataclass(eq=False)
class AsBlogs:
    """Decodes by speculative_sampling(x, draft_model, target_model, N, K)."""

    function: Function
    interface: Interface
    # Whether texts are returned with their prompt. The first text shows it, which is of the first of LINES: that prompt
    # is longer than a text without it, which has N tokens, or N + K if a window ends behind them.
    has_prompt: bool | None = None

    def __call__(self, draft, target, case, rng) -> list:
        draft_model = AnyModel(draft, case.n_vocab, self.interface)
        target_model = AnyModel(target, case.n_vocab, self.interface)
        x = self.interface.text(case.prompt)
        returned = self.function(rng, x=x, draft=draft_model, target_model=target_model, N=case.N, K=case.K)
        return self.new_tokens(ids_of(returned, case.n_vocab), case)

    def new_tokens(self, text: list, case) -> list[int]:
        """The first N tokens after the prompt. Raises UserError if there are fewer."""
        n_prompt = len(case.prompt)
        if self.has_prompt is None:
            self.has_prompt = text[:n_prompt] == case.prompt
        if self.has_prompt:
            text = text[n_prompt:]
        if len(text) < case.N:
            raise UserError(f"it returned {len(text)} new tokens in place of {case.N}")
        WALK.of_path["n_tokens"] = len(text)
        return text[: case.N]  # a window may end behind them


# ---- A loop that yields Steps ----------------------------------------------------------------------------------------


def with_loop(loop: Function, draft, target, case, rng) -> list:
    """Decode by a loop of our form. The draft model drafts, autoregressively."""

    def drafter(x, k):  # -> [k], [k, n_vocab]
        steps = [*autoregressive_sampling(x, lambda x: draft(x, 1), k, rng)]
        tokens = [token for step in steps for token in step.tokens]  # [k]
        return Proposal(tokens, [step.q[0] for step in steps], ["model"] * k)

    return tokens_of_steps(loop, drafter, target, case, rng)


def with_drafter(function: Function, draft, target, case, rng) -> list:
    """Decode by our loop with somebody's drafter(x, k)."""

    def drafter(x, k):  # -> [m], [m, n_vocab]
        proposed = function(rng, x=np.array(x), K=k) if k else NOTHING
        proposal = proposal_of(proposed, k, case.n_vocab, function.name)
        WALK.of_path["n_drafts"] = WALK.of_path.get("n_drafts", 0) + len(proposal.tokens)
        return proposal

    return tokens_of_steps(OUR_LOOP, drafter, target, case, rng)


OUR_LOOP = Function(speculative_sampling)


def tokens_of_steps(loop: Function, drafter: Callable, target, case, rng) -> list:
    """The text of a loop with drafter(x, k) -> a Proposal."""
    models = {"draft": drafter, "target_model": lambda x, n_last=1: target(x, n_last)}
    steps = loop(rng, x=case.prompt, **models, N=case.N, K=case.K)
    return [token for step in steps for token in step.tokens]


WITHOUT_DRAFTS = "windows without a draft"  # a rule may not do these


def decoder_with_rule(rule: Callable, left_out: dict) -> Callable:
    """Decode by our loop with somebody's rule(proposal, q, rng)."""

    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        n_vocab = q.shape[1]
        try:
            return ids_of(rule(with_arrays(proposal, n_vocab), q, rng), n_vocab)
        except Exception as error:  # our loop ends with a window of no drafts, which others do not have
            if len(proposal.tokens) or isinstance(error, NoDistribution | NotFollowed):
                raise
            left_out.setdefault(WITHOUT_DRAFTS, first_line(error))
            return [sample(q[-1], rng)]

    return partial(with_loop, Function(partial(speculative_sampling, accept=accept)))


# ---- sample(p) -------------------------------------------------------------------------------------------------------


def with_sample(function: Function, draft, target, case, rng) -> list:
    """Decode by the target alone, with somebody's sample(p)."""
    text: list = []
    for _ in range(case.N):
        row = target([*case.prompt, *text], 1)[0]  # [n_vocab]
        text += ids_of(function(rng, p=row), case.n_vocab)
    return text


# ---- Rules -----------------------------------------------------------------------------------------------------------


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

    ids: np.ndarray  # [batch, m], or [n_drafts] if it is flat
    p: np.ndarray  # [batch, m, n_vocab], or [n_drafts, n_vocab]
    q: np.ndarray  # the same
    q_bonus: np.ndarray  # q with the row of the bonus token, [batch, m + 1, n_vocab] or [n_drafts + batch, n_vocab]
    bonus: list  # [batch, 1]
    counts: list[int]  # [batch], the number of drafts of each text


def batch_of(proposal: Proposal, q, bonus: int) -> Batch:
    """A batch of this text alone."""
    ids = np.expand_dims(proposal.tokens, 0)  # [1, m]
    p = np.expand_dims(proposal.p, 0)  # [1, m, n_vocab]
    return Batch(ids, p, q[None, :-1], q[None], [[bonus]], [len(proposal.tokens)])


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
    q_bonus = np.concatenate([sure, sure, q])  # [2 + m + 1, n_vocab]
    return Batch(ids, p, q_drafts, q_bonus, [[first], [bonus]], [1, len(proposal.tokens)])


def as_vllm(function: Function, proposal: Proposal, q, rng):
    """The tokens of a rule with the parameters of vLLM's. Logits of the target go on to the row of the bonus token, if
    the rule is not given this token."""
    check_drafts(proposal)
    names = {*function.names.values()}
    is_flat = bool({"num_draft_tokens", "cu_num_draft_tokens"} & names)
    make_batch = flat_batch_of if is_flat else batch_of
    batch = make_batch(proposal, q, sample(q[-1], rng) if "bonus_token_ids" in names else -1)
    n_texts = len(batch.counts)
    rows = batch.q if "bonus_token_ids" in names else batch.q_bonus  # [..., n_vocab]
    metadata = SimpleNamespace(all_greedy=False, all_random=True, generators={}, top_k=None, top_p=None)
    metadata.temperature = tensor_of(np.ones(n_texts, np.float32))
    result = function(
        rng,
        draft_token_ids=tensor_of(batch.ids),
        num_draft_tokens=batch.counts,
        max_spec_len=max(batch.counts),
        cu_num_draft_tokens=tensor_of(np.cumsum(batch.counts)),
        draft_probs=tensor_of(batch.p),
        draft_logits=tensor_of(np.log(batch.p)),
        target_probs=tensor_of(batch.q),
        target_logits=tensor_of(np.log(rows)),
        target_with_bonus_probs=tensor_of(q[None]),
        bonus_token_ids=tensor_of(batch.bonus),
        sampling_metadata=metadata,
        seeded_seqs=None,
        ignore_eos=tensor_of(np.ones(n_texts, bool)),
        is_eos=tensor_of(np.zeros(np.shape(batch.ids), bool)),
    )
    result = result[0] if isinstance(result, tuple) else result  # with the numbers of accepted drafts, for instance
    return np.asarray(result)[-1]  # [K + 1], -1 after the end


def check_drafts(proposal: Proposal) -> None:
    """Raise UserError if there is no draft."""
    if not len(proposal.tokens):
        raise UserError("it is not called without a draft")


def tensor_of(numbers):
    import torch

    return torch.from_numpy(np.array(numbers))
