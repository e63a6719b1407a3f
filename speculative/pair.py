"""A target and what drafts for it, loaded once and asked often: the way in from Python, and what main.py runs on."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from encoder import StreamDecoder
from plumbing import arguments
from plumbing.errors import UserError
from speculative.cli import display, interactive, outcome, packing, prompts, serve
from speculative.cli.checks import check_fits
from speculative.cli.flags import all_flags, choose_options, parse_one
from speculative.cli.load import encode, load
from speculative.measure.document import document
from speculative.measure.recorder import Recorder, origins
from speculative.measure.run import Run
from speculative.stop import until_stop

# The flags that are for the command line alone. load_pair takes every other one.
OF_MAIN = {flag.name for room in (prompts, display, interactive, serve, packing) for flag in room.FLAGS}
OF_MAIN -= {"demo", "stop"}
OF_MAIN |= {"prompt", "n_tokens_to_generate", "batch"}


class TextStep(NamedTuple):
    """What one call of the target gave. Where the text ends in part of a character, a last step has that text alone."""

    text: str
    tokens: list[int]
    drafted: int  # how many tokens were proposed,
    accepted: int  # and how many of those accepted
    origins: list[str]  # of each token: see measure.recorder.origins
    pieces: list[str]  # the text of each token


def load_pair(
    draft_model_size: str = "124M",
    target_model_size: str = "1558M",
    models_dir: str = "models",
    K: int | str | tuple = 4,
    temperature: float = 0.0,
    seed: int = 123,
    **more_flags,
) -> "TextPair":
    """Loads the target and what the drafter needs -> a pair that takes and gives texts. Official models that are
    missing are downloaded.

    The arguments are main.py's flags about models and decoding, with its defaults and its checks. Raises UserError,
    whose message is one line.
    """
    given = {name: value for name, value in locals().items() if name != "more_flags"} | more_flags
    for name in OF_MAIN.intersection(given):
        raise UserError(f"--{name} is for the command line: here it is the pair that is asked for texts")
    parse = partial(choose_options, load_pair, **given)
    return TextPair(parse(), parse)


class TextPair:
    """A decoding.Pair that takes and gives texts. Each decode has a generator of its own, made from the seed."""

    def __init__(self, o: Any, parse: Callable, prompts: Sequence[str] = (), kept: dict | None = None):
        """o: the options. parse(**flags): the options where these flags are given, too. prompts, kept: see cli.load."""
        self.o = o
        self.parse = parse
        self.kept = {} if kept is None else kept  # what was loaded, for all pairs that come of it by changed()
        self.loaded = load(o, prompts, self.kept)

    def changed(self, /, **flags) -> "TextPair":
        """The same models, decoding with these flags; None stands for the default. Raises UserError."""
        for name, flag in all_flags().items():
            if name in flags and not flag.live:
                raise UserError(f"--{name} cannot change while models are loaded: start again with it")
        parse = partial(self.parse, **flags)
        return TextPair(parse(), parse, (), self.kept)

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, **how) -> Iterator[TextStep]:
        """A token for each call of the target. sample=1, 2, …: other random numbers. Raises UserError."""
        return self.steps(self.loaded.autoregressive, prompt, n_tokens_to_generate, **how)

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, **how) -> Iterator[TextStep]:
        """Up to K + 1 tokens for each call of the target; the same text at temperature 0. Raises UserError."""
        return self.steps(self.loaded.speculative, prompt, n_tokens_to_generate, **how)

    def steps(self, decode_fn: Callable, prompt: str, N: int, sample=0, recorder=None) -> Iterator[TextStep]:
        N = tokens_asked_for(N)
        sample = sample_number(sample)
        recorder = recorder or Recorder(self.loaded.accept)
        seed = [self.o.seed, sample] if sample else self.o.seed  # the first sample is the blog's
        rng = np.random.default_rng(seed)
        steps = decode_fn(self.input_ids(prompt, N), N, rng, recorder)
        decoder = StreamDecoder(self.loaded.encoder, self.o.stop)
        for step in recorder.watch(until_stop(steps, self.loaded.encoder, self.o.stop)):
            pieces = [decoder.push([token]) for token in step.tokens]
            yield TextStep("".join(pieces), *recorder.now.step, origins(recorder.now), pieces)
        rest = decoder.flush()
        if rest:
            yield TextStep(rest, [], 0, 0, [], [])

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Raises UserError where the prompt is no text, or does not fit into the context with N tokens more."""
        if not isinstance(prompt, str):
            raise UserError(f"the prompt must be a text, not {prompt!r:.80}")
        x = encode(self.loaded.encoder, prompt)
        check_fits(self.loaded, self.o.tree, len(x), tokens_asked_for(N))
        return x

    def compare(self, prompt: str, n_tokens_to_generate: int = 40, watch: Callable | None = None) -> Run:
        """Decodes with both -> what happened. watch(name, step, recorder): called for each step, in place of a bar."""
        n_tokens_to_generate = tokens_asked_for(n_tokens_to_generate)
        x = self.input_ids(prompt, n_tokens_to_generate)
        self.loaded.ready([x], n_tokens_to_generate, stop=self.o.stop)
        recorders = []
        with tqdm(total=2 * n_tokens_to_generate, unit="token", leave=False, disable=bool(watch) or None) as bar:
            for name in ("autoregressive", "speculative"):
                self.loaded.forget()  # both decoders start with an empty cache
                recorders.append(Recorder(self.loaded.accept, details=True))
                for step in getattr(self, name)(prompt, n_tokens_to_generate, recorder=recorders[-1]):
                    bar.update(len(step.tokens))
                    if watch:
                        watch(name, step, recorders[-1])
        o = self.o._replace(prompt=prompt, n_tokens_to_generate=n_tokens_to_generate)
        instead = outcome.stand_ins(o, self.loaded)
        return Run(document(o._asdict(), self.loaded.encoder, [prompt], [x], *recorders, instead))


def tokens_asked_for(N: Any) -> int:
    """Raises UserError."""
    return parse_one(all_flags()["n_tokens_to_generate"], N)


def sample_number(value: Any) -> int:
    """Raises UserError for what seeds no generator."""
    try:
        return arguments.integer(0)(str(value))
    except ValueError as must_be:
        raise UserError(f"sample must be {must_be}, not {str(value)!r:.80}") from None
