"""The plan: how each option changes what will run, and the combinations that are refused before a model is read."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from tiny import refusal

from speculative.drafters.user import Functions
from speculative.engines.numpy_engine import NumpyEngine
from speculative.filters import Filters
from speculative.run import load, plan
from speculative.run.options import FIELDS, ModelOptions, make_options
from speculative.run.plan import Plan


class Anything(NumpyEngine):
    """An engine that refuses nothing."""

    def check(self, plan):
        pass


def plan_of(**options: Any) -> Plan:
    return plan.make_plan(make_options(ModelOptions, options), Anything())


def names_of(plan: Plan) -> list[list[str]]:
    return [[spec.name for spec in specs] for specs in plan.levels]


def both(name: str) -> Callable[[Plan], tuple]:
    """A filter of the target, and of the draft."""
    return lambda plan: (getattr(plan.target_filters, name), getattr(plan.draft_filters, name))


class Row(NamedTuple):
    """An option, and a part of the plan without it and with it."""

    option: str
    typed: str
    part: Callable[[Plan], Any]
    before: Any
    after: Any
    beside: Mapping[str, str] = MappingProxyType({})  # other options


WARM = {"temperature": "1"}
PLANNED = [
    Row("K", "8", attrgetter("Ks"), [4], [8]),
    Row("K", "8/2", attrgetter("Ks"), [4, 4], [8, 2], {"drafter": "model/ngram"}),
    Row("K", "auto", attrgetter("depends_on_times"), False, True),
    Row("temperature", "0.7", both("temperature"), (0.0, 0.0), (0.7, 0.7)),
    Row("temperature", "1", attrgetter("is_greedy"), True, False),
    Row("draft_temperature", "0.5", both("temperature"), (1.0, 1.0), (1.0, 0.5), WARM),
    Row("draft_temperature", "0", both("temperature"), (1.0, 1.0), (1.0, 0.0), WARM),
    Row("top_k", "5", both("top_k"), (None, None), (5, 5), WARM),
    Row("top_p", "0.9", both("top_p"), (None, None), (0.9, 0.9), WARM),
    Row("min_p", "0.2", both("min_p"), (None, None), (0.2, 0.2), WARM),
    Row("eta", "0.3", both("eta"), (None, None), (0.3, 0.3), WARM),
    Row("seed", "5", lambda plan: plan.rng(0).integers(100), 1, 67),
    Row("accept", "block", lambda plan: plan.rule.name, "token", "block"),
    Row(
        "accept",
        "lenient:0.5",
        lambda plan: (plan.rule.name, plan.rule.lossless),
        ("token", True),
        ("lenient:0.5", False),
    ),
    Row("drafter", "int8/ngram+model", names_of, [["model"]], [["int8"], ["ngram", "model"]]),
    Row("drafter", "int8/ngram+model", attrgetter("roles"), ["target", "draft"], ["target", "int8", "ngram", "draft"]),
    Row("drafter", "int8/ngram+model", attrgetter("network_roles"), ["target", "draft"], ["target", "int8", "draft"]),
    Row("drafter", "heads+ngram", lambda plan: [spec.name for spec in plan.loaded_parts], [], ["heads", "ngram"]),
    Row("drafter", "heads+ngram", attrgetter("filtered_roles"), ["target", "draft"], ["target", "ngram"]),
    Row("tree", "2,1", attrgetter("tree"), (), (2, 1)),
    Row("tree", "2,1", both("temperature"), (0.0, 0.0), (0.0, 1.0)),
    Row("tree", "2,1", both("temperature"), (0.5, 0.5), (0.5, 0.5), {"temperature": "0.5"}),
    Row("stop", "the end", attrgetter("stop"), None, "the end"),
    Row("special", "True", attrgetter("special"), False, True),
    Row("batch", "3", attrgetter("batch"), 1, 3, {"engine": "jax"}),
    Row("target_model_size", "355M", lambda plan: plan.wanted["target"].size, "1558M", "355M"),
    Row("target_model_size", "355M", lambda plan: plan.wanted["int8"].size, "1558M", "355M"),
    Row("draft_model_size", "355M", lambda plan: plan.wanted["draft"].size, "124M", "355M"),
    Row("dtype", "bfloat16", lambda plan: plan.wanted["target"].dtype, "float32", "bfloat16"),
    Row("draft_dtype", "int4", lambda plan: plan.wanted["draft"].dtype, "float32", "int4"),
]


def check_row(row: Row) -> None:
    assert row.part(plan_of(**row.beside)) == row.before
    assert row.part(plan_of(**row.beside, **{row.option: row.typed})) == row.after


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: f"{row.option}={row.typed}")
def test_each_option_changes_the_plan(row):
    check_row(row)


def test_every_option_of_a_decode_has_such_a_row():
    live = {f.name for f in fields(ModelOptions) if FIELDS[f.name].metadata.get("live")}
    assert live - {row.option for row in PLANNED} == {"n_tokens_to_generate", "fast"}  # which no plan holds
    assert {*Filters._fields} <= {row.option for row in PLANNED}


def test_fast_is_spelled_out(monkeypatch):
    cold, warm = (make_options(ModelOptions, {"fast": "True", "temperature": t}) for t in ("0", "1"))
    monkeypatch.setattr(load, "copy_pays", lambda models, N: True)
    assert [load.spelled_out(o, None).accept for o in (cold, warm)] == ["token", "block"]
    made = plan.make_plan(load.spelled_out(warm, None), NumpyEngine())
    assert (names_of(made), made.Ks) == ([["int8"], ["prompt_lookup", "model"]], ["auto", "auto"])


def test_texts_after_the_first_have_random_numbers_of_their_own():
    plan = plan_of()
    drawn = [plan.rng(number).random() for number in range(3)]
    assert drawn[0] == plan.rng(0).random()
    assert len({*drawn}) == 3


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
