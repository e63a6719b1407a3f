"""A session: models loaded once, texts in and texts out. main.py, the terminal, the browser, Python and the benchmarks
decode through it. The blog's create_model_fn is Session.model, and its seed is set in Session.texts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from speculative import drafters
from speculative.blog.encoder import StreamDecoder
from speculative.decoding import Report, text_steps
from speculative.drafters.user import as_drafter
from speculative.engines.choice import make_engine
from speculative.engines.model import join
from speculative.explain import RecordedRandom
from speculative.filters import Filters
from speculative.loading import Models, networks_of
from speculative.lookahead import AutoK
from speculative.options import ModelOptions, as_typed, checked, make_options, n_nodes, text, whole
from speculative.rules import as_rule, parse_rule
from speculative.sampling import autoregressive_sampling, speculative_sampling
from speculative.steps import TextStep
from speculative.support.errors import UserError
from speculative.support.progress import working
from speculative.support.terminal import one_line
from speculative.trees import in_the_loop

DECODERS = ("autoregressive", "speculative")
READ_FIRST = 40  # tokens; the target reads a prompt this long before its copies draft, so that it is read only once
N_COST_TOKENS = 8  # tokens at the end of a prompt: costs are measured with them as the text

MAKERS: dict[str, Callable] = {"drafter": as_drafter, "accept": as_rule}  # options that may be a user's function
NO_FUNCTIONS: dict[str, dict] = {"drafter": {}, "accept": {}}  # {option: {name: what its function was made into}}

AnyOptions = TypeVar("AnyOptions", bound=ModelOptions)


def models_of(o: ModelOptions, quiet: bool = False) -> Models:
    """Return the models of these options, not yet loaded. Raises UserError."""
    engine = make_engine(o.engine, o.threads, o.mesh, o.data_parallel, quiet)
    wanted = {"target": (o.target_model_size, o.dtype), "draft": (o.draft_model_size, o.draft_dtype)}
    return Models(engine, wanted, o.models_dir, o.source, o.ngram_text, quiet)


def name_functions(options: dict[str, Any], known: dict[str, dict]) -> tuple[dict[str, Any], dict[str, dict]]:
    """Put the names of functions in their place among the options, and add the functions to the known ones."""
    for option, make in MAKERS.items():
        if callable(options.get(option)):
            made = make(options[option])
            options = options | {option: made.name}
            known = known | {option: known[option] | {made.name: made}}
    return options, known


class Session(Generic[AnyOptions]):
    """Two decoders over the same models, and how they decode.

    A decode is a Python generator of steps, with a random generator made from the seed. Several may run at once, in one
    thread or in many.
    """

    def __init__(
        self,
        options: AnyOptions,
        models: Models | None = None,
        prompts: Sequence[str] = (),
        quiet: bool = False,
        functions: dict[str, dict] = NO_FUNCTIONS,
    ):
        """models: reuse these. prompts: checked against the context before the weights are loaded. quiet: print nothing
        about the loading. functions: those that only this session knows (name_functions). Raises UserError."""
        self.models = models or models_of(options, quiet)
        self.engine = self.models.engine
        if options.fast:  # short for these options
            accept = "block" if options.temperature > 0 else "token"
            options = replace(options, drafter=self.models.fast_drafter(), K="auto", tree=None, accept=accept)
        self.options = o = options
        self.functions = functions
        self.rule = parse_rule(o.accept, functions["accept"])
        if o.tree and not self.rule.accept_tree:
            raise UserError(f"--accept {o.accept} tests a chain, and --tree drafts a tree: leave one of them out")
        self.levels = drafters.parse_drafter(o.drafter, functions["drafter"], trees=bool(o.tree))
        self.roles = ["target", *drafters.roles_of(o.drafter)]  # of the models to load: see loading.ModelSpec
        self.lookaheads = self.choose_lookaheads()
        # If a K is chosen by measured times, the seed alone does not decide the text.
        self.timed = AutoK in map(type, self.lookaheads)
        self.engine.check(self.levels, o.K, o.batch, self.rule)
        self.filters = Filters(*(getattr(o, name) for name in Filters._fields))  # from the target's logits to q
        temperature = o.temperature if o.draft_temperature is None else o.draft_temperature
        if o.tree and o.temperature == 0 and temperature == 0:
            temperature = 1.0  # at 0 only one token has a probability, and a tree needs several, the likeliest first
        self.draft_filters = self.filters._replace(temperature=temperature)  # from the draft's logits to p

        specs = [self.models.spec(role) for role in networks_of(self.roles)]
        self.encoder = specs[0].encoder
        self.context = min(specs, key=lambda spec: spec.hparams["n_ctx"])  # the model with the smallest context
        self.n_ctx = self.context.hparams["n_ctx"]
        self.most_bytes = self.n_ctx * max(map(len, self.encoder.id_to_bytes.values()))  # of a prompt
        longest = max([len(self.input_ids(prompt, o.n_tokens_to_generate)) for prompt in {*prompts}], default=1)
        n_cached = o.batch // o.data_parallel * (longest + o.n_tokens_to_generate) if o.batch > 1 else None
        self.models.check(self.roles, n_cached)
        self.engine.prepare(self.models.load(self.roles), self.levels, o.K, longest)

        loaded = {role: self.models[role] for role in self.roles}
        self.logs = {role: model.log for role, model in loaded.items() if hasattr(model, "log")}
        parts = self.filters, self.draft_filters, self.rule
        compiled = self.engine.compiled_decoders(self.levels, o.K, o.batch, loaded, *parts)  # None except with JAX
        self.decoders = compiled or self  # something with calls() and ready()

    def changed(self, **options: Any) -> "Session[AnyOptions]":
        """The same models, with other options; None stands for the default. Raises UserError."""
        options, functions = name_functions(options, self.functions)
        o = make_options(type(self.options), options, base=self.options)
        return type(self)(o, self.models, quiet=True, functions=functions)

    def __repr__(self) -> str:
        o = self.options
        names = ", ".join(f"{spec.role} {spec.size} {spec.dtype}" for spec in self.models.specs.values())
        return one_line(f"Session({names}, drafter {o.drafter}, K={o.K}, temperature={o.temperature:g})")

    def model(self, role: str) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        model = self.models[role]
        if not hasattr(model, "with_probs"):
            return model
        return model.with_probs(self.filters if role == "target" else self.draft_filters)

    def choose_lookaheads(self) -> list:
        """For each level of the drafter, from the outermost in, its K. A level without a number chooses."""
        o = self.options
        Ks = o.K if isinstance(o.K, tuple) else (o.K,)
        n = len(self.levels)
        if len(Ks) > n:
            raise UserError(f"--K {as_typed('K', Ks)} is for {len(Ks)} levels, and --drafter {o.drafter} has {n}")
        Ks += ("auto",) * (n - len(Ks))
        scales = [[spec.scale for spec in specs] for specs in self.levels]
        return [AutoK(expected) if K == "auto" else drafters.FixedK(K) for K, expected in zip(Ks, scales, strict=True)]

    def drafter(self, rng: np.random.Generator, depth: int = 0, target: Any = None) -> drafters.Drafter:
        """The drafter, or its levels from this depth on. rng: the decoder's generator. target: the model of this
        decode, as heads read its last hidden row."""
        o = self.options
        models = {role: self.model(role) for role in self.roles}
        models["target"] = target or models["target"]
        join(models.values())
        context = drafters.Context(self.encoder.n_vocab, rng, self.draft_filters, o.temperature == 0, models)
        levels, inner = self.levels[depth:], self.lookaheads[depth + 1 :]
        return drafters.make_drafter(levels, context, inner, self.rule, trees=bool(o.tree))

    # ---- Both decoders as loops in Python; on a device, jax.loops.DeviceLoop has these methods -----------------------

    def calls(self, name: str, inputs: Sequence, N: int, rng, stopped: Callable) -> Iterator[list[tuple]]:
        """Yield [(number of the text, Step, None)] for each call of the target, up to N tokens of one prompt: see
        decoding.text_steps. stopped: unused, as text_steps asks for no step after the stop text."""
        [x] = inputs
        tree = self.options.tree
        target = self.model("target")
        if name == "autoregressive":
            return ([(0, step, None)] for step in autoregressive_sampling(x, target, N, rng))
        drafter = self.drafter(rng, target=target)
        if tree:
            draft, scored = in_the_loop(drafter.tree, target.score_tree, tree)
            steps = speculative_sampling(x, draft, scored, N, len(tree), rng, self.rule.accept_tree)
        else:
            K = self.lookaheads[0]
            draft = K.drafter_of(drafter.parts, target)
            if len(x) >= READ_FIRST and any(map(self.models.shares_cache, self.roles)):
                draft = drafters.after_first(draft)
            steps = speculative_sampling(x, draft, target, N, K.K_max, rng, self.rule.accept)
        return ([(0, step, None)] for step in steps)

    def ready(self, inputs: Sequence, N: int) -> None:
        """Prepare a decode before it is timed: measure costs if K chooses itself, and empty the caches. inputs: the
        tokens of each text's prompt."""
        if self.timed:
            self.measure_costs(np.asarray(inputs[0])[-N_COST_TOKENS:])
        self.forget()

    def steps(self, name: str, x, N: int, rng) -> Iterator:
        """The Steps of the decoder `name` for N tokens of one prompt, without their text."""
        return (step for [(_, step, _)] in self.decoders.calls(name, [x], N, rng, lambda text_index: False))

    def measure_costs(self, x) -> None:  # [n]
        """Time the drafts of each level, innermost first: a draft token's cost depends on the K of the level inside."""
        roles = ["target", *(specs[0].roles[0] for specs in self.levels[:-1])]
        unknown = [depth for depth, K in enumerate(self.lookaheads) if isinstance(K, AutoK) and not K.timed]
        with working("timing calls, from which K is chosen", len(unknown), "level", not unknown, delay=1) as bar:
            for depth in reversed(unknown):
                drafts = self.drafter(np.random.default_rng(0), depth).parts
                self.lookaheads[depth].measure(self.model(roles[depth]), drafts, x, self.n_ctx)
                bar.update(1)

    def forget(self) -> None:
        """Empty all caches, so that two decodes begin alike."""
        for role in networks_of(self.roles):
            self.models[role].forget()

    def encode(self, prompt: str) -> list[int]:
        """The prompt's ids; an empty one begins with <|endoftext|>. Raises UserError if it is not a text."""
        n_bytes = len(checked("the prompt", text, prompt).encode())
        if n_bytes > self.most_bytes:  # encoding more takes much memory
            raise UserError(
                f"the prompt's {n_bytes:,} bytes exceed the context of {self.n_ctx} tokens: shorten the prompt"
            )
        if not (ids := self.encoder.encode(prompt, self.options.special)) and self.encoder.eot < 0:
            raise UserError("the prompt has no tokens, and the model has no end token to begin with: give it a text")
        return ids or [self.encoder.eot]

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Return the prompt's ids. Raises UserError if they and N more tokens do not fit into the context."""
        x = self.encode(prompt)
        tree = self.options.tree or ()
        if len(tree) >= N:
            raise UserError(f"a tree of depth {len(tree)} needs --n_tokens_to_generate of at least {len(tree) + 1}")
        more = N + n_nodes(tree)
        if len(x) + more > self.n_ctx:
            whose = "" if self.context.role == "target" else f" that {self.context} has"
            raise UserError(
                f"the prompt's {len(x)} tokens and {more} more exceed the context of {self.n_ctx} tokens{whose}: "
                "shorten the prompt or lower --n_tokens_to_generate"
            )
        return x

    # ---- Texts -------------------------------------------------------------------------------------------------------

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """A token for each call of the target. sample: 0 for the blog's random numbers, 1, 2, ... for others. Raises
        UserError at the call, not at the first step."""
        return self.text("autoregressive", prompt, n_tokens_to_generate, sample)

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """Up to K + 1 tokens for each call of the target, with the arguments and errors of autoregressive; the same
        text at temperature 0."""
        return self.text("speculative", prompt, n_tokens_to_generate, sample)

    def text(self, name: str, prompt: str, N: int, sample: int) -> Iterator[TextStep]:
        """The steps of the decoder `name` for one prompt. Raises UserError."""
        N = checked("n_tokens_to_generate", whole(1), N)
        inputs = [self.input_ids(prompt, N)]
        steps = self.texts(name, inputs, N, checked("sample", whole(0), sample))
        if name == "speculative":
            self.decoders.ready(inputs, N)
        return steps

    def texts(
        self, name: str, inputs: Sequence, N: int, sample: int = 0, explain: Callable | None = None
    ) -> Iterator[TextStep]:
        """The steps of the decoder `name`, one of DECODERS, as text, one text after the other, or as many together as
        --batch says.

        inputs: the tokens of each text's prompt (input_ids). sample: the first text's number, which with the seed
        decides its random numbers. explain: see decoding.Report.
        """
        o = self.options
        outer = [specs[0].name for specs in self.levels[:-1]]
        groups = [inputs] if o.batch > 1 else [[x] for x in inputs]  # texts that one generator draws
        for number, group in enumerate(groups, start=sample):
            seed = [o.seed, number] if number else o.seed  # number 0 has the blog's own seed
            report = Report(self.rule, RecordedRandom(np.random.default_rng(seed)), self.logs, outer, explain)
            texts = [StreamDecoder(self.encoder, o.stop) for _ in group]
            calls = self.decoders.calls(name, group, N, report.draws, lambda index, texts=texts: texts[index].stopped)
            yield from text_steps(calls, texts, report, number - sample)
