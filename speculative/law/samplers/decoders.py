"""How somebody's function decodes a text: as a loop, a drafter, sample(p) or a rule.

A decoder is decode(draft, target, case, rng) -> the tokens after the prompt. draft and target are the models of the
case; rng gives unknown numbers, or real ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from speculative.drafters.base import Context
from speculative.drafters.model import model_drafter
from speculative.drafters.user import with_arrays
from speculative.filters import GREEDY
from speculative.law.generators import NoDistribution
from speculative.law.paths import TooManyPaths
from speculative.law.samplers.functions import Function
from speculative.law.samplers.interfaces import AnyModel, Interface
from speculative.law.samplers.results import ids_of
from speculative.sampling import sample, speculative_sampling
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
        return text[: case.N]  # a window may end behind them


# ---- A loop that yields Steps ----------------------------------------------------------------------------------------


def with_loop(loop: Function, draft, target, case, rng) -> list:
    """Decode by a loop of our form. The draft model drafts."""
    drafter = model_drafter(lambda x: draft(x, 1), rng)
    return tokens_of_steps(loop, drafter, target, case, rng)


def with_drafter(chain: Callable, draft, target, case, rng) -> list:
    """Decode by our loop with somebody's drafter, which is chain(context)."""
    drafter = chain(Context(case.n_vocab, rng, GREEDY, False, {}))
    return tokens_of_steps(OUR_LOOP, drafter, target, case, rng)


OUR_LOOP = Function(speculative_sampling)


def tokens_of_steps(loop: Function, drafter: Callable, target, case, rng) -> list:
    """The text of a loop with drafter(x, k) -> a Proposal."""
    models = {"draft": drafter, "target_model": lambda x, n_last=1: target(x, n_last)}
    steps = loop(rng, x=case.prompt, **models, N=case.N, K=case.K)
    return [token for step in steps for token in step.tokens]


def decoder_with_rule(rule: Callable, left_out: dict) -> Callable:
    """Decode by our loop with somebody's rule(proposal, q, rng)."""

    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        n_vocab = q.shape[1]
        try:
            return ids_of(rule(with_arrays(proposal, n_vocab), q, rng), n_vocab)
        except Exception as error:  # our loop ends with a window of no drafts, which others do not have
            if len(proposal.tokens) or isinstance(error, NoDistribution | TooManyPaths):
                raise
            left_out.setdefault("windows without a draft", first_line(error))
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
