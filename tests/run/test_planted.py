"""Mistakes that are planted in what leads from options to texts: each is seen by a quick check, which passes without
it. A comparison of a session with itself sees none of them."""

from collections import Counter
from functools import partial

import pytest
from checkpoint_files import USUAL
from planned import PLANNED, check_row
from tiny import decoded, one_hot, plant, refusal

from speculative import load_pair
from speculative.engines import memory
from speculative.engines.c.engine import CEngine
from speculative.run import options, plan
from speculative.run.load import fast_drafter
from speculative.run.options import ModelOptions, Options
from speculative.run.session import Session
from speculative.support.errors import UserError

PROMPT = "the thing in"
LONG_PROMPT = "the thing in the house " * 4
SMALL = {name: value for name, value in USUAL.items() if name not in ("prompt", "n_tokens_to_generate")}


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
    together = [*session.decoded("speculative", [session.encode(PROMPT)] * 2, 20)]
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
        first, *_ = session.speculative(PROMPT, 4)
        assert first.prefill


def check_costs(load):
    session = load(K="auto")
    [*session.speculative(PROMPT, 4)]
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
    """An int8 copy drafts for a large float32 target, if int8 is fast and the copy fits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("speculative.run.load.LARGE_BYTES", 0)
        patch.setattr(CEngine, "copy_is_quick", lambda engine, N: True)
        models = load().models
        assert fast_drafter(models, 40) == "int8/prompt_lookup+model"
        assert fast_drafter(load(dtype="bfloat16").models, 40) == "prompt_lookup+model"
        patch.setattr(memory, "check", without_a_copy)
        session = load(fast=True)
        assert session.options.drafter == "prompt_lookup+model"
        assert {*session.models.loaded} == {"target", "draft"}


def without_a_copy(models, *others):
    """In place of memory.check: there is room for two models."""
    if len(models) > 2:
        raise UserError("too little memory")


MISTAKES = [
    # (the check that sees it, where, what stands there, what stands there by mistake)
    (check_conflicts, "run.options:check_conflicts", "in excluded_by(name)", "in ()"),
    (check_no_effect, "run.options:check_effects", "row.useless(o)", "False"),
    (check_defaults, "run.options:meant", 'name in ("prompt", "K")', "False"),
    (check_defaults, "run.options:meant", "value != FIELDS[name].default", "True"),
    (check_change, "run.options:reset_by", "excluded_by(f.name) & changed", "False"),
    (check_change, "run.options:make_options", "replace(base, **reset_by(values, base), **values)", "kind(**values)"),
    (check_change, "run.options:read_values", 'if base and not f.metadata.get("live")', "if False"),
    (check_change, "run.options:read_values", "f.default if value is None else", "base and getattr(base, name) if value is None else"),
    (check_demo, "run.options:make_options", "if name in names} | values", "if name in names}"),
    (check_demo, "run.options:check_demo", '"[0-9]+M"', '"-"'),
    (rows_of("top_p"), "run.plan:target_filters", "getattr(o, name)", 'getattr(o, {"top_p": "min_p", "min_p": "top_p"}.get(name, name))'),
    (rows_of("min_p"), "run.plan:target_filters", "name in Filters._fields", "name in Filters._fields[:3]"),
    (rows_of("draft_temperature"), "run.plan:draft_filters", "o.temperature if o.draft_temperature is None else o.draft_temperature", "o.temperature"),
    (rows_of("draft_temperature"), "run.plan:draft_filters", "if o.draft_temperature is None else", "if not o.draft_temperature else"),
    (rows_of("tree"), "run.plan:draft_filters", "temperature = 1.0", "temperature = 0.0"),
    (rows_of("tree"), "run.plan:make_plan", "tree=o.tree or ()", "tree=()"),
    (rows_of("seed"), "run.plan:make_plan", "seed=o.seed", "seed=123"),
    (rows_of("stop"), "run.plan:make_plan", "stop=o.stop", "stop=None"),
    (rows_of("K"), "run.plan:one_K_a_level", "return Ks +", "return Ks[::-1] +"),
    (rows_of("dtype"), "run.plan:wanted_models", "Wanted(o.target_model_size, o.dtype)", "Wanted(o.target_model_size, o.draft_dtype)"),
    (check_engine_is_asked, "run.plan:make_plan", "engine.check(plan)", "pass"),
    (check_room, "run.prompts:PromptReader.input_ids", "N + n_nodes(tree)", "N"),
    (check_room, "run.prompts:PromptReader.input_ids", "> self.n_ctx", "> self.n_ctx + 1"),
    (check_samples, "run.session:Session.speculative", "n_tokens_to_generate, sample)", "n_tokens_to_generate)"),
    (check_changed_session, "run.session:Session.changed", "base=self.options", "base=type(self.options)()"),
    (check_changed_session, "run.session:Session.changed", "functions=functions", "functions=type(functions)()"),
    (check_fast, "run.load:spelled_out", "if not o.fast", "if True"),
    (check_memory, "run.load:load", "models.check(plan.network_roles, n_texts * n_tokens if o.batch > 1 else None)", "pass"),
    (check_special, "run.prompts:PromptReader.encode", "self.plan.special", "False"),
    (check_smallest_context, "run.load:load", "min(map", "max(map"),
    (check_samples, "run.decode:decode", "first_sample + number", "number"),
    (check_rule, "run.decode:new_loop", "rng, plan.rule.accept)", "rng)"),
    (check_greedy, "run.decode:new_loop", "autoregressive_sampling(x, target", "autoregressive_sampling(x, models[[*models][-1]]"),
    (check_stop, "run.decode:Text.add", "min(step.n_accepted, n)", "step.n_accepted"),
    (check_stop, "run.decode:Text.add", "if self.is_stopped", "if False"),
    (check_draft_filters, "run.decode:new_models", "plan.filters(role)", 'plan.filters("target")'),
    (check_lookahead_of_each_level, "run.decode:drafters_of", "most_drafts(plan, level + 1)", "most_drafts(plan, level)"),
    (check_times, "run.steps:Times.calls_of_round", "sorted(made, key=call_order)", "made"),
    (check_times, "run.steps:Times.take_span", "return self.began, seconds", "return 0.0, seconds"),
    (check_times, "run.steps:Times.write_to", "step.prefill = any(call.prefill for call in of_target)", "pass"),
    (check_forgotten, "run.session:Session.ready", "self.models.forget(self.plan.network_roles)", "pass"),
    (check_costs, "run.session:Session.ready", "self.measure(inputs[0], setup)", "pass"),
    (check_roles, "run.load:Models.spec", "self.wanted[role]", 'self.wanted["target"]'),
    (check_roles, "run.load:Models.spec", ", dtype=role)", ")"),
    (check_roles, "run.load:Models.read", "zip(specs, makers, packed", "zip(reversed(specs), makers, packed"),
    (check_loaded_once, "run.load:Models.new_specs", "if role not in self.loaded", "if role"),
    (check_loaded_once, "run.session:Session.new_setup", "if self.models.shares_cache(role)", "if False"),
    (check_copy_is_counted, "run.load:Models.check", "self.new_specs(roles)", "[]"),
    (check_fast_drafter, "run.load:Models.load_networks", "for spec in specs if spec.size == name", "for spec in self.specs.values() if spec.size == name"),
    (check_fast_drafter, "run.load:copy_pays", 'target.dtype != "float32"', "False"),
    (check_fast_drafter, "run.load:copy_fits", "except UserError:\n        return False", "except UserError:\n        return True"),
]  # fmt: skip
CHECKS = [*dict.fromkeys(check for check, *_ in MISTAKES)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__qualname__)
def test_without_a_mistake_all_checks_pass(check, load):
    check(load)


@pytest.mark.parametrize(("check", "place", "old", "new"), MISTAKES)
def test_a_planted_mistake_is_seen(check, place, old, new, load, monkeypatch):
    plant(monkeypatch, place, old, new)
    with pytest.raises((Exception, pytest.fail.Exception)):
        check(load)
