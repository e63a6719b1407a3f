"""A run as one JSON document: --json writes it, pages are made of it. docs/output.md explains every key."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculative.blog.encoder import Encoder
from speculative.engines.system import n_cores
from speculative.measure.figures import figures
from speculative.measure.predictions import measure
from speculative.measure.report import advice, stand_ins, summary
from speculative.measure.turns import Record
from speculative.session import Session
from speculative.steps import TextStep
from speculative.support.terminal import without_secrets

SCHEMA = 7  # changes if a key is renamed or means something else, not if one is added


def document(session: Session, prompts: Sequence[str], records: Sequence[Record], **options: Any) -> dict[str, Any]:
    """Return the document of a run. Seconds throughout; None if the run was too short to measure something.

    prompts: one for each text. records: of both decoders, or of the speculative one. options: those that differ from
    the session's.
    """
    o = vars(session.options) | options
    read = [{"text": text, "tokens": ids} for text, ids in zip(prompts, records[0].inputs, strict=True)]
    *others, speculative = records
    measured = measure(session, speculative) if others else None
    found = figures(others[0] if others else None, speculative, measured)
    shown = {token for record in records for i in record.iterations for token in shown_tokens(i)}
    return {
        "schema": SCHEMA,
        "options": o | {"source": without_secrets(o["source"])},
        "machine": {"engine": o["engine"]} | machine() | session.engine.facts(),
        "prompt": read[0],
        "prompts": read,
        **{record.name: decoder_document(record) for record in records},
        "vocabulary": {str(token): token_text(token, session.encoder) for token in sorted(shown)},
        "figures": found,
        "stand_ins": stand_ins(session),
        "rule": {name: getattr(session.plan.rule, name) for name in ("name", "formula", "lossless")},
        "summary": summary(session, records, found),
        "advice": advice(found, session),
    }


def decoder_document(record: Record) -> dict:
    return {
        "seconds": record.seconds,
        "runs": record.runs,
        "samples": [
            {"text": "".join(i.text for i in sample), "tokens": tokens, "iterations": [*map(iteration, sample)]}
            for sample, tokens in zip(record.samples, record.tokens, strict=True)
        ],
    }


def iteration(i: TextStep) -> dict[str, Any]:
    """Return the text, the counts and the times of an iteration."""
    origins = [origin.partition(":")[0] for origin in i.origins]
    found = {"text": i.text} | vars(i) | {"tokens": len(i.tokens), "origins": origins}
    return {name: value for name, value in found.items() if name not in ("text_index", "q")}


def shown_tokens(iteration: TextStep) -> set[int]:
    """Return the tokens that a page shows beside the text."""
    if iteration.tree:
        return {*iteration.tree["tokens"]}
    if not iteration.details:
        return set()
    drafts, tested, own = iteration.details.values()
    return {*drafts, *(token for part in (*tested, own) if part for token, *_ in part["top"])}


def token_text(token: int, encoder: Encoder) -> str:
    """Return the token's bytes as text; those that are a part of a character as \\xNN."""
    return encoder.to_bytes([token]).decode("utf-8", "backslashreplace")


def machine() -> dict:
    """Return the names and versions of the machine."""
    return {
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": n_cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
