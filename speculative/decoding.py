"""A decode: the loops, and from their steps to steps with text, with the chances of drafts and the times of calls."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from speculative import drafters
from speculative.blog.encoder import Encoder, StreamDecoder
from speculative.drafters.base import DrafterSpec
from speculative.engines.model import Call, join
from speculative.explain import RecordedRandom, explain_step
from speculative.loading import Models
from speculative.lookahead import WINDOW_ROWS, AfterFirst, AutoK, FixedK
from speculative.plan import Plan
from speculative.rules import papers_chances
from speculative.sampling import Step, autoregressive_sampling, speculative_sampling
from speculative.steps import Served, TextStep, origins_of
from speculative.support.progress import working
from speculative.trees import Tree, TreeInTheLoop, path_of

DECODERS = ("autoregressive", "speculative")
READ_FIRST = 40  # tokens; the target reads a prompt this long before its copies draft, so that it is read only once
N_COST_TOKENS = 8  # tokens at the end of a prompt: costs are measured with them as the text
N_DRAFTS = 4  # draft tokens that are timed together


class Loops(Protocol):
    """Both decoders: loops in Python, or programs on a device (engines/jax/loops.py)."""

    def measure(self, x) -> None:  # [n]
        """Measure, after this text, the costs by which K is chosen, unless they are known."""

    def ready(self, prompts: Sequence, N: int) -> None:
        """Do before a decode what is not part of its time. prompts: token ids [n_prompts][n]."""

    def calls(self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator[list[Served]]:
        """Yield the result of each call of the target: a Served for each text that it served, of N tokens at most.
        name: one of DECODERS. rngs: the random numbers of each text. stopped(text_index): True if the caller needs no
        more tokens of this text."""


class PythonLoops:
    """The loops of sampling.py, over the models of a plan."""

    def __init__(self, plan: Plan, models: Models, n_vocab: int, n_ctx: int):
        self.plan = plan
        self.models = models
        self.networks: Mapping[str, Any] | Models = models  # by role, with the parts of drafters
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.copies = [role for role in plan.networks if models.shares_cache(role)]
        self.lookaheads = new_lookaheads(plan)
        self.n_texts = 1  # whose rows a call has

    def over(self, networks: Mapping[str, Any]) -> "PythonLoops":
        """Return the same loops over other networks, such as those of one text of a batch."""
        loops = copy(self)
        loops.networks = networks
        return loops

    # ---- The parts of a decode ---------------------------------------------------------------------------------------

    def model(self, role: str) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        loaded = self.networks[role]
        if role not in self.plan.models:
            return loaded
        return loaded.with_probs(self.plan.filters(role))

    def drafter(self, rng: Any, depth: int = 0, target: Any = None) -> drafters.Drafter:
        """The drafter, or its levels from this depth on. rng: the decoder's generator. target: the model of this
        decode, as heads read its last hidden row."""
        plan = self.plan
        models = {role: self.model(role) for role in plan.roles}
        models["target"] = target or models["target"]
        join(models.values())
        context = drafters.Context(self.n_vocab, rng, plan.draft_filters, plan.is_greedy, models)
        levels = plan.levels[depth:]
        inner = self.lookaheads[depth + 1 :]
        return drafters.make_drafter(levels, context, inner, plan.rule, trees=bool(plan.tree))

    # ---- Before a decode ---------------------------------------------------------------------------------------------

    def measure(self, x) -> None:  # [n]
        """Time the drafts of each level, innermost first: a draft token's cost depends on the K of the level inside."""
        n = min(N_COST_TOKENS, max(1, self.n_ctx - max(WINDOW_ROWS)))  # which leaves room for windows
        x = np.asarray(x)[-n:]  # [n]
        unknown = [depth for depth, K in enumerate(self.lookaheads) if isinstance(K, AutoK) and not K.is_measured]
        with working("timing calls, from which K is chosen", len(unknown), "level", not unknown, delay=1) as bar:
            for depth in reversed(unknown):
                self.measure_level(depth, x)
                bar.update(1)

    def measure_level(self, depth: int, x) -> None:  # [n]
        """Estimate the costs of the level of this depth, in a small part of the time that a decode takes."""
        specs = self.plan.levels[depth]
        drafts = self.drafter(np.random.default_rng(0), depth).parts
        draft_seconds = []
        for spec, draft in zip(specs, drafts, strict=True):
            draft_seconds.append(partial(self.draft_seconds, depth, spec, draft, x))
        window_seconds = partial(self.call_seconds, self.role_of_target(depth), x)
        self.lookaheads[depth].measure(window_seconds, draft_seconds, self.n_ctx - len(x))

    def role_of_target(self, depth: int) -> str:
        """The role of the model for which a level drafts: the target, or the model of the level before."""
        if depth == 0:
            return "target"
        spec = self.plan.levels[depth - 1][0]
        return spec.roles[0]

    def call_seconds(self, role: str, x, n_rows: int) -> float:  # x [n]
        """The seconds of a call of a model for so many rows after the text x."""
        if role in self.plan.networks:
            return self.models.engine.window_seconds(self.models[role], x, n_rows * self.n_texts)
        model = self.model(role)
        drafts = [x[-1]] * n_rows
        began = time.perf_counter()
        model([*x, *drafts], n_rows)
        return time.perf_counter() - began

    def draft_seconds(self, depth: int, spec: DrafterSpec, draft: Callable, x) -> float:  # x [n]
        """The seconds of a draft token: as the level inside expects, of a call of the drafter's model, or measured."""
        lookahead = self.lookaheads[depth]
        inner = self.lookaheads[depth + 1 : depth + 2] if spec is self.plan.levels[depth][-1] else []
        if inner and isinstance(inner[0], AutoK):
            return inner[0].token_worth
        if spec.has_model and not inner and spec.roles[0] in self.plan.networks:
            return self.call_seconds(spec.roles[0], x, 1)
        n = min(N_DRAFTS, self.n_ctx - len(x))
        draft(x, 1)  # so that it has read the text
        began = lookahead.clock()
        draft(x, n)
        return self.n_texts * (lookahead.clock() - began) / n

    def ready(self, prompts: Sequence, N: int) -> None:
        if self.plan.depends_on_times:
            self.measure(prompts[0])
        self.models.forget(self.plan.networks)

    # ---- The loops ---------------------------------------------------------------------------------------------------

    def calls(self, name: str, prompts: Sequence, N: int, rngs: Sequence, stopped: Callable) -> Iterator[list[Served]]:
        """One prompt at a time. stopped is not asked, as nobody asks for a step after the stop text."""
        [x], [rng] = prompts, rngs
        return ([Served(0, step)] for step in self.steps(name, x, N, rng))

    def steps(self, name: str, x: Sequence, N: int, rng: Any) -> Iterator[Step]:
        if name == "autoregressive":
            return autoregressive_sampling(x, self.model("target"), N, rng)
        return self.speculative_steps(x, N, rng)

    def speculative_steps(self, x: Sequence, N: int, rng: Any) -> Iterator[Step]:
        plan = self.plan
        target = self.model("target")
        drafter = self.drafter(rng, target=target)
        if plan.tree:
            tree = TreeInTheLoop(drafter.tree, target.score_tree, plan.tree)
            depth = len(plan.tree)
            return speculative_sampling(x, tree.draft, tree.target_model, N, depth, rng, plan.rule.accept_tree)
        lookahead = self.lookaheads[0]
        draft = lookahead.drafter_of(drafter.parts, target)
        if self.copies and len(x) >= READ_FIRST:
            draft = AfterFirst(draft)
        return speculative_sampling(x, draft, target, N, lookahead.K_max, rng, plan.rule.accept)


def new_lookaheads(plan: Plan) -> list[Any]:
    """Return a FixedK or an AutoK for each level of the drafter, from the outermost in."""
    lookaheads: list[Any] = []
    for K, specs in zip(plan.Ks, plan.levels, strict=True):
        scales = [spec.scale for spec in specs]
        lookaheads.append(FixedK(K) if isinstance(K, int) else AutoK(scales))
    return lookaheads


# ---- Steps with text -------------------------------------------------------------------------------------------------


class Decodes(Protocol):
    """The parts of a session that decode."""

    plan: Plan
    loops: Loops
    encoder: Encoder
    logs: Mapping[str, deque[Call]]  # by role, the calls of each model


def decoded(
    session: Decodes, name: str, inputs: Sequence, N: int, sample: int = 0, with_details: bool = False
) -> Iterator[TextStep]:
    """Yield the steps of a decoder with their text: one text after the other, or as many together as --batch says.

    name: one of DECODERS. inputs: the tokens of each text's prompt. sample: the first text's number, which with the
    seed decides its random numbers. with_details: True to explain the tests of each step.
    """
    plan = session.plan
    size = len(inputs) if plan.batch > 1 else 1  # of a group
    for first in range(0, len(inputs), size):
        group = inputs[first : first + size]
        rngs = [RecordedRandom(plan.rng(sample + first + index)) for index in range(len(group))]
        decode = TextDecode(session, rngs, first, with_details)
        calls = session.loops.calls(name, group, N, rngs, decode.is_stopped)
        yield from decode.steps(calls)


class TextDecode:
    """A decode under way, of one text or of a batch."""

    def __init__(self, session: Decodes, rngs: Sequence[RecordedRandom], first: int, with_details: bool):
        """rngs: of each text. first: the number of the first text."""
        self.rule = session.plan.rule
        self.outer = [specs[0].name for specs in session.plan.levels[:-1]]  # drafters for which another one drafts
        self.rngs = rngs
        self.texts = [StreamDecoder(session.encoder, session.plan.stop) for _ in rngs]
        self.first = first
        self.with_details = with_details
        self.times = StepTimes(session.logs)

    def is_stopped(self, text_index: int) -> bool:
        return self.texts[text_index].stopped

    @property
    def all_stopped(self) -> bool:
        return all(text.stopped for text in self.texts)

    def steps(self, calls: Iterator[list[Served]]) -> Iterator[TextStep]:
        """Yield each step with its text and its times, until all texts are complete."""
        while not self.all_stopped:
            self.times.begin()
            served = next(calls, None)
            self.times.end()
            if served is None:
                break
            shown = [self.with_text(answer) for answer in served]
            for answer in served:
                self.rngs[answer.text_index].u = []  # the next step's draws are its own
            self.times.put_into(shown[0], is_last=self.all_stopped)
            yield from shown
        for index, text in enumerate(self.texts, start=self.first):
            rest = text.flush()
            if rest:
                yield TextStep([], pieces=[rest], text_index=index)

    def with_text(self, served: Served) -> TextStep:
        """A step with its text and without times."""
        index, step, chances = served
        pieces = pieces_of(step.tokens, self.texts[index])
        n = len(pieces)  # tokens that belong to the text
        proposal = step.proposal
        shown = TextStep(
            tokens=[int(token) for token in step.tokens[:n]],
            pieces=pieces,
            text_index=self.first + index,
            origins=origins_of(step)[:n],
            drafted=step.n_drafted,
            accepted=min(step.n_accepted, n),
            alpha=(self.rule.chances(step) if chances is None else chances)[:n],
            source=[*proposal.source],
        )
        if chances is None:
            shown.alpha_token = papers_chances(step, self.rule)[:n]
        if isinstance(proposal, Tree):
            shown.tree = {"tokens": proposal.tokens, "parents": proposal.parents, "path": path_of(step)[1:]}
            return shown
        shown.q = [float(row[token]) for row, token in zip(step.q, shown.tokens, strict=False)]
        shown.levels = self.calls_inside(proposal)
        if self.with_details and self.rule.judge and chances is None:
            shown.details = explain_step(step, self.rule, self.rngs[index].u, n)
        return shown

    def calls_inside(self, proposal: Any) -> dict[str, list]:
        """TextStep.levels of a proposal."""
        levels = {}
        steps = proposal.inner
        for name in self.outer:
            levels[name] = [[len(step.tokens), step.n_drafted, step.n_accepted] for step in steps]
            steps = [inner for step in steps for inner in step.proposal.inner]
        return levels


def pieces_of(tokens: Sequence[int], text: StreamDecoder) -> list[str]:
    """Return the text of each token, up to the one that completes the stop text."""
    pieces = []
    for token in tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return pieces


# ---- Their times -----------------------------------------------------------------------------------------------------


class RoleCall(NamedTuple):
    """A call of the model of a role."""

    role: str
    call: Call

    @property
    def order(self) -> tuple[float, bool]:
        return self.call.began, self.role == "target"  # drafts whose derived time is 0 come first, too


class StepTimes:
    """The times of steps, by the clock and by the models' logs."""

    def __init__(self, logs: Mapping[str, deque[Call]]):
        self.logs = logs
        self.last: dict[str, Call | None] = {}  # by role, the last call before the step
        self.began = 0.0
        self.waited = 0.0  # seconds of the decoder that are in no step yet

    def begin(self) -> None:
        self.last = {role: log[-1] if log else None for role, log in self.logs.items()}
        self.began = time.perf_counter()

    def end(self) -> None:
        self.waited += time.perf_counter() - self.began

    def calls(self) -> list[RoleCall]:
        """Return the calls of this step: another thread may use the same model, whose calls began before."""
        made = []
        for role, log in self.logs.items():
            for call in reversed(log.copy()):
                if call is self.last[role]:
                    break
                if call.derived or call.began >= self.began:
                    made.append(RoleCall(role, call))
        return sorted(made, key=lambda made: made.order)

    def put_into(self, step: TextStep, is_last: bool) -> None:
        """Put the times into a step. is_last: True to count all that was waited for, as with a loop on a device the
        calls after the stop text."""
        calls = self.calls()
        targets = [call for role, call in calls if role == "target"]
        began = self.began
        step.seconds = self.waited
        step.derived = targets[-1].derived
        if step.derived:  # the program on the device has made several steps in the time of this call
            began = calls[0].call.began
            step.seconds = sum(made.call.seconds for made in calls)
        step.drafting = targets[0].began - began if step.drafted else 0.0
        step.scoring = sum(call.seconds for call in targets)
        step.calls = [(role, call.began - began, call.seconds) for role, call in calls]
        step.draft_prefill = any(call.prefill for role, call in calls if role != "target")
        step.prefill = any(call.prefill for call in targets)
        if is_last:
            step.seconds = self.waited
        self.waited -= step.seconds
