"""The name of a model -> its complete folder. An official model, or one of the hub, is downloaded first."""

import os
from itertools import chain
from pathlib import Path
from textwrap import shorten

from speculative.checkpoints import hub
from speculative.checkpoints.advice import advice, broken_link, first_row, has_own_weights
from speculative.checkpoints.disk import other_file
from speculative.checkpoints.download import download_gpt2_files
from speculative.checkpoints.folder import Checkpoint, look
from speculative.checkpoints.forms import USUAL_WEIGHTS
from speculative.checkpoints.names import checked_model_name, is_of_hub, is_path, local_folder
from speculative.checkpoints.official import HUGGING_FACE, MODEL_SIZES
from speculative.support.errors import UserError
from speculative.support.synonyms import MODELS, meant


def complete_folder(model_size: str, models_dir: str, source: str = "openai", **how: bool) -> str:
    """Return the model's folder, complete: see complete. Raises UserError."""
    return complete(model_size, models_dir, source, **how).folder


def complete(
    model_size: str, models_dir: str, source: str = "openai", weights: bool = True, refresh: bool = False
) -> Checkpoint:
    """Return the model's files, after a download of missing ones. weights=False: only of the small ones.

    Nothing is downloaded if the folder holds weights of the user's. source, for an official model: "openai",
    "huggingface", or the URL of a mirror that has OpenAI's files at URL/model_size. refresh: ask the hub for a newer
    version of what its cache has. Raises UserError.
    """
    name = name_of(model_size, models_dir, source)
    local = local_folder(name, models_dir)
    check_path(name, local)
    if is_of_hub(name, models_dir):
        return files_of_hub(name, models_dir, weights, refresh)
    files = look(local)
    is_official = name in MODEL_SIZES
    missing = files.missing(weights or not is_official)  # another model is not downloaded, so it has to be whole
    if not missing:
        return files
    if not is_official or files.weights not in USUAL_WEIGHTS or has_own_weights(local, files.names):
        raise lacking(missing, files, name, models_dir)
    download_gpt2_files(name, local, source, weights)
    return look(local)


def name_of(model_size: str, models_dir: str, source: str) -> str:
    """Return the name that was typed, or the hub's name of an official model. Raises UserError."""
    try:
        name = checked_model_name(model_size)
    except ValueError as must_be:
        raise UserError(f"model size {model_size!r:.200} should be {must_be}") from None
    if source == "huggingface" and not os.path.isdir(local_folder(name, models_dir)):
        return HUGGING_FACE.get(name, name)
    return name


def files_of_hub(name: str, models_dir: str, weights: bool, refresh: bool) -> Checkpoint:
    """Return the files in the hub's cache, after a download if one is missing. Raises UserError."""
    cached = [] if refresh else [look(folder) for folder in hub.cached_folders(name)]
    whole = [files for files in cached if not files.missing(weights)]
    files = whole[0] if whole else look(hub.download(name, weights))
    missing = files.missing(weights)
    if missing:
        raise lacking(missing, files._replace(names=hub.names_of_files(name)), name, models_dir)
    return files


def check_path(name: str, local: str) -> None:
    """Raise UserError for a path that is not a folder."""
    if os.path.isfile(local):
        raise UserError(f"{local} is a file: {instead_of_file(local)}")
    if is_path(name) and not os.path.isdir(local):
        raise UserError(f"{local} does not exist: give the folder of a model{broken_link(local)}")


def instead_of_file(path: str) -> str:
    """Return what to give in the place of a model's file: its folder, if that file is read there, or what makes one."""
    folder, name = os.path.split(path)
    if name in look(folder).weights:
        return "give the folder that holds it, with the settings and tokens beside it"
    row = first_row("weights", [name])
    if row is None:
        return other_file(path) or "give the folder of a model"
    how = row[1].format(folder, folder)
    needs_settings = how != row[1] and not os.path.isfile(os.path.join(folder, "config.json"))
    return f"{how}; it needs config.json and the tokens beside it" if needs_settings else how


def lacking(missing: dict, files: Checkpoint, name: str, models_dir: str) -> UserError:
    """Return the error of a folder that lacks files, with what would help. missing: of Checkpoint.missing."""
    absent = [*chain(*missing.values())]
    links = "".join(broken_link(files.path(file)) for file in absent)
    names = files.names.difference(absent)  # a name may be that of a folder
    local = local_folder(name, models_dir)
    if names:
        model = local if files.folder == local else name
        remedy = advice(missing, names, model, local)
    else:
        remedy = unknown_model(name, models_dir)
    return UserError(f"{files.folder} lacks {', '.join(absent)}{links}; {remedy}")


def unknown_model(name: str, models_dir: str) -> str:
    """Return what a name could have been: the official sizes, and the folders of models_dir."""
    folders = sorted({path.parent.name for path in Path(models_dir).glob("*/*.json")})
    there = f"; {models_dir} has {shorten(', '.join(folders), 200)}" if folders else ""
    other = meant(name, [*MODEL_SIZES, *folders], MODELS)
    hint = f"; did you mean {other}?" if other else ""
    return f"unknown model size {name!r}: official models are {', '.join(MODEL_SIZES)}{there}{hint}"
