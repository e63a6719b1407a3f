"""All of a run as one JSON document: what --json writes, and pages are made of. docs/output.md explains every key."""

from typing import Any

from speculative import accept
from speculative.blog.encoder import Encoder
from speculative.measure.details import Details
from speculative.measure.figures import figures
from speculative.measure.machine import machine
from speculative.measure.record import Iteration, Record, checked, origins, read_iteration, read_record, to_json
from speculative.measure.report import summary
from speculative.support.errors import UserError

SCHEMA = 3  # changes when a key is renamed or means something else, not when one is added
DECODERS = ("autoregressive", "speculative")
MOST = 2**13  # tokens of a window in a file: more is a file that was made to take long
ORIGINS = {"accepted", "resampled", "bonus", "autoregressive"}


def check_version(run: dict, name: str = "this run") -> None:
    """Raises UserError where another version wrote a document: with another schema, or before it had all figures."""
    if run["schema"] != SCHEMA:
        raise UserError(f"{name} has schema {run['schema']!r:.20}, and this version reads {SCHEMA}: decode again")
    lacks = [key for key in figures(Record(), Record()) if key not in run["figures"]]
    if lacks:
        earlier = f"an earlier version with schema {SCHEMA} wrote it"
        raise UserError(f"{name} lacks the figure {lacks[0]}, as {earlier}: decode again")


def document(
    options: dict,
    encoder: Encoder,
    prompts: list[str],
    input_ids: list,
    autoregressive: Record,
    speculative: Record,
    stand_ins: dict[str, str] | None = None,
) -> dict:
    """options: every flag and its value. prompts: one, or with --batch several; input_ids: theirs. stand_ins: {a model
    with an official name, but not the official weights: what it is instead}.

    Seconds throughout; None where a run was too short to measure something. Where the records have details, vocabulary
    has the text of each token in them.
    """
    read = [{"text": p, "tokens": [int(token) for token in ids]} for p, ids in zip(prompts, input_ids, strict=True)]
    records = dict(zip(DECODERS, (autoregressive, speculative), strict=True))
    found = figures(autoregressive, speculative)
    shown = {token for record in records.values() for i in record.iterations for token in shown_tokens(i)}
    vocabulary = {str(token): token_text(token, encoder) for token in sorted(shown)}
    return {
        "schema": SCHEMA,
        "options": options,
        "stand_ins": stand_ins or {},
        "machine": machine(options.get("engine", "numpy")),
        "prompt": read[0],
        "prompts": read,
        **{
            name: to_json(record) | {"samples": [sample_document(sample) for sample in record.samples]}
            for name, record in records.items()
        },
        "figures": found,
        "summary": summary(found, options.get("K")),
        **({"vocabulary": vocabulary} if vocabulary else {}),
    }


def sample_document(sample: list[Iteration]) -> dict:
    pieces = [piece for i in sample for piece in i.pieces]
    return {
        "text": "".join(pieces),
        "pieces": pieces,
        "tokens": [int(token) for i in sample for token in i.step.tokens],
        "origins": [origin.partition(":")[0] for i in sample for origin in origins(i)],
        "iterations": [*map(to_json, sample)],
    }


def shown_tokens(iteration: Iteration) -> set[int]:
    """The tokens that a page shows beside the text."""
    if iteration.tree:
        return {*iteration.tree["tokens"]}
    return token_ids(iteration.details) if iteration.details else set()


def token_ids(details: Details) -> set[int]:
    return {*details["drafts"], *(token for top in tops(details) for token in top["tokens"])}


def tops(details: Details) -> list[dict]:
    """The likeliest tokens where a draft was tested, and where the target's own was drawn."""
    return [part["top"] for part in [*details["tested"], *filter(None, [details["own"]])]]


def token_text(token: int, encoder: Encoder) -> str:
    """The token's bytes as text; those that are a part of a character as \\xNN."""
    return encoder.to_bytes([token]).decode("utf-8", "backslashreplace")


# ---- A file ----------------------------------------------------------------------------------------------------------


def read_document(run: dict) -> dict:
    """Checks what a JSON file holds, and computes the figures anew from its iterations -> the document.

    Raises ValueError, TypeError, KeyError or AttributeError for a wrong type, a missing key or counts that disagree.
    """
    for part in (run["options"], run["machine"], run["prompt"]):
        checked(part, dict[str, Any])
    checked(run["prompt"]["text"], str)
    checked(run["machine"]["cpus"], int)
    rule = accept.choose(**run["options"])
    records = [
        read_record(run[name], samples=[*map(read_sample, run[name]["samples"])], rule=rule) for name in DECODERS
    ]
    vocabulary = checked(run.get("vocabulary", {}), dict[str, str])
    if not {str(token) for record in records for i in record.iterations for token in shown_tokens(i)} <= {*vocabulary}:
        raise ValueError("a token has no text")
    return run | {"figures": figures(*records), "summary": checked(run["summary"], list[str])}


def read_sample(sample: dict) -> list[Iteration]:
    tokens = checked(sample["tokens"], list[int])
    for column, kind in (("pieces", list[str]), ("origins", list[str])):
        if len(checked(sample[column], kind)) != len(tokens):
            raise ValueError(f"there are not as many {column} as tokens")
    if not {*sample["origins"]} <= ORIGINS:
        raise ValueError("an origin that is none")
    iterations = []
    n = 0
    for known in sample["iterations"]:
        iterations.append(read_iteration(known, tokens[n : n + checked(known["tokens"], int)]))
        n += known["tokens"]
    if n != len(tokens) or not all(map(agrees, iterations)):
        raise ValueError("its counts do not agree")
    return iterations


def agrees(iteration: Iteration) -> bool:
    """True if the parts of an iteration that was read are possible together."""
    n_tokens = len(iteration.step.tokens)
    drafted = iteration.step.drafted
    accepted = iteration.step.accepted
    if not 0 <= accepted <= n_tokens <= accepted + 1 <= drafted + 1 <= MOST:
        return False
    if iteration.tree:
        parents = iteration.tree["parents"]
        in_order = all(0 <= parent <= node for node, parent in enumerate(parents))
        return in_order and len(iteration.tree["tokens"]) == len(parents) == drafted
    details = iteration.details
    if details is None:
        return True
    return (
        (details["own"] is None) == (n_tokens == accepted)
        and accepted <= len(details["tested"]) <= len(details["drafts"]) == drafted
        and all(len({len(column) for column in top.values()}) == 1 for top in tops(details))
    )
