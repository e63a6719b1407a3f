"""The forms that a sampler may have, told by the names of its parameters, and how each decodes a text."""

import inspect
from collections.abc import Callable
from functools import partial

import numpy as np

from speculative.drafters.base import Context, DrafterSpec
from speculative.drafters.model import model_drafter
from speculative.drafters.user import as_drafter
from speculative.filters import GREEDY
from speculative.laws.texts import ids_of
from speculative.laws.traced import NoDistribution
from speculative.sampling import sample, speculative_sampling
from speculative.support.errors import UserError, first_line

FORMS = """\
speculative_sampling(x, draft_model, target_model, N, K)   the blog's: its models return a row for each token of x;
                                                           rng may follow
speculative_sampling(x, draft, target_model, N, K, rng)    ours, which yields Steps
a rule (proposal, q, rng), a drafter (x, k), sample(p), sample(p, rng), max_fn(x)"""


def decoder_of(function: Callable, left_out: dict) -> Callable:
    """The function in decode(draft, target, case, rng) -> the N tokens after the prompt.

    left_out: gets what is left out, and why. Raises UserError if the function's parameters are none of FORMS.
    """
    has_prompt: list[bool] = []  # whether the text is returned with its prompt, as the first one shows

    def blogs(draft, target, case, rng):  # up to K tokens more than N
        more = [rng] if "rng" in names else []
        text = ids_of(function(np.array(case.prompt), draft, target, case.N, case.K, *more), case.n_vocab)
        has_prompt.append(text[: case.n_prompt] == case.prompt)
        text = text[case.n_prompt * has_prompt[0] :]
        if len(text) < case.N:
            raise UserError(f"it returned {len(text)} new tokens in place of {case.N}")
        return text[: case.N] if len(text) <= case.N + case.K else text

    def one_by_one(draft, target, case, rng):
        more = [rng] if "rng" in names else []
        text: list[int] = []
        for _ in range(case.N):
            row = target([*case.prompt, *text], 1)[0]  # [n_vocab]
            text += ids_of(function(row, *more), case.n_vocab)
        return text

    def rule(proposal, q, rng):  # q [m + 1, n_vocab]
        try:
            return ids_of(function(proposal, q, rng), q.shape[1])
        except Exception as error:  # our loop ends with a window of no drafts, which others do not have
            if len(proposal.tokens) or isinstance(error, UserError | NoDistribution):
                raise
            left_out.setdefault("windows without a draft", first_line(error))
            return [sample(q[-1], rng)]

    def with_residual(proposal, q, rng):
        for i, j in enumerate(proposal.tokens):
            if rng.random() >= q[i][j] / proposal.p[i][j]:
                return [*proposal.tokens[:i], rng.choice(len(q[i]), p=function(q[i] - proposal.p[i]))]
        return [*proposal.tokens, sample(q[-1], rng)]

    parameters = inspect.signature(function).parameters
    names = [n for n, one in parameters.items() if one.default is one.empty or n in ("N", "K", "rng")]
    match names:
        case [_, _, _, "N", "K"] | [_, "draft_model", _, "N", "K", "rng"]:
            return blogs
        case [_, _, _, "N", "K", "rng", *_]:
            return decoder_with(function)
        case ["proposal", "q", "rng"]:
            return decoder_with(partial(speculative_sampling, accept=rule))
        case ["x", "k", *_]:
            return decoder_with(drafter=as_drafter(function))
        case ["p"] | ["p", "rng"]:
            return one_by_one
        case ["x"]:
            return decoder_with(partial(speculative_sampling, accept=with_residual))
    raise UserError(f"the parameters ({', '.join(names)}) are not those of a sampler: see python -m speculative law")


def decoder_with(loop: Callable = speculative_sampling, drafter: DrafterSpec | None = None) -> Callable:
    """A loop of our form, or ours with another drafter, as decoder_of returns it."""

    def decode(draft, target, case, rng):
        context = Context(case.n_vocab, rng, GREEDY, False, {})
        propose = drafter.chain(context) if drafter else model_drafter(lambda x: draft(x, 1), rng)
        steps = loop(case.prompt, propose, lambda x, n_last=1: target(x, n_last), case.N, case.K, rng)
        return [token for step in steps for token in step.tokens]

    return decode
