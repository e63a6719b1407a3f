"""Both decoders over the same prompts, timed in turns, and the record of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from speculative.engines.choice import process
from speculative.engines.system import seconds_waited
from speculative.explain import explain_step
from speculative.rules import TOKEN, Rule
from speculative.session import DECODERS, Session
from speculative.steps import TextStep

SHORT_SECONDS = 0.5  # a shorter decode is repeated, as its time is noisy


@dataclass
class Record:
    """The record of one decoder's texts. Only the decoder's own time is counted."""

    name: str = ""  # "autoregressive" or "speculative"
    inputs: Sequence = ()  # the tokens of each text's prompt
    rule: Rule = TOKEN
    samples: list[list[TextStep]] = field(default_factory=list)  # the iterations of each text
    seconds: float = 0.0
    waited: float = 0.0  # seconds in which threads were ready and had no core
    runs: int = 1  # number of repeats; this is the median run

    @property
    def iterations(self) -> list[TextStep]:
        return [iteration for sample in self.samples for iteration in sample]

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each text."""
        return [[token for i in sample for token in i.tokens] for sample in self.samples]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))

    def add(self, i: TextStep) -> None:
        """Add a step of a text."""
        self.samples += [[] for _ in range(i.text_index + 1 - len(self.samples))]
        sample = self.samples[i.text_index]
        self.seconds += i.seconds
        if i.tokens:
            sample.append(i)
        else:  # the rest of a character: it belongs to the last token, of a step that was given out already
            *before, last = sample[-1].pieces
            sample[-1] = replace(sample[-1], pieces=[*before, last + i.text])


def timed_turns(
    session: Session,
    prompts: Sequence[str],
    N: int,
    names: Sequence[str] = DECODERS,
    watch: Callable = lambda name, step: None,
    with_details: bool = True,
    repeats: int | None = None,
) -> Iterator[Record]:
    """Decode with each of these decoders. Yield its record as soon as it is final. Raises UserError.

    If the first decode is short, the decoders run in turn, equally often, until the runs took SHORT_SECONDS for each
    decoder on average. The records are then those of the median runs.

    prompts: one for each text. watch(name, step) is called for each step of a decoder's first run. with_details: True
    to record the tests of each step. repeats: run each decoder this many times, however long it takes.
    """
    inputs = [session.input_ids(prompt, N) for prompt in prompts]
    session.decoders.ready(inputs, N)
    runs: dict[str, list[Record]] = {name: [] for name in names}

    def run(name: str) -> None:
        session.forget()  # so that all decodes begin alike
        record = Record(name, inputs, session.rule)
        waited = seconds_waited()
        for step in session.texts(name, inputs, N, explain=explain_step if with_details else None):
            record.add(step)
            if not runs[name]:
                watch(name, step)
        record.waited = seconds_waited() - waited
        runs[name].append(record)

    run(names[0])
    [first] = runs[names[0]]
    alone = process()[1] == 1  # several processes must not decide by measured times
    if repeats or (first.seconds < SHORT_SECONDS and alone):
        while name := next_of(runs, repeats):
            run(name)
    for name in names:
        if not runs[name]:
            run(name)
        yield median_run(runs[name])


def next_of(runs: dict[str, list[Record]], repeats: int | None) -> str | None:
    """Return the decoder that runs next; None if all have run as often as the others, and often enough."""
    name = min(runs, key=lambda name: len(runs[name]))
    seconds = sum(record.seconds for records in runs.values() for record in records)
    enough = len(runs[name]) >= repeats if repeats else seconds >= SHORT_SECONDS * len(runs)
    return None if enough and len({*map(len, runs.values())}) == 1 else name


def median_run(records: Sequence[Record]) -> Record:
    """Return the run of median time, of those with the first one's tokens (with --K auto, tokens depend on times)."""
    same = sorted([one for one in records if one.tokens == records[0].tokens], key=lambda one: one.seconds)
    median = same[(len(same) - 1) // 2]
    median.runs = len(same)
    return median
