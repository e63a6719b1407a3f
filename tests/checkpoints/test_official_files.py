"""The files of the hub's gpt2, gpt2-medium, gpt2-large, gpt2-xl and distilgpt2 as the hub has them, which were written
in 2019 and 2020."""

import hashlib
import json
import os
import random

import numpy as np
import pytest
from checkpoint_files import PROMPT, write_safetensors
from tiny import flatten, python, random_arrays

from encoder import END_OF_TEXT, get_encoder
from speculative.checkpoints.tokenizer import read_encoder
from utils import load_encoder_hparams_and_params

BLOB = "4b988bccc9dc5adacd403c00b4704976196548f8"  # git's id of their tokenizer.json
EOT = {"special": True, "content": END_OF_TEXT, "single_word": False, "lstrip": False, "rstrip": False}
LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
MODEL = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
CONFIG = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}
MORE = {  # of config.json
    "gpt2": {},
    "gpt2-medium": {"n_special": 0, "predict_special_tokens": True},
    "gpt2-xl": {"n_special": 0, "predict_special_tokens": True, "output_past": True},
    "distilgpt2": {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
}


def tokenizer_json(vocab, merges):
    """The bytes of their tokenizer.json, for a vocabulary and the lines of its merges."""
    about = {"version": "1.0", "truncation": None, "padding": None}
    about["added_tokens"] = [{"id": vocab[END_OF_TEXT]} | EOT | {"normalized": True}]
    about["normalizer"] = None
    about["pre_tokenizer"] = LEVEL | {"add_prefix_space": False}
    about["post_processor"] = LEVEL | {"trim_offsets": False}
    about["decoder"] = LEVEL
    by_id = dict(sorted(vocab.items(), key=lambda item: item[1]))
    about["model"] = MODEL | {"fuse_unk": False, "vocab": by_id, "merges": merges}
    return json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()


def vocabulary_in(folder):
    vocab = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    return vocab, (folder / "vocab.bpe").read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]


def texts(n):
    """Random texts of words, numbers, blanks and characters of several bytes."""
    rng = random.Random(0)
    parts = [
        "It's",
        " the",
        "  ",
        "\n",
        "\r\n",
        "12",
        "é",
        "日本",
        "🙂",
        END_OF_TEXT,
        " don't",
        "'LL",
        "\u3000",
        "_",
        "...",
    ]
    return ["".join(rng.choices(parts, k=rng.randint(0, 12))) for _ in range(n)]


def test_their_tokenizer_gives_the_ids_of_openais_files(shared, tmp_path):
    openai = shared / "gpt2-tokenizer"
    content = tokenizer_json(*vocabulary_in(openai))
    assert hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == BLOB
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    encoder, oracle = read_encoder(str(tmp_path), 50257), get_encoder(openai.name, openai.parent)
    assert encoder.ends == oracle.ends
    for text in texts(300):
        ids = oracle.encode(text, allowed_special=True)
        assert encoder.encode(text) == ids
        assert encoder.decode(ids) == oracle.decode(ids)


def write_their_files(folder, source, hparams, name="gpt2"):
    """Write the files of the repository `name`, also those that are not read, with the vocabulary of another folder.
    Return the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab, merges = vocabulary_in(source)
    eot, n_ctx = vocab[END_OF_TEXT], hparams["n_ctx"]
    sizes = {"n_ctx": n_ctx, "n_positions": n_ctx, "vocab_size": hparams["n_vocab"]}
    sizes |= {size: hparams[size] for size in ("n_embd", "n_head", "n_layer")}
    ends = {"bos_token_id": eot, "eos_token_id": eot}
    files = {"config.json": CONFIG | sizes | ends | MORE[name], "tokenizer_config.json": {"model_max_length": n_ctx}}
    files["generation_config.json"] = ends | {"_from_model_config": True, "transformers_version": "4.26.0.dev0"}
    files["vocab.json"] = vocab
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(tokenizer_json(vocab, merges))
    tensors = random_arrays(hparams)
    masks = {f"h{i}/attn/b": np.tri(n_ctx, dtype=np.float32)[None, None] for i in range(hparams["n_layer"])}
    prefix = "transformer." if name == "distilgpt2" else ""
    write_safetensors(folder / "model.safetensors", tensors | masks, prefix=prefix)
    for other in ("pytorch_model.bin", "tf_model.h5", "rust_model.ot", "flax_model.msgpack", "64.tflite", "README.md"):
        (folder / other).write_bytes(b"not read")
    (folder / "onnx").mkdir(exist_ok=True)
    (folder / "onnx" / "config.json").write_text("{}")
    return tensors


@pytest.mark.parametrize("name", MORE)
def test_a_folder_of_their_form_is_read(name, tiny_pair, tiny_hparams, tmp_path, command, capsys):
    tensors = write_their_files(tmp_path / name, tiny_pair / "target", tiny_hparams, name)
    encoder, hparams, params = load_encoder_hparams_and_params(name, str(tmp_path))
    assert hparams == tiny_hparams
    assert all((flatten(params)[tensor] == array).all() for tensor, array in tensors.items())
    assert encoder.encode(PROMPT) == get_encoder("target", tiny_pair).encode(PROMPT)
    assert capsys.readouterr().err == ""
    status, out, err = command(
        f"--models_dir={tmp_path}", "--target_model_size", name, "--draft_model_size", name, "-p", "the", "-n", "5"
    )
    assert status == 0, err
    assert out.count("Text = the") == 2


ASKED = [  # the name under which a cache has a model, the words that ask for it, and whether it is found
    ("openai-community/gpt2", "gpt2", True),
    ("gpt2", "openai-community/gpt2@main", True),
    ("openai-community/gpt2", "124M --source=huggingface", True),
    ("distilgpt2", "distilbert/distilgpt2", True),
    ("openai-community/gpt2", "distilgpt2", False),
    ("gpt2", "owner/gpt2", False),
]


RUN_ALL = """
import contextlib, io, json, os, sys
import main
from speculative.report import measuring, turns
from speculative.support.errors import guarded

turns.SHORT_SECONDS, measuring.TIMING_SECONDS = 0.0, (0.0, 0.5)

def status_of(words):
    try:
        with guarded(), contextlib.redirect_stdout(io.StringIO()):
            main.main(**main.read_command(main.__doc__, words))
    except SystemExit as end:
        return end.code
    return 0

statuses = []
for hub, words in json.loads(sys.argv[1]):
    os.symlink(hub, os.environ["HF_HUB_CACHE"])
    statuses.append(status_of(words))
    os.remove(os.environ["HF_HUB_CACHE"])
print(statuses)
"""


def test_a_cache_serves_both_names_of_a_model(tiny_pair, tiny_hparams, tmp_path):
    """Offline, in a process of its own, as the library reads its variables once."""
    commit = "0123456789abcdef" * 2 + "01234567"
    runs = []
    incomplete = tmp_path / "none" / "124M"  # an official model whose download was interrupted
    incomplete.mkdir(parents=True)
    (incomplete / "hparams.json.part").touch()
    for number, (kept, words, _) in enumerate(ASKED):
        hub = tmp_path / str(number)
        repository = hub / f"models--{kept.replace('/', '--')}"
        write_their_files(repository / "snapshots" / commit, tiny_pair / "target", tiny_hparams)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
        more = f"--models_dir={tmp_path}/none --drafter=prompt_lookup --only=speculative --prompt=the -n 2".split()
        runs.append((str(hub), ["--target_model_size", *words.split(), *more]))
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = python("-c", RUN_ALL, json.dumps(runs), env=environment)
    statuses = [0 if is_found else 2 for *_, is_found in ASKED]
    assert done.stdout == f"{statuses}\n", done.stderr
