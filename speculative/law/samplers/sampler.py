"""Somebody's sampler: the form of its function, told by the names of its parameters, and its decoder.

Some forms leave open what the models take and return: each possibility is a decoder, and the first that is right is
used.
"""

from collections.abc import Callable
from functools import partial

from speculative.law.forks import NotFollowed
from speculative.law.paths import EXACT
from speculative.law.samplers.decoders import (
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
                                                           or flat, if num_draft_tokens is among its parameters

A loop, a rule and sample may take rng, or generator, random_state, seed, or JAX's key."""
HUGGING_FACE = {"candidate_input_ids", "candidate_logits", "candidate_length", "new_logits"}


class Sampler:
    """A function that decodes a text."""

    def __init__(self, function: Callable):
        """Raises UserError if its parameters are none of FORMS."""
        self.left_out: dict = {}  # {what it cannot do, and the check does without: why}
        self.decoders = decoders_of(Function(function), self.left_out)
        self.decode = self.decoders[0]

    def choose_decoder(self, distance_of: Callable) -> None:
        """Choose one of the decoders. distance_of(decode) is at most EXACT if the decoder is right, else above it.

        - One is right: take the first that is.
        - None is right, but one was not followed before any that ran: that may be the right one. Raise its error.
        - Else take the least wrong one of those that ran. If none ran, raise the first error.
        """
        distances = {}
        not_followed = []
        errors = []
        for decode in self.decoders:
            try:
                distances[decode] = distance_of(decode)
                if distances[decode] <= EXACT:
                    break
            except NotFollowed as error:
                if not distances:  # the function takes what a decoder gives it, if that could be followed
                    not_followed.append(error)
            except UserError as error:
                errors.append(error)
        best = min(distances, key=distances.__getitem__, default=None)
        if best is None or (not_followed and distances[best] > EXACT):
            raise (not_followed or errors)[0]
        self.decode = best


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
            given = ", ".join(function.names)
            raise UserError(f"the parameters ({given}) are not those of a sampler: see python -m speculative law")
    return [decoder_with_rule(rule, left_out)]


def decoders_of_loop(function: Function) -> list:
    """The blog's form, with each interface of the models, after ours if it may be that."""
    inputs = [name for name, ours in function.names.items() if ours not in (*LENGTHS, *RANDOM)]
    inputs.sort(key=input_number)  # of x, draft, target_model, which may have another order
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
