"""The files that make a folder a model: OpenAI's or Hugging Face's, under their own names."""

import os

from speculative import options
from speculative.checkpoints.weights import INDEX, part_names
from speculative.support.errors import UserError
from speculative.support.hub import cached_folder, hub_name, in_cache
from speculative.support.official import SAFETENSORS, SMALL_FILES, TF_DATA, TF_INDEX

HPARAMS, *OPENAI_VOCABULARY = SMALL_FILES
# Settings and tokens, each in the order in which they are looked for.
SETTINGS = ([HPARAMS], ["config.json"])
VOCABULARIES = (OPENAI_VOCABULARY, ["tokenizer.json"], ["vocab.json", "merges.txt"])
OPTIONAL = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]


def model_folder(model_size: str, models_dir: str) -> str:
    """The folder of a model, which may not be there yet. Raises UserError if model_size is neither a name nor a path.

    It is models_dir/model_size, or a path that begins with . / or ~. A model of the hub has its folder in models_dir,
    or else in the cache of Hugging Face's own libraries.

    Only a path leads out of models_dir.
    """
    try:
        options.model(model_size)
    except ValueError as must_be:
        raise UserError(f"model size {model_size!r:.200} should be {must_be}") from None
    if model_size.startswith((".", "/", "~")):
        return os.path.expanduser(model_size)
    plain = os.path.join(models_dir, model_size)
    hub = hub_name(model_size)
    if hub is None or ("/" not in model_size and os.path.isdir(plain)):
        return plain
    own = os.path.join(models_dir, *str(hub).split("/"))
    if missing_files(own):
        theirs = cached_folder(hub)
        if theirs and not missing_files(theirs):
            return theirs
    return own


def own_folder(model_size: str, models_dir: str) -> str:
    """The folder for files that are made of a model: its own; for a model in the cache of Hugging Face's libraries the
    one where a download would put it. Raises UserError."""
    folder = model_folder(model_size, models_dir)
    hub = hub_name(model_size)
    if hub and in_cache(folder):
        return os.path.join(models_dir, *str(hub).split("/"))
    return folder


def missing_files(folder: str) -> list[str]:
    """The files that the folder lacks, [] if it is complete. Raises UserError.

    They are those of the form of which it has most.
    """
    settings, vocabulary, weights = best_form(folder)
    return [name for name in (settings, *vocabulary, *weights) if not has(folder, name)]


def small_files(folder: str) -> list[str]:
    """The files of a complete folder that hold its settings and its tokens."""
    settings, vocabulary, _ = best_form(folder)
    return [settings, *vocabulary, *(name for name in OPTIONAL if has(folder, name))]


def weight_files(folder: str) -> list[str]:
    """The files of a complete folder that hold its weights. The first is the one by which they are read."""
    return best_form(folder)[2]


def config_path(folder: str) -> str:
    """The path of hparams.json or config.json."""
    return os.path.join(folder, best_form(folder)[0])


def best_form(folder: str) -> tuple[str, list[str], list[str]]:
    """(settings, tokens, weights): of each, what the folder has whole, or else that of which it has most."""
    parts = part_names(os.path.join(folder, INDEX)) if has(folder, INDEX) else []
    weights = ([SAFETENSORS], [INDEX, *parts], [TF_INDEX, TF_DATA])

    def there(names):
        n = sum(has(folder, name) for name in names)
        return n == len(names), n

    [settings] = max(SETTINGS, key=there)
    return settings, max(VOCABULARIES, key=there), max(weights, key=there)


def has(folder, name):
    return os.path.isfile(os.path.join(folder, name))
