"""The forms that a sampler may have, told by the names of its parameters, and how each decodes a text."""

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from speculative.drafters.base import Context, DrafterSpec
from speculative.drafters.model import model_drafter
from speculative.drafters.user import as_drafter
from speculative.filters import GREEDY
from speculative.laws.models import WAYS, AnyModel, Way
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


class Blogs(Form):
    """speculative_sampling(x, draft_model, target_model, N, K)."""

    has_prompt: bool | None = None  # whether the text is returned with its prompt, as the first one shows

    def decode(self, draft, target, case, rng):
        x = self.way.text(case.prompt)
        models = [AnyModel(model, case.n_vocab, self.way) for model in (draft, target)]
        text = ids_of(self.function(x, *models, case.N, case.K, *self.more(rng)), case.n_vocab)
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

    drafter: DrafterSpec | None = None

    @property
    def loop(self) -> Callable:
        return self.function

    def decode(self, draft, target, case, rng):
        context = Context(case.n_vocab, rng, GREEDY, False, {})
        propose = self.drafter.chain(context) if self.drafter else model_drafter(lambda x: draft(x, 1), rng)
        steps = self.loop(case.prompt, propose, lambda x, n_last=1: target(x, n_last), case.N, case.K, rng)
        return [token for step in steps for token in step.tokens]


class Drafter(Loop):
    """A drafter (x, k), in our loop."""

    @property
    def loop(self):
        self.drafter = as_drafter(self.function)
        return speculative_sampling


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
            if rng.random() < q[i][j] / p[j]:
                continue
            rest = self.function(q[i] - p)  # [n_vocab]
            own = rng.choice(len(rest), p=rest)
            return [*proposal.tokens[:i], own]
        return [*proposal.tokens, sample(q[-1], rng)]


class OfHuggingFace(Rule):
    """A rule with the parameters of Hugging Face's: logits of one text, and the text so far with its drafts."""

    def tokens(self, proposal, q, rng):
        m = no_drafts_are_left_out(proposal)
        given = {
            "candidate_input_ids": as_given(np.array([[0, *proposal.tokens]])),  # [1, n + m]
            "candidate_logits": as_given(logits(proposal.p)[None]),  # [1, m, n_vocab]
            "candidate_length": m,
            "new_logits": as_given(logits(q)[None]),  # [1, m + 1, n_vocab]
            "is_done": False,
            "is_done_candidate": False,
        }
        result = self.function(*(given[name] for name in self.names))
        return ids_of(result[0] if isinstance(result, tuple) else result, q.shape[1])


class OfVllm(Rule):
    """A rule with the parameters of vLLM's: probabilities of a batch, and the bonus token drawn in advance.

    If it is flat, the rows of all texts follow each other, and another text comes first, of whose draft both are sure.
    """

    def tokens(self, proposal, q, rng):
        m = no_drafts_are_left_out(proposal)
        n_vocab = q.shape[1]
        bonus = sample(q[-1], rng)
        if {"num_draft_tokens", "cu_num_draft_tokens"} & {*self.names}:
            batch = flat(proposal, q, bonus)
        else:
            batch = Batch(np.array([proposal.tokens]), proposal.p[None], q[None, :-1], np.array([[bonus]]))
        given = batch.given(q, m)
        result = self.function(*(given[name] for name in self.names))
        tokens = np.ravel(np.asarray(result)[-1]).tolist()  # [K + 1], -1 after the end
        return ids_of(tokens[: tokens.index(-1)] if -1 in tokens else tokens, n_vocab)


class Batch(NamedTuple):
    """What vLLM's rule is given."""

    ids: np.ndarray  # [batch, m], or [n] if it is flat
    p: np.ndarray  # [batch, m, n_vocab], or [n, n_vocab]
    q: np.ndarray  # [batch, m, n_vocab], or [n, n_vocab]
    bonus: np.ndarray  # [batch, 1]

    def given(self, q, m: int) -> dict[str, Any]:
        counts = [1, m] if len(self.bonus) == 2 else [m]
        about = SimpleNamespace(all_greedy=False, all_random=True, generators={}, top_k=None, top_p=None)
        about.temperature = as_given(np.ones(len(counts), np.float32))
        return {
            "draft_token_ids": as_given(self.ids),
            "num_draft_tokens": counts,
            "max_spec_len": max(counts),
            "cu_num_draft_tokens": as_given(np.cumsum(counts)),
            "draft_probs": as_given(self.p),
            "target_probs": as_given(self.q),
            "target_with_bonus_probs": as_given(q[None]),
            "bonus_token_ids": as_given(self.bonus),
            "sampling_metadata": about,
            "seeded_seqs": None,
        }


def flat(proposal: Proposal, q, bonus: int) -> Batch:
    sure = GREEDY(q[:1])  # [1, n_vocab]
    token = int(np.argmax(sure))
    return Batch(
        np.array([token, *proposal.tokens]),
        np.concatenate([sure, proposal.p]),
        np.concatenate([sure, q[:-1]]),
        np.array([[token], [bonus]]),
    )


def no_drafts_are_left_out(proposal: Proposal) -> int:
    """The number of drafts. Raises UserError if it is 0: these rules are not called then."""
    if not len(proposal.tokens):
        raise UserError("it is not called without a draft")
    return len(proposal.tokens)


def logits(p) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(p, np.float32))


def as_given(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array.copy())


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
