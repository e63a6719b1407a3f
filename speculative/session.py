"""A session: models loaded once, texts in and texts out. main.py, the terminal, the browser, Python and the benchmarks
decode through it."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

import numpy as np
from tqdm import tqdm

from speculative import drafters
from speculative.blog.encoder import StreamDecoder
from speculative.engines import devices
from speculative.filters import Filters
from speculative.loading import Models, networks_of
from speculative.lookahead import AutoK
from speculative.measure.document import DECODERS, document
from speculative.measure.figures import figures
from speculative.measure.predictions import measure
from speculative.measure.recorder import Draws, Iteration, Recorder
from speculative.measure.report import stand_ins, summary
from speculative.measure.run import Run
from speculative.options import ModelOptions, as_typed, make_options, whole
from speculative.options import text as check_text
from speculative.rules import parse_rule
from speculative.sampling import Step, autoregressive_sampling, speculative_sampling
from speculative.support.errors import UserError
from speculative.trees import n_nodes, tree_speculative_sampling

N_COST_TOKENS = 8  # tokens at the end of a prompt: costs are measured with them as the text
SHORT_SECONDS = 0.5  # a shorter decode is repeated, as its time is noisy

P = ParamSpec("P")


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Errors name an option as Python does: K, not --K."""
    try:
        yield
    except UserError as error:
        said = re.sub(r"(python -m [^,;:]*)|--([A-Za-z_]+)", lambda found: found[1] or found[2], str(error))
        raise UserError(said) from None


def takes(options: Callable[P, Any]) -> Callable[[Callable[..., "Session"]], Callable[P, "Session"]]:
    """The decorated function takes the fields of this dataclass: help() and type checkers see each with its type."""

    def decorate(function):
        function.__signature__ = inspect.signature(options).replace(return_annotation=Session)
        return function

    return decorate


class Session:
    """Two decoders over the same models, and how they decode.

    A decode is a generator, with random numbers of its own, made from the seed. Several may be under way, in one
    thread or in many.
    """

    def __init__(
        self, options: ModelOptions, models: Models | None = None, prompts: Sequence[str] = (), quiet: bool = False
    ):
        """models: those that are loaded already. prompts: if they are known, one that does not fit is refused before
        the weights are read. quiet: print nothing about the loading. Raises UserError."""
        o = devices.with_engine(options)
        self.options = o
        self.models = models or Models(o, quiet)
        self.rule = parse_rule(o.accept)
        self.filters = Filters(o.temperature, o.top_k, o.top_p, o.min_p)
        self.roles = ["target", *drafters.roles_of(o.drafter)]
        self.lookaheads = self.choose_lookaheads()
        devices.check(o, self.rule)
        specs = [self.models.spec(role) for role in networks_of(self.roles)]
        self.encoder = specs[0].encoder
        self.context = min(specs, key=lambda spec: spec.hparams["n_ctx"])  # the model with the smallest context
        longest = max([len(self.input_ids(prompt, o.n_tokens_to_generate)) for prompt in prompts], default=1)
        n_cached = o.batch // o.data_parallel * (longest + o.n_tokens_to_generate) if o.batch > 1 else None
        self.models.check(self.roles, n_cached)
        self.models.n_prompt = longest
        self.device_loop = None
        for role in reversed(self.roles):  # the small parts of a drafter first
            self.models[role]
        if devices.one_loop(o):
            self.device_loop = devices.loop_of(self)
        else:
            self.drafter(np.random.default_rng(0))  # raises UserError if it cannot draft with these options

    def changed(self, **options) -> "Session":
        """The same models, with other options; None stands for the default. Raises UserError."""
        if "drafter" in options:
            options["drafter"] = drafters.name_of(options["drafter"])
        kind = type(self.options)
        with in_python() if kind is ModelOptions else contextlib.nullcontext():
            return Session(make_options(kind, options, base=self.options), self.models, quiet=True)

    def __repr__(self) -> str:
        o = self.options
        names = ", ".join(f"{spec.role} {spec.size} {spec.dtype}" for spec in self.models.specs.values())
        return f"Session({names}, drafter {o.drafter}, K={o.K}, temperature={o.temperature:g})"

    # ---- Token ids ---------------------------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """The number of tokens that fit into the context of every model."""
        return self.context.hparams["n_ctx"]

    @property
    def timed(self) -> bool:
        """True if a K is chosen by measured times, so that the seed alone does not decide the text."""
        return any(isinstance(K, AutoK) for K in self.lookaheads)

    @property
    def draft_filters(self) -> Filters:
        """From the draft's logits to p."""
        o = self.options
        temperature = o.temperature if o.draft_temperature is None else o.draft_temperature
        if o.tree and o.temperature == 0 and temperature == 0:
            temperature = 1.0  # at 0 only one token has a probability, and a tree needs several, the likeliest first
        return self.filters._replace(temperature=temperature)

    def model(self, role: str) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        model = self.models[role]
        if not hasattr(model, "with_probs"):
            return model
        return model.with_probs(self.filters if role == "target" else self.draft_filters)

    def choose_lookaheads(self) -> list:
        """For each level of the drafter, from the outermost in, a K or an AutoK. A level without a number chooses."""
        levels = drafters.parse_drafter(self.options.drafter)
        K = self.options.K
        Ks = K if isinstance(K, tuple) else (K,)
        if len(Ks) > len(levels):
            text = f"--K {as_typed('K', Ks)} is for {len(Ks)} levels"
            raise UserError(f"{text}, and --drafter {self.options.drafter} has {len(levels)}")
        Ks += ("auto",) * (len(levels) - len(Ks))
        return [AutoK(expected=specs[0].expected) if k == "auto" else k for k, specs in zip(Ks, levels, strict=True)]

    def drafter(self, rng: np.random.Generator, depth: int = 0) -> drafters.Drafter:
        """The drafter, or its levels from this depth on. It draws from this generator, the decoder's own."""
        o = self.options
        models = {role: self.model(role) for role in self.roles}
        context = drafters.Context(self.encoder.n_vocab, rng, self.draft_filters, o.temperature == 0, models)
        text = "/".join(o.drafter.split("/")[depth:])
        inner = tuple(around(K) for K in self.lookaheads[depth + 1 :])
        return drafters.make_drafter(text, context, inner, self.rule, trees=o.tree is not None)

    def autoregressive_steps(self, x, N: int, rng) -> Iterator[Step]:
        """N tokens, one for each call of the target."""
        if self.device_loop:
            return self.device_loop.steps(x, N, 0, rng)
        return autoregressive_sampling(x, self.model("target"), N, rng)

    def speculative_steps(self, x, N: int, rng) -> Iterator[Step]:
        """N tokens, up to K + 1 for each call of the target."""
        o = self.options
        if self.device_loop:
            return self.device_loop.steps(x, N, self.device_loop.window(N), rng)
        drafter = self.drafter(rng)
        target = self.model("target")
        if o.tree:
            return tree_speculative_sampling(x, drafter.tree, target.tree, N, o.tree, rng, self.rule.tree)
        K, with_K = around(self.lookaheads[0])
        return speculative_sampling(x, with_K(drafter.chain, target), target, N, K, rng, self.rule.accept)

    def ready(self, prompts: Sequence[str], N: int, timed: bool = True) -> None:
        """Do what the clock must not count: measure the costs that an AutoK goes by, compile on JAX. timed: whether the
        device is to time the parts of its loop."""
        inputs = [self.input_ids(prompt, N) for prompt in prompts]
        if self.device_loop:
            return self.device_loop.ready(inputs, N, self.options.batch, timed)
        if self.timed:
            self.measure_costs(np.asarray(inputs[0])[-N_COST_TOKENS:])
        self.forget()

    def measure_costs(self, x) -> None:  # [n]
        """Innermost level first: the cost of a draft token on one level depends on the K of the level below."""
        levels = drafters.parse_drafter(self.options.drafter)
        roles = ["target", *(specs[0].roles[0] for specs in levels[:-1])]
        for depth in reversed(range(len(levels))):
            if isinstance(self.lookaheads[depth], AutoK):
                draft = self.drafter(np.random.default_rng(0), depth).chain
                self.lookaheads[depth].measure(self.model(roles[depth]), draft, x, self.n_ctx)

    def forget(self) -> None:
        """Empty all caches, so that two decodes begin alike."""
        for role in networks_of(self.roles):
            self.models[role].forget()

    # ---- Texts -------------------------------------------------------------------------------------------------------

    def encode(self, prompt: str) -> list[int]:
        """The prompt's ids; an empty one begins with <|endoftext|>. Raises UserError if it is not a text."""
        try:
            check_text(prompt)
        except ValueError as must_be:
            raise UserError(f"the prompt must be {must_be}, not {prompt!r:.80}") from None
        return self.encoder.encode(prompt, self.options.special) or [self.encoder.eot]

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Raises UserError if the prompt and N more tokens do not fit into the context."""
        x = self.encode(prompt)
        tree = self.options.tree
        extra = n_nodes(tree) if tree else 0
        whose = "" if self.context.role == "target" else f" that {self.context} has"
        if tree and len(tree) >= N:
            raise UserError(f"a tree of depth {len(tree)} needs --n_tokens_to_generate of at least {len(tree) + 1}")
        if len(x) + N + extra > self.n_ctx:
            raise UserError(
                f"the prompt's {len(x)} tokens and {N + extra} more exceed the context of {self.n_ctx} tokens{whose}: "
                "shorten the prompt or lower --n_tokens_to_generate"
            )
        return x

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[Iteration]:
        """A token for each call of the target. sample: 0 for the blog's random numbers, 1, 2, ... for others. Raises
        UserError."""
        return self.texts("autoregressive", [prompt], n_tokens_to_generate, sample=sample)

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[Iteration]:
        """Up to K + 1 tokens for each call of the target; the same text at temperature 0. Otherwise as above."""
        self.ready([prompt], check_count("n_tokens_to_generate", n_tokens_to_generate, 1))
        return self.texts("speculative", [prompt], n_tokens_to_generate, sample=sample)

    def texts(
        self,
        name: str,
        prompts: Sequence[str],
        N: int,
        n_samples: int = 1,
        sample: int = 0,
        recorder: Recorder | None = None,
    ) -> Iterator[Iteration]:
        """The steps of the decoder `name` ("autoregressive" or "speculative") as text, one text after the other, or as
        many together as --batch says.

        n_samples: the number of texts of each prompt. sample: the first text's number, which with the seed decides its
        random numbers. recorder: notes what happens. Raises UserError at the call, not at the first step.
        """
        N = check_count("n_tokens_to_generate", N, 1)
        sample = check_count("sample", sample, 0)
        inputs = [self.input_ids(prompt, N) for prompt in prompts]
        recorder = recorder or self.recorder(details=False, fresh=False)
        if self.options.batch > 1:
            return self.texts_together(name, inputs, N, recorder)
        return self.texts_in_turn(name, inputs, N, n_samples, sample, recorder)

    def texts_in_turn(self, name, inputs, N, n_samples, sample, recorder) -> Iterator[Iteration]:
        o = self.options
        decode = self.autoregressive_steps if name == "autoregressive" else self.speculative_steps
        for number in range(n_samples * len(inputs)):
            x = inputs[number % len(inputs)]
            seed = [o.seed, sample + number] if sample + number else o.seed  # number 0 has the blog's own seed
            text = StreamDecoder(self.encoder, o.stop)
            rng = Draws(np.random.default_rng(seed))
            steps = ([step] for step in decode(x, N, rng))
            yield from recorder.watch(steps, [text], rng, self.device_loop)

    def texts_together(self, name, inputs, N, recorder) -> Iterator[Iteration]:
        """The steps of prompts that are decoded together, on JAX: a call of the target gives steps of several texts."""
        o = self.options
        texts = [StreamDecoder(self.encoder, o.stop) for _ in inputs]
        K = 0 if name == "autoregressive" else self.device_loop.window(N)
        rng = Draws(np.random.default_rng(o.seed))
        calls = self.device_loop.rows(inputs, N, K, rng, o.batch, lambda number: texts[number].stopped)
        return recorder.watch(calls, texts, rng, self.device_loop)

    # ---- Runs --------------------------------------------------------------------------------------------------------

    def recorder(self, details: bool = True, fresh: bool = True) -> Recorder:
        """Return a recorder for one decode. fresh: empty the caches first, so that both decoders begin alike."""
        if fresh:
            self.forget()
        models = {role: self.models[role] for role in self.roles}
        logs = {role: model.log for role, model in models.items() if hasattr(model, "log") and not self.device_loop}
        levels = drafters.parse_drafter(self.options.drafter)[:-1]
        return Recorder(self.rule, logs, [specs[0].name for specs in levels], details)

    def record(
        self, name: str, prompts: Sequence[str], N: int, n_samples: int, details: bool, watch: Callable | None = None
    ) -> Recorder:
        """Decode once -> the record. watch(name, step, recorder): called for each step."""
        recorder = self.recorder(details)
        for step in self.texts(name, prompts, N, n_samples, recorder=recorder):
            if watch:
                watch(name, step, recorder)
        return recorder

    def median_runs(
        self,
        prompts: Sequence[str],
        N: int,
        first: dict[str, Recorder],
        n_samples: int = 1,
        names: Sequence[str] = DECODERS,
        repeats: int | None = None,
    ) -> dict[str, Recorder]:
        """Repeat a short decode, with both decoders in turn, until they have taken SHORT_SECONDS each, on average ->
        {decoder: its median run}. A long one is not repeated, and first is returned: a single short time is noise.

        first: the runs so far, one for each decoder that has run. repeats: the number of runs, in place of the time.
        """
        [begun, *_] = first.values()
        if not repeats and (begun.seconds >= SHORT_SECONDS or devices.several_processes()):
            return first
        runs = {name: [first[name]] if name in first else [] for name in names}
        while True:
            name = min(names, key=lambda name: len(runs[name]))
            seconds = sum(run.seconds for of_name in runs.values() for run in of_name)
            enough = len(runs[name]) >= repeats if repeats else seconds >= SHORT_SECONDS * len(names)
            if enough and len({len(of_name) for of_name in runs.values()}) == 1:
                return {name: median_run(of_name) for name, of_name in runs.items()}
            runs[name].append(self.record(name, prompts, N, n_samples, begun.details))

    def compare(
        self,
        prompt: str,
        n_tokens_to_generate: int = 40,
        repeats: int | None = None,
        watch: Callable | None = None,
    ) -> Run:
        """Decode with both decoders -> the run. repeats: how often; by default a short decode is repeated until it has
        taken half a second, and the median counts. watch(name, step, recorder): called for each step of the first run,
        in place of a bar."""
        N = check_count("n_tokens_to_generate", n_tokens_to_generate, 1)
        repeats = repeats and check_count("repeats", repeats, 1)
        self.ready([prompt], N)
        with tqdm(total=2 * N, unit="token", leave=False, disable=bool(watch) or None) as bar:
            follow = watch or (lambda name, step, recorder: bar.update(len(step.tokens)))
            first = {name: self.record(name, [prompt], N, 1, True, follow) for name in DECODERS}
        runs = self.median_runs([prompt], N, first, repeats=repeats)
        return Run(self.document([prompt], [*runs.values()], prompt=prompt, n_tokens_to_generate=N))

    def document(self, prompts: Sequence[str], recorders: Sequence[Recorder], **options) -> dict:
        """Return a whole run, ready for JSON. options: those in which it differs from the session's."""
        inputs = [self.encode(prompt) for prompt in prompts]
        found = figures(*recorders, measure(self, inputs, recorders[1]))
        replaced = stand_ins(self)
        results = {
            "figures": found,
            "stand_ins": replaced,
            "summary": summary(self, inputs, recorders, found, replaced),
        }
        return document(vars(self.options) | options, self.encoder, prompts, inputs, recorders, **results)


@takes(ModelOptions)
def load_pair(*sizes: Any, **options: Any) -> Session:
    """Load a target and what its drafter needs. Official models that are missing are downloaded.

    The first arguments are the draft's and the target's model size; all options are main.py's, with its defaults.
    drafter may also be a function draft(x, k) -> (tokens, p). Raises UserError, whose message is one line.
    """
    with in_python():
        names = ("draft_model_size", "target_model_size", "models_dir")
        given = {name: value for name, value in zip(names, sizes, strict=False) if value is not None} | options
        if "prompt" in given:
            raise UserError("load_pair takes no prompt: give it to session.compare or session.speculative")
        if "drafter" in given:
            given["drafter"] = drafters.name_of(given["drafter"])
        return Session(make_options(ModelOptions, given))


def around(K: int | AutoK) -> tuple[int, Callable]:
    """Return (the largest K, a function that makes the drafter choose its K if that is automatic)."""
    return (K.K_max, K.around) if isinstance(K, AutoK) else (K, lambda draft, model: draft)


def check_count(name: str, value: Any, least: int) -> int:
    """Raises UserError."""
    try:
        return whole(least)(value)
    except ValueError as must_be:
        raise UserError(f"{name} must be {must_be}, not {value!r:.80}") from None


def median_run(recorders: Sequence[Recorder]) -> Recorder:
    """Return the run of median time, of those with the first one's tokens (with --K auto, tokens depend on times)."""
    runs = sorted([one for one in recorders if one.tokens == recorders[0].tokens], key=lambda one: one.seconds)
    median = runs[(len(runs) - 1) // 2]
    median.runs = len(runs)
    return median
