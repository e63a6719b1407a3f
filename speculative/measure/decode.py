"""Both decoders over the same prompts, timed in turns."""

from collections.abc import Callable, Iterator, Sequence

from speculative.engines.choice import process
from speculative.engines.system import seconds_waited
from speculative.measure.recorder import Recorder, explain_step
from speculative.session import DECODERS, Session

SHORT_SECONDS = 0.5  # a shorter decode is repeated, as its time is noisy


def decode(
    session: Session,
    prompts: Sequence[str],
    N: int,
    names: Sequence[str] = DECODERS,
    watch: Callable = lambda name, step: None,
    with_details: bool = True,
    repeats: int | None = None,
) -> Iterator[Recorder]:
    """Decode with each of these decoders. Yield its record as soon as it is final. Raises UserError.

    If the first decode is short, all decoders run again, in turn, until all runs together took SHORT_SECONDS for each
    decoder. Their records are then those of the median runs.

    prompts: one for each text. watch(name, step) is called for each step of a decoder's first run. with_details: True
    to record the tests of each step. repeats: run each decoder this many times, however long it takes.
    """
    inputs = [session.input_ids(prompt, N) for prompt in prompts]
    session.decoders.ready(inputs, N)
    runs: dict[str, list[Recorder]] = {name: [] for name in names}

    def run(name: str) -> None:
        session.forget()  # so that all decodes begin alike
        record = Recorder(name, inputs, session.rule)
        waited = seconds_waited()
        for step in session.texts(name, inputs, N, explain=explain_step if with_details else None):
            record.add(step)
            if not runs[name]:
                watch(name, step)
        record.waited = seconds_waited() - waited
        runs[name].append(record)

    run(names[0])
    [first] = runs[names[0]]
    if repeats or (first.seconds < SHORT_SECONDS and process()[1] == 1):
        while name := next_of(runs, repeats):
            run(name)
    for name in names:
        if not runs[name]:
            run(name)
        yield median_run(runs[name])


def next_of(runs: dict[str, list[Recorder]], repeats: int | None) -> str | None:
    """Return the decoder that runs next; None if all have run as often as the others, and often enough."""
    name = min(runs, key=lambda name: len(runs[name]))
    seconds = sum(record.seconds for records in runs.values() for record in records)
    enough = len(runs[name]) >= repeats if repeats else seconds >= SHORT_SECONDS * len(runs)
    return None if enough and len({*map(len, runs.values())}) == 1 else name


def median_run(records: Sequence[Recorder]) -> Recorder:
    """Return the run of median time, of those with the first one's tokens (with --K auto, tokens depend on times)."""
    same = sorted([one for one in records if one.tokens == records[0].tokens], key=lambda one: one.seconds)
    median = same[(len(same) - 1) // 2]
    median.runs = len(same)
    return median
