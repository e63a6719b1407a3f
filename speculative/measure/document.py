"""A run as one JSON document, and back: --json writes it, and python -m speculative page makes a page of it.

docs/output.md explains every key. The parts of the figures are put together: the JSON has one object of figures.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from speculative.measure import ending
from speculative.measure.record import Account, Comparison, Counts, Figures, Predictions, RunRecord, Times
from speculative.steps import TextStep
from speculative.support.errors import UserError
from speculative.support.texts import read_text

SCHEMA = 8  # changes if a key is renamed or means something else, not if one is added
FIGURES = {  # fields of Figures, and of its parts, whose own fields stand beside the others
    "counts": Counts,
    "times": Times,
    "comparison": Comparison,
    "account": Account,
    "predictions": Predictions,
}
NOT_WRITTEN = ("text_index", "q")  # of a TextStep


def to_json(record: RunRecord) -> dict[str, Any]:
    """Return the document of a run."""
    document = {"schema": SCHEMA} | plain(record)
    document["prompt"] = document["prompts"][0]
    if record.figures:
        document["figures"] = flat(Figures, record.figures)
    document["summary"] = [line.text for line in ending.lines(record)]
    document["advice"] = ending.text_of(record, "advice")
    return document


def plain(value: Any) -> Any:
    """Return a value of the record as JSON has it."""
    if isinstance(value, TextStep):
        return plain_step(value)
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [*map(plain, value)]
    return value


def plain_step(step: TextStep) -> dict[str, Any]:
    """Return an iteration: its text, the number of its tokens, its counts and its times."""
    values = {"text": step.text}
    for name, value in vars(step).items():
        if name not in NOT_WRITTEN:
            values[name] = plain(value)
    return values | {"tokens": len(step.tokens)}


def flat(kind: type, part: Any) -> dict[str, Any]:
    """Return {name: value} of a part of the figures and of its parts; None for each if there is no such part."""
    values: dict[str, Any] = {}
    for f in fields(kind):
        value = getattr(part, f.name, None)
        if f.name in FIGURES:
            values |= flat(FIGURES[f.name], value)
        else:
            values[f.name] = plain(value)
    return values


# ---- Back ------------------------------------------------------------------------------------------------------------


def read_run(path: str) -> RunRecord:
    """Return the run that --json has written to a file. Raises UserError."""
    text = read_text(path, "run")
    with naming_run(path):
        document = json.loads(text)
        schema = document["schema"]
        if schema == SCHEMA:
            return from_json(document)
    raise UserError(f"{path} has schema {schema!r:.20}, and this version reads {SCHEMA}: decode again with --json")


@contextlib.contextmanager
def naming_run(path: str) -> Iterator[None]:
    """Raise a UserError for any error in the body of the `with`, which reads or draws the run of this file: values of a
    damaged one can be anything, and so can the errors that they cause."""
    try:
        yield
    except UserError:
        raise
    except Exception:
        raise UserError(f"{path} is not a run: give a file that --json has written") from None


def from_json(document: Mapping[str, Any]) -> RunRecord:
    """Return the record of a document. Any error is raised if it is not a whole one."""
    values = dict(document)
    values["figures"] = parts_of(Figures, document["figures"] or {})
    for name in ("autoregressive", "speculative"):
        if values[name]:
            samples = [sample | {"iterations": steps_of(sample)} for sample in values[name]["samples"]]
            values[name] = values[name] | {"samples": samples}
    return build(RunRecord, values)


def parts_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Undo flat: {"tokens": ..., "speedup": ...} -> {"counts": {"tokens": ...}, "comparison": {"speedup": ...}}."""
    parts: dict[str, Any] = {}
    for f in fields(kind):
        if f.name in FIGURES:
            parts[f.name] = parts_of(FIGURES[f.name], values)
        else:
            parts[f.name] = values.get(f.name)
    return parts if {*map(type, parts.values())} - {NoneType} else None


def steps_of(sample: Mapping[str, Any]) -> list[TextStep]:
    """Return the iterations of a sample, each with its tokens."""
    steps = []
    tokens = iter(sample["tokens"])
    for values in sample["iterations"]:
        own = [next(tokens) for _ in range(values["tokens"])]
        steps.append(build(TextStep, values | {"tokens": own}))
    return steps


def build(kind: Any, value: Any) -> Any:
    """Return a value of this type from JSON's."""
    arguments = [argument for argument in get_args(kind) if argument is not NoneType]
    origin = get_origin(kind)
    if value is None or isinstance(value, TextStep):
        return value
    if is_dataclass(kind):
        return build_dataclass(kind, value)
    if origin is dict:
        key, content = arguments
        return build_dict(key, content, value)
    if origin is list:
        return [build(arguments[0], part) for part in value]
    if len(arguments) == 1 and is_dataclass(arguments[0]):  # or None
        return build_dataclass(arguments[0], value)
    if kind is list:
        return value
    return tuple(value) if isinstance(value, list) else value


def build_dataclass(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return an object of a dataclass. Unknown keys are left out; those with a default may be missing."""
    types = get_type_hints(kind)
    parts = {}
    for f in fields(kind):
        if f.name in values:
            parts[f.name] = build(types[f.name], values[f.name])
    return kind(**parts)


def build_dict(key: type, content: Any, values: Mapping[str, Any]) -> dict[Any, Any]:
    """Return a dict. Keys are texts in JSON."""
    built = {}
    for name, value in values.items():
        built[key(name)] = build(content, value)
    return built
