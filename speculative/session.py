"""A session: models loaded once, texts in and texts out. main.py, the terminal, the browser, Python and the benchmarks
decode through it."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Generic, TypeVar

import numpy as np

from speculative import drafters
from speculative.blog.encoder import StreamDecoder
from speculative.engines import devices
from speculative.filters import Filters
from speculative.loading import Models, networks_of
from speculative.lookahead import AutoK
from speculative.options import ModelOptions, as_typed, make_options, whole
from speculative.options import text as check_text
from speculative.rules import parse_rule
from speculative.sampling import autoregressive_sampling, speculative_sampling
from speculative.support.errors import UserError
from speculative.texts import Draws, TextStep, as_texts
from speculative.trees import n_nodes, tree_speculative_sampling

DECODERS = ("autoregressive", "speculative")
N_COST_TOKENS = 8  # tokens at the end of a prompt: costs are measured with them as the text


AnyOptions = TypeVar("AnyOptions", bound=ModelOptions)


class Session(Generic[AnyOptions]):
    """Two decoders over the same models, and how they decode.

    A decode is a generator, with random numbers of its own, made from the seed. Several may be under way, in one
    thread or in many.
    """

    def __init__(
        self,
        options: AnyOptions,
        models: Models | None = None,
        prompts: Sequence[str] = (),
        quiet: bool = False,
        functions: drafters.Functions | None = None,
    ):
        """models: reuse these. prompts: checked against the context before the weights are loaded. quiet: print nothing
        about the loading. functions: drafters that only this session knows. Raises UserError."""
        self.models = models or Models(options, quiet)
        self.options = o = self.models.with_fast(options) if options.fast else options
        self.rule = parse_rule(o.accept)
        self.filters = Filters(o.temperature, o.top_k, o.top_p, o.min_p)
        self.functions = functions or {}
        self.levels = drafters.parse_drafter(o.drafter, self.functions)
        self.roles = ["target", *drafters.roles_of(o.drafter)]
        self.lookaheads = self.choose_lookaheads()
        devices.check(o, self.rule)
        specs = [self.models.spec(role) for role in networks_of(self.roles)]
        self.encoder = specs[0].encoder
        self.context = min(specs, key=lambda spec: spec.hparams["n_ctx"])  # the model with the smallest context
        self.encoded: dict[str, list[int]] = {}  # the prompts that are known before: each is encoded once
        self.encoded = {prompt: self.input_ids(prompt, o.n_tokens_to_generate) for prompt in prompts}
        longest = max(map(len, self.encoded.values()), default=1)
        n_cached = o.batch // o.data_parallel * (longest + o.n_tokens_to_generate) if o.batch > 1 else None
        self.models.check(self.roles, n_cached)
        self.models.load(self.roles, longest)
        self.device_loop = None
        if devices.one_loop(o):
            target, draft = (self.models[role] for role in self.roles)
            self.device_loop = devices.loop_of(
                o, target, draft, self.filters, self.draft_filters, self.rule, self.encoder.eot
            )
        else:
            self.drafter(np.random.default_rng(0))  # raises UserError if it cannot draft with these options

    def changed(self, **options: Any) -> "Session[AnyOptions]":
        """The same models, with other options; None stands for the default. Raises UserError."""
        options, functions = drafters.name_function(options, self.functions)
        o = make_options(type(self.options), options, base=self.options)
        return type(self)(o, self.models, quiet=True, functions=functions)

    def __deepcopy__(self, memo: dict) -> "Session[AnyOptions]":
        return type(self)(self.options, copy(self.models), quiet=True, functions=self.functions)

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
        levels = self.levels
        K = self.options.K
        Ks = K if isinstance(K, tuple) else (K,)
        if len(Ks) > len(levels):
            text = f"--K {as_typed('K', Ks)} is for {len(Ks)} levels"
            raise UserError(f"{text}, and --drafter {self.options.drafter} has {len(levels)}")
        Ks += ("auto",) * (len(levels) - len(Ks))
        expected = [[spec.expected for spec in specs] for specs in levels]
        return [AutoK(counts) if k == "auto" else k for k, counts in zip(Ks, expected, strict=True)]

    def drafter(self, rng: np.random.Generator, depth: int = 0, target: Any = None) -> drafters.Drafter:
        """The drafter, or its levels from this depth on. It draws from this generator, the decoder's own. target: the
        model that this decode calls, whose last hidden row heads read."""
        o = self.options
        models = {role: self.model(role) for role in self.roles}
        models["target"] = target or models["target"]
        context = drafters.Context(self.encoder.n_vocab, rng, self.draft_filters, o.temperature == 0, models)
        inner = tuple(around(K) for K in self.lookaheads[depth + 1 :])
        return drafters.make_drafter(self.levels[depth:], context, inner, self.rule, trees=o.tree is not None)

    def autoregressive_steps(self, x, N: int, rng) -> Iterator:
        """N tokens, one for each call of the target -> Steps, or a device's Rows."""
        if self.device_loop:
            return self.device_loop.steps(x, N, 0, rng)
        return autoregressive_sampling(x, self.model("target"), N, rng)

    def speculative_steps(self, x, N: int, rng) -> Iterator:
        """N tokens, up to K + 1 for each call of the target."""
        o = self.options
        if self.device_loop:
            return self.device_loop.steps(x, N, self.device_loop.window(N), rng)
        target = self.model("target")
        drafter = self.drafter(rng, target=target)
        if o.tree:
            return tree_speculative_sampling(x, drafter.tree, target.score_tree, N, o.tree, rng, self.rule.accept_tree)
        K, with_K = around(self.lookaheads[0])
        return speculative_sampling(x, with_K(drafter.parts, target), target, N, K, rng, self.rule.accept)

    def ready(self, inputs: Sequence, N: int) -> None:
        """Prepare a decode before it is timed: measure costs if K chooses itself, compile on JAX, empty the caches.
        inputs: the tokens of each text's prompt."""
        if self.device_loop:
            return self.device_loop.ready(inputs, N, self.options.batch)
        if self.timed:
            self.measure_costs(np.asarray(inputs[0])[-N_COST_TOKENS:])
        self.forget()

    def measure_costs(self, x) -> None:  # [n]
        """Innermost level first: the cost of a draft token on one level depends on the K of the level below."""
        roles = ["target", *(specs[0].roles[0] for specs in self.levels[:-1])]
        for depth in reversed(range(len(self.levels))):
            if isinstance(self.lookaheads[depth], AutoK):
                drafts = self.drafter(np.random.default_rng(0), depth).parts
                self.lookaheads[depth].measure(self.model(roles[depth]), drafts, x, self.n_ctx)

    def forget(self) -> None:
        """Empty all caches, so that two decodes begin alike."""
        for role in networks_of(self.roles):
            self.models[role].forget()

    def encode(self, prompt: str) -> list[int]:
        """The prompt's ids; an empty one begins with <|endoftext|>. Raises UserError if it is not a text."""
        if prompt in self.encoded:
            return self.encoded[prompt]
        try:
            check_text(prompt)
        except ValueError as must_be:
            raise UserError(f"the prompt must be {must_be}, not {prompt!r:.80}") from None
        most = self.n_ctx * max(map(len, self.encoder.id_to_bytes.values()))  # bytes: encoding more takes much memory
        if len(prompt.encode()) > most:
            n = f"{len(prompt.encode()):,} bytes"
            raise UserError(f"the prompt's {n} exceed the context of {self.n_ctx} tokens: shorten the prompt")
        return self.encoder.encode(prompt, self.options.special) or [self.encoder.eot]

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Return the prompt's ids. Raises UserError if they and N more tokens do not fit into the context."""
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

    # ---- Texts -------------------------------------------------------------------------------------------------------

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """A token for each call of the target. sample: 0 for the blog's random numbers, 1, 2, ... for others. Raises
        UserError at the call, not at the first step."""
        return self.texts("autoregressive", *self.checked(prompt, n_tokens_to_generate, sample))

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """Up to K + 1 tokens for each call of the target; the same text at temperature 0. Otherwise as above."""
        inputs, N, sample = self.checked(prompt, n_tokens_to_generate, sample)
        self.ready(inputs, N)
        return self.texts("speculative", inputs, N, sample)

    def checked(self, prompt: str, N: int, sample: int) -> tuple[list[list[int]], int, int]:
        """The arguments of texts. Raises UserError."""
        N = check_count("n_tokens_to_generate", N, 1)
        return [self.input_ids(prompt, N)], N, check_count("sample", sample, 0)

    def texts(self, name: str, inputs: Sequence, N: int, sample: int = 0) -> Iterator[TextStep]:
        """The steps of the decoder `name`, one of DECODERS, as text, one text after the other, or as many together as
        --batch says.

        inputs: the tokens of each text's prompt (input_ids). sample: the first text's number, which with the seed
        decides its random numbers.
        """
        o = self.options
        if o.batch > 1:
            yield from self.texts_together(name, inputs, N)
            return
        logs = {} if self.device_loop else self.logs()
        decode = self.autoregressive_steps if name == "autoregressive" else self.speculative_steps
        for number, x in enumerate(inputs, start=sample):
            seed = [o.seed, number] if number else o.seed  # number 0 has the blog's own seed
            draws = Draws(np.random.default_rng(seed))
            calls = ([step] for step in decode(x, N, draws))
            yield from as_texts(calls, [StreamDecoder(self.encoder, o.stop)], draws, logs, number - sample)

    def logs(self) -> dict:
        """The logs of the models' calls, by role."""
        return {role: self.models[role].log for role in self.roles if hasattr(self.models[role], "log")}

    def texts_together(self, name: str, inputs: Sequence, N: int) -> Iterator[TextStep]:
        """On JAX a call of the target gives steps of several texts."""
        o = self.options
        texts = [StreamDecoder(self.encoder, o.stop) for _ in inputs]
        K = 0 if name == "autoregressive" else self.device_loop.window(N)
        draws = Draws(np.random.default_rng(o.seed))
        calls = self.device_loop.rows(inputs, N, K, draws, o.batch, lambda number: texts[number].stopped)
        return as_texts(calls, texts, draws, {})


def around(K: int | AutoK) -> tuple[int, Callable]:
    """Return (the largest K, a function that makes the drafter choose its K if that is automatic)."""
    return (K.K_max, K.around) if isinstance(K, AutoK) else (K, lambda drafts, model: drafters.first_of(drafts))


def check_count(name: str, value: Any, least: int) -> int:
    """Raises UserError."""
    try:
        return whole(least)(value)
    except ValueError as must_be:
        raise UserError(f"{name} must be {must_be}, not {value!r:.80}") from None
