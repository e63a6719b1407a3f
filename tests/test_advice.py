"""What is said of a folder that cannot be read is done, and then it can; or the program that wrote it is named."""

import os
from pathlib import Path

import pytest
from conftest import write_tf
from test_checkpoints import CONFIG, TINY, random_tensors, write_folder
from tiny import flatten, refusal

from utils import load_encoder_hparams_and_params

SETTINGS = CONFIG | {"vocab_size": 2048}
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
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


def rename(new):
    return lambda folder, name, files: (folder / name).rename(folder / new)


def copy(*names):
    return lambda folder, name, files: [(folder / one).write_bytes(files[one]) for one in names]


def delete(*names):
    return lambda folder, name, files: [(folder / one).unlink() for one in names]


def give(inner):
    return lambda folder, name, files: inner


def name_prefix(prefix):
    return lambda folder, name, files: (folder / "checkpoint").write_text(f'model_checkpoint_path: "{prefix}"')


WEIGHTS = "model.safetensors"
OF_1000 = "model-1000.index model-1000.data-00000-of-00001"
RUN = "AutoModelForCausalLM, and then AutoTokenizer, .from_pretrained('FOLDER'"
SAVED = "save_pretrained('FOLDER')"
INSTEAD = "and cannot be read here: save the model as transformers does, as model.safetensors"
ONLY = "and only GPT-2's byte-level BPE can be read"
# The files beside config.json and tokenizer.json, -NAME for one that is not there, NAME=CONTENT; what is said; what is
# done then, or None if the line says which program wrote the files.
KINDS = [
    ("-config.json model.safetensors", "lacks hparams.json; copy them from the original model", copy("config.json")),
    ("-tokenizer.json model.safetensors", "lacks encoder.json, vocab.bpe; copy", copy("tokenizer.json")),
    ("model.fp16.safetensors", "if it is the whole model, rename it to model.safetensors", rename(WEIGHTS)),
    ("my.tokenizer.json -tokenizer.json model.safetensors", "rename it to tokenizer.json", rename("tokenizer.json")),
    (SHARDS[0], f"lacks {SHARDS[1]}; it has {SHARDS[0]}: copy the other shards from the original", copy(SHARDS[1])),
    (
        " ".join([*SHARDS, "model-00003-of-00003.safetensors"]),
        "lacks model.safetensors.index.json; it has model-00001-of-00002.safetensors: a shard, and the folder has "
        "shards of several saves: delete those of the others",
        delete("model-00003-of-00003.safetensors"),
    ),
    (OF_1000, "name it in a file checkpoint, as model_checkpoint_path: ", name_prefix("model-1000")),
    (
        f'{OF_1000} checkpoint=model_checkpoint_path:"b"',
        "lacks b.index, b.data-00000-of-00001; it has checkpoint: a file that names them",
        name_prefix("model-1000"),
    ),
    ("run/model.safetensors run/config.json run/tokenizer.json", "is a model in FOLDER/run: give", give("run")),
    ("a.bin a/b/model.safetensors a/b/config.json a/b/tokenizer.json", "in FOLDER/a/b: give that path", give("a/b")),
    ("model.safetensors=POINTER", "model.safetensors: a pointer of git-lfs: git lfs pull gets the file", copy(WEIGHTS)),
    ("model.safetensors -tokenizer.json tokenizer.json=POINTER", "git lfs pull gets", copy("tokenizer.json")),
    ("model.safetensors -config.json config.json=POINTER", "git lfs pull gets the file", copy("config.json")),
    (
        "-tokenizer.json model.safetensors encoder.json=POINTER vocab.bpe=POINTER",
        "encoder.json: a pointer of git",
        None,
    ),
    ("model.safetensors/run", "lacks model.safetensors; copy them from the original model", None),
    ("model.ckpt.index=POINTER model.ckpt.data-00000-of-00001", "git lfs pull gets", copy("model.ckpt.index")),
    (
        "model.ckpt.index model.ckpt.data-00000-of-00001=POINTER",
        "git lfs pull gets the file",
        copy("model.ckpt.data-00000-of-00001"),
    ),
    ("pytorch_model.bin training_args.bin", f"pytorch_model.bin: with transformers, once: {RUN}).{SAVED}", None),
    ("tf_model.h5", f"with transformers, once: {RUN}, from_tf=True).{SAVED}; version 4 can", None),
    ("flax_model.msgpack", f"{RUN}, from_flax=True).{SAVED}; version 4 can", None),
    ("adapter_model.bin", "with peft, once: AutoPeftModelForCausalLM.from_pretrained('FOLDER').merge_and_unl", None),
    ("gpt2_124M.bin", "of llm.c, and cannot be read here: its export_hf.py saves what can", None),
    ("zero_to_fp32.py training_args.bin", "of DeepSpeed: run its zero_to_fp32.py, which joins the weights", None),
]
TOKENS = {"vocab.txt": "WordPiece, as of BERT", "spiece.model": "SentencePiece, as of T5 and Llama"}
TOKENS |= {"gpt2.tiktoken": "in a file of tiktoken", "meta.pkl": "characters, as nanoGPT has them"}
KINDS += [
    (f"-tokenizer.json model.safetensors {name}", f"the tokens are {kind}, {ONLY}", None)
    for name, kind in TOKENS.items()
]
PROGRAMS = {"gpt2.Q8_0.gguf": "llama.cpp", "openvino_model.xml": "OpenVINO", "model.bin": "CTranslate2"}
PROGRAMS |= {"model.weights.h5": "Keras", "__0_0.distcp": "torch.distributed", "ckpt.pt": "torch.save"}
PROGRAMS |= {"decoder_model.onnx": "ONNX", "weights.npz": "MLX or NumPy", "rust_model.ot": "rust-bert"}
PROGRAMS |= {"saved_model.pb": "TensorFlow", "model.pkl": "Python's pickle"}
KINDS += [(name, f"of {program}, {INSTEAD}", None) for name, program in PROGRAMS.items()]


@pytest.mark.parametrize("model_size", ["124M", "owner/name", "./run1"])
@pytest.mark.parametrize(("names", "said", "done"), KINDS)
def test_what_is_said_helps_and_nothing_is_downloaded(names, said, done, model_size, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = Path(model_size)
    names = names.split()
    for name in [*({"config.json", "tokenizer.json"} - {name[1:] for name in names if name[0] == "-"}), *names]:
        name, _, content = name.partition("=")
        if name[0] != "-":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            content = POINTER if content == "POINTER" else content.encode() or files.get(Path(name).name, b"")
            (folder / name).write_bytes(content)
    before = sorted(os.listdir(folder))
    line = refusal(load_encoder_hparams_and_params, model_size, ".")
    shown = model_size if "/" in model_size else f"./{model_size}"
    assert line.removeprefix("./").startswith(model_size.removeprefix("./"))
    assert said.replace("FOLDER", shown) in line
    assert sorted(os.listdir(folder)) == before
    if done:
        inner = done(folder, names[0], files)
        given = f"{shown}/{inner}" if isinstance(inner, str) else model_size
        _, _, params = load_encoder_hparams_and_params(given, ".")
        assert all((flatten(params)[name] == array).all() for name, array in random_tensors(SETTINGS).items())
