"""Advice about a folder that lacks files, from the table in advice.ini."""

import os
import re
from collections.abc import Collection
from configparser import RawConfigParser
from glob import escape, iglob
from pathlib import Path


def kinds(lacking: str) -> list[tuple[str, str]]:
    """Return the rows for a folder without "tokens" or "weights": the form of a file's name, and the advice."""
    table = RawConfigParser(delimiters="=")
    table.read(Path(__file__).with_name("advice.ini"), encoding="utf-8")
    return table.items(lacking)


def advice(lacking: Collection[str], names: set[str], model: str, folder: str) -> str:
    """Return what would help a folder that lacks "tokens" or "weights". names: the files that it has. model: the folder
    itself, or the model of the hub whose files these are."""
    if "weights" in lacking and (inner := inner_models(folder)):
        return f"there is a model in {inner[-1]}: give that path"
    for form, how in (kind for what in ("tokens", "weights") if what in lacking for kind in kinds(what)):
        for name in sorted(names):
            if re.search(form, name):
                return f"it has {name}: {how.format(model, folder)}"
    return "copy them from the original model, or Hugging Face's config.json, tokenizer.json and model.safetensors"


def inner_models(folder: str) -> list[str]:
    """Return the folders with weights one or two levels below, as training runs keep them; the newest last."""
    names = ("model*.safetensors", "checkpoint")
    paths = [path for level in ("*", "*/*") for name in names for path in iglob(f"{escape(folder)}/{level}/{name}")]
    return [os.path.dirname(path) for path in sorted(filter(os.path.isfile, paths), key=os.path.getmtime)]


def has_own_weights(folder: str, names: set[str]) -> bool:
    """Return True if somebody has put weights into the folder, in whichever form."""
    forms = [form for form, _ in kinds("weights")]
    return bool(inner_models(folder)) or any(re.search(form, name) for form in forms for name in names - {"checkpoint"})
