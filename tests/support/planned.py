"""The options, with the part of the plan that each of them decides."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from speculative.engines.plain import NumpyEngine
from speculative.run import plan
from speculative.run.options import ModelOptions, make_options
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
    Row("drafter", "heads+ngram", lambda plan: [*plan.filters], ["target", "draft"], ["target", "ngram"]),
    Row("tree", "2,1", attrgetter("tree"), (), (2, 1)),
    Row("tree", "2,1", both("temperature"), (0.0, 0.0), (0.0, 1.0)),
    Row("tree", "2,1", both("temperature"), (0.5, 0.5), (0.5, 0.5), {"temperature": "0.5"}),
    Row("stop", "the end", attrgetter("stop"), None, "the end"),
    Row("special", "True", attrgetter("special"), False, True),
    Row("batch", "3", attrgetter("batch"), 1, 3, {"engine": "jax"}),
]


def check_row(row: Row) -> None:
    assert row.part(plan_of(**row.beside)) == row.before
    assert row.part(plan_of(**row.beside, **{row.option: row.typed})) == row.after
