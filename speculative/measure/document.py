"""All of a run as one JSON document: what --json writes. docs/json.md explains every key."""

from encoder import Encoder, StreamDecoder
from speculative.measure.figures import figures
from speculative.measure.machine import machine
from speculative.measure.recorder import Iteration, Recorder, origins

SCHEMA = 2  # changes when a key is renamed or means something else, not when one is added


def document(
    options: dict,
    encoder: Encoder,
    prompts: list[str],
    input_ids: list,
    autoregressive: Recorder,
    speculative: Recorder,
) -> dict:
    """options: every flag and its value. prompts and input_ids: one prompt, or with --batch several, and their ids.

    -> {schema, options, machine, prompts [{text, tokens}], prompt (the first of them), autoregressive {seconds,
    samples}, speculative (likewise), figures}; a sample is {text, tokens, origins, iterations}. Seconds throughout;
    None where a run was too short to measure something.
    """
    read = [{"text": p, "tokens": [int(token) for token in ids]} for p, ids in zip(prompts, input_ids, strict=True)]
    runs = {"autoregressive": autoregressive, "speculative": speculative}
    return {
        "schema": SCHEMA,
        "options": options,
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
    }


def sample_document(sample: list[Iteration], encoder: Encoder, stop: str | None) -> dict:
    tokens = [int(token) for i in sample for token in i.step.tokens]
    text = StreamDecoder(encoder, stop)
    return {
        "text": text.push(tokens) + text.flush(),
        "tokens": tokens,
        "origins": [origin for i in sample for origin in origins(i.step)],
        "iterations": [
            {
                **{"tokens": len(i.step.tokens), "drafted": i.step.drafted, "accepted": i.step.accepted},
                **{key: value for key, value in vars(i).items() if key != "step"},
            }
            for i in sample
        ],
    }
