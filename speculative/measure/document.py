"""All of a run as one JSON document: what --json writes. docs/output.md explains every key."""

from encoder import Encoder, StreamDecoder
from plumbing.errors import UserError
from speculative.measure.figures import figures
from speculative.measure.machine import machine
from speculative.measure.recorder import Iteration, Recorder, origins

SCHEMA = 3  # changes when a key is renamed or means something else, not when one is added


def check_version(run: dict, name: str = "this run") -> None:
    """Raises UserError where another version wrote a document: with another schema, or before it had all figures."""
    if run["schema"] != SCHEMA:
        raise UserError(f"{name} has schema {run['schema']!r:.20}, and this version reads {SCHEMA}: decode again")
    lacks = [key for key in figures(Recorder(), Recorder()) if key not in run["figures"]]
    if lacks:
        earlier = f"an earlier version with schema {SCHEMA} wrote it"
        raise UserError(f"{name} lacks the figure {lacks[0]}, as {earlier}: decode again")


def document(
    options: dict,
    encoder: Encoder,
    prompts: list[str],
    input_ids: list,
    autoregressive: Recorder,
    speculative: Recorder,
    stand_ins: dict[str, str] | None = None,
) -> dict:
    """options: every flag and its value. prompts: one, or with --batch several; input_ids: theirs. stand_ins: {a model
    with an official name, but not the official weights: what it is instead}.

    -> {schema, options, stand_ins, machine, prompts [{text, tokens}], prompt (the first of them), autoregressive
    {seconds, samples}, speculative (likewise), figures}; a sample is {text, pieces, tokens, origins, iterations}.
    Seconds throughout; None where a run was too short to measure something. Where the recorders kept details, the
    iterations have them and vocabulary has the text of each token in them.
    """
    read = [{"text": p, "tokens": [int(token) for token in ids]} for p, ids in zip(prompts, input_ids, strict=True)]
    runs = {"autoregressive": autoregressive, "speculative": speculative}
    shown = {token for run in runs.values() for i in run.iterations if i.details for token in token_ids(i.details)}
    shown |= {token for i in speculative.iterations if i.tree for token in i.tree["tokens"]}
    vocabulary = {str(token): token_text(token, encoder) for token in sorted(shown)}
    return {
        "schema": SCHEMA,
        "options": options,
        "stand_ins": stand_ins or {},
        "machine": machine(options.get("engine", "numpy")),
        "prompt": read[0],
        "prompts": read,
        **{
            name: {
                "seconds": run.seconds,
                "samples": [sample_document(sample, encoder, options.get("stop")) for sample in run.samples],
            }
            for name, run in runs.items()
        },
        "figures": figures(autoregressive, speculative),
        **({"vocabulary": vocabulary} if vocabulary else {}),
    }


def sample_document(sample: list[Iteration], encoder: Encoder, stop: str | None) -> dict:
    tokens = [int(token) for i in sample for token in i.step.tokens]
    text = StreamDecoder(encoder, stop)
    pieces = [text.push([token]) for token in tokens]
    pieces[-1:] = [piece + text.flush() for piece in pieces[-1:]]
    return {
        "text": "".join(pieces),
        "pieces": pieces,
        "tokens": tokens,
        "origins": [origin.partition(":")[0] for i in sample for origin in origins(i)],
        "iterations": [iteration_document(i) for i in sample],
    }


def iteration_document(iteration: Iteration) -> dict:
    step = iteration.step
    fields = {"tokens": len(step.tokens), "drafted": step.drafted, "accepted": step.accepted}
    fields |= {key: value for key, value in vars(iteration).items() if key not in ("step", "details", "levels")}
    fields["levels"] = [
        {"name": name, "iterations": [level_document(i) for i in iterations]}
        for name, iterations in iteration.levels.items()
    ]
    if iteration.details:
        fields["details"] = iteration.details
    return fields


def level_document(iteration: Iteration) -> dict:
    """One call of a level's model, within one proposal."""
    step = iteration.step
    fields = {"tokens": len(step.tokens), "drafted": step.drafted, "accepted": step.accepted}
    return fields | {key: getattr(iteration, key) for key in ("drafting", "scoring", "alpha", "by")}


def token_ids(details: dict) -> set[int]:
    parts = [*details["tested"], *filter(None, [details["own"]])]
    return {*details["drafts"], *(token for part in parts for token in part["top"]["tokens"])}


def token_text(token: int, encoder: Encoder) -> str:
    """The token's bytes as text; those that are a part of a character as \\xNN."""
    return encoder.to_bytes([token]).decode("utf-8", "backslashreplace")
