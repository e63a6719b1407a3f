"""A run as one JSON document, and back: --json writes it, and python -m speculative page makes a page of it.

docs/output.md explains every key.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from itertools import islice
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from speculative.report import ending
from speculative.report.advice import advice
from speculative.report.record import Account, Comparison, Figures, Predictions, RunRecord, Sample, ScoreRecord
from speculative.report.score_words import summary
from speculative.support.errors import UserError
from speculative.support.files import write_json, write_json_lines
from speculative.support.texts import has_json_lines, read_text

SCHEMA = 8  # changes if a key is renamed or means something else, not if one is added
SCALARS: dict = {str: str, bool: bool, int: int, float: (int, float)}  # types, and those of their values in JSON
PARTS: dict[str, type] = {"comparison": Comparison, "account": Account, "predictions": Predictions}  # by their keys
NOT_WRITTEN = ("text_index", "q_of_tokens")  # fields of a TextStep


def to_json(record: RunRecord) -> dict:
    """Return the document of a run."""
    document = {"schema": SCHEMA} | asdict(record, dict_factory=written)
    document["prompt"] = document["prompts"][0]
    document["vocabulary"] = {str(token): text for token, text in record.vocabulary.items()}
    document["summary"] = ending.texts_of(record, ending.CAME, ending.WHY)
    document["advice"] = advice(record)
    return document


def written(fields_of_part: list[tuple]) -> dict:
    """Return a part of the record as JSON has it. An iteration has its text, and the number of its tokens."""
    values = dict(fields_of_part)
    if "pieces" in values:
        values |= {"text": "".join(values["pieces"]), "tokens": len(values["tokens"])}
        for name in NOT_WRITTEN:
            del values[name]
    return side_by_side(values) if "predictions" in values else values


def side_by_side(figures: dict) -> dict:
    """Return figures with the fields of their parts in place of these: None in those of a part that is None."""
    fields_of = {name: dict.fromkeys(f.name for f in fields(kind)) for name, kind in PARTS.items()}
    values: dict = {}
    for name, value in figures.items():
        values |= (value or fields_of[name]) if name in PARTS else {name: value}
    return values


def write_run(path: str, record: RunRecord) -> None:
    """Write the document of a run; to a file .jsonl or .ndjson a line for each text instead. Raises UserError."""
    if has_json_lines(path):
        write_json_lines(path, lines_of_texts(record))
    else:
        write_json(path, to_json(record))


def score_to_json(score: ScoreRecord) -> dict:
    """Return the document of a score."""
    return {"schema": SCHEMA} | asdict(score) | {"summary": summary(score)}


def write_score(path: str, score: ScoreRecord) -> None:
    """Write the document of a score; to a file .jsonl or .ndjson a line for each token instead. Raises UserError."""
    if has_json_lines(path):
        write_json_lines(path, lines_of_tokens(score))
    else:
        write_json(path, score_to_json(score))


def lines_of_tokens(score: ScoreRecord) -> Iterator[dict]:
    """Yield an object for each token after the first: its numbers are named by the role of their model."""
    for i, (token, text) in enumerate(zip(score.tokens[1:], score.pieces[1:], strict=True)):
        line = {"token": token, "text": text}
        for model in score.models:
            line[f"log_prob_{model.role}"] = model.log_probs[i]
            if model.chances:
                line[f"chance_{model.role}"] = model.chances[i]
        yield line


def lines_of_texts(record: RunRecord) -> Iterator[dict]:
    """Yield an object for each text, in the order of the prompts: its text, without the times."""
    *others, decoder = record.decoders.values()  # the speculative one, if it has run
    for number, prompt in enumerate(record.prompts):
        sample = decoder.samples[number]
        line = {
            "prompt": prompt.text,
            "text": sample.text,
            "tokens": sample.tokens,
            "iterations": len(sample.iterations),
            "drafted": sum(step.drafted for step in sample.iterations),
            "accepted": sum(step.accepted for step in sample.iterations),
        }
        for other in others:
            line[other.name] = other.samples[number].text
        yield line


# ---- Back ------------------------------------------------------------------------------------------------------------


def read_run(path: str) -> RunRecord:
    """Return the run that --json has written to a file. Raises UserError."""
    record = read_record(path)
    if isinstance(record, ScoreRecord):
        raise UserError(f"{path} is the score of a text, and no run: decode with --json")
    return record


def read_record(path: str) -> RunRecord | ScoreRecord:
    """Return the run, or the score, that --json has written to a file. Raises UserError."""
    if has_json_lines(path):
        raise UserError(f"{path} has texts without their times: decode again with --json FILE.json")
    text = read_text(path, "run")
    with naming_run(path):
        document = json.loads(text)
        schema = document["schema"]
        if schema == SCHEMA:
            if document.get("speculative", {}) is None:
                raise UserError(f"{path} has no speculative decode to show: decode again without --only autoregressive")
            return build(ScoreRecord, document) if "expected" in document else from_json(document)
    raise UserError(f"{path} has schema {schema!r:.20}, and this version reads {SCHEMA}: decode again with --json")


class DamagedError(Exception):
    """A value that no run has. Its arguments are the keys that lead to it."""


def keys_of(error: Exception) -> tuple:
    """Return the keys that lead to the cause of an error, () if it has none."""
    return error.args if isinstance(error, DamagedError) else ()


@contextlib.contextmanager
def naming_run(path: str) -> Iterator:
    """Raise a UserError for any error in the body of the `with`, which reads or draws the run of this file: values of a
    damaged one can be anything, and so can the errors that they cause."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        key = ".".join(keys_of(error))
        where = f" (see its {key})" if key else ""
        raise UserError(f"{path} is not a run{where}: give a file that --json has written") from None


def from_json(document: Mapping[str, Any]) -> RunRecord:
    """Return the record of a document. Raises DamagedError if it is not a whole one."""
    return build(RunRecord, document)


def build(kind: Any, value: Any) -> Any:
    """Return a value of this type from JSON's. Any error is raised if it is of another type."""
    arguments = [argument for argument in get_args(kind) if argument is not NoneType]
    if value is None and NoneType in get_args(kind):
        return None
    if kind in SCALARS and not isinstance(value, SCALARS[kind]):
        raise ValueError(value)
    if is_dataclass(kind):
        return build_dataclass(kind, value)
    if get_origin(kind) is dict:
        key, content = arguments  # keys are texts in JSON
        return {key(name): build(content, part) for name, part in value.items()}
    if get_origin(kind) is list:
        return [build(arguments[0], part) for part in value]
    if len(arguments) == 1:  # or None
        return build(arguments[0], value)
    return tuple(value) if isinstance(value, list) and kind is not list else value


def build_dataclass(kind: Any, values: Any) -> Any:
    """Return an object of a dataclass. Unknown keys are left out; those with a default may be missing."""
    if kind is Sample:
        values = with_tokens(values)
    if kind is Figures:
        values = with_parts(values)
    types = get_type_hints(kind)
    built = {}
    for f in fields(kind):
        is_required = f.default is MISSING and f.default_factory is MISSING
        if f.name in values or is_required:
            try:
                built[f.name] = build(types[f.name], values[f.name])
            except Exception as error:
                key = () if kind is Figures and f.name in PARTS else (f.name,)  # their keys are the figures' own
                raise DamagedError(*key, *keys_of(error)) from None
    return kind(**built)


def with_parts(figures: dict) -> dict:
    """Return figures with their parts, of which each takes its own fields: None if the first of these is."""
    parts = {}
    for name, kind in PARTS.items():
        first = fields(kind)[0].name
        parts[name] = figures if figures.get(first) is not None else None
    return figures | parts


def with_tokens(sample: dict) -> dict:
    """Return a sample whose iterations have their tokens in the place of their number."""
    tokens = iter(sample["tokens"])
    iterations = [step | {"tokens": [*islice(tokens, step["tokens"])]} for step in sample["iterations"]]
    return sample | {"iterations": iterations}
