"""The advice about a name without a model, a folder that lacks files, and one whose tensors have other names. Much of
it is in the table of advice.ini."""

import os
import re
from collections.abc import Collection, Iterable
from configparser import RawConfigParser
from glob import iglob
from itertools import chain
from pathlib import Path
from textwrap import shorten

from speculative.checkpoints.disk import other_file
from speculative.checkpoints.names import MODEL_SIZES, local_folder
from speculative.support.errors import OTHER_NAMES_OF_MODELS, UserError, meant

# Weights that a training run keeps in its folders.
INNER = ("*/model*.safetensors", "*/checkpoint", "*/*/model*.safetensors", "*/*/checkpoint")


def rows(section: str) -> list:
    """Return the rows for "settings", "tokens", "weights" or "tensors": the form of a name, and the advice."""
    table = RawConfigParser(delimiters="=")
    table.optionxform = str  # type: ignore[assignment, method-assign]  # as they are, not in lower case
    table.read(Path(__file__).with_name("advice.ini"), encoding="utf-8")
    return table.items(section)


def first_row(section: str, names: Iterable[str]) -> tuple | None:
    """Return the first of these names, in the order of the table, that has a row, and its advice."""
    for form, how in rows(section):
        for name in sorted(names):
            if re.search(form, name):
                return name, how
    return None


def advice(lacking: Collection[str], names: set[str], model: str, folder: str) -> str:
    """Return the advice for a folder. lacking: "settings", "tokens", "weights". names: the files that it has. model:
    the folder itself, or the model of the hub whose files these are."""
    if "weights" in lacking and (inner := inner_models(folder)):
        return f"there is a model in {inner[-1]}: give that path"
    for section in lacking:
        row = first_row(section, names)
        if row:
            name, how = row
            return f"it has {name}{', ' if is_description(how) else ': '}{how.format(model, folder)}"
    return "copy them from the original model, or Hugging Face's config.json, tokenizer.json and model.safetensors"


def is_description(how: str) -> bool:
    """Return True if an advice begins with what the file is: "a file of llama.cpp, which ..."."""
    return how.startswith(("a file of ", "a part of "))


def advice_on_tensors(names: Iterable[str]) -> str:
    """Return "; " and the advice that the names of a checkpoint's tensors give, or ""."""
    row = first_row("tensors", names)
    return f"; {row[1]}" if row else ""


def broken_link(path: str) -> str:
    """Return "; " and where a link leads that leads nowhere, or ""."""
    leads_nowhere = os.path.islink(path) and not os.path.exists(path)
    return f"; it is a link to {os.readlink(path)}, which is not there" if leads_nowhere else ""


def inner_models(folder: str) -> list[str]:
    """Return the folders with weights one or two levels below, as training runs keep them; the newest last."""
    paths = [os.path.join(folder, path) for form in INNER for path in iglob(form, root_dir=folder)]
    files = sorted(filter(os.path.isfile, paths), key=os.path.getmtime)
    return [*map(os.path.dirname, files)]


def has_own_weights(folder: str, names: set[str]) -> bool:
    """Return True if somebody has put weights into the folder, in whichever form."""
    return bool(inner_models(folder)) or first_row("weights", names - {"checkpoint"}) is not None


# ---- Refusals --------------------------------------------------------------------------------------------------------


def lacking(missing: dict, folder: str, names: set[str], name: str, models_dir: str) -> UserError:
    """Return the error of a folder that lacks files, with advice. missing: of ModelFiles.missing. names: the files that
    it has, or that its model has on the hub. name: of the model."""
    absent = [*chain(*missing.values())]
    links = "".join(broken_link(os.path.join(folder, file)) for file in absent)
    present = names.difference(absent)  # a name may be that of a folder
    local = local_folder(name, models_dir)
    if present:
        remedy = advice(missing, present, local if folder == local else name, local)
    else:
        remedy = unknown_model(name, models_dir)
    return UserError(f"{folder} lacks {', '.join(absent)}{links}; {remedy}")


def unknown_model(name: str, models_dir: str) -> str:
    """Return the names that could have been meant: the official sizes, and the folders of models_dir."""
    folders = sorted({path.parent.name for path in Path(models_dir).glob("*/*.json")})
    said = f"unknown model size {name!r}: official models are {', '.join(MODEL_SIZES)}"
    if folders:
        said += f"; {models_dir} has {shorten(', '.join(folders), 200)}"
    other = meant(name, [*MODEL_SIZES, *folders], OTHER_NAMES_OF_MODELS)
    if other:
        said += f"; did you mean {other}?"
    return said


def instead_of_file(path: str, read: Collection[str]) -> str:
    """Return the advice for a file in the place of a model: its folder, if that file is read there, or how to make
    one. read: the names of the files with weights that are read in its folder."""
    folder, name = os.path.split(path)
    if name in read:
        return "give the folder that holds it, with the settings and tokens beside it"
    row = first_row("weights", [name])
    if row is None:
        return other_file(path) or "give a folder with config.json, tokenizer.json and model.safetensors"
    how = row[1].format(folder, folder)
    needs_settings = how != row[1] and not os.path.isfile(os.path.join(folder, "config.json"))
    if is_description(how):
        return how.replace("a file of", "one of", 1)
    return f"{how}; it needs config.json and the tokens beside it" if needs_settings else how
