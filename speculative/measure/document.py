"""A run as one JSON document: --json writes it, pages are made of it. docs/output.md explains every key."""

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from speculative.blog.encoder import Encoder
from speculative.engines.library import n_cores
from speculative.measure.recorder import Iteration, Recorder, to_json
from speculative.support.terminal import without_secrets

SCHEMA = 5  # changes if a key is renamed or means something else, not if one is added
DECODERS = ("autoregressive", "speculative")


def document(
    options: dict,
    encoder: Encoder,
    prompts: Sequence[str],
    input_ids: Sequence,
    recorders: Sequence[Recorder],
    **found,
) -> dict:
    """Return the document of a run. Seconds throughout; None if the run was too short to measure something.

    prompts: one, or with --batch several; input_ids: their tokens. found: figures, summary and stand_ins.
    """
    read = [{"text": p, "tokens": [int(token) for token in ids]} for p, ids in zip(prompts, input_ids, strict=True)]
    shown = {token for recorder in recorders for i in recorder.iterations for token in shown_tokens(i)}
    return {
        "schema": SCHEMA,
        "options": options | {"source": without_secrets(options["source"])},
        "machine": machine(options["engine"]),
        "prompt": read[0],
        "prompts": read,
        **{name: decoder_document(recorder) for name, recorder in zip(DECODERS, recorders, strict=True)},
        "vocabulary": {str(token): token_text(token, encoder) for token in sorted(shown)},
        **found,
    }


def decoder_document(recorder: Recorder) -> dict:
    return {
        **{name: getattr(recorder, name) for name in ("seconds", "runs", "prefill", "t_draft")},
        "t_target": {str(rows): seconds for rows, seconds in recorder.t_target.items()},
        "samples": [
            {"text": "".join(i.text for i in sample), "tokens": tokens, "iterations": [*map(to_json, sample)]}
            for sample, tokens in zip(recorder.samples, recorder.tokens, strict=True)
        ],
    }


def shown_tokens(iteration: Iteration) -> set[int]:
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


def machine(engine: str = "numpy") -> dict:
    """Return the names and versions of the machine; with engine "jax", of its devices too."""
    names = {
        "engine": engine,
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": n_cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if engine == "jax":
        import jax

        devices = jax.devices()
        names |= {"device_platform": devices[0].platform, "device_kind": devices[0].device_kind}
        names |= {"devices": len(devices), "jax": jax.__version__}
    return names


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
