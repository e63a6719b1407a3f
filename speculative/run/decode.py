"""Decoding, from top to bottom: a decode is one loop of sampling.py over loaded models, and the text of its steps.

decode        a text: its models, its loop, its steps (of several texts together: batch.py)
new_models    the loaded networks with temperature and filters
new_loop      the loop of a decoder, over these models
drafters_of   the drafters of a level; drafter_of_level combines them into one
Text          from a Step of the loop to a TextStep
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from speculative.blog.encoder import Encoder, StreamDecoder
from speculative.drafters import first_of
from speculative.drafters.base import Context, Draft
from speculative.drafters.staged import staged
from speculative.engines.contract import DeviceLoops
from speculative.engines.model import Model
from speculative.engines.shared_cache import with_shared_caches
from speculative.lookahead.auto import AutoDrafter
from speculative.lookahead.learned import K_MAX, Learned
from speculative.rules import TOKEN
from speculative.run.observer import Observer
from speculative.run.plan import Plan
from speculative.run.steps import TextStep, Times, origins_of
from speculative.sampling import NOTHING, Step, autoregressive_sampling, speculative_sampling
from speculative.trees import Tree, TreeAdapter, path_of

DECODERS = ("autoregressive", "speculative")
LONG_PROMPT = 40  # tokens: see after_prompt
Ids = Sequence[int] | np.ndarray  # [n]
Loaded = Mapping[str, Any]  # {role: a network, or an object that a drafter loads under its name}


@dataclass
class Setup:
    """The setup of decodes: a plan over loaded models. K auto learns here for the next decode."""

    plan: Plan
    loaded: Loaded
    encoder: Encoder
    copies: Sequence[str] = ()  # the roles of the target's copies that share its cache
    device: DeviceLoops | None = None  # if the engine has both loops on a device
    new_model: Callable[..., Model] = Model  # makes a model of a network, its filters and its role
    learned: dict[int, Learned] = field(default_factory=dict)  # the knowledge of each level whose K is auto

    def __post_init__(self) -> None:
        for level, (K, drafters) in enumerate(zip(self.plan.Ks, self.plan.levels, strict=True)):
            if K == "auto":
                self.learned[level] = Learned([drafter.scale for drafter in drafters], is_alone=self.plan.batch == 1)

    @property
    def unmeasured(self) -> list[int]:
        """The levels whose K is auto, and the costs of whose calls are unknown."""
        return [level for level, learned in self.learned.items() if not learned.is_measured]


def decode(
    setup: Setup,
    decoder: str,
    inputs: Sequence[Ids],
    N: int,
    first_sample: int = 0,
    observer: Observer | None = None,
) -> Iterator[TextStep]:
    """Yield the steps of a decoder with their text, one text after the other.

    decoder: one of DECODERS. inputs: the tokens of each text's prompt. N: the tokens to generate. first_sample: the
    sample of the first text, which with the seed decides its random numbers; the others follow. observer: adds chances
    and tests to the steps, if somebody reads them.
    """
    for text_index, x in enumerate(inputs):
        rng = setup.plan.rng(first_sample + text_index)
        text = Text(setup, text_index, rng, observer)
        models = new_models(setup, setup.loaded)
        loop = new_loop(setup, models, decoder, x, N, text.rng)
        times = Times.of_models(models)
        times.begin()
        for step in loop:
            times.end()
            text_step = text.add(step)
            times.write_to(text_step, text.stream.stopped)
            yield text_step
            if text.stream.stopped:
                break
            times.begin()
        yield from text.rest()


# ---- The loop and its functions --------------------------------------------------------------------------------------


def new_models(setup: Setup, loaded: Loaded) -> dict[str, Any]:
    """Return the models of a decode by role: each network with its temperature and filters, as the blog's
    create_model_fn makes them. An object that is not a model, such as heads, stays as it is."""
    plan = setup.plan
    if setup.copies or plan.tree:
        loaded = with_shared_caches({role: loaded[role] for role in plan.roles}, setup.copies)
    models: dict[str, Any] = {}
    for role in plan.roles:
        models[role] = loaded[role]
        if role in plan.filters:
            models[role] = setup.new_model(loaded[role], plan.filters[role], role)
    return models


def new_loop(
    setup: Setup, models: dict[str, Any], decoder: str, x: Ids, N: int, rng: np.random.Generator
) -> Iterator[Step]:
    """Return the loop of a decoder over these models, for N tokens after x [n]."""
    plan = setup.plan
    target = models["target"]
    if decoder == "autoregressive":
        return autoregressive_sampling(x, target, N, rng)
    context = new_context(setup, models, rng)
    if plan.tree:  # a tree of drafts takes the place of a chain
        draft_tree = first_of([drafter.tree(context) for drafter in plan.drafters if drafter.tree])
        tree = TreeAdapter(draft_tree, target.score_tree, plan.tree)
        return speculative_sampling(x, tree.draft, tree.target_model, N, len(plan.tree), rng, plan.rule.accept_tree)
    draft = drafter_of_level(setup, 0, drafters_of(setup, context, 0), target)
    if setup.copies and len(x) >= LONG_PROMPT:
        draft = after_prompt(draft, len(x))
    return speculative_sampling(x, draft, target, N, most_drafts(plan, 0), rng, plan.rule.accept)


def new_context(setup: Setup, models: dict[str, Any], rng: np.random.Generator) -> Context:
    """Return the context from which the drafters of a decode are made. rng: the decoder's generator."""
    plan = setup.plan
    return Context(setup.encoder.n_vocab, rng, plan.draft_filters, plan.is_greedy, models)


def drafters_of(setup: Setup, context: Context, level: int) -> list[Draft]:
    """Return draft(x, k) of each drafter of a level. Of int8/prompt_lookup+model, level 0 has the copy int8, for which
    level 1 drafts: the look-ups, and the draft model where these have nothing."""
    plan = setup.plan
    drafters = plan.levels[level]
    if level == len(plan.levels) - 1:
        return [drafter.chain(context) for drafter in drafters]
    [drafter] = drafters
    model = context.models[drafter.role]
    inner = drafters_of(setup, context, level + 1)
    # The inner drafter is a new one for each proposal: an AutoDrafter follows one text, and counts its steps.
    new_inner = partial(drafter_of_level, setup, level + 1, inner, model)
    rule = plan.rule if plan.rule.lossless else TOKEN  # the copy's tokens are drawn from the p that it gives
    return [staged(drafter.name, model, new_inner, most_drafts(plan, level + 1), context.rng, rule.accept)]


def drafter_of_level(setup: Setup, level: int, drafters: Sequence[Draft], target: Callable) -> Draft:
    """Return one drafter for a level: of its drafters the first that proposes anything, and if K is auto only while
    that pays. target: the model for which they draft."""
    learned = setup.learned.get(level)
    return AutoDrafter(learned, drafters, target) if learned else first_of(drafters)


def most_drafts(plan: Plan, level: int) -> int:
    """Return the K of a level, or the most that K auto chooses."""
    K = plan.Ks[level]
    return K if isinstance(K, int) else K_MAX


def after_prompt(drafter: Draft, n: int) -> Draft:
    """Return a drafter that proposes nothing after a prompt of n tokens: the target reads it, and then the target's
    copies, which share its cache, need not read it as well."""
    return lambda x, k: drafter(x, k) if len(x) > n else NOTHING


# ---- The text of its steps -------------------------------------------------------------------------------------------


class Text:
    """A text that is being decoded."""

    def __init__(self, setup: Setup, text_index: int, rng: np.random.Generator, observer: Observer | None):
        """text_index: of the text among those of the decode."""
        self.text_index = text_index
        self.stream = StreamDecoder(setup.encoder, setup.plan.stop)
        self.observer = observer
        self.rng = observer.watched(rng) if observer else rng  # records its numbers if an observer explains the tests
        outer = setup.plan.levels[:-1]
        self.outer_levels = [drafters[0].name for drafters in outer]

    def add(self, step: Step, chances: Sequence[float] | None = None) -> TextStep:
        """Push a step's tokens to the text, up to the one that completes the stop text -> the step with its text.
        chances: of acceptance, if a loop on a device has computed them."""
        pieces = []
        for token in step.tokens:
            pieces.append(self.stream.push([token]))
            if self.stream.stopped:
                break
        n = len(pieces)  # tokens that belong to the text
        text_step = TextStep(
            tokens=step.tokens[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            pieces=pieces,
            origins=origins_of(step)[:n],
            text_index=self.text_index,
            source=[*step.proposal.source],
        )
        if isinstance(step.proposal, Tree):
            tree = step.proposal
            text_step.tree = {"tokens": tree.tokens, "parents": tree.parents, "path": path_of(step)[1:]}
        elif self.outer_levels:
            text_step.levels = levels_of(step, self.outer_levels)
        if self.observer:
            self.observer.add_to(text_step, step, self.rng, chances)
        return text_step

    def rest(self) -> Iterator[TextStep]:
        """Yield an incomplete last character as one more step, which has no tokens."""
        rest = self.stream.flush()
        if rest:
            yield TextStep([], pieces=[rest], text_index=self.text_index)


def levels_of(step: Step, names: Sequence[str]) -> dict[str, list]:
    """Return, by the name of each drafter for which another one drafts, from the outermost in: [tokens, drafted,
    accepted] of the calls of its model in this step's proposal."""
    levels = {}
    proposals = [step.proposal]
    for name in names:
        steps: list[Step] = []
        for proposal in proposals:
            steps += proposal.inner
        levels[name] = [[len(inner.tokens), inner.n_drafted, inner.n_accepted] for inner in steps]
        proposals = [inner.proposal for inner in steps]
    return levels
