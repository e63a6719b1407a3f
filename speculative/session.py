"""A session: models loaded once, texts in and texts out. main.py, the terminal, the browser, Python and the benchmarks
decode through it. The blog's create_model_fn is Session.model, and its seed is set in Plan.rng."""

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Generic

import numpy as np

from speculative.batching import BatchLoops
from speculative.blog.encoder import Encoder
from speculative.decoding import decoded
from speculative.drafters.base import Drafter
from speculative.engines.choice import make_engine
from speculative.engines.model import CachedNetwork, Call
from speculative.loading import Models
from speculative.loops import Loops, PythonLoops
from speculative.options import ModelOptions, make_options
from speculative.plan import NO_FUNCTIONS, AnyOptions, Functions, Plan, make_plan, spelled_out, wanted_models
from speculative.sampling import Step
from speculative.steps import TextStep
from speculative.support.errors import UserError
from speculative.support.terminal import one_line
from speculative.values import checked, n_nodes, text, whole

IN_PLACE_TOKENS = 200  # read by a command; with more, packing float32 weights pays


def is_short(o: ModelOptions, n_tokens: int) -> bool:
    """Whether a command reads so few tokens that float32 weights should be used where they lie in the file.

    Writing 6 GB of tiles takes longer than they save: without them, prompts and long windows cost 1.1 to 1.5 times as
    much.
    """
    n_texts = getattr(o, "n_samples", 1) * o.batch
    return n_texts * n_tokens <= IN_PLACE_TOKENS and not getattr(o, "verify", False)


def models_of(o: ModelOptions, quiet: bool = False) -> Models:
    """Return the models of these options, not yet loaded. Raises UserError."""
    engine = make_engine(o.engine, o.threads, o.mesh, o.data_parallel, quiet)
    return Models(engine, wanted_models(o, engine), o.models_dir, o.source, o.ngram_text, quiet, o.refresh)


def longest_token(encoder: Encoder) -> int:
    """Return the bytes of the longest token."""
    return max(map(len, encoder.id_to_bytes.values()))


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
        functions: Functions = NO_FUNCTIONS,
    ):
        """models: reuse these. prompts: checked against the context before the weights are loaded. quiet: print nothing
        about the loading. functions: those that the options name. Raises UserError."""
        self.models = models or models_of(options, quiet)
        self.engine = self.models.engine
        self.options = spelled_out(options, self.models.fast_drafter()) if options.fast else options
        self.functions = functions
        self.plan = make_plan(self.options, self.engine, functions)
        self.models.check_weights(self.plan)
        specs = [self.models.spec(role) for role in self.plan.networks]
        self.encoder = specs[0].encoder
        self.context = min(specs, key=lambda spec: spec.n_ctx)  # the model with the smallest context
        self.n_ctx = self.context.n_ctx
        self.most_bytes = self.n_ctx * longest_token(self.encoder)  # of a prompt
        self.prompts = self.fitting(prompts)
        self.load(self.longest(self.prompts), are_known=bool(prompts))
        self.logs: Mapping[str, deque[Call]] = {role: self.models[role].log for role in self.plan.models}
        self.python_loops = PythonLoops(self.plan, self.models, self.encoder.n_vocab, self.n_ctx)
        self.loops = self.loops_of(self.plan)

    def longest(self, prompts: Sequence[str]) -> int:
        """Return the most tokens of a prompt; 1 if there are none. Raises UserError if one does not fit."""
        N = self.options.n_tokens_to_generate
        lengths = [len(self.input_ids(prompt, N)) for prompt in {*prompts}]
        return max(lengths, default=1)

    def check_memory(self, longest: int) -> None:
        """Raise UserError if the models do not fit, with caches for prompts of so many tokens."""
        o = self.options
        n_cached = None
        if o.batch > 1:
            n_cached = o.batch // o.data_parallel * (longest + o.n_tokens_to_generate)
        self.models.check(self.plan.networks, n_cached)

    def load(self, longest: int, are_known: bool) -> None:
        """Load the weights that are not loaded yet. longest: the tokens of the longest prompt. are_known: whether there
        will be no other prompts. Raises UserError."""
        self.check_memory(longest)
        plan = self.plan
        n_tokens = longest + self.options.n_tokens_to_generate
        in_place = are_known and plan.batch == 1 and is_short(self.options, n_tokens)
        new = self.models.load(plan, in_place)
        self.engine.prepare(plan, new, longest)

    def loops_of(self, plan: Plan) -> Loops:
        """The loops of a plan over the loaded models."""
        networks = {role: self.models[role] for role in plan.networks}
        compiled = self.engine.compiled_loops(plan, networks)
        if compiled or plan.batch == 1:
            return compiled or self.python_loops
        return BatchLoops(self.python_loops, plan.batch)

    def changed(self, **options: Any) -> "Session[AnyOptions]":
        """The same models, with other options; None stands for the default. Raises UserError."""
        named, functions = self.functions.taken_from(options)
        o = make_options(type(self.options), named, base=self.options)
        return type(self)(o, self.models, quiet=True, functions=functions)

    def __repr__(self) -> str:
        o = self.options
        models = [f"{spec.role} {spec.size} {spec.dtype}" for spec in self.models.specs.values()]
        return one_line(f"Session({', '.join(models)}, drafter {o.drafter}, K={o.K}, temperature={o.temperature:g})")

    @property
    def exact(self) -> bool:
        """Whether a row of the target is equal to the bit, however many rows are computed with it."""
        return self.engine.exact and isinstance(self.models["target"], CachedNetwork)

    # ---- Prompts -----------------------------------------------------------------------------------------------------

    def encode(self, prompt: str) -> list[int]:
        """The prompt's ids; an empty one begins with <|endoftext|>. Raises UserError if it is not a text."""
        content = checked("the prompt", text, prompt).encode()
        n_bytes = len(content)
        if n_bytes > self.most_bytes:  # encoding more takes much memory
            raise UserError(
                f"the prompt's {n_bytes:,} bytes exceed the context of {self.n_ctx} tokens: shorten the prompt"
            )
        ids = self.encoder.encode(prompt, self.plan.special)
        if not ids and self.encoder.eot < 0:
            raise UserError("the prompt has no tokens, and the model has no end token to begin with: give it a text")
        return ids or [self.encoder.eot]

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Return the prompt's ids. Raises UserError if they and N more tokens do not fit into the context."""
        x = self.encode(prompt)
        tree = self.plan.tree
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

    def fitting(self, prompts: Sequence[str]) -> list[str]:
        """Return the prompts that fit with the tokens to generate. If others of a batch do not, a line names each.
        Raises UserError if none fits."""
        N = self.options.n_tokens_to_generate
        fitting: list[str] = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                self.input_ids(prompt, N)
            except UserError as error:
                if self.plan.batch == 1 or (number == len(prompts) and not fitting):
                    raise
                print(f"prompt {number} is left out: {error}", file=sys.stderr)
            else:
                fitting.append(prompt)
        return fitting

    # ---- Texts -------------------------------------------------------------------------------------------------------

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """A token for each call of the target. sample: 0 for the blog's random numbers, 1, 2, ... for others. Raises
        UserError at the call, not at the first step."""
        return self.decode("autoregressive", prompt, n_tokens_to_generate, sample)

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """Up to K + 1 tokens for each call of the target, with the arguments and errors of autoregressive; the same
        text at temperature 0."""
        return self.decode("speculative", prompt, n_tokens_to_generate, sample)

    def decode(self, name: str, prompt: str, N: int, sample: int) -> Iterator[TextStep]:
        """The steps of the decoder `name` for one prompt. Raises UserError."""
        N = checked("n_tokens_to_generate", whole(1), N)
        sample = checked("sample", whole(0), sample)
        self.models.files_in_use.check()
        inputs = [self.input_ids(prompt, N)]
        if name == "speculative":
            self.loops.ready(inputs, N)
        return decoded(self, name, inputs, N, sample)

    def batch(self, prompts: Sequence[str], n_tokens_to_generate: int = 40) -> Iterator[TextStep]:
        """The steps of the speculative texts of several prompts; text_index says whose each is. As many are decoded
        together as --batch says; all, if it says nothing. Each is the text that it would be alone with its number as
        its sample. Raises UserError at the call."""
        return self.decode_batch("speculative", prompts, n_tokens_to_generate)

    def decode_batch(self, name: str, prompts: Sequence[str], N: int) -> Iterator[TextStep]:
        """The steps of the decoder `name` for several prompts at a time. Raises UserError."""
        N = checked("n_tokens_to_generate", whole(1), N)
        inputs = [self.input_ids(prompt, N) for prompt in prompts]
        if not inputs:
            raise UserError("a batch needs at least one prompt")
        self.models.files_in_use.check()
        n_texts = self.plan.batch if self.plan.batch > 1 else max(2, len(inputs))
        session = self.together(n_texts)
        session.loops.ready(inputs, N)
        return decoded(session, name, inputs, N)

    def together(self, n_texts: int) -> "Session[AnyOptions]":
        """The same session, whose loops decode so many texts together. Raises UserError."""
        session = copy(self)
        session.plan = replace(self.plan, batch=n_texts)
        self.engine.check(session.plan)
        session.loops = self.loops_of(session.plan)
        return session

    # ---- Their parts -------------------------------------------------------------------------------------------------

    def model(self, role: str) -> Any:
        """The model of a role with its filters: model(x, n_last) -> distributions."""
        return self.python_loops.model(role)

    def drafter(self, rng: np.random.Generator, target: Any = None) -> Drafter:
        """The drafter of a decode with this generator and this model of the target."""
        return self.python_loops.drafter(rng, target=target)

    def steps(self, name: str, x, N: int, rng) -> Iterator[Step]:
        """The Steps of the decoder `name` for N tokens of one prompt, without their text."""
        for [served] in self.loops.calls(name, [x], N, [rng], lambda text_index: False):
            yield served.step

    def forget(self) -> None:
        """Empty the caches, so that two decodes begin alike. Raises UserError if a file in use was written to."""
        self.models.files_in_use.check()
        self.models.forget(self.plan.networks)
