"""Feeds damaged input to what reads files, under atheris, which looks for inputs that reach new code.

pip install atheris
python tools/fuzz.py encoder|safetensors|hparams|note|prompts|page|folder|weights CORPUS -max_total_time=600

CORPUS is a folder in which libFuzzer keeps what it found worth keeping; what follows are its options. Nothing but a
UserError of one line may come of any input; another exception ends the run, and the input is left as crash-*.
"""

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["encoder", "speculative"]):
    from encoder import BYTE_TO_CHAR, END_OF_TEXT, get_encoder
    from speculative.checkpoints.config import load_hparams
    from speculative.checkpoints.loading import load_encoder_and_hparams, load_params
    from speculative.checkpoints.tensors import build_params, checkpoint_shapes, parameter_count
    from speculative.checkpoints.weights import load_gpt2_params_from_safetensors
    from speculative.drafters.model import model_drafter
    from speculative.engines.plain import CachedModel
    from speculative.filters import GREEDY
    from speculative.sampling import autoregressive_sampling, speculative_sampling
    from speculative.support import checksums, texts
    from speculative.support.errors import UserError

HPARAMS = {"n_vocab": 260, "n_ctx": 4, "n_embd": 2, "n_head": 1, "n_layer": 1}
CUT = b"\0\0\0\0"  # between the two files of a vocabulary

folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
path = folder / "file"


def vocabulary():
    tokens = [*BYTE_TO_CHAR.values(), "th", "the", "in", END_OF_TEXT]
    merges = "#version: 0.2\nt h\nth e\ni n\n"
    return json.dumps({token: i for i, token in enumerate(tokens)}).encode() + CUT + merges.encode()


def read_encoder(data):
    vocab, _, merges = data.partition(CUT)
    (folder / "encoder.json").write_bytes(vocab)
    (folder / "vocab.bpe").write_bytes(merges)
    try:
        encoder = get_encoder(".", folder)
    except ValueError as error:  # which checkpoints makes a UserError of
        raise UserError(str(error)) from None
    text = data.decode("utf-8", "replace")[:2000]
    assert encoder.decode(encoder.encode(text)) == text


def tensors():
    from safetensors.numpy import save

    from tests.conftest import hugging_face_name

    arrays = {hugging_face_name(n): np.zeros(s, "f4") for n, s in checkpoint_shapes(HPARAMS).items()}
    return save(arrays)


def read_tensors(data):
    path.write_bytes(data)
    load_gpt2_params_from_safetensors(path, HPARAMS)


def read_hparams(data):
    path.write_bytes(data)
    hparams = load_hparams(path)
    assert hparams["n_layer"] > 64 or parameter_count(hparams) > 0


def read_note(data):
    (folder / checksums.NAME).write_bytes(data)
    checksums.noted(folder)


def read_prompts(data):
    for name in ("prompts.jsonl", "prompts.txt"):
        (folder / name).write_bytes(data)
        try:
            texts.read_prompts(str(folder / name))
        except UserError as error:
            is_one_line(error)
    texts.read_text(str(folder / "prompts.txt"), "prompt")


KINDS = ("file", "missing", "a link to something precious", "a link to nothing", "a pipe", "a device", "a folder")
NAMES = ("hparams.json", "encoder.json", "vocab.bpe", "model.safetensors", "checksums.json", "verified.json")
NAMES += ("packed-float32.safetensors", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def place(kind, at, content):
    """Puts a file of this kind where one of a model's is looked for."""
    if kind == "file" and content:
        at.write_bytes(content)
    elif kind == "a link to something precious":
        at.symlink_to(folder / "precious")
    elif kind == "a link to nothing":
        at.symlink_to(folder / "nothing")
    elif kind == "a pipe":
        os.mkfifo(at)
    elif kind == "a device":
        at.symlink_to("/dev/zero")
    elif kind == "a folder":
        at.mkdir()


def read_folder(data):
    """A byte for each of NAMES says of which kind it is. What a link leads to has to stay as it is."""
    (folder / "precious").write_text("precious")
    model = folder / "model"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    vocab, _, merges = vocabulary().partition(CUT)
    contents = dict(zip(NAMES, (json.dumps(HPARAMS).encode(), vocab, merges, tensors()), strict=False))
    for name, number in zip(NAMES, data.ljust(len(NAMES), b"\0"), strict=False):
        place(KINDS[number % len(KINDS)], model / name, contents.get(name))
    try:
        _, hparams = load_encoder_and_hparams(str(model), str(folder))
        load_params(str(model), hparams)
    finally:
        assert (folder / "precious").read_text() == "precious"
        assert not (folder / "nothing").exists()


def read_weights(data):
    """The bytes are float32 weights, huge ones and NaN among them: both decoders say the same, or one refuses."""
    n_bytes = 4 * parameter_count(HPARAMS)
    numbers = np.frombuffer((data or b"\0").ljust(n_bytes, b"\0")[:n_bytes], "<f4")
    arrays, first = {}, 0
    for name, shape in checkpoint_shapes(HPARAMS).items():
        n = int(np.prod(shape))
        arrays[name] = numbers[first : first + n].reshape(shape)
        first += n
    params = build_params(path, {name: a.shape for name, a in arrays.items()}, arrays.__getitem__, HPARAMS)
    target, draft = (CachedModel(params, HPARAMS, GREEDY) for _ in range(2))
    rng = np.random.default_rng(0)
    plain = [token for step in autoregressive_sampling([1], target, 3, rng) for token in step.tokens]
    steps = speculative_sampling([1], model_drafter(draft, rng), target, 3, 2, rng)
    assert [token for step in steps for token in step.tokens] == plain


ODD = [None, True, -1, 0, 1, 1e308, 10**30, 0.5, "", "x", "\ud800", [], [[]], {}, {"a": 1}]


def mutate(data, most, seed):
    """Half of the time one value of a JSON document is replaced, for flipped bytes rarely leave it JSON."""
    rng = random.Random(seed)
    try:
        document = [json.loads(data)]
    except (ValueError, RecursionError):
        document = None
    if document is None or rng.random() < 0.5:
        return atheris.Mutate(data, most)
    node = document
    while True:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.1:
            node[key] = rng.choice(ODD)
            return json.dumps(document[0]).encode()[:most]
        node = node[key]


def is_one_line(error):
    assert "\n" not in str(error) and len(str(error)) < 2000


TARGETS = {  # what reads, and an input that it accepts
    "encoder": (read_encoder, vocabulary),
    "safetensors": (read_tensors, tensors),
    "hparams": (read_hparams, lambda: json.dumps(HPARAMS).encode()),
    "note": (read_note, lambda: json.dumps({"a.json": {"bytes": 3, "sha256": "00"}}).encode()),
    "prompts": (read_prompts, lambda: b'{"prompt": "In the"}\n{"prompt": "caf\\u00e9"}\n'),
    "folder": (read_folder, lambda: bytes(len(NAMES))),
    "weights": (read_weights, lambda: bytes(4 * parameter_count(HPARAMS))),
}


def main():
    name, corpus, *options = sys.argv[1:]
    read, seed = TARGETS[name]
    Path(corpus).mkdir(parents=True, exist_ok=True)
    (Path(corpus) / "seed").write_bytes(seed())
    read(seed())  # which has to be right

    def one(data):
        try:
            read(data)
        except UserError as error:
            is_one_line(error)

    atheris.Setup([sys.argv[0], corpus, "-max_len=100000", *options], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
