"""load_pair: a session from Python. An error in its options names them as Python does."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec

from speculative.blog.encoder import Encoder
from speculative.drafters.user import NO_FUNCTIONS, name_of
from speculative.report import run, score
from speculative.run.load import new_models_of
from speculative.run.options import ModelOptions, make_options
from speculative.run.session import Session
from speculative.support.errors import Option, UserError, naming_options

P = ParamSpec("P")


@dataclass(frozen=True)
class PairOptions(ModelOptions):
    """The options of load_pair."""

    target: Callable | None = None
    encoder: Encoder | None = None


SIGNATURE = inspect.signature(PairOptions)
WITHOUT_EFFECT = ("target_model_size", "dtype")  # if the target is a function
errors_without_dashes = partial(naming_options, "")  # they name an option as K, not --K


# The names that a notebook's Tab offers of a pair. Its other names are parts that benchmarks and tests use.
FOR_USERS = [
    "autoregressive",
    "batch",
    "changed",
    "compare",
    "drafter",
    "encode",
    "encoder",
    "model",
    "n_ctx",
    "options",
    "score",
    "speculative",
    "steps",
]


class Pair(Session[ModelOptions]):
    """A target and its drafter, as load_pair gives them."""

    def __dir__(self) -> list[str]:
        return FOR_USERS

    # the methods of Session whose errors name options, and those that have the pair as their session
    decode = errors_without_dashes()(Session.decode)
    batch = errors_without_dashes()(Session.batch)
    changed = errors_without_dashes()(Session.changed)
    compare = errors_without_dashes()(run.compare)
    score = errors_without_dashes()(score.score)


def takes(options: Callable[P, Any]) -> Callable[[Callable[..., Pair]], Callable[P, Pair]]:
    """The decorated function takes the fields of this dataclass: help() and type checkers see each with its type."""

    def decorate(function):
        function.__signature__ = inspect.signature(options).replace(return_annotation=Pair)
        return function

    return decorate


@takes(PairOptions)
@errors_without_dashes()
def load_pair(*values: object, **options: object) -> Pair:
    """Load a target and the models of its drafter. Official models that are missing are downloaded.

    The options are main.py's, in its order and with its defaults; the first are the draft's and the target's model
    size. Two of them may be functions: drafter=draft(x, k) -> (tokens, p), and accept(proposal, q, rng) -> tokens, a
    rule such as token_by_token. The target may be a function too: target(x, n_last) -> [n_last, n_vocab], the
    distributions after the last n_last tokens of x, with the encoder of its tokens (encoder.get_encoder). Raises
    UserError, whose message is one line.
    """
    parameters = {name: value for name, value in options.items() if name in SIGNATURE.parameters}
    try:
        given = SIGNATURE.bind_partial(*values, **parameters).arguments | options  # make_options refuses the others
    except TypeError as error:
        raise UserError(f"load_pair: {error}") from None
    if "prompt" in given:
        raise UserError("load_pair takes no prompt: give it to session.compare or session.speculative")
    target = given.pop("target", None)
    encoder = given.pop("encoder", None)
    named, functions = NO_FUNCTIONS.taken_from(given)
    o = make_options(ModelOptions, named)
    if target is None:
        if encoder is not None:
            raise UserError("encoder is for a target that is a function: leave it out, or give the target")
        return Pair(o, functions=functions)
    check_function(target, encoder, {*given})
    name = name_of(target)
    o = replace(o, target_model_size=name)
    models = new_models_of(o)
    models.take_target(target, encoder, name)
    return Pair(o, models, functions=functions)


def check_function(target: object, encoder: object, given: set[str]) -> None:
    """Raise UserError if this cannot be the target, or an option has no meaning beside it."""
    if not callable(target):
        raise UserError("target is a function target(x, n_last) -> distributions: name a model by target_model_size")
    if not hasattr(encoder, "id_to_bytes"):
        raise UserError("a function as the target needs the encoder of its tokens, as encoder.get_encoder gives it")
    for name in WITHOUT_EFFECT:
        if name in given:
            raise UserError(Option(name), " has no effect here: the target is a function")
