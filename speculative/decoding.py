"""From the steps of a decoder to texts: the text of each token, the stop text, the chances of the drafts, and the times
from the models' logs."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from speculative.blog.encoder import StreamDecoder
from speculative.engines.model import Call
from speculative.explain import RecordedRandom
from speculative.rules import Rule
from speculative.steps import TextStep, origins_of
from speculative.trees import Tree


class Report(NamedTuple):
    """The parts of a decode that a TextStep is made from, besides the Step."""

    rule: Rule
    draws: RecordedRandom  # the generator of the steps
    logs: Mapping[str, deque[Call]]  # {role: a model's log}
    levels: Sequence[str] = ()  # names of the drafters of all levels but the last, outermost first
    explain: Callable | None = None  # explain(step, rule, u, n) -> the details of a step, of which n tokens are shown


def text_steps(
    calls: Iterator[Sequence], texts: Sequence[StreamDecoder], report: Report, first: int = 0
) -> Iterator[TextStep]:
    """Yield each step of a decoder as a TextStep, until all texts are complete.

    calls: for each call of the target a list of (index of the text, Step, chances), one for each text that it served.
    first: the number of the first text.
    """
    waited = 0.0  # seconds of the decoder that are not yet in a step
    while not all(text.stopped for text in texts):
        report.draws.u = []
        before = {role: log[-1] if log else None for role, log in report.logs.items()}
        began = time.perf_counter()
        steps = next(calls, None)
        waited += time.perf_counter() - began
        if steps is None:
            break
        shown = [as_text(step, chances, texts[index], report, first + index) for index, step, chances in steps]
        add_times(shown[0], report.logs, before, began, waited)
        if all(text.stopped for text in texts):
            shown[0].seconds = waited  # of a loop on a device, with the calls after the stop text
        waited -= shown[0].seconds
        yield from shown
    for index, text in enumerate(texts, start=first):
        rest = text.flush()
        if rest:
            yield TextStep([], pieces=[rest], text_index=index)


def as_text(step: Any, chances: list[float] | None, text: StreamDecoder, report: Report, text_index: int) -> TextStep:
    """A Step as a TextStep without times. chances: of acceptance of its drafts, from a loop on a device, which keeps p
    and q; None: the rule computes them from p and q."""
    rule = report.rule
    pieces = []
    for token in step.tokens:  # up to the one that completes the stop text
        pieces.append(text.push([token]))
        if text.stopped:
            break
    n = len(pieces)
    shown = TextStep(
        tokens=[*map(int, step.tokens[:n])],
        pieces=pieces,
        text_index=text_index,
        origins=origins_of(step)[:n],
        drafted=step.drafted,
        accepted=min(step.accepted, n),
        alpha=(rule.chances(step) if chances is None else chances)[:n],
    )
    proposal = step.proposal
    shown.source = [*proposal.source]
    if isinstance(proposal, Tree):
        shown.tree = {"tokens": proposal.tokens, "parents": proposal.parents, "path": step.path[1:]}
        return shown
    shown.q = [float(row[token]) for row, token in zip(step.q, shown.tokens, strict=False)]
    inner = proposal.inner
    for name in report.levels:
        shown.levels[name] = [[len(one.tokens), one.drafted, one.accepted] for one in inner]
        inner = [deeper for one in inner for deeper in one.proposal.inner]
    if report.explain and rule.judge and chances is None:
        shown.details = report.explain(step, rule, report.draws.u, n)
    return shown


def add_times(
    step: TextStep, logs: Mapping[str, deque[Call]], before: Mapping[str, Call | None], began: float, seconds: float
) -> None:
    """Add the times of a step. began: by time.perf_counter. seconds: the whole step's. before: the last call of each
    log at its beginning."""
    calls = []  # logged since then, by this decode: another thread may use the same model
    for role, log in logs.items():
        for call in reversed(log.copy()):
            if call is before[role]:
                break
            if call.derived or call.began >= began:
                calls.append((role, call))
    calls.sort(key=lambda one: (one[1].began, one[0] == "target"))  # drafts whose derived time is 0 come first, too
    targets = [call for role, call in calls if role == "target"]
    step.derived = targets[-1].derived
    if step.derived:  # the call before has waited for several steps
        began, seconds = calls[0][1].began, sum([call.seconds for _, call in calls])
    step.seconds = seconds
    step.drafting = targets[0].began - began if step.drafted else 0.0
    step.scoring = sum([call.seconds for call in targets])
    step.calls = [(role, call.began - began, call.seconds) for role, call in calls]
    step.draft_prefill = any(call.prefill for role, call in calls if role != "target")
    step.prefill = any(call.prefill for call in targets)
