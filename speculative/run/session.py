"""A session: models loaded once, texts in and texts out. main.py, the terminal, the browser, Python and the benchmarks
decode through it. The blog's create_model_fn is Session.model, and its seed is set in Plan.rng."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from speculative.checkpoints.disk import check_files_in_use
from speculative.drafters.base import Draft
from speculative.drafters.user import NO_FUNCTIONS, Functions
from speculative.engines import memory
from speculative.engines.model import Model
from speculative.engines.network import CachedNetwork
from speculative.run.batch import decode_together
from speculative.run.cost_timer import CostTimer
from speculative.run.decode import (
    DECODERS,
    Ids,
    Setup,
    decode,
    drafter_of_level,
    drafters_of,
    new_context,
    new_loop,
    new_models,
)
from speculative.run.load import Models, load, new_models_of
from speculative.run.observer import Observer
from speculative.run.options import AnyOptions, make_options
from speculative.run.plan import Plan
from speculative.run.steps import TextStep
from speculative.run.values import checked, one_of, whole
from speculative.sampling import Proposal, Step
from speculative.support.errors import UserError
from speculative.support.terminal import one_line

S = TypeVar("S", bound="Session")


class Session(Generic[AnyOptions]):
    """Two decoders over the same models, and how they decode.

    A decode is a Python generator of steps, with a random generator made from the seed. Several may run at once, in one
    thread or in many. From the outside in:

        autoregressive, speculative   one prompt -> TextSteps
        batch                         several prompts together -> TextSteps
        decode                        the same by the decoder's name; checks the prompts, times calls for K auto
        decode_ids                    of prompts that are token ids already, checked and timed by the caller
        steps                         one prompt's ids -> Steps of the loop, without text and times
    """

    def __init__(
        self,
        options: AnyOptions,
        models: Models | None = None,
        prompts: Sequence[str] = (),
        quiet: bool = False,
        functions: Functions = NO_FUNCTIONS,
    ):
        """models: reuse these. prompts: all that will be decoded, if they are known; they are checked against the
        context before the weights are loaded. quiet: print nothing about the loading. functions: those that the options
        name. Raises UserError."""
        run = load(options, models or new_models_of(options, quiet), functions, prompts)
        self.models = run.models  # first, as copying or pickling a session ends at Models, which refuses it
        self.functions = functions
        self.options = run.options
        self.plan = run.plan
        self.engine = run.models.engine
        self.reader = run.reader
        self.encoder = run.reader.encoder
        self.n_ctx = run.reader.n_ctx
        self.prompts = run.prompts  # those that fit
        self.setup = self.new_setup(run.plan)
        self.setups = {run.plan.batch: self.setup}  # by batch size; kept, because K auto's costs are stored in a Setup

    def new_setup(self, plan: Plan) -> Setup:
        """Return the setup that decodes by a plan."""
        networks = {role: self.models[role] for role in plan.network_roles}
        loaded = {role: self.models[role] for role in plan.roles}
        copies = [role for role in plan.network_roles if role in self.engine.sharing_roles]
        return Setup(plan, loaded, self.encoder, copies, self.engine.device_loops(plan, networks))

    def changed(self: S, **options: object) -> S:
        """The same models, with other options; None stands for the default. Raises UserError."""
        named, functions = self.functions.taken_from(options)
        o = make_options(type(self.options), named, base=self.options)
        return type(self)(o, self.models, self.prompts, quiet=True, functions=functions)

    def __repr__(self) -> str:
        o = self.options
        models = ", ".join(f"{spec.role} {spec.size} {spec.dtype}" for spec in self.models.specs.values())
        return one_line(f"Session({models}, drafter {o.drafter}, K={o.K}, temperature={o.temperature:g})")

    @property
    def exact(self) -> bool:
        """Whether a row of the target is equal to the bit, however many rows are computed with it."""
        return self.engine.exact and isinstance(self.models["target"], CachedNetwork)

    # ---- Prompts -----------------------------------------------------------------------------------------------------

    def encode(self, prompt: str) -> list[int]:
        """Return the prompt's ids; an empty one begins with <|endoftext|>. Raises UserError if it is not a text."""
        return self.reader.encode(prompt)

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Return the prompt's ids. Raises UserError if they and N more tokens do not fit into the context."""
        return self.reader.input_ids(prompt, N)

    def check_batch(self, setup: Setup, inputs: Sequence[Ids], N: int) -> None:
        """Raise UserError if the caches of the texts that are decoded together do not fit into the memory."""
        with_caches = [role for role in setup.plan.network_roles if role not in setup.copies]
        hparams = [self.models.spec(role).hparams for role in with_caches if self.models.spec(role).files]
        n_tokens = max(map(len, inputs)) + N
        memory.check_batch(hparams, min(setup.plan.batch, len(inputs)), n_tokens, self.engine.free_bytes())

    # ---- Texts -------------------------------------------------------------------------------------------------------

    def autoregressive(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """A token for each call of the target. sample: 0 for the blog's random numbers, 1, 2, ... for others. Raises
        UserError at the call, not at the first step."""
        return self.decode("autoregressive", [prompt], n_tokens_to_generate, sample)

    def speculative(self, prompt: str, n_tokens_to_generate: int = 40, sample: int = 0) -> Iterator[TextStep]:
        """Up to K + 1 tokens for each call of the target, with the arguments and errors of autoregressive; the same
        text at temperature 0."""
        return self.decode("speculative", [prompt], n_tokens_to_generate, sample)

    def decode(
        self, decoder: str, prompts: Sequence[str], N: int, sample: int = 0, setup: Setup | None = None
    ) -> Iterator[TextStep]:
        """Return the steps of a decoder, one of DECODERS, with their chances of acceptance. sample: of the first
        text. setup: in place of the session's. Raises UserError."""
        setup = setup or self.setup
        decoder = checked("decoder", one_of(*DECODERS), decoder)
        N = checked("n_tokens_to_generate", whole(1), N)
        sample = checked("sample", whole(0), sample)
        check_files_in_use(self.models.files_in_use)
        inputs = self.reader.all_input_ids(prompts, N)
        if setup.plan.batch > 1 and not setup.device:
            self.check_batch(setup, inputs, N)
        if decoder == "speculative":  # the other decoder has no K, for which calls are timed first
            self.ready(inputs, N, setup)
        return self.decode_ids(decoder, inputs, N, sample, Observer(setup.plan.rule), setup)

    def decode_ids(
        self,
        decoder: str,
        inputs: Sequence[Ids],
        N: int,
        first_sample: int = 0,
        observer: Observer | None = None,
        setup: Setup | None = None,
    ) -> Iterator[TextStep]:
        """Return the steps of decode.decode for prompts that are token ids already, which fit into the context."""
        setup = setup or self.setup
        if setup.device or setup.plan.batch > 1:
            return decode_together(setup, decoder, inputs, N, first_sample, observer)
        return decode(setup, decoder, inputs, N, first_sample, observer)

    def batch(
        self, prompts: Sequence[str], n_tokens_to_generate: int = 40, name: str = "speculative"
    ) -> Iterator[TextStep]:
        """The steps of the texts of several prompts; text_index says whose each is. --batch says how many run together
        (default: all). Text i is the text of speculative(prompt, sample=i). name: of the decoder, "speculative" or
        "autoregressive". Raises UserError at the call."""
        if not isinstance(prompts, list | tuple):
            raise UserError("prompts must be a list of texts: give a single one as [prompt]")
        name = checked("name", one_of(*DECODERS), name)
        if not prompts:
            raise UserError("a batch needs at least one prompt")
        n_texts = self.plan.batch if self.plan.batch > 1 else len(prompts)
        return self.decode(name, prompts, n_tokens_to_generate, setup=self.setup_for(n_texts))

    def setup_for(self, n_texts: int) -> Setup:
        """Return the setup for so many texts at a time. Raises UserError if the engine decodes fewer."""
        if n_texts not in self.setups:
            plan = replace(self.plan, batch=n_texts)
            self.engine.check(plan)
            self.setups[n_texts] = self.new_setup(plan)
        return self.setups[n_texts]

    def ready(self, inputs: Sequence[Ids], N: int, setup: Setup | None = None) -> None:
        """Do the work before a decode that is not part of its time: compile its loops, or time the calls by which K is
        chosen."""
        setup = setup or self.setup
        if setup.device:
            setup.device.ready(inputs, N)
            return
        self.measure(inputs[0], setup)

    def measure(self, x: Ids, setup: Setup | None = None) -> None:  # [n]
        """Time the calls by which K is chosen after this text, unless they were timed or K is a number. The caches
        then hold the timed texts, and are emptied."""
        setup = setup or self.setup
        if setup.unmeasured:
            CostTimer(setup, self.engine, self.n_ctx).time_levels(x)
            self.models.forget(setup.plan.network_roles)

    # ---- The parts of a decode ---------------------------------------------------------------------------------------

    def model(self, role: str) -> Any:
        """Return the model of a role with its filters: model(x, n_last) -> distributions. Raises UserError."""
        role = checked("role", one_of(*self.plan.roles), role)
        return new_models(self.setup, self.setup.loaded)[role]

    def drafter(self, rng: np.random.Generator, target: Callable | None = None) -> Draft:
        """Return the drafter draft(x, k) -> Proposal of a decode with this generator and this model of the target."""
        loaded = dict(self.setup.loaded)
        if isinstance(target, Model):
            loaded["target"] = target.network  # whose cache its copies read
        models = new_models(self.setup, loaded)
        if target is not None:
            models["target"] = target  # the caller's own: heads read its last hidden row
        drafters = drafters_of(self.setup, new_context(self.setup, models, rng), 0)
        drafter = drafter_of_level(self.setup, 0, drafters, models["target"])
        if not self.setup.learned:
            return drafter

        def draft(x: Ids, k: int) -> Proposal:  # [n]
            self.measure(x)  # at the first call, after its text
            return drafter(x, k)

        return draft

    def steps(self, decoder: str, x: Ids, N: int, rng: np.random.Generator) -> Iterator[Step]:
        """Return the Steps of a decoder, one of DECODERS, for N tokens of one prompt, without their text. Raises
        UserError at the call."""
        decoder = checked("decoder", one_of(*DECODERS), decoder)
        if self.setup.device:
            rounds = self.setup.device.rounds(decoder, [x], N, [rng], lambda place: False)
            return (served.step for [served] in rounds)
        self.measure(x)
        models = new_models(self.setup, self.setup.loaded)
        return new_loop(self.setup, models, decoder, x, N, rng)

    def forget(self) -> None:
        """Empty the caches, so that two decodes begin alike. Raises UserError if a file in use was written to."""
        check_files_in_use(self.models.files_in_use)
        self.models.forget(self.plan.network_roles)
