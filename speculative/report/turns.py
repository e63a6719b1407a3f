"""Both decoders over the same prompts, timed in turns, and the record of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from speculative.engines.choice import process
from speculative.engines.system import seconds_waited
from speculative.report.record import DecoderRecord
from speculative.run.decode import DECODERS
from speculative.run.observer import Observer
from speculative.run.session import Session

SHORT_SECONDS = 0.5  # a shorter decode is repeated, as its time is noisy


def timed_turns(
    session: Session,
    prompts: Sequence[str],
    N: int,
    names: Sequence[str] = DECODERS,
    watch: Callable = lambda name, step: None,
    with_details: bool = True,
    with_chances: bool = True,
    repeats: int | None = None,
) -> Iterator[DecoderRecord]:
    """Decode with each of these decoders. Yield its record as soon as it is final. Raises UserError.

    If the first decode is short, the decoders run in turn, equally often, until the runs took SHORT_SECONDS for each
    decoder on average. The records are then those of the median runs.

    prompts: one for each text. watch(name, step) is called for each step of a decoder's first run. with_details: True
    to record the tests of each step. with_chances: False if nobody reads how likely the drafts were to be accepted.
    repeats: run each decoder this many times, however long it takes.
    """
    observer = Observer(session.plan.rule, with_details) if with_chances else None
    inputs = [session.input_ids(prompt, N) for prompt in prompts]
    if "speculative" in names or session.setup.device:
        session.ready(inputs, N)
    runs: dict[str, list[DecoderRecord]] = {name: [] for name in names}
    for name in whose_turn(runs, repeats):
        session.forget()  # so that all decodes begin alike
        record = DecoderRecord(name)
        waited = seconds_waited()
        for step in session.decode_ids(name, inputs, N, observer=observer):
            record.add(step)
            if not runs[name]:
                watch(name, step)
        record.waited = seconds_waited() - waited
        runs[name].append(record)
        if not are_repeated(runs, repeats):
            yield record
    if are_repeated(runs, repeats):
        yield from map(median_run, runs.values())


def whose_turn(runs: Mapping[str, Sequence[DecoderRecord]], repeats: int | None) -> Iterator[str]:
    """Yield the decoder that runs next, until all have run often or long enough. runs: of each so far; the caller adds
    a decoder's record to them before it asks for the next."""
    yield from runs
    n_runs = 1
    while are_repeated(runs, repeats):
        seconds = sum(map(attrgetter("seconds"), chain(*runs.values())))
        if n_runs >= repeats if repeats else seconds >= SHORT_SECONDS * len(runs):
            return
        yield from runs
        n_runs += 1


def are_repeated(runs: Mapping[str, Sequence[DecoderRecord]], repeats: int | None) -> bool:
    """Return True if the decoders run in turn: they are asked to, or the first decode was short. Several processes must
    not decide by their clocks."""
    first = next(iter(runs.values()))[0]
    return bool(repeats) or (first.seconds < SHORT_SECONDS and process().n_processes == 1)


def median_run(records: Sequence[DecoderRecord]) -> DecoderRecord:
    """Return the run of median time, of those with the first one's tokens (with --K auto, tokens depend on times)."""
    same = [record for record in records if record.tokens == records[0].tokens]
    same.sort(key=attrgetter("seconds"))
    median = same[(len(same) - 1) // 2]
    median.runs = len(same)
    return median
