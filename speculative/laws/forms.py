"""The forms that a sampler may have, told by the names of its parameters, and how each decodes a text.

A decoder is decode(draft, target, case, rng) -> the tokens after the prompt. Some forms leave open what the models take
and return: each possibility is a decoder, and the first that is right is used.
"""

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from speculative.drafters.base import Context
from speculative.drafters.model import model_drafter
from speculative.filters import GREEDY
from speculative.laws.models import AnyModel, Way, ways
from speculative.laws.paths import EXACT, TooManyPaths
from speculative.laws.texts import ids_of
from speculative.laws.traced import NoDistribution
from speculative.laws.uniform import NotFollowed
from speculative.sampling import Proposal, sample, speculative_sampling
from speculative.support.errors import UserError, first_line
from speculative.user import as_drafter, with_arrays

FORMS = """\
speculative_sampling(x, draft_model, target_model, N, K)   the blog's: its models return a row for each token of x, or
                                                           logits in .logits, and keep a cache, or the next row alone;
                                                           x is an array, a list, or a tensor, [n] or [1, n];
                                                           max_new_tokens may be N's name, gamma K's
speculative_sampling(x, draft, target_model, N, K, rng)    ours, which yields Steps
a rule (proposal, q, rng), a drafter (x, k), sample(p), max_fn(x)
(candidate_input_ids, candidate_logits, candidate_length, new_logits, is_done)   a rule, as Hugging Face calls it
(draft_token_ids, draft_probs, target_probs, bonus_token_ids, ...)               a rule, as vLLM calls it: [batch, K],
                                                           or flat, if num_draft_tokens is among its parameters

A loop, a rule and sample may take rng, or generator, random_state, seed, or JAX's key."""
HUGGING_FACE = {"candidate_input_ids", "candidate_logits", "candidate_length", "new_logits"}
PARTS = ("x", "draft", "target_model")
LENGTHS = ("N", "K")
RANDOM = ("rng", "seed", "key")
OUR_NAMES = {
    **dict.fromkeys(("max_new_tokens", "num_tokens", "n_tokens", "n_tokens_to_generate"), "N"),
    **dict.fromkeys(("k", "gamma", "lookahead", "num_speculative_tokens"), "K"),
    **dict.fromkeys(("generator", "gen", "random_state"), "rng"),
    "probs": "p",
}


class Function:
    """Somebody's function, whose parameters are told by their names."""

    def __init__(self, function: Callable):
        self.function = function
        self.names: dict[str, str] = {}  # {a parameter: our name for it}
        for name, about in inspect.signature(function).parameters.items():
            ours = OUR_NAMES.get(name, name)
            if is_needed(about) or name == "rng" or ours in LENGTHS:
                self.names[name] = ours

    def __call__(self, rng, **given) -> Any:
        """Call it with those of these values, by our names, that it takes. Raises UserError if it takes more."""
        given |= {"rng": rng, "seed": 0}
        if "key" in self.names:
            import jax

            given["key"] = jax.random.PRNGKey(0)
        missing = self.names.values() - given.keys()
        if missing:
            raise UserError(f"there is no value for the parameter {min(missing)}")
        return self.function(**{name: given[ours] for name, ours in self.names.items()})


def is_needed(about: inspect.Parameter) -> bool:
    """Whether a function is not called without this parameter."""
    takes_any = about.kind in (about.VAR_POSITIONAL, about.VAR_KEYWORD)
    return about.default is about.empty and not takes_any


# ---- Decoders --------------------------------------------------------------------------------------------------------


class AsBlogs:
    """Decodes by speculative_sampling(x, draft_model, target_model, N, K)."""

    has_prompt: bool | None = None  # whether the text is returned with its prompt, as the first one shows

    def __init__(self, function: Function, way: Way):
        self.function = function
        self.way = way

    def __call__(self, draft, target, case, rng) -> list:
        draft_model = AnyModel(draft, case.n_vocab, self.way)
        target_model = AnyModel(target, case.n_vocab, self.way)
        x = self.way.text(case.prompt)
        parts = {"x": x, "draft": draft_model, "target_model": target_model}
        returned = self.function(rng, **parts, N=case.N, K=case.K)
        return self.new_tokens(ids_of(returned, case.n_vocab), case)

    def new_tokens(self, text: list, case) -> list[int]:
        """The first N tokens after the prompt. Raises UserError if there are fewer."""
        if self.has_prompt is None:
            self.has_prompt = text[: case.n_prompt] == case.prompt
        if self.has_prompt:
            text = text[case.n_prompt :]
        if len(text) < case.N:
            raise UserError(f"it returned {len(text)} new tokens in place of {case.N}")
        return text[: case.N]  # a window may end behind them


def one_by_one(function: Function, draft, target, case, rng) -> list:
    """The text of sample(p)."""
    text: list = []
    for _ in range(case.N):
        row = target([*case.prompt, *text], 1)[0]  # [n_vocab]
        text += ids_of(function(rng, p=row), case.n_vocab)
    return text


def of_model(draft, context: Context) -> Callable:
    return model_drafter(lambda x: draft(x, 1), context.rng)


def in_steps(loop: Function, drafter: Callable, draft, target, case, rng) -> list:
    """The text of a loop that yields Steps. drafter(draft, context) -> propose(x, k)"""
    propose = drafter(draft, Context(case.n_vocab, rng, GREEDY, False, {}))
    models = {"draft": propose, "target_model": lambda x, n_last=1: target(x, n_last)}
    steps = loop(rng, x=case.prompt, **models, N=case.N, K=case.K)
    return [token for step in steps for token in step.tokens]


def with_rule(rule: Callable, left_out: dict) -> Callable:
    """Decode by our loop with a rule(proposal, q, rng) of somebody's."""

    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        n_vocab = q.shape[1]
        try:
            return ids_of(rule(with_arrays(proposal, n_vocab), q, rng), n_vocab)
        except Exception as error:  # our loop ends with a window of no drafts, which others do not have
            if len(proposal.tokens) or isinstance(error, NoDistribution | TooManyPaths):
                raise
            left_out.setdefault("windows without a draft", first_line(error))
            return [sample(q[-1], rng)]

    return partial(in_steps, Function(partial(speculative_sampling, accept=accept)), of_model)


# ---- Rules -----------------------------------------------------------------------------------------------------------


def as_ours(function: Function, proposal: Proposal, q, rng) -> Any:
    return function(rng, proposal=proposal, q=q)


def with_residual(max_fn: Callable, proposal: Proposal, q, rng) -> list:
    """The paper's rule with somebody's max_fn(x)."""
    tokens: list = []
    for j, p_i, q_i in zip(proposal.tokens, proposal.p, q, strict=False):  # p_i [n_vocab], q_i [n_vocab]
        is_accepted = rng.random() < q_i[j] / p_i[j]
        if not is_accepted:
            rest = max_fn(q_i - p_i)  # [n_vocab]
            own = rng.choice(len(rest), p=rest)
            return [*tokens, own]
        tokens.append(j)
    return [*tokens, sample(q[-1], rng)]


def as_hugging_face(function: Function, proposal: Proposal, q, rng) -> Any:
    """The tokens of a rule with the parameters of Hugging Face's: logits of one text, and the text so far with its
    drafts."""
    m = drafts_in(proposal)
    return function(
        rng,
        candidate_input_ids=tensor_of([[0, *proposal.tokens]]),  # [1, n + m]
        candidate_logits=tensor_of(np.log(proposal.p)[None]),  # [1, m, n_vocab]
        candidate_length=m,
        new_logits=tensor_of(np.log(q)[None]),  # [1, m + 1, n_vocab]
        is_done=False,
        is_done_candidate=False,
    )


def as_vllm(function: Function, proposal: Proposal, q, rng) -> Any:
    """The tokens of a rule with the parameters of vLLM's: probabilities of a batch, and the bonus token drawn before.

    If it is flat, the rows of all texts follow each other, and another text comes first, of whose draft both are sure.
    """
    counts = [drafts_in(proposal)]  # [batch]
    ids, p, q_drafts = proposal.tokens[None], proposal.p[None], q[None, :-1]  # [1, m], [1, m, n_vocab] twice
    bonus = [[sample(q[-1], rng)]]  # [batch, 1]
    if {"num_draft_tokens", "cu_num_draft_tokens"} & function.names.keys():
        sure = GREEDY(q[:1])  # [1, n_vocab]
        first = int(np.argmax(sure))
        ids = np.append(first, ids)  # [1 + m]
        p = np.concatenate([sure, p[0]])  # [1 + m, n_vocab]
        q_drafts = np.concatenate([sure, q[:-1]])  # [1 + m, n_vocab]
        bonus, counts = [[first], *bonus], [1, *counts]
    about = SimpleNamespace(all_greedy=False, all_random=True, generators={}, top_k=None, top_p=None)
    about.temperature = tensor_of(np.ones(len(counts), np.float32))
    result = function(
        rng,
        draft_token_ids=tensor_of(ids),
        num_draft_tokens=counts,
        max_spec_len=max(counts),
        cu_num_draft_tokens=tensor_of(np.cumsum(counts)),
        draft_probs=tensor_of(p),
        target_probs=tensor_of(q_drafts),
        target_with_bonus_probs=tensor_of(q[None]),
        bonus_token_ids=tensor_of(bonus),
        sampling_metadata=about,
        seeded_seqs=None,
    )
    return np.asarray(result)[-1]  # [K + 1], -1 after the end


def drafts_in(proposal: Proposal) -> int:
    """The number of drafts. Raises UserError if there is none."""
    if not len(proposal.tokens):
        raise UserError("it is not called without a draft")
    return len(proposal.tokens)


def tensor_of(numbers) -> Any:
    import torch

    return torch.from_numpy(np.array(numbers))


# ---- Forms -----------------------------------------------------------------------------------------------------------


class Form:
    """A function that decodes a text."""

    def __init__(self, function: Callable):
        """Raises UserError if its parameters are none of FORMS."""
        self.left_out: dict[str, str] = {}  # {what is left out: why}
        self.decoders = decoders_of(Function(function), self.left_out)
        self.decode = self.decoders[0]

    def choose_decoder(self, how_wrong: Callable) -> None:
        """Take the first decoder that is right, else the least wrong one. how_wrong(decode) -> above EXACT if it is.

        Raises UserError if all have errors, or if one that could not be followed may have been the right one.
        """
        wrong: dict[Callable, float] = {}
        not_followed: list[UserError] = []
        errors: list[UserError] = []
        for decode in self.decoders:
            try:
                wrong[decode] = how_wrong(decode)
                if wrong[decode] <= EXACT:
                    break
            except NotFollowed as error:
                if not wrong:  # the function takes what a decoder gives it, if that could be followed
                    not_followed.append(error)
            except UserError as error:
                errors.append(error)
        best = min(wrong, key=wrong.__getitem__, default=None)
        if best is None or (not_followed and wrong[best] > EXACT):
            raise (not_followed or errors)[0]
        self.decode = best


def decoders_of(function: Function, left_out: dict) -> list:
    """How a function with these parameters decodes. Raises UserError if they are none of FORMS."""
    names = [ours for ours in function.names.values() if ours not in RANDOM]
    if len(names) == 5 and "N" in names and "K" in names:
        return decoders_of_loop(function)
    match names:
        case ["x", "K"]:
            drafter = as_drafter(function.function)
            return [partial(in_steps, Function(speculative_sampling), lambda draft, context: drafter.chain(context))]
        case ["p"]:
            return [partial(one_by_one, function)]
        case ["proposal", "q"]:
            rule = partial(as_ours, function)
        case ["x"]:
            rule = partial(with_residual, function.function)
        case _ if {*names} >= HUGGING_FACE:
            rule = partial(as_hugging_face, function)
        case _ if "draft_token_ids" in names:
            rule = partial(as_vllm, function)
        case _:
            given = ", ".join(function.names)
            raise UserError(f"the parameters ({given}) are not those of a sampler: see python -m speculative law")
    return [with_rule(rule, left_out)]


def decoders_of_loop(function: Function) -> list:
    """The blog's form, in each Way, after ours if it may be that. Its parameters may have another order."""
    parts = [name for name, ours in function.names.items() if ours not in (*LENGTHS, *RANDOM)]
    parts.sort(key=place)
    function.names |= zip(parts, PARTS, strict=True)
    decoders: list = [AsBlogs(function, way) for way in ways()]
    may_be_ours = "rng" in function.names and "draft_model" not in parts
    if may_be_ours:
        decoders.insert(0, partial(in_steps, function, of_model))
    return decoders


def place(name: str) -> int:
    """The place among PARTS of a parameter with this name; 0 if the name does not tell it."""
    if "target" in name:
        return 2
    return int("draft" in name)
