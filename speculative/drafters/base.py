"""A drafter as a decoder takes it, what it is made of, and what a file of this folder declares."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from speculative.filters import Filters
from speculative.sampling import NOTHING, Proposal, token_by_token  # noqa: F401
from speculative.support.arguments import Flag


class Drafter(NamedTuple):
    """A drafter as a decoder takes it. Its random draws come from the decoder's own generator."""

    chain: Callable[..., Proposal]  # draft(x, k) -> Proposal
    tree: Callable | None = None  # draft(x, shape) -> trees.Tree, where it can


def no_record(name: str, model: Callable, draft: Callable, steps: Callable[..., Any]) -> Any:
    """Parts.record where nothing is recorded: the Steps of steps(model, draft), the decode of one proposal.

    A recorder's own wraps model and draft first, so that each of their calls is timed.
    """
    return steps(model, draft)


class Parts(NamedTuple):
    """The parts of which a drafter is made, for one decode."""

    n_vocab: int
    rng: np.random.Generator  # the decoder's own: with another of the same seed, what is drawn would not be independent
    filters: Filters = Filters()  # the draft's: from logits to p
    greedy: bool = False  # whether the target decodes greedily; a tree then holds what the draft ranks highest
    models: dict[str, Callable] = {}  # by need: "draft", "copy" and "target"  # noqa: RUF012
    prepared: dict[str, Any] = {}  # by name: what each kind's prepare() gave  # noqa: RUF012
    inner_K: Sequence = ()  # the lookaheads inside the levels, from the outermost in: numbers, or AutoK
    accept: Callable = token_by_token  # the rule of acceptance inside the levels, which has to be lossless
    record: Callable = no_record  # stands between a level and the models that it calls


class Setting(NamedTuple):
    """The argument of a kind's prepare(), which is called before the weights are loaded."""

    folder: str  # of the target
    hparams: dict  # of the target
    encoder: Any
    options: dict[str, Any]  # the values of the kind's own flags


class Kind(NamedTuple):
    """One way to draft: what the registry holds. Without a tree it drafts chains only."""

    name: str
    help: str  # when it pays: for --help
    chain: Callable[[Parts], Callable]  # -> draft(x, k) -> Proposal
    tree: Callable[[Parts], Callable] | None = None  # -> draft(x, shape) -> Tree
    model: Callable[[Parts], Callable] | None = None  # -> model(x, n_last), for which another drafter may draft
    needs: tuple[str, ...] = ()  # "draft", a model of its own; "copy", the target rounded
    draws: bool = True  # whether its tokens are drawn at random, so that a temperature changes them
    prepare: Callable[[Setting], Any] | None = None  # raises UserError; what it gives is Parts.prepared[name]
    flags: tuple[Flag, ...] = ()  # its own
    words: str = ""  # its name in a sentence; "" is the name itself
    expected: tuple[float, float] = (2.5, 3.0)  # (passed, tested), with which AutoK begins at the first position
    color: str = "green"  # of the tokens that it proposed, in rich's words
    only_engine: str = ""  # "numpy" where another engine cannot, and `why`
    why: str = ""
