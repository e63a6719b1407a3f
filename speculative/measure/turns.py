"""Both decoders over the same prompts, timed in turns, and the record of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from speculative.decoding import decoded
from speculative.engines.choice import process
from speculative.engines.system import seconds_waited
from speculative.loops import DECODERS
from speculative.measure.record import DecoderRecord, Sample
from speculative.rules import TOKEN, Rule
from speculative.session import Session
from speculative.steps import TextStep

SHORT_SECONDS = 0.5  # a shorter decode is repeated, as its time is noisy


@dataclass
class TimedDecoder(DecoderRecord):
    """One decoder and its texts. Only the decoder's own time is counted."""

    name: str = ""  # "autoregressive" or "speculative"
    inputs: Sequence = ()  # the tokens of each text's prompt
    rule: Rule = TOKEN
    waited: float = 0.0  # seconds in which threads were ready and had no core

    def add(self, step: TextStep) -> None:
        """Add a step of a text."""
        self.seconds += step.seconds
        while step.text_index >= len(self.samples):
            self.samples.append(Sample())
        self.samples[step.text_index].add(step)


def timed_turns(
    session: Session,
    prompts: Sequence[str],
    N: int,
    names: Sequence[str] = DECODERS,
    watch: Callable = lambda name, step: None,
    with_details: bool = True,
    repeats: int | None = None,
) -> Iterator[TimedDecoder]:
    """Decode with each of these decoders. Yield its record as soon as it is final. Raises UserError.

    If the first decode is short, the decoders run in turn, equally often, until the runs took SHORT_SECONDS for each
    decoder on average. The records are then those of the median runs.

    prompts: one for each text. watch(name, step) is called for each step of a decoder's first run. with_details: True
    to record the tests of each step. repeats: run each decoder this many times, however long it takes.
    """
    inputs = [session.input_ids(prompt, N) for prompt in prompts]
    session.loops.ready(inputs, N)
    turns = Turns(session, inputs, N, watch, with_details, {name: [] for name in names})
    first = turns.run(names[0])
    alone = process()[1] == 1  # several processes must not decide by measured times
    if repeats or (first.seconds < SHORT_SECONDS and alone):
        while name := turns.next(repeats):
            turns.run(name)
    for name in names:
        yield median_run(turns.records[name] or [turns.run(name)])


@dataclass
class Turns:
    """The runs of each decoder so far."""

    session: Session
    inputs: Sequence
    N: int
    watch: Callable
    with_details: bool
    records: dict[str, list[TimedDecoder]]
    seconds: float = 0.0  # of all runs

    def run(self, name: str) -> TimedDecoder:
        """Decode all texts once with this decoder."""
        session = self.session
        session.forget()  # so that all decodes begin alike
        records = self.records[name]
        record = TimedDecoder(name=name, inputs=self.inputs, rule=session.plan.rule)
        waited = seconds_waited()
        for step in decoded(session, name, self.inputs, self.N, with_details=self.with_details):
            record.add(step)
            if not records:
                self.watch(name, step)
        record.waited = seconds_waited() - waited
        records.append(record)
        self.seconds += record.seconds
        return record

    def next(self, repeats: int | None) -> str | None:
        """Return the decoder that runs next; None if all have run as often as the others, and often enough."""
        n_runs = {name: len(records) for name, records in self.records.items()}
        fewest = min(n_runs, key=n_runs.__getitem__)
        is_enough = self.seconds >= SHORT_SECONDS * len(n_runs)
        if repeats:
            is_enough = n_runs[fewest] >= repeats
        as_often = len({*n_runs.values()}) == 1
        return None if as_often and is_enough else fewest


def median_run(records: Sequence[TimedDecoder]) -> TimedDecoder:
    """Return the run of median time, of those with the first one's tokens (with --K auto, tokens depend on times)."""
    same = [record for record in records if record.tokens == records[0].tokens]
    same.sort(key=lambda record: record.seconds)
    median = same[(len(same) - 1) // 2]
    median.runs = len(same)
    return median
