"""All of a run as one JSON document: what --json writes, and pages are made of. docs/output.md explains every key."""

from speculative.blog.encoder import Encoder
from speculative.measure.details import Details
from speculative.measure.figures import figures
from speculative.measure.machine import machine
from speculative.measure.record import Iteration, Record, origins, to_json
from speculative.measure.report import summary
from speculative.rules import TOKEN, Rule

SCHEMA = 3  # changes when a key is renamed or means something else, not when one is added
DECODERS = ("autoregressive", "speculative")


def document(
    options: dict,
    encoder: Encoder,
    prompts: list[str],
    input_ids: list,
    autoregressive: Record,
    speculative: Record,
    rule: Rule = TOKEN,
    stand_ins: dict[str, str] | None = None,
) -> dict:
    """options: every option and its value. prompts: one, or with --batch several; input_ids: theirs. stand_ins: {model
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
