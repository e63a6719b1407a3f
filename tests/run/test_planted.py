"""Mistakes that are planted in what leads from options to texts: each is seen by a quick check, which passes without
it. A comparison of a session with itself sees none of them."""

import math
from collections import Counter
from copy import copy
from dataclasses import replace
from functools import partial

import pytest
from checkpoint_files import USUAL
from mistakes import SEEN, Mistakes, make
from planned import PLANNED, Anything, check_row
from tiny import decoded, one_hot, refusal

from speculative import load_pair
from speculative.drafters.user import NO_FUNCTIONS
from speculative.engines import memory
from speculative.engines.c.engine import CEngine
from speculative.engines.formats import FORMATS
from speculative.rules import TOKEN
from speculative.run import decode as decode_module
from speculative.run import load as load_module
from speculative.run import options, plan, values
from speculative.run.decode import Text, decode, most_drafts, new_loop
from speculative.run.load import Models, Wanted, copy_pays, fast_drafter, load_weights, read_weights, wanted_models
from speculative.run.load import load as load_models
from speculative.run.options import DEMO, FIELDS, ModelOptions, Options, make_options, read_values
from speculative.run.plan import draft_filters, make_plan, one_K_a_level, target_filters
from speculative.run.prompts import PromptReader
from speculative.run.session import Session
from speculative.run.steps import Times
from speculative.sampling import autoregressive_sampling
from speculative.support.errors import UserError

PROMPT = "the thing in"
LONG_PROMPT = "the thing in the house " * 4
SMALL = {name: value for name, value in USUAL.items() if name not in ("prompt", "n_tokens_to_generate")}

# The right methods, which wrong twins call.
add = Text.add
calls_of_round, take_span, write_to = Times.calls_of_round, Times.take_span, Times.write_to
encode, input_ids = PromptReader.encode, PromptReader.input_ids
spec = Models.spec
new_setup = Session.new_setup


@pytest.fixture
def load(tiny_pair):
    """options -> a session over the tiny pair."""
    return partial(load_pair, models_dir=tiny_pair, **SMALL)


# ---- Options and plan ------------------------------------------------------------------------------------------------


def rows_of(option):
    def check(load):
        for row in PLANNED:
            if row.option == option:
                check_row(row)

    return check


def check_conflicts(load):
    assert "cannot be combined" in refusal(options.make_options, Options, {"tree": "2,1", "K": "4"})


def check_no_effect(load):
    assert "has no effect" in refusal(options.make_options, Options, {"top_p": "0.5"})


def check_defaults(load):
    """A default excludes nothing, but a K that is given does."""
    assert options.make_options(Options, {"fast": "True", "accept": "token"}).fast
    assert "cannot be combined" in refusal(options.make_options, Options, {"tree": "2,1", "K": "4"})


def check_change(load):
    """An option of before stays, ends or cannot change."""
    base = options.make_options(ModelOptions, {"tree": "2,1", "seed": "5", "dtype": "bfloat16"})
    changed = options.make_options(ModelOptions, {"K": "8"}, base=base)
    assert (changed.K, changed.tree, changed.seed, changed.dtype) == (8, None, 5, "bfloat16")
    assert options.make_options(ModelOptions, {"seed": None}, base=base).seed == 123
    assert "cannot change" in refusal(options.make_options, ModelOptions, {"dtype": "int8"}, base=base)


def check_demo(load):
    assert options.make_options(Options, {"demo": "True", "prompt": "a"}).prompt == "a"
    assert "--demo is the bundled pair" in refusal(
        options.make_options, Options, {"demo": "True", "draft_model_size": "124M"}
    )


def check_engine_is_asked(load):
    class Engine(CEngine):
        def check(self, plan):
            raise AssertionError

    with pytest.raises(AssertionError):
        plan.make_plan(options.make_options(ModelOptions, {}), Engine(1))


# ---- Session ---------------------------------------------------------------------------------------------------------


def check_room(load):
    """A prompt that leaves too little room is refused, a tree's nodes included."""
    session = load(tree="2,1")
    n = len(session.encode(PROMPT))
    assert len(decoded(session.speculative(PROMPT, session.n_ctx - n - 4))) == session.n_ctx - n - 4
    assert "exceed the context" in refusal(session.speculative, PROMPT, session.n_ctx - n - 3)


def check_samples(load):
    session = load(temperature=1)
    first, other = (decoded(session.speculative(PROMPT, 20, sample)) for sample in (0, 1))
    assert first != other
    together = [*session.decode_ids("speculative", [session.encode(PROMPT)] * 2, 20)]
    assert decoded(step for step in together if step.text_index == 1) == other


def check_changed_session(load):
    session = Session.changed(load(temperature=1, seed=5), K=2)
    assert (session.options.seed, session.plan.seed, session.plan.Ks) == (5, 5, [2])
    mine = Session.changed(session, drafter=lambda x, k: ([], []))
    assert Session.changed(mine, seed=6).options.drafter == "lambda"


def check_fast(load):
    session = load(fast=True)
    assert (session.options.drafter, session.plan.Ks) == ("prompt_lookup+model", ["auto"])


def check_memory(load):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: 100_000)
        assert "would fit" in refusal(load) or "take smaller models" in refusal(load)


def check_special(load):
    session = load(special=True)
    assert session.encode("a<|endoftext|>")[-1] == session.encoder.eot


def check_smallest_context(load):
    session = load()
    small = session.models.spec("draft")
    session.models.specs["draft"] = small._replace(hparams=small.hparams | {"n_ctx": 30})
    assert session.changed(K=2).n_ctx == 30


# ---- Decoding --------------------------------------------------------------------------------------------------------


def check_greedy(load):
    for how in ({}, {"drafter": "int8/model", "K": "4/2"}, {"tree": "2,1"}):
        session = load(**how)
        text = decoded(session.autoregressive(LONG_PROMPT, 12))
        assert decoded(session.speculative(LONG_PROMPT, 12)) == text


def check_stop(load):
    """Drafts after the stop text count as rejected, and its tokens are the last ones."""
    session = load(K=12)
    steps = [*session.autoregressive(PROMPT, 12)]
    x = [*session.encode(PROMPT), *decoded(steps)]
    stop = next(step.text for step in steps[3:] if step.text.isascii() and step.text.isprintable())

    def foresee(text, k):
        tokens = x[len(text) : len(text) + k]
        return tokens, one_hot(*tokens, n_vocab=session.encoder.n_vocab)

    expected = "".join(step.text for step in steps).partition(stop)[0]
    steps = [*session.changed(stop=stop, drafter=foresee).speculative(PROMPT, 12)]
    assert "".join(step.text for step in steps) == expected
    assert stop not in session.encoder.decode(decoded(steps)[:-1])
    assert all(step.accepted <= len(step.tokens) == len(step.pieces) for step in steps)


def check_rule(load):
    def takes_all(proposal, q, rng):
        return [*proposal.tokens, 0]

    assert [step.accepted for step in load(accept=takes_all, K=3).speculative(PROMPT, 8)] == [3, 3]


def check_draft_filters(load):
    """The draft has its own temperature: with 0, each of its rows is a single token's."""
    session = load(temperature=1, draft_temperature=0)
    assert session.model("draft")(session.encode(PROMPT)).max() == 1
    assert session.model("target")(session.encode(PROMPT)).max() < 1


def check_lookahead_of_each_level(load):
    session = load(drafter="int8/model", K="6/2")
    inside = [call for step in session.speculative(PROMPT, 20) for call in step.levels["int8"]]
    assert 0 < max(drafted for _, drafted, _ in inside) <= 2
    assert max(step.drafted for step in session.speculative(PROMPT, 20)) > 3


def check_times(load):
    """Each step has the calls of its own, and their times are in its own."""
    for name, n_drafts in (("autoregressive", 0), ("speculative", 3)):
        steps = [*getattr(load(K=3), name)(PROMPT, 12)]
        for step in steps:
            roles = Counter(role for role, *_ in step.calls)
            assert (roles["target"], roles["draft"]) == (1, min(n_drafts, step.drafted))
            assert step.drafting + step.scoring <= step.seconds
            assert step.calls[-1][0] == "target"
        assert [step.prefill for step in steps] == [True] + [False] * (len(steps) - 1)


def check_forgotten(load):
    session = load()
    for _ in range(2):
        session.forget()
        first, *_ = session.speculative(PROMPT, 4)
        assert first.prefill
    first, *_ = session.speculative(PROMPT, 4)  # the caches hold the prompt
    assert not first.prefill


def check_costs(load):
    """They are measured before the first step."""
    session = load(K="auto")
    session.speculative(PROMPT, 4)
    [learned] = session.setup.learned.values()
    assert learned.is_measured


# ---- Loading ---------------------------------------------------------------------------------------------------------


def check_roles(load):
    """Each role has its own model in its own format."""
    session = load(drafter="int8/model", dtype="bfloat16", draft_dtype="int4")
    found = {role: (spec.size, spec.dtype) for role, spec in session.models.specs.items()}
    assert found == {"target": ("target", "bfloat16"), "int8": ("target", "int8"), "draft": ("draft", "int4")}
    loaded = {role: session.models[role].params["blocks"][0]["mlp"]["c_fc"]["w"].format.name for role in found}
    assert loaded == {role: dtype for role, (_, dtype) in found.items()}
    assert [len(session.models[role].params["blocks"]) for role in found] == [2, 2, 1]


def check_loaded_once(load):
    session = load()
    target = session.models["target"]
    other = session.changed(drafter="int8/model")
    assert other.models["target"] is target
    assert other.setup.copies == ["int8"]


def check_copy_is_counted(load):
    session = load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: 1000)
        assert "of memory" in refusal(session.changed, drafter="int8")
        session.changed(K=2)  # nothing more to load
    assert "int8" not in session.changed(drafter="int4").models.loaded


def check_fast_drafter(load):
    """An int8 copy drafts for a large float32 target, if it saves time in all texts together and fits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("speculative.run.load.LARGE_BYTES", 0)
        patch.setattr(CEngine, "copy_is_quick", lambda engine, N, temperature: N >= 80)
        session = load()
        o, models = session.options, session.models
        for prompts, copy in (["a"], ""), (["a", "b"], "int8/"), ([], "int8/"):
            assert fast_drafter(o, models, prompts) == f"{copy}prompt_lookup+model"
        assert fast_drafter(o, load(dtype="bfloat16").models, []) == "prompt_lookup+model"
        patch.setattr(memory, "check", without_a_copy)
        session = load(fast=True)
        assert session.options.drafter == "prompt_lookup+model"
        assert {*session.models.loaded} == {"target", "draft"}


def without_a_copy(models, *others):
    """In place of memory.check: there is room for two models."""
    if len(models) > 2:
        raise UserError("too little memory")


# ---- The mistakes ----------------------------------------------------------------------------------------------------

mistakes = Mistakes()


@mistakes.plant(check_conflicts, options, "excluded_by")
def excludes_nothing(name):
    return set()


@mistakes.plant(check_no_effect, options, "check_effects")
def all_have_an_effect(values, o):
    pass


@mistakes.plant(check_defaults, options, "meant")
def no_default_is_meant(values):
    return [name for name, value in values.items() if value != FIELDS[name].default]


@mistakes.plant(check_defaults, options, "meant")
def every_default_is_meant(values):
    return [*values]


@mistakes.plant(check_change, options, "reset_by")
def resets_nothing(values, base):
    return {}


@mistakes.plant(check_change, options, "make_options")
def forgets_the_base(kind, given, base=None):
    return make_options(kind, given)


@mistakes.plant(check_change, options, "read_values")
def changes_what_is_loaded(given, names, base):
    return read_values(given, names, None)


@mistakes.plant(check_change, options, "read_values")
def none_keeps_the_bases(given, names, base):
    values = read_values(given, names, base)
    return {name: getattr(base, name) if base and given[name] is None else values[name] for name in values}


@mistakes.plant(check_demo, options, "make_options")
def demo_comes_before_what_was_given(kind, given, base=None):
    o = make_options(kind, given, base)
    return replace(o, prompt=DEMO["prompt"]) if o.demo else o


@mistakes.plant(check_demo, options, "check_demo")
def demo_goes_with_all(values):
    pass


@mistakes.plant(rows_of("top_p"), plan, "target_filters")
def swaps_two_filters(o):
    filters = target_filters(o)
    return filters._replace(top_p=filters.min_p, min_p=filters.top_p)


@mistakes.plant(rows_of("min_p"), plan, "target_filters")
def leaves_out_a_filter(o):
    return target_filters(o)._replace(min_p=None)


@mistakes.plant(rows_of("draft_temperature"), plan, "draft_filters")
def has_no_draft_temperature(o):
    return draft_filters(replace(o, draft_temperature=None))


@mistakes.plant(rows_of("draft_temperature"), plan, "draft_filters")
def takes_0_for_none(o):
    return draft_filters(replace(o, draft_temperature=o.draft_temperature or None))


@mistakes.plant(rows_of("tree"), plan, "draft_filters")
def drafts_greedy_trees(o):
    return draft_filters(replace(o, tree=None))


@mistakes.plant(rows_of("tree"), plan, "make_plan")
def plans_no_tree(o, engine, functions=NO_FUNCTIONS):
    return replace(make_plan(o, engine, functions), tree=())


@mistakes.plant(rows_of("seed"), plan, "make_plan")
def plans_the_blogs_seed(o, engine, functions=NO_FUNCTIONS):
    return replace(make_plan(o, engine, functions), seed=123)


@mistakes.plant(rows_of("stop"), plan, "make_plan")
def plans_no_stop(o, engine, functions=NO_FUNCTIONS):
    return replace(make_plan(o, engine, functions), stop=None)


@mistakes.plant(rows_of("K"), plan, "one_K_a_level")
def turns_levels_round(o, n_levels):
    return one_K_a_level(o, n_levels)[::-1]


@mistakes.plant(check_roles, load_module, "wanted_models")
def takes_the_drafts_format(o, engine):
    return wanted_models(o, engine) | {"target": Wanted(o.target_model_size, o.draft_dtype)}


@mistakes.plant(check_engine_is_asked, plan, "make_plan")
def asks_no_engine(o, engine, functions=NO_FUNCTIONS):
    return make_plan(o, Anything(), functions)


@mistakes.plant(check_room, values, "n_nodes")
def counts_no_nodes(sizes):
    return 0


@mistakes.plant(check_room, PromptReader, "input_ids")
def finds_room_for_one_more(self, prompt, N):
    larger = copy(self)
    larger.n_ctx += 1
    return input_ids(larger, prompt, N)


@mistakes.plant(check_samples, Session, "speculative")
def has_one_sample(self, prompt, n_tokens_to_generate=40, sample=0):
    return self.decode("speculative", [prompt], n_tokens_to_generate)


@mistakes.plant(check_changed_session, Session, "changed")
def forgets_the_options(self, **options):
    named, functions = self.functions.taken_from(options)
    return Session(make_options(type(self.options), named), self.models, quiet=True, functions=functions)


@mistakes.plant(check_changed_session, Session, "changed")
def forgets_the_functions(self, **options):
    named, _ = self.functions.taken_from(options)
    return Session(make_options(type(self.options), named, self.options), self.models, quiet=True)


@mistakes.plant(check_fast, load_module, "spelled_out")
def fast_stands_for_nothing(o, models, prompts=()):
    return o


@mistakes.plant(check_memory, load_module, "check_memory")
@mistakes.plant(check_copy_is_counted, load_module, "check_memory")
def everything_fits(engine, specs, n_cached=None):
    pass


@mistakes.plant(check_special, PromptReader, "encode")
def has_no_special_tokens(self, prompt):
    plain = copy(self)
    plain.plan = replace(self.plan, special=False)
    return encode(plain, prompt)


@mistakes.plant(check_smallest_context, load_module, "load")
def takes_the_largest_context(o, models, functions=NO_FUNCTIONS, prompts=()):
    run = load_models(o, models, functions, prompts)
    run.reader.n_ctx = max(models.spec(role).n_ctx for role in run.plan.network_roles)
    return run


@mistakes.plant(check_samples, decode_module, "decode")
def begins_at_the_first_sample(setup, decoder, inputs, N, first_sample=0, observer=None):
    return decode(setup, decoder, inputs, N, 0, observer)


@mistakes.plant(check_rule, decode_module, "new_loop")
def has_one_rule(setup, models, decoder, x, N, rng):
    other = copy(setup)
    other.plan = replace(setup.plan, rule=TOKEN)
    return new_loop(other, models, decoder, x, N, rng)


@mistakes.plant(check_greedy, decode_module, "new_loop")
def decodes_with_the_draft(setup, models, decoder, x, N, rng):
    if decoder == "autoregressive":
        return autoregressive_sampling(x, lambda x: [models[role](x) for role in ("target", "draft")][-1], N, rng)
    return new_loop(setup, models, decoder, x, N, rng)


@mistakes.plant(check_stop, Text, "add")
def accepts_drafts_after_the_stop(self, step, chances=None):
    text_step = add(self, step, chances)
    text_step.accepted = step.n_accepted
    return text_step


@mistakes.plant(check_stop, Text, "add")
def keeps_tokens_after_the_stop(self, step, chances=None):
    text_step = add(self, step, chances)
    text_step.tokens = step.tokens
    return text_step


@mistakes.plant(check_draft_filters, plan, "draft_filters")
def has_the_targets_filters(o):
    return target_filters(o)


@mistakes.plant(check_lookahead_of_each_level, decode_module, "most_drafts")
def has_the_first_levels_K(plan, level):
    return most_drafts(plan, 0)


@mistakes.plant(check_times, Times, "calls_of_round")
def gives_the_last_call_first(self):
    return calls_of_round(self)[::-1]


@mistakes.plant(check_times, Times, "take_span")
def begins_at_0(self, calls, all_stopped):
    _, seconds = take_span(self, calls, all_stopped)
    return 0.0, seconds


@mistakes.plant(check_times, Times, "write_to")
def never_reads_a_prompt(self, step, all_stopped):
    write_to(self, step, all_stopped)
    step.prefill = False


@mistakes.plant(check_forgotten, Models, "forget")
def forgets_nothing(self, roles):
    pass


@mistakes.plant(check_costs, Session, "measure")
def measures_nothing(self, x, setup=None):
    pass


@mistakes.plant(check_roles, load_module, "wanted_models")
def takes_the_target_for_all(o, engine):
    return dict.fromkeys(wanted_models(o, engine), Wanted(o.target_model_size, o.dtype))


@mistakes.plant(check_roles, Models, "spec")
def copies_keep_the_targets_format(self, role):
    if role in FORMATS:
        self.specs[role] = self.spec("target")._replace(role=role)
    return spec(self, role)


@mistakes.plant(check_roles, load_module, "read_weights")
def swaps_the_networks(models, specs, files, in_place):
    read_weights(models, specs, files, in_place)
    networks = [models.loaded[spec.role] for spec in reversed(specs)]
    models.loaded |= {spec.role: network for spec, network in zip(specs, networks, strict=True)}


@mistakes.plant(check_loaded_once, load_module, "load_weights")
def loads_all_anew(models, specs, in_place):
    load_weights(models, [*models.specs.values()], in_place)


@mistakes.plant(check_loaded_once, Session, "new_setup")
def shares_no_cache(self, plan):
    return replace(new_setup(self, plan), copies=[])


@mistakes.plant(check_fast_drafter, load_module, "load_weights")
def loads_all_that_was_looked_at(models, specs, in_place):
    load_weights(models, [*models.specs.values()], in_place)


@mistakes.plant(check_fast_drafter, load_module, "copy_pays")
def copies_any_format(o, models, prompts):
    n_tokens = len(prompts) * o.n_tokens_to_generate or math.inf
    return models.engine.copy_is_quick(n_tokens, o.temperature) and load_module.copy_fits(models)


@mistakes.plant(check_fast_drafter, load_module, "copy_pays")
def counts_one_text(o, models, prompts):
    return copy_pays(o, models, prompts[:1])


@mistakes.plant(check_fast_drafter, load_module, "copy_fits")
def any_copy_fits(models):
    return True


@pytest.mark.parametrize("check", mistakes.checks, ids=lambda check: check.__qualname__)
def test_without_a_mistake_all_checks_pass(check, load):
    check(load)


@pytest.mark.parametrize("mistake", mistakes, ids=str)
def test_a_planted_mistake_is_seen(mistake, load, monkeypatch):
    make(monkeypatch, mistake)
    with pytest.raises(SEEN):
        mistake.seen_by(load)
