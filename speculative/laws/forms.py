"""The forms that a sampler may have, told by the names of its parameters, and how each decodes a text."""

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from speculative.drafters.base import Context
from speculative.drafters.model import model_drafter
from speculative.drafters.user import as_drafter
from speculative.filters import GREEDY
from speculative.laws.models import WAYS, AnyModel, Way, ways
from speculative.laws.paths import TooManyPaths
from speculative.laws.texts import ids_of
from speculative.laws.traced import NoDistribution
from speculative.rules import with_arrays
from speculative.sampling import Proposal, sample, speculative_sampling
from speculative.support.errors import UserError, first_line

FORMS = """\
speculative_sampling(x, draft_model, target_model, N, K)   the blog's: its models return a row for each token of x, or
                                                           logits in .logits, and keep a cache; x is an array, a list,
                                                           or a tensor [n] or [1, n]; rng may follow
speculative_sampling(x, draft, target_model, N, K, rng)    ours, which yields Steps
a rule (proposal, q, rng), a drafter (x, k), sample(p), sample(p, rng), max_fn(x)
(candidate_input_ids, candidate_logits, candidate_length, new_logits, is_done)   a rule, as Hugging Face calls it
(draft_token_ids, draft_probs, target_probs, bonus_token_ids, ...)               a rule, as vLLM calls it: [batch, K],
                                                           or flat, if num_draft_tokens is among its parameters"""


class Form:
    """A function that decodes a text. Its way is that of its models."""

    way: Way = WAYS[0]

    def __init__(self, function: Callable, names: list[str], left_out: dict):
        self.function = function
        self.names = names
        self.left_out = left_out  # gets what is left out, and why

    def more(self, rng) -> list:
        """The generator, if the function takes it."""
        return [rng] if "rng" in self.names else []

    def decode(self, draft, target, case, rng) -> list[int]:
        """The tokens after the prompt."""
        raise NotImplementedError

    def choose_way(self, is_right: Callable[[], bool]) -> None:
        """Take the first way with which it is right, else the first without an error. Raises UserError if none is."""
        errors: list[UserError] = []
        without_error: list[Way] = []
        for way in ways():
            self.way = way
            try:
                if is_right():
                    return
                without_error.append(way)
            except UserError as error:
                errors.append(error)
        if not without_error:
            raise errors[0]
        self.way = without_error[0]


class Blogs(Form):
    """speculative_sampling(x, draft_model, target_model, N, K)."""

    has_prompt: bool | None = None  # whether the text is returned with its prompt, as the first one shows

    def decode(self, draft, target, case, rng):
        x = self.way.text(case.prompt)
        models = [AnyModel(model, case.n_vocab, self.way) for model in (draft, target)]
        returned = self.function(x, *models, case.N, case.K, *self.more(rng))
        text = ids_of(returned, case.n_vocab)
        if self.has_prompt is None:
            self.has_prompt = text[: case.n_prompt] == case.prompt
        text = text[case.n_prompt :] if self.has_prompt else text
        if len(text) < case.N:
            raise UserError(f"it returned {len(text)} new tokens in place of {case.N}")
        return text[: case.N]  # a window may end behind them


class OneByOne(Form):
    """sample(p)."""

    def decode(self, draft, target, case, rng):
        text: list[int] = []
        for _ in range(case.N):
            row = target([*case.prompt, *text], 1)[0]  # [n_vocab]
            text += ids_of(self.function(row, *self.more(rng)), case.n_vocab)
        return text


class Loop(Form):
    """A loop of our form, which yields Steps."""

    @property
    def loop(self) -> Callable:
        return self.function

    def drafter(self, draft, context: Context) -> Callable:
        return model_drafter(lambda x: draft(x, 1), context.rng)

    def decode(self, draft, target, case, rng):
        propose = self.drafter(draft, Context(case.n_vocab, rng, GREEDY, False, {}))
        steps = self.loop(case.prompt, propose, lambda x, n_last=1: target(x, n_last), case.N, case.K, rng)
        return [token for step in steps for token in step.tokens]


class Drafter(Loop):
    """A drafter (x, k), in our loop."""

    loop = staticmethod(speculative_sampling)

    def drafter(self, draft, context):
        return as_drafter(self.function).chain(context)


class Rule(Loop):
    """A rule (proposal, q, rng), in our loop."""

    @property
    def loop(self):
        return partial(speculative_sampling, accept=self.accept)

    def accept(self, proposal, q, rng):  # q [m + 1, n_vocab]
        try:
            return self.tokens(with_arrays(proposal, q.shape[1]), q, rng)
        except Exception as error:  # our loop ends with a window of no drafts, which others do not have
            if len(proposal.tokens) or isinstance(error, NoDistribution | TooManyPaths):
                raise
            self.left_out.setdefault("windows without a draft", first_line(error))
            return [sample(q[-1], rng)]

    def tokens(self, proposal: Proposal, q, rng) -> list[int]:
        return ids_of(self.function(proposal, q, rng), q.shape[1])


class Residual(Rule):
    """max_fn(x), in the paper's rule."""

    def tokens(self, proposal, q, rng):
        for i, j in enumerate(proposal.tokens):
            p = proposal.p[i]  # [n_vocab]
            if rng.random() >= q[i][j] / p[j]:
                rest = self.function(q[i] - p)  # [n_vocab]
                own = rng.choice(len(rest), p=rest)
                return [*proposal.tokens[:i], own]
        return [*proposal.tokens, sample(q[-1], rng)]


class WithParameters(Rule):
    """A rule that is called with other parameters than ours, told by their names."""

    def tokens(self, proposal, q, rng):
        if not len(proposal.tokens):
            raise UserError("it is not called without a draft")
        given = self.given(proposal, q, rng)
        result = self.function(*(given[name] for name in self.names))
        return ids_of(self.in_result(result), q.shape[1])

    def given(self, proposal: Proposal, q, rng) -> dict[str, Any]:
        """The parameters by name."""
        raise NotImplementedError

    def in_result(self, result):
        """The tokens in what it returned."""
        return result[0] if isinstance(result, tuple) else result


class OfHuggingFace(WithParameters):
    """A rule with the parameters of Hugging Face's: logits of one text, and the text so far with its drafts."""

    def given(self, proposal, q, rng):
        return {
            "candidate_input_ids": as_given([[0, *proposal.tokens]]),  # [1, n + m]
            "candidate_logits": as_given(np.log(proposal.p)[None]),  # [1, m, n_vocab]
            "candidate_length": len(proposal.tokens),
            "new_logits": as_given(np.log(q)[None]),  # [1, m + 1, n_vocab]
            "is_done": False,
            "is_done_candidate": False,
        }


class OfVllm(WithParameters):
    """A rule with the parameters of vLLM's: probabilities of a batch, and the bonus token drawn in advance.

    If it is flat, the rows of all texts follow each other, and another text comes first, of whose draft both are sure.
    """

    def given(self, proposal, q, rng):
        ids, p, q_drafts = proposal.tokens[None], proposal.p[None], q[None, :-1]  # [1, m], [1, m, n_vocab] twice
        bonus = [[sample(q[-1], rng)]]  # [batch, 1]
        counts = [len(proposal.tokens)]  # [batch]
        if {"num_draft_tokens", "cu_num_draft_tokens"} & {*self.names}:
            sure = GREEDY(q[:1])  # [1, n_vocab]
            first = int(np.argmax(sure))
            ids, p, q_drafts = np.append(first, ids), np.concatenate([sure, p[0]]), np.concatenate([sure, q[:-1]])
            bonus, counts = [[first], *bonus], [1, *counts]
        about = SimpleNamespace(all_greedy=False, all_random=True, generators={}, top_k=None, top_p=None)
        about.temperature = as_given(np.ones(len(counts), np.float32))
        return {
            "draft_token_ids": as_given(ids),
            "num_draft_tokens": counts,
            "max_spec_len": max(counts),
            "cu_num_draft_tokens": as_given(np.cumsum(counts)),
            "draft_probs": as_given(p),
            "target_probs": as_given(q_drafts),
            "target_with_bonus_probs": as_given(q[None]),
            "bonus_token_ids": as_given(bonus),
            "sampling_metadata": about,
            "seeded_seqs": None,
        }

    def in_result(self, result):
        tokens = np.ravel(np.asarray(result)[-1]).tolist()  # [K + 1], -1 after the end
        return tokens[: tokens.index(-1)] if -1 in tokens else tokens


def as_given(numbers) -> Any:
    import torch

    return torch.from_numpy(np.array(numbers))


HUGGING_FACE = {"candidate_input_ids", "candidate_logits", "candidate_length", "new_logits"}


def form_of(function: Callable, left_out: dict) -> Form:
    """The function in its form. left_out: gets what is left out, and why. Raises UserError if its parameters are none
    of FORMS."""
    parameters = inspect.signature(function).parameters
    names = [n for n, about in parameters.items() if about.default is about.empty or n in ("N", "K", "rng")]
    kind = kind_of(names)
    if not kind:
        given = ", ".join(names)
        raise UserError(f"the parameters ({given}) are not those of a sampler: see python -m speculative law")
    return kind(function, names, left_out)


def kind_of(names: list[str]) -> type[Form] | None:
    """The form with these parameters."""
    match names:
        case [_, _, _, "N", "K"] | [_, "draft_model", _, "N", "K", "rng"]:
            return Blogs
        case [_, _, _, "N", "K", "rng", *_]:
            return Loop
        case ["proposal", "q", "rng"]:
            return Rule
        case ["x", "k", *_]:
            return Drafter
        case ["p"] | ["p", "rng"]:
            return OneByOne
        case ["x"]:
            return Residual
    if {*names} >= HUGGING_FACE:
        return OfHuggingFace
    return OfVllm if "draft_token_ids" in names else None
