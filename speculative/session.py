"""A session: models loaded once, texts in and texts out.

main.py, --interactive, the browser, Python and the benchmarks decode through it, and it stands on none of them:

    session = load_pair("124M", "1558M", K=4)
    for step in session.speculative("Alan Turing theorized", 40):
        print(step.text, end="")
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from speculative import checks, drafters, loading
from speculative.blog.encoder import StreamDecoder
from speculative.measure.document import document
from speculative.measure.record import Iteration, origins
from speculative.measure.recorder import Recorder
from speculative.measure.run import Run
from speculative.measure.verdict import verdict
from speculative.options import N_TOKENS, check_live, model_flags, parse_options
from speculative.support import arguments
from speculative.support.errors import UserError
from speculative.support.options import Options, parse_one

# Held while a step is computed: all models of a process share the threads of the forward pass. A step may ask for
# another, where the drafter is a function that decodes with a session itself.
DECODING = threading.RLock()

SETTLED = 0.5  # seconds of decoding, after which the time of the middle decode can be trusted


class TextStep(NamedTuple):
    """One call of the target, as text. Where a text ends in part of a character, a last step has that text alone."""

    text: str
    tokens: list[int]
    drafted: int  # number of tokens that were proposed,
    accepted: int  # and of those that were accepted
    origins: list[str]  # of each token: see measure.record.origins
    pieces: list[str]  # the text of each token
    number: int = 0  # the number of the text it belongs to, where there are several


def load_pair(
    draft_model_size: str | None = None, target_model_size: str | None = None, models_dir: str | None = None, **flags
) -> "Session":
    """Loads the target and what the drafter needs. Official models that are missing are downloaded.

    The arguments are main.py's flags about models and decoding, with its defaults (for None) and its checks; drafter
    may also be a function draft(x, k) -> (tokens, p). Raises UserError, whose message is one line.
    """
    names = {"draft_model_size": draft_model_size, "target_model_size": target_model_size, "models_dir": models_dir}
    given = with_drafter(names | flags)
    parse = partial(parse_options, model_flags())
    return Session(parse(given), given, parse)


class Session:
    """Two decoders over the same models, and how they decode.

    A decode is a generator, and each has random numbers of its own, made from the seed. Several may be under way, in
    one thread or in many: each keeps its text, and one step is computed at a time.
    """

    def __init__(
        self,
        options: Options,
        given: dict[str, Any],
        parse: Callable[..., Options],
        prompts: Sequence[str] = (),
        kept: loading.Kept | None = None,
        quiet: bool = False,
        verify: bool = False,
    ):
        """given: the flags that were given, and parse(given, **changed) the options of them: kept for changed().

        prompts: those that are going to be decoded, if they are known: where one does not fit, it is refused before the
        weights are read. kept: the models that are loaded already. quiet: nothing is said of the loading. verify:
        whether --verify is going to decode. Raises UserError.
        """
        self.options = options
        self.given = given
        self.parse = parse
        self.kept = {} if kept is None else kept
        wanted = loading.choose(options, self.kept)
        self.encoder = wanted["target"].encoder
        self.context = loading.context(wanted)
        self.ids = {}  # {prompt: its token ids}, so that each is encoded once
        longest = max([len(self.encode(prompt)) for prompt in prompts], default=0)
        loading.check(options, wanted, self.kept, longest, verify)
        self.pair = loading.load(options, wanted, self.kept, longest, quiet)

    def changed(self, /, **flags) -> "Session":
        """The same models, decoding with these flags; None stands for the default. Raises UserError."""
        flags = with_drafter(flags)
        check_live(model_flags(), flags)
        return Session(self.parse(self.given, **flags), self.given | flags, self.parse, (), self.kept)

    def __repr__(self) -> str:
        o = self.options
        of_models = []
        for need in self.pair.models:
            one, _ = self.kept[need]
            of_models.append(f"{need} {one.model_size} {one.dtype}")
        return f"Session({', '.join(of_models)}, drafter {o.drafter}, K={o.K}, temperature={o.temperature:g})"

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """A token for each call of the target. sample: 0 for the blog's random numbers, 1, 2, ... for others. Raises
        UserError."""
        return self.texts(self.pair.autoregressive, [prompt], n_tokens_to_generate, sample=sample)

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """Up to K + 1 tokens for each call of the target; the same text at temperature 0. Otherwise as above."""
        return self.texts(self.pair.speculative, [prompt], n_tokens_to_generate, sample=sample)

    def texts(
        self,
        decode_fn: Callable,
        prompts: Sequence[str],
        N: int,
        n_samples: int = 1,
        sample: int = 0,
        recorder: Recorder | None = None,
    ) -> Iterator[TextStep]:
        """The steps of one decoder, as text: one text after the other, or as many together as --batch says.

        decode_fn: self.pair.autoregressive or self.pair.speculative. n_samples: the number of texts of each prompt.
        sample: the first text's number, which with the seed decides its random numbers. recorder: notes what happens.
        Raises UserError at the call, and not at the first step.
        """
        N = tokens_asked_for(N)
        sample = sample_number(sample)
        inputs = [self.input_ids(prompt, N) for prompt in prompts]
        recorder = recorder or Recorder(self.pair.accept)
        if self.options.batch > 1:
            return self.together(decode_fn, inputs, N, recorder)
        return self.one_by_one(decode_fn, inputs, N, n_samples, sample, recorder)

    def one_by_one(
        self, decode_fn: Callable, inputs: list, N: int, n_samples: int, sample: int, recorder: Recorder
    ) -> Iterator[TextStep]:
        o = self.options
        for number in range(n_samples * len(inputs)):
            x = inputs[number % len(inputs)]
            seed = o.seed
            if sample + number:  # number 0 has the seed itself, as the blog
                seed = [seed, sample + number]
            text = StreamDecoder(self.encoder, o.stop)
            steps = decode_fn(x, N, np.random.default_rng(seed), recorder)
            for _ in recorder.watch(steps, DECODING, text):
                yield text_step(recorder.now, number)
            yield from last_step(text, recorder.samples[-1], number)

    def together(self, decode_fn: Callable, inputs: list, N: int, recorder: Recorder) -> Iterator[TextStep]:
        """Prompts that are decoded together, on JAX: one call of the target gives a step of several texts."""
        o = self.options
        texts = [StreamDecoder(self.encoder, o.stop) for _ in inputs]
        calls = decode_fn(inputs, N, np.random.default_rng(o.seed), recorder, o.batch, o.stop)
        for rows in recorder.watch_batch(calls, texts, min(o.batch, len(inputs)), DECODING):
            for row in rows:
                yield text_step(recorder.samples[row.number][-1], row.number)
        for number, text in enumerate(texts):
            yield from last_step(text, recorder.samples[number], number)

    def encode(self, prompt: str) -> list[int]:
        """The prompt's ids; an empty one begins with <|endoftext|>. Raises UserError where it is no text."""
        if not isinstance(prompt, str):
            raise UserError(f"the prompt must be a text, not {prompt!r:.80}")
        if prompt not in self.ids:
            self.ids[prompt] = self.encoder.encode(prompt) or [self.encoder.eot]
        return self.ids[prompt]

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Raises UserError where the prompt and N tokens more do not fit into the context."""
        x = self.encode(prompt)
        checks.check_length(self.context, len(x), N)
        if self.options.tree is not None:
            checks.check_tree(self.options.drafter, self.options.tree, len(x), N, self.context)
        return x

    def ready(self, prompts: Sequence[str], N: int, timed: bool = True) -> None:
        """Prepares what the clock must not count. timed: whether the device is also to time the parts of its loop."""
        inputs = [self.input_ids(prompt, N) for prompt in prompts]
        with DECODING:
            self.pair.ready(inputs, N, batch=self.options.batch, timed=timed, stop=self.options.stop)

    def recorder(self, details: bool = True) -> Recorder:
        """A recorder for one decoder. The caches are emptied, so that both decoders begin alike."""
        with DECODING:
            self.pair.forget()
        return Recorder(self.pair.accept, details=details)

    def middle_decode(self, decode_fn: Callable, prompts: Sequence[str], recorder: Recorder) -> Recorder:
        """With --demo, whose decode is over before other work on the machine evens out: decodes the same again, until
        there are SETTLED seconds of it -> the Recorder of the decode that took the middle time."""
        o = self.options
        recorders = [recorder]
        seconds = recorder.seconds
        while o.demo and seconds < SETTLED:
            again = self.recorder(recorder.details)
            for _ in self.texts(decode_fn, prompts, o.n_tokens_to_generate, o.n_samples, recorder=again):
                pass
            seconds += again.seconds
            if again.tokens == recorder.tokens:  # by measured times a text may be another
                recorders.append(again)
        recorders.sort(key=attrgetter("seconds"))
        middle = recorders[(len(recorders) - 1) // 2]
        middle.decodes = len(recorders)
        return middle

    def compare(self, prompt: str, n_tokens_to_generate: int = 40, watch: Callable | None = None) -> Run:
        """Decodes with both -> the run. watch(name, step, recorder): called for each step, in place of a bar."""
        N = tokens_asked_for(n_tokens_to_generate)
        self.ready([prompt], N)
        recorders = []
        with tqdm(total=2 * N, unit="token", leave=False, disable=bool(watch) or None) as bar:
            for name, decode_fn in (
                ("autoregressive", self.pair.autoregressive),
                ("speculative", self.pair.speculative),
            ):
                recorders.append(self.recorder())
                for step in self.texts(decode_fn, [prompt], N, recorder=recorders[-1]):
                    bar.update(len(step.tokens))
                    if watch:
                        watch(name, step, recorders[-1])
        return Run(self.document([prompt], recorders, prompt=prompt, n_tokens_to_generate=N))

    def document(self, prompts: Sequence[str], recorders: Sequence[Recorder], **options) -> dict:
        """A whole run, ready for JSON. options: those in which it differs from the session's."""
        o = vars(self.options.replaced(**options))
        inputs = [self.encode(prompt) for prompt in prompts]
        instead = loading.stand_ins(self.options, self.pair)
        run = document(o, self.encoder, list(prompts), inputs, *recorders, instead)
        run["summary"] = verdict(run, self.options, self.pair, recorders)
        return run


def text_step(iteration: Iteration, number: int) -> TextStep:
    pieces = iteration.pieces
    return TextStep("".join(pieces), *iteration.step, origins(iteration), pieces, number)


def last_step(text: StreamDecoder, sample: list[Iteration], number: int) -> Iterator[TextStep]:
    """A step with the bytes of an unfinished character, if the text ends in one: they belong to its last token."""
    rest = text.flush()
    if rest:
        *before, last = sample[-1].pieces
        sample[-1].pieces = [*before, last + rest]
        yield TextStep(rest, [], 0, 0, [], [], number)


def with_drafter(flags: dict[str, Any]) -> dict[str, Any]:
    """The same flags, where the drafter may be a function."""
    if "drafter" in flags:
        return flags | {"drafter": drafters.name_of(flags["drafter"])}
    return flags


def tokens_asked_for(N: Any) -> int:
    """Raises UserError."""
    return parse_one(N_TOKENS, N)


def sample_number(value: Any) -> int:
    """Raises UserError for what seeds no generator."""
    try:
        return arguments.integer(0)(str(value))
    except ValueError as must_be:
        raise UserError(f"sample must be {must_be}, not {str(value)!r:.80}") from None
