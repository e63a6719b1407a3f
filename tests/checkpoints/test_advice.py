"""What is said of a folder that cannot be read is done, and then it can; or the program that wrote it is named.

In advice.txt the files beside config.json and tokenizer.json follow $, and what is done then follows +, as files or as
the inner folder that is given. After a change that is meant: pytest -k advice --update-golden."""

import os
import re
from pathlib import Path

import pytest
from checkpoint_files import write_tf
from hub_folders import CONFIG, TINY, random_tensors, write_folder
from tiny import flatten, refusal

from speculative.checkpoints.advice import rows
from utils import load_encoder_hparams_and_params

FILE = Path(__file__).with_name("advice.txt")
FOLDERS = re.findall(r"^\$ (.*)\n(\+ .*\n)?(.*)", FILE.read_text(), re.MULTILINE)
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
    return found | {"model.fp16.safetensors": found["model.safetensors"], "my.tokenizer.json": found["tokenizer.json"]}


def put(folder, words, files):
    """Write files, NAME or NAME=CONTENT, and links, NAME->TARGET, and delete others, -NAME."""
    for word in words.split():
        name, link, target = word.partition("->")
        name, _, content = name.partition("=")
        path = folder / name.removeprefix("-")
        path.parent.mkdir(parents=True, exist_ok=True)
        if link:
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        elif name.startswith("-"):
            path.unlink()
        else:
            path.write_bytes(POINTER if content == "POINTER" else content.encode() or files.get(path.name, b""))


@pytest.mark.parametrize("model_size", ["124M", "owner/name", "./run1"])
@pytest.mark.parametrize(("names", "done", "said"), FOLDERS)
def test_what_is_said_helps_and_nothing_is_downloaded(
    names, done, said, model_size, files, tmp_path, monkeypatch, request
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = Path(model_size)
    put(folder, f"config.json tokenizer.json {names}", files)
    before = sorted(os.listdir(folder))
    line = refusal(load_encoder_hparams_and_params, model_size, ".")
    line = re.sub(rf"(\./)?\b{folder}\b", "FOLDER", line)
    if request.config.getoption("--update-golden"):
        FILE.write_text(FILE.read_text().replace(f"$ {names}\n{done}{said}\n", f"$ {names}\n{done}{line}\n"))
    else:
        assert line == said
    assert sorted(os.listdir(folder)) == before
    done = done.removeprefix("+ ").rstrip()
    if done:
        inner = done if done.startswith("/") else ""
        put(folder, "" if inner else done, files)
        _, _, params = load_encoder_hparams_and_params(f"./{folder}{inner}" if inner else model_size, ".")
        assert all((flatten(params)[name] == array).all() for name, array in random_tensors(SETTINGS).items())


def test_every_advice_is_among_them():
    said = FILE.read_text()
    for _, how in rows("settings") + rows("tokens") + rows("weights"):
        assert how.format("FOLDER", "FOLDER") in said
