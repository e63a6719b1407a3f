"""Somebody's sampler: the form of its function, told by the names of its parameters, and its decoder.

Some forms leave open what the models take and return: each possibility is a decoder, and the first that is right is
used.
"""

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

from speculative.law.forks import NotFollowed
from speculative.law.paths import EXACT
from speculative.law.samplers.cases import Case
from speculative.law.samplers.decoders import (
    WITHOUT_DRAFTS,
    AsBlogs,
    as_hugging_face,
    as_ours,
    as_vllm,
    decoder_with_rule,
    with_drafter,
    with_loop,
    with_residual,
    with_sample,
)
from speculative.law.samplers.functions import LENGTHS, RANDOM, Function
from speculative.law.samplers.interfaces import interfaces
from speculative.support.errors import UserError

FORMS = """\
speculative_sampling(x, draft_model, target_model, N, K)   the blog's: its models return a row for each token of x, or
                                                           logits in .logits, and keep a cache, or the next row alone;
                                                           x is an array, a list, or a tensor, [n] or [1, n];
                                                           max_new_tokens may be N's name, gamma K's
speculative_sampling(x, draft, target_model, N, K, rng)    ours, which yields Steps
a rule (proposal, q, rng), a drafter (x, k), sample(p), max_fn(x)
(candidate_input_ids, candidate_logits, candidate_length, new_logits, is_done)   a rule, as Hugging Face calls it
(draft_token_ids, draft_probs, target_probs, bonus_token_ids, ...)               a rule, as vLLM calls it: [batch, K],
                                                           or flat, if num_draft_tokens is among its parameters;
                                                           also draft_logits, target_logits, ignore_eos, is_eos, ...

A loop, a rule and sample may take rng, or generator (PyTorch's in PyTorch's code), random_state, seed, or JAX's key."""
HUGGING_FACE = {"candidate_input_ids", "candidate_logits", "candidate_length", "new_logits"}


class Sampler:
    """A function that decodes a text."""

    def __init__(self, function: Callable):
        """Raises UserError if its parameters are none of FORMS."""
        self.left_out: dict = {}  # {what it cannot do, and the check does without: why}
        self.decoders = decoders_of(Function(function), self.left_out)
        self.decode = self.decoders[0]

    def choose_decoder(self, trial_of: Callable) -> None:
        """Choose one of the decoders. trial_of(decode) -> its Trial in the first cases.

        - One is right: take the first that is; one that is right only in some cases, as others raise an error, comes
          after those that ran in all.
        - None is right, but one was not followed before any that ran: that may be the right one. Raise its error.
        - Else take the least wrong one of those that ran. If none ran, raise the first error.
        """
        ran: dict[Callable, Trial] = {}
        failed: dict[Callable, Trial] = {}
        not_followed = []
        for decode in self.decoders:
            try:
                trial = trial_of(decode)
            except NotFollowed as error:
                if not ran:  # the function takes what a decoder gives it, if that could be followed
                    not_followed.append(error)
                continue
            (ran if trial.distances else failed)[decode] = trial
            if trial.is_right() and not trial.errors:
                break
        best = min(ran, key=lambda decode: ran[decode].rank(), default=None)
        if not_followed and not (best and ran[best].is_right()):
            raise not_followed[0]
        if best is None:
            best, trial = next(iter(failed.items()))
            if trial.errors:
                raise trial.errors[0]
        self.decode = best

    def leave_out(self, raised: dict[Case, UserError], ran: Collection[Case]) -> None:
        """Note the lengths in which it raises an error. Raises the first error that no length explains."""
        if WITHOUT_DRAFTS in self.left_out:  # our loop calls no rule for N = 1 then
            ran = [case for case in ran if case.N > 1]
        self.left_out |= lengths_left_out(raised, ran)


class Trial(NamedTuple):
    """How a decoder did in the first cases."""

    distances: list[float]  # distances from the target's laws in the cases that ran
    errors: list[UserError]  # errors of the cases that did not run

    def is_right(self) -> bool:
        """Whether it is, wherever it ran."""
        return bool(self.distances) and max(self.distances) <= EXACT

    def rank(self) -> tuple[bool, bool, float]:
        """The least is the best."""
        return not self.is_right(), bool(self.errors), max(self.distances)


LENGTHS_OF_CASES = {"n_vocab": "a vocabulary of {}", "N": "N = {}", "K": "K = {}"}


def lengths_left_out(raised: dict[Case, UserError], ran: Collection[Case]) -> dict[str, str]:
    """Return what a sampler cannot do, and why: the lengths that only the cases have in which it raised an error, or
    else a vocabulary, of which it may meet some tokens alone. Raises the first error that no length explains. A
    vocabulary of 3 cannot be left out, because half of all cases have it.
    """
    unexplained = dict(raised)
    reasons = {}
    of_ran = {(name, getattr(case, name)) for case in ran for name in LENGTHS_OF_CASES}
    while unexplained:
        lengths = Counter((name, getattr(case, name)) for case in unexplained for name in LENGTHS_OF_CASES)
        possible = [length for length in lengths if length not in of_ran or length[0] == "n_vocab"]
        possible = [length for length in possible if length != ("n_vocab", 3)]
        if not possible or ("n_vocab", 3) not in of_ran:
            raise next(iter(unexplained.values()))
        name, value = max(possible, key=lambda length: (length not in of_ran, lengths[length]))
        cases = [case for case in unexplained if getattr(case, name) == value]
        _, _, reasons[LENGTHS_OF_CASES[name].format(value)] = unexplained[cases[0]].sentence[0].rpartition(".py, ")
        for case in cases:
            del unexplained[case]
    return reasons


class ForeignParameters(UserError):
    """The parameters of a function are those of no form."""

    def __init__(self, function: Function):
        given = ", ".join(function.names)
        how = "see python -m speculative law, or write a function that has such, and calls it"
        super().__init__(f"the parameters ({given}) are not those of a sampler: {how}")
        self.file = file_that_calls(function)  # such a file makes it a rule, or a loop


RULE = """\
from speculative.law import as_tensors

from {module} import {name}


def rule(proposal, q, rng):
    drafts, p, q = as_tensors(proposal, q)  # [1, m], [1, m, n_vocab], [1, m + 1, n_vocab]
    return {name}({given})
"""
LOOP = """\
import torch

from speculative.law import as_model

from {module} import {name}


def speculative_sampling(x, draft_model, target_model, N, K):
    x, draft, target = torch.tensor([[*map(int, x)]]), as_model(draft_model), as_model(target_model)  # x [1, n]
    return {name}({given})
"""
# What a parameter may be: the first line of which each word, or one of several, is in its name.
OF_RULES = """
draft,cand,assist,small prob,logit,dist  p
target,main,large,big,verif prob,logit,dist  q
token,ids,draft,cand,input  drafts
temperature  1.0
rng,generator  rng
"""
OF_LOOPS = """
draft,assist,small,approx  draft
target,main,large,big,model  target
gamma,lookahead,spec,draft_len  K
max,num,n_tokens,length,steps  N
temperature  1.0
ids,prompt,input,prefix,tokens  x
"""


def file_that_calls(function: Function) -> str:
    """The text of a file that makes the function a loop, if it takes models, else a rule: its arguments are guessed by
    their names, and `...` if they are not."""
    is_loop = any("model" in name for name in function.names)
    given = [f"{name}={argument_for(name, OF_LOOPS if is_loop else OF_RULES)}" for name in function.names]
    file = getattr(getattr(function.function, "__code__", None), "co_filename", "")
    module = Path(file).stem if file.endswith(".py") else "mine"
    return (LOOP if is_loop else RULE).format(module=module, name=function.name, given=", ".join(given))


def argument_for(name: str, lines: str) -> str:
    """Return the argument for a parameter of this name, by OF_RULES or OF_LOOPS."""
    for line in lines.split("\n")[1:-1]:
        words, argument = line.rsplit("  ", 1)
        if all(any(word in name.lower() for word in choice.split(",")) for choice in words.split()):
            return argument
    return "..."


def decoders_of(function: Function, left_out: dict) -> list:
    """How a function with these parameters decodes. Raises UserError if they are none of FORMS."""
    names = [ours for ours in function.names.values() if ours not in RANDOM]
    if len(names) == 5 and "N" in names and "K" in names:  # and the text and two models, under whichever names
        return decoders_of_loop(function)
    match names:
        case ["x", "K"]:
            return [partial(with_drafter, function)]
        case ["p"]:
            return [partial(with_sample, function)]
        case ["proposal", "q"]:
            rule = partial(as_ours, function)
        case ["x"]:
            rule = partial(with_residual, function.function)
        case _ if {*names} >= HUGGING_FACE:
            rule = partial(as_hugging_face, function)
        case _ if "draft_token_ids" in names:
            rule = partial(as_vllm, function)
        case _:
            raise ForeignParameters(function)
    return [decoder_with_rule(rule, left_out)]


def decoders_of_loop(function: Function) -> list:
    """The blog's form, with each interface of the models, after ours if it may be that."""
    inputs = [name for name, ours in function.names.items() if ours not in (*LENGTHS, *RANDOM)]
    inputs.sort(key=input_number)  # in the order x, draft, target_model; a function may have another
    # From now on the function knows its text and its models by these names of ours.
    function.names |= zip(inputs, ("x", "draft", "target_model"), strict=True)
    decoders: list = [AsBlogs(function, interface) for interface in interfaces()]
    may_be_ours = "rng" in function.names and "draft_model" not in inputs
    if may_be_ours:
        decoders.insert(0, partial(with_loop, function))
    return decoders


def input_number(name: str) -> int:
    """2 if a parameter of this name is the target, 1 if the draft, else 0."""
    if "target" in name:
        return 2
    return int("draft" in name)
