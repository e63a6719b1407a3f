"""What is said of a folder that cannot be read is done, and then it can; or the program that wrote it is named."""

import os
from pathlib import Path

import pytest
from conftest import write_tf
from test_checkpoints import CONFIG, TINY, random_tensors, write_folder
from tiny import flatten, refusal

from speculative.checkpoints.advice import kinds
from speculative.checkpoints.official import TF_DATA, TF_INDEX
from utils import load_encoder_hparams_and_params

SETTINGS = CONFIG | {"vocab_size": 2048}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n"


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """{name: content} of a model in several forms."""
    folder = tmp_path_factory.mktemp("forms")
    whole = write_folder(folder / "whole", SETTINGS, random_tensors(SETTINGS))
    for name in ("encoder.json", "vocab.bpe"):
        (whole / name).write_bytes((TINY / name).read_bytes())
    shards = write_folder(folder / "shards", SETTINGS, random_tensors(SETTINGS), n_parts=2)
    for prefix in ("model.ckpt", "model-1000"):
        write_tf(whole, random_tensors(SETTINGS), prefix)
    found = {path.name: path.read_bytes() for folder in (whole, shards) for path in folder.iterdir()}
    return found | {"model.fp16.safetensors": found[WEIGHTS], "my.tokenizer.json": found["tokenizer.json"]}


def put(folder, words, files):
    """Write files, NAME or NAME=CONTENT, and delete others, -NAME."""
    for name, _, content in (word.partition("=") for word in words.split()):
        path = folder / name.removeprefix("-")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("-"):
            path.unlink()
        else:
            path.write_bytes(POINTER if content == "POINTER" else content.encode() or files.get(path.name, b""))


WEIGHTS = "model.safetensors"
OF_1000 = "model-1000.index model-1000.data-00000-of-00001"
NAMED = 'checkpoint=model_checkpoint_path:"model-1000"'
INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
# The files beside config.json and tokenizer.json; what is said; what is done then, as files or as the inner folder that
# is given, or "" if nothing can be.
KINDS = [
    (f"-config.json {WEIGHTS}", "lacks hparams.json; copy them from the original model", "config.json"),
    (f"-tokenizer.json {WEIGHTS}", "lacks encoder.json, vocab.bpe; copy", "tokenizer.json"),
    ("model.fp16.safetensors", f"lacks {WEIGHTS}; it has model.fp16.safetensors: ", WEIGHTS),
    (f"my.tokenizer.json -tokenizer.json {WEIGHTS}", "rename it to tokenizer.json", "tokenizer.json"),
    (" ".join(SHARDS), f"lacks {WEIGHTS}; it has {SHARDS[0]}: copy the other shards and {INDEX}", INDEX),
    (f"{SHARDS[0]} {INDEX}", f"lacks {SHARDS[1]}; it has {SHARDS[0]}: copy the other shards", SHARDS[1]),
    (OF_1000, "name it in a file checkpoint, as model_checkpoint_path: ", NAMED),
    (f'{OF_1000} checkpoint=model_checkpoint_path:"b"', "lacks b.index, b.data-00000-of-00001; it has ", NAMED),
    (f"run/{WEIGHTS} run/config.json run/tokenizer.json", "is a model in FOLDER/run: give", "/run"),
    (f"a.bin a/b/{WEIGHTS} a/b/config.json a/b/tokenizer.json", "in FOLDER/a/b: give that path", "/a/b"),
    (f"{WEIGHTS}/run", f"lacks {WEIGHTS}; copy them from the original model", ""),
]
POINTERS = {WEIGHTS: "", "tokenizer.json": WEIGHTS, "config.json": WEIGHTS, TF_INDEX: TF_DATA, TF_DATA: TF_INDEX}
POINTERS |= {"encoder.json": f"-tokenizer.json vocab.bpe {WEIGHTS}"}
KINDS += [
    (f"{name}=POINTER {rest}", "a pointer of git-lfs: git lfs pull gets", name) for name, rest in POINTERS.items()
]
# A file for each line of advice.ini.
TOKENS = "vocab.txt spiece.model gpt2.tiktoken meta.pkl my.tokenizer.json"
OTHERS = f"{SHARDS[0]} adapter_model.bin gpt2_124M.bin gpt2.Q8_0.gguf openvino_model.xml model.bin pytorch_model.bin "
OTHERS += "model.weights.h5 tf_model.h5 flax_model.msgpack model.fp16.safetensors checkpoint=model_checkpoint_path:'b' "
OTHERS += "model-1000.index zero_to_fp32.py __0_0.distcp ckpt.pt decoder_model.onnx weights.npz rust_model.ot "
OTHERS += "saved_model.pb model.pkl"
for names, lacking, more in (
    (TOKENS, "tokens", f"-tokenizer.json {WEIGHTS}"),
    (OTHERS, "weights", "training_args.bin"),
):
    for name, (_, how) in zip(names.split(), kinds(lacking), strict=True):
        KINDS.append((f"{name} {more}", f"it has {name.partition('=')[0]}: {how.format('FOLDER', 'FOLDER')}", ""))


@pytest.mark.parametrize("model_size", ["124M", "owner/name", "./run1"])
@pytest.mark.parametrize(("names", "said", "done"), KINDS)
def test_what_is_said_helps_and_nothing_is_downloaded(names, said, done, model_size, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = Path(model_size)
    put(folder, f"config.json tokenizer.json {names}", files)
    before = sorted(os.listdir(folder))
    line = refusal(load_encoder_hparams_and_params, model_size, ".")
    shown = model_size if "/" in model_size else f"./{model_size}"
    assert line.removeprefix("./").startswith(model_size.removeprefix("./"))
    assert said.replace("FOLDER", shown) in line
    assert sorted(os.listdir(folder)) == before
    if done:
        inner = done if done.startswith("/") else ""
        put(folder, "" if inner else done, files)
        _, _, params = load_encoder_hparams_and_params(f"{shown}{inner}" if inner else model_size, ".")
        assert all((flatten(params)[name] == array).all() for name, array in random_tensors(SETTINGS).items())
