"""A run as one typed record, made once after the run by make_record.py: of DecoderRecords, to which steps are added
while a decoder runs. A text that was scored is a ScoreRecord. The words of the ending, the tables, the page and the
JSON are functions of the record alone.

Seconds throughout. The comment of a field is its line in docs/output.md, which python -m benchmarks output writes.
"""

from dataclasses import dataclass, field, replace

from speculative.run.greedy import Difference
from speculative.run.options import Options
from speculative.run.steps import TextStep

# ---- The parts of the run --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """The machine, and the engine on it."""

    platform: str  # the system's name and version
    processor: str  # the CPU's name
    cpus: int  # cores that this process may use
    python: str  # version
    numpy: str  # version
    engine: str  # `c`, `numpy` or `jax`
    engine_words: str  # the engine's instructions and threads, as the ending names them
    exact: bool  # whether a row's bits do not depend on the rows computed with it
    peak_bytes: int | None = None  # the most memory that the process held
    jax: str | None = None  # version; this and the next three only with JAX
    device_platform: str | None = None  # `cpu`, `gpu` or `tpu`
    device_kind: str | None = None  # the device's name
    devices: int | None = None  # number of devices


@dataclass(frozen=True)
class Model:
    """A network of the run."""

    role: str  # `target`, `draft`, or the weight format of a copy of the target
    size: str  # its name, such as 1558M
    dtype: str  # weight format
    weight_bytes: int  # bytes of its weights in memory
    stand_in: str | None = None  # the model that it is, if it has an official name but other weights
    kernels: tuple[str, str] | None = None  # its weight format and its kernels, in words


@dataclass(frozen=True)
class RuleUsed:
    """The rule of acceptance."""

    name: str  # its name for --accept
    formula: str  # the chance that a draft is accepted
    lossless: bool  # whether the text keeps the target's distribution
    number: float | None = None  # the number in its name, such as 0.5 in lenient:0.5
    step_3: str = ""  # its test in Step 3
    comparison: str = ""  # the comparison of a test, with places for the numbers
    replaced_by: str = ""  # the distribution that replaces a rejected draft
    claim: str | None = None  # the claim of a function of yours, and the law's verdict if it was asked


@dataclass(frozen=True)
class Prompt:
    """The prompt of a text."""

    text: str  # as it was given
    tokens: list[int]  # the ids of its tokens


@dataclass
class Sample:
    """The text that a decoder added to a prompt."""

    text: str = ""  # the text, without the stop text
    tokens: list[int] = field(default_factory=list)  # the ids of its tokens
    iterations: list[TextStep] = field(default_factory=list)  # one for each call of the target

    def add(self, step: TextStep) -> None:
        """Add a step. One without tokens is the rest of a character: it belongs to the last token, of a step that was
        given out already."""
        self.text += step.text
        self.tokens += step.tokens
        if not step.tokens:
            last = self.iterations.pop()
            *before, piece = last.pieces
            step = replace(last, pieces=[*before, piece + step.text])
        self.iterations.append(step)


@dataclass
class DecoderRecord:
    """One of the two decoders."""

    name: str = ""  # `autoregressive` or `speculative`
    seconds: float = 0.0  # seconds of decoding
    waited: float = 0.0  # seconds, of all threads together, without a free core; 0 if the system does not count them
    runs: int = 1  # number of runs; this is the one of median time
    samples: list[Sample] = field(default_factory=list)  # one for each prompt

    def add(self, step: TextStep) -> None:
        """Add a step of a text."""
        self.seconds += step.seconds
        while step.text_index >= len(self.samples):
            self.samples.append(Sample())
        self.samples[step.text_index].add(step)

    @property
    def steps(self) -> list[TextStep]:
        return [step for sample in self.samples for step in sample.iterations]

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each text."""
        return [sample.tokens for sample in self.samples]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))


# ---- The figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Sums over calls of the target, or of the model of a level, and their rates."""

    iterations: int  # number of calls
    tokens: int  # number of new tokens
    drafted: int  # number of drafts
    accepted: int  # number of accepted drafts
    accepted_share: float | None  # accepted / drafted
    mean_K: float  # drafted / iterations
    r: float  # tokens / (drafted + iterations), the acceptance rate
    tokens_per_iteration: float  # tokens / iterations


@dataclass(frozen=True)
class Level(Sums):
    """A level of a staged drafter."""

    name: str  # the drafter whose model was called


@dataclass(frozen=True)
class Counts(Sums):
    """The drafts of the speculative decode."""

    alpha: float | None  # α, the mean chance of acceptance of the tested drafts
    alpha_token: float | None  # the same by the paper's rule, if the rule changes its test
    tree: bool  # whether the drafts were trees; a position is then a depth
    usual_K: int  # the most frequent number of drafts
    tokens_per_iteration_histogram: dict[str, int]  # {tokens: iterations}
    tested_by_position: list[int]  # number of tested drafts at each position
    accepted_by_position: list[int]  # number of accepted drafts at each position
    by_source: dict[str, list[int]]  # {drafter: [accepted, tested]}
    levels: list[Level]  # `iterations` to `tokens_per_iteration` of each level, the outermost first


@dataclass(frozen=True)
class Seconds:
    """Seconds of the decodes, and the parts of the speculative one."""

    autoregressive: float | None  # the autoregressive decode, if it has run
    speculative: float  # the speculative decode
    drafting: float  # seconds of it in drafters
    scoring: float  # seconds of it in the target
    rest: float  # seconds of it elsewhere
    prefill: float  # seconds of it for reading the prompt


@dataclass(frozen=True)
class Times:
    """Times that one decoder alone tells."""

    seconds: Seconds  # seconds of the decodes and of their parts
    runs: int  # number of runs of each decoder
    waited: float  # seconds without a free core, of both decoders
    t_draft: float | None  # seconds of a draft token


@dataclass(frozen=True)
class Comparison:
    """The speculative decode beside the autoregressive one."""

    speedup: float  # autoregressive time per token / speculative time per token
    speedup_without_prefill: float  # the same without reading the prompt
    doubt: str | None = None  # why the speedup cannot be right


@dataclass(frozen=True)
class Account:
    """The reasons for the speedup: the costs of calls, relative to one row of the target, and the formulas."""

    t_target: float  # seconds of one row of the target, loop included; none if each call read the prompt
    c: float  # t_draft / t_target
    beta: dict[str, float]  # {rows: time of a call with so many rows / time of one row}
    mean_beta: float  # the mean of β over the run's windows
    blog_speedup: float  # the blog's formula, without β
    account_blog: float  # the blog's formula with β
    account_leviathan: float | None  # Leviathan's formula with β; not for trees and blocks
    occupancy: float = 1.0  # in a batch, a factor of both: texts in a call / those without drafts


@dataclass(frozen=True)
class Predictions:
    """The speedups to expect of other settings on this text."""

    predicted: dict[str, dict[str, float]]  # {drafter: {K: speedup}}, never above K + 1; K may be `auto`
    window_beta: dict[str, float]  # {K: β}, measured or interpolated


@dataclass(frozen=True)
class Figures(Times, Counts):
    """The figures of a run that has drafted. Equal calls are averaged; a call longer than three medians was interrupted
    and does not count. In the JSON all parts are one object, with null in the places of those that are None."""

    comparison: Comparison | None = None  # None if one decoder alone has run
    account: Account | None = None  # the same, and if every call also read the prompt
    predictions: Predictions | None = None
    withheld: str | None = None  # why there are no predictions: threads had no core, or equal calls took unequal times

    @property
    def doubt(self) -> str | None:
        """Why the speedup cannot be right."""
        return self.comparison.doubt if self.comparison else None

    @property
    def rate(self) -> float:
        """Tokens a second of the speculative decode."""
        return self.tokens / self.seconds.speculative


# ---- The run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackSaves:
    """The seconds that --pack would save."""

    seconds: float  # seconds of reading
    n_bytes: int  # bytes on the disk


@dataclass(frozen=True)
class RunRecord:
    """A run."""

    options: Options  # every option and its value, without an address's password
    machine: Machine  # the machine, and the engine on it
    models: list[Model]  # the networks, the target first
    roles: list[str]  # the parts of the drafter, the outermost level first: roles of networks, or names of drafters
    rule: RuleUsed  # the rule of acceptance
    timed: bool  # whether measured times chose some K
    fast: str | None  # the drafter that --fast stands for here, if there is a draft model
    prompts: list[Prompt]  # `text` and `tokens` of each prompt
    autoregressive: DecoderRecord | None  # the autoregressive decode, except with --only speculative
    speculative: DecoderRecord | None  # the speculative decode
    figures: Figures | None  # the figures of the speculative decode
    difference: Difference | None  # the first difference of two greedy texts: its `text`, and whether it `is_defect`
    blog_text: int | None  # in the blog's run: the number of the first token that is not the blog's, or 0
    vocabulary: dict[int, str]  # {token: its text} of prompts and `details`; parts of a character are `\xNN`
    packable: PackSaves | None = None  # the seconds that --pack would save, unless they are few

    @property
    def decoders(self) -> dict[str, DecoderRecord]:
        """{name: decoder} of those that have run, in their order."""
        both = {"autoregressive": self.autoregressive, "speculative": self.speculative}
        return {name: decoder for name, decoder in both.items() if decoder}

    @property
    def comparison(self) -> Comparison | None:
        return self.figures.comparison if self.figures else None

    @property
    def texts_differ(self) -> bool:
        return len({str(decoder.tokens) for decoder in self.decoders.values()}) > 1

    @property
    def target(self) -> Model:
        return self.models[0]


# ---- The score of a text ---------------------------------------------------------------------------------------------

# The fields are the keys of --json. A line of --json FILE.jsonl names its numbers by role, as log_prob_target.


@dataclass(frozen=True)
class ScoredModel:
    """The scores that a model gives to a text."""

    role: str  # `target`, `draft`, the weight format of a copy of the target, or `ngram`
    size: str  # its name
    dtype: str  # its weight format
    drafter: str | None  # its name for --drafter
    nats: float | None  # the mean of -log p, in nats a token; none if a token has probability 0
    perplexity: float | None  # e to the power of `nats`
    alpha: float | None  # α, the mean of `chances`; not for the target
    c: float | None  # seconds of its token / of the target's
    log_probs: list[float | None]  # log p of each token after the first; `null` if p is 0
    likeliest: list[int]  # the model's own likeliest token at each of these places
    chances: list[float]  # chances of acceptance of its draft there; empty for the target


@dataclass(frozen=True)
class Expected:
    """A drafter with a K on the text."""

    tokens_a_call: float  # tokens of a call of the target
    leviathan_tokens: float | None  # the same by Leviathan's formula; not for look-ups and K `auto`
    speedup: float | None  # over autoregressive decoding, without reading a prompt


@dataclass(frozen=True)
class ScoreRecord:
    """A text and its score."""

    options: Options  # this, the machine and the rule have the keys of a run: docs/output.md
    machine: Machine
    rule: RuleUsed  # the rule of acceptance
    networks: list[Model]  # those that have read the text, as `models` of a run
    n_ctx: int  # tokens of the context
    tokens: list[int]  # the ids of the text's tokens
    pieces: list[str]  # the text of each token
    models: list[ScoredModel]  # the target first, then the model that drafts for it
    beta: dict[str, float]  # {K: β}; empty if withheld
    expected: dict[str, dict[str, Expected]]  # {drafter: {K: what it should bring}}; K may be `auto`
    withheld: str | None  # why there are no speedups
    names: dict[int, str]  # {token: its text} for `likeliest`, as in `vocabulary` of a run

    @property
    def target(self) -> ScoredModel:
        return self.models[0]

    @property
    def draft(self) -> ScoredModel | None:
        """The model that drafts for the target; None if the drafter is not a model."""
        return self.models[1] if len(self.models) > 1 else None
