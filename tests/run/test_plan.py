"""The plan: how each option changes what will run, and the combinations that are refused before a model is read."""

from dataclasses import fields

import pytest
from planned import PLANNED, check_row, names_of, plan_of
from tiny import refusal

from speculative.drafters.user import Functions
from speculative.engines.formats import FORMATS
from speculative.engines.plain import NumpyEngine
from speculative.filters import Filters
from speculative.run import load, plan
from speculative.run.options import FIELDS, ModelOptions, make_options


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: f"{row.option}={row.typed}")
def test_each_option_changes_the_plan(row):
    check_row(row)


def test_every_option_of_a_decode_has_such_a_row():
    live = {f.name for f in fields(ModelOptions) if FIELDS[f.name].metadata.get("live")}
    assert live - {row.option for row in PLANNED} == {"n_tokens_to_generate", "fast"}  # which no plan holds
    assert {*Filters._fields} <= {row.option for row in PLANNED}


def test_fast_is_spelled_out(monkeypatch):
    cold, warm = (make_options(ModelOptions, {"fast": "True", "temperature": t}) for t in ("0", "1"))
    monkeypatch.setattr(load, "copy_pays", lambda o, models, prompts: True)
    assert [load.spelled_out(o, None).accept for o in (cold, warm)] == ["token", "block"]
    made = plan.make_plan(load.spelled_out(warm, None), NumpyEngine())
    assert (names_of(made), made.Ks) == ([["int8"], ["prompt_lookup", "model"]], ["auto", "auto"])


def test_texts_after_the_first_have_random_numbers_of_their_own():
    plan = plan_of()
    drawn = [plan.rng(number).random() for number in range(3)]
    assert drawn[0] == plan.rng(0).random()
    assert len({*drawn}) == 3


def test_options_name_the_models():
    def changed(**options):
        """The values of the models that these options change, by role."""
        made = [load.wanted_models(make_options(ModelOptions, given), NumpyEngine()) for given in ({}, options)]
        return {role: wanted for role, wanted in made[1].items() if wanted != made[0][role]}

    sizes = {role: wanted.size for role, wanted in changed(target_model_size="355M").items()}
    assert sizes == dict.fromkeys(["target", *FORMATS], "355M")
    assert changed(draft_model_size="355M") == {"draft": ("355M", "float32")}
    assert changed(dtype="bfloat16") == {"target": ("1558M", "bfloat16")}
    assert changed(draft_dtype="int4") == {"draft": ("124M", "int4")}


COPY = "takes no fewer bytes than the target, whose weights are"
REFUSED = [
    ({"K": "4/2"}, "--K 4/2 is for 2 levels, and --drafter model has 1"),
    ({"accept": "block", "tree": "2,1"}, "--accept block tests a chain, and --tree drafts a tree: leave one"),
    ({"drafter": "model/ngram", "tree": "2,1"}, "--tree does not go with a staged drafter: model/ drafts a chain"),
    ({"drafter": "model/model"}, "--drafter model/model names model twice: once is enough"),
    ({"drafter": "int8", "dtype": "int8"}, f"--drafter int8 {COPY} int8"),
    ({"drafter": "ngram/int8", "dtype": "int4"}, f"--drafter int8 {COPY} int4"),
    ({"accept": "lenient:2"}, "--accept must be one of: token; block; "),
    ({"drafter": "mine"}, "--drafter 'mine' is unknown"),
]


@pytest.mark.parametrize(("options", "line"), REFUSED, ids=str)
def test_what_does_not_go_together_is_refused(options, line):
    assert refusal(plan_of, **options).startswith(line)


def test_an_engine_refuses_a_plan():
    class Strict(NumpyEngine):
        def check(self, plan):
            raise AssertionError(plan.rule.name, plan.Ks)

    with pytest.raises(AssertionError, match=r"block.*8"):
        plan.make_plan(make_options(ModelOptions, {"accept": "block", "K": "8"}), Strict())


def test_functions_take_their_names_among_the_options():
    def mine(x, k, rng=None):  # which may stand for a drafter and for a rule
        """Not called."""

    first, functions = Functions().taken_from({"drafter": mine, "K": 2})
    assert first == {"drafter": "mine", "K": 2}
    second, both = functions.taken_from({"accept": mine})
    assert second == {"accept": "mine"}
    assert ([*both.drafter], [*both.accept], [*functions.accept]) == (["mine"], ["mine"], [])
    made = plan.make_plan(make_options(ModelOptions, first | second), NumpyEngine(), both)
    assert (names_of(made), made.rule.name, made.Ks) == ([["mine"]], "mine", [2])
