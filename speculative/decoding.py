"""From models, a drafter and a lookahead to the steps of a decode, for every command.

A Pair holds what was loaded, and how it is to decode. Both its decoders are generators of Steps, over token ids:

    for step in pair.autoregressive(x, N, rng): ...
    for step in pair.speculative(x, N, rng): ...
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from speculative.accept import TOKEN, Rule
from speculative.autotree import AutoTree
from speculative.costs import measured
from speculative.drafters import Drafter, check_tree, make_drafter, parse_drafter
from speculative.drafters.base import Parts
from speculative.filters import GREEDY, Filters
from speculative.lookahead import Auto, AutoK, decode_chain
from speculative.sampling import Step, autoregressive_sampling, speculative_sampling
from speculative.support import arguments
from speculative.support.errors import UserError
from speculative.trees import regular, tree_speculative_sampling

FEW = 8  # tokens at the end of a prompt: costs are measured with them as the text

# A K, or what chooses one; the widths of a tree, or what chooses one.
Lookahead = int | AutoK | tuple[int, ...] | AutoTree


def decode(x, drafter: Drafter, target_model, N: int, lookahead: Lookahead, rng, rule: Rule = TOKEN) -> Iterator[Step]:
    """The loop that suits the lookahead: chains for a K, trees for widths or an AutoTree. It gives N tokens; with a
    lossless rule they are distributed as the target's own, whoever drafts."""
    if isinstance(lookahead, AutoTree):
        return lookahead.decode(x, drafter.tree, target_model.tree, N, rng, rule.tree)
    if isinstance(lookahead, tuple):
        return tree_speculative_sampling(x, drafter.tree, target_model.tree, N, regular(lookahead), rng, rule.tree)
    return decode_chain(x, drafter.chain, target_model, N, lookahead, rng, rule.chain)


def lookaheads(
    K: int | str | tuple = 4, tree: tuple[int, ...] | str | None = None, drafter: str = "model"
) -> tuple[Lookahead, tuple]:
    """The values of --K and --tree -> (the lookahead of the outermost level, the lookaheads of those inside it).

    A level for which K has no number chooses its own. What chooses a lookahead keeps what it has learned for the next
    decode. Raises UserError where K has more numbers than the drafter has levels.
    """
    levels = parse_drafter(drafter)
    Ks = K if isinstance(K, tuple) else (K,)
    if len(Ks) > len(levels):
        raise UserError(
            f"--K {'/'.join(map(str, Ks))} is for {len(Ks)} levels, and --drafter {drafter} has {len(levels)}"
        )
    if tree == "auto":
        return AutoTree(), ()
    if tree is not None:
        return tree, ()
    Ks += ("auto",) * (len(levels) - len(Ks))
    chosen = []
    for k, kinds in zip(Ks, levels, strict=True):
        chosen.append(AutoK(expected=kinds[0].expected) if k == "auto" else k)
    return chosen[0], tuple(chosen[1:])


class Level(NamedTuple):
    """A model, the drafter that drafts for it, and how far ahead. The outermost level is the whole drafter, for the
    target."""

    K: int | AutoK
    model: Callable  # model(x, n_last), for which it drafts
    draft: Callable  # draft(x, k) -> Proposal


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it, over token ids. session.Session takes and gives texts."""

    encoder: Any
    models: dict[str, Any]  # "target", and what the drafter needs: "draft", "copy"
    drafter: str = "model"
    prepared: dict[str, Any] = field(default_factory=dict)  # by drafter: see drafters.base.Kind
    filters: Filters = GREEDY  # the target's
    draft_temperature: float | None = None  # None: the target's
    lookahead: Lookahead = 4
    inner_K: tuple = ()  # of the levels of the drafter
    accept: Rule = TOKEN

    @property
    def target(self) -> Callable:
        return self.models["target"]

    @property
    def drafts_trees(self) -> bool:
        return isinstance(self.lookahead, tuple | AutoTree)

    @property
    def goes_by_times(self) -> bool:
        """True if a K or a tree is chosen by measured times, so that a seed alone does not decide the text."""
        return any(isinstance(lookahead, Auto) for lookahead in (self.lookahead, *self.inner_K))

    @property
    def draft_filters(self) -> Filters:
        """From the draft's logits to p."""
        temperature = self.draft_temperature
        if temperature is None:
            temperature = self.filters.temperature
        if self.drafts_trees and self.filters.temperature == 0 and temperature == 0:
            temperature = 1.0  # at 0 one token alone has a probability, and a tree needs several, the likeliest first
        return self.filters._replace(temperature=temperature)

    def at(self, filters: Filters) -> "Pair":
        """The same weights with other filters, and with caches of its own."""
        twin = replace(self, filters=filters)
        models = {}
        for need, model in self.models.items():
            to_probs = filters if need == "target" else twin.draft_filters
            models[need] = model.with_probs(to_probs)
        return replace(twin, models=models)

    def parts(self, rng: np.random.Generator) -> Parts:
        return Parts(
            n_vocab=self.encoder.n_vocab,
            rng=rng,
            filters=self.draft_filters,
            greedy=self.filters.temperature == 0,
            models=self.models,
            prepared=self.prepared,
            inner_K=self.inner_K,
            accept=self.accept.inner,
        )

    def create_drafter(self, rng: np.random.Generator, record: Callable | None = None) -> Drafter:
        """The drafter, which draws from this generator. record: see drafters.base.no_record.

        Raises UserError where trees are to be drafted and it drafts chains only.
        """
        if self.drafts_trees:
            check_tree(self.drafter)
        parts = self.parts(rng)
        if record:
            parts = parts._replace(record=record)
        return make_drafter(self.drafter, parts, self.drafts_trees)

    def check_drafter(self) -> None:
        """Raises UserError where the drafter was not made for this target."""
        self.create_drafter(np.random.default_rng(0))

    def levels(self) -> list[Level]:
        """The levels of a drafter of chains, outermost first: "a/b" drafts for the target, then b for a's model."""
        parts = self.parts(np.random.default_rng(0))
        *outer, _ = parse_drafter(self.drafter)
        models = [self.target, *(kind.model(parts) for [kind] in outer)]
        drafters = []
        rest = self.drafter
        for depth in range(len(models)):
            drafters.append(make_drafter(rest, parts._replace(inner_K=self.inner_K[depth:])))
            rest = rest.partition("/")[2]
        Ks = (self.lookahead, *self.inner_K)
        return [Level(K, model, drafter.chain) for K, model, drafter in zip(Ks, models, drafters, strict=True)]

    def ready(self, prompts, N: int, **options) -> None:
        """Prepares what the clock must not count: each AutoK gets the costs of windows and drafts, once. N and options
        are for the loop on a device (DevicePair)."""
        x = np.asarray(prompts[0])[-FEW:]  # [n]
        if self.goes_by_times and not self.drafts_trees:
            # From the innermost level out: what drafts for a level takes as long as the K inside it makes it.
            for K, model, draft in reversed(self.levels()):
                if isinstance(K, AutoK) and not K.windows:
                    K.know(*measured(model, draft, x, self.n_ctx))
        self.forget()

    @property
    def n_ctx(self) -> int:
        """The number of tokens that fit into the context of every model."""
        return min(model.n_ctx for model in self.models.values())

    def samplers(self) -> tuple[Callable, Callable]:
        """The functions behind the two decodes, for --verify, which hands them what it watches: a target, a drafter."""
        return autoregressive_sampling, decode

    def autoregressive(self, x, N: int, rng: np.random.Generator, recorder=None) -> Iterator[Step]:
        """N tokens, one for each call of the target. recorder: a measure.recorder.Recorder, or None."""
        target = recorder.target(self.target) if recorder else self.target
        return autoregressive_sampling(x, target, N, rng)

    def speculative(self, x, N: int, rng: np.random.Generator, recorder=None) -> Iterator[Step]:
        """N tokens, up to K + 1 for each call of the target."""
        drafter = self.create_drafter(rng, recorder.level if recorder else None)
        target = self.target
        if recorder:
            drafter = recorder.drafter(drafter)
            target = recorder.target(target)
        if isinstance(self.lookahead, int):  # the blog's case: nothing lies between, for a reader with a debugger
            return speculative_sampling(x, drafter.chain, target, N, self.lookahead, rng, self.accept.chain)
        return decode(x, drafter, target, N, self.lookahead, rng, self.accept)

    def forget(self) -> None:
        """Empties all caches, so that two decodes begin alike."""
        for model in self.models.values():
            model.forget()


def parse_K(value: str) -> int | str | tuple:
    """The value of --K: a number or "auto"; with levels one for each, as 16/4 -> (16, 4), from the outermost in."""
    positive = arguments.integer(1)
    try:
        Ks = tuple(part if part == "auto" else positive(part) for part in value.split("/"))
    except ValueError as must_be:
        raise ValueError(f"{must_be}, or auto; with levels one for each, as 16/4") from None
    return Ks if len(Ks) > 1 else Ks[0]
