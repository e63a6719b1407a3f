"""What --fast stands for: look-ups and the draft model, which draft for an int8 copy of the target, where that pays.
Whether it pays is decided by the small files of the models, before any weights are read."""

from dataclasses import replace

from speculative.run.loaded_models import Models
from speculative.run.options import AnyOptions
from speculative.support.errors import UserError

LARGE_BYTES = 2**28  # of weights; reading fewer is not bound by memory
LOOK_UP_OR_DRAFT = "prompt_lookup+model"


def spelled_out(o: AnyOptions, models: Models) -> AnyOptions:
    """Return the options that --fast is short for, if it is given. Raises UserError."""
    if not o.fast:
        return o
    accept = "block" if o.temperature > 0 else "token"
    drafter = fast_drafter(models, o.n_tokens_to_generate)
    return replace(o, drafter=drafter, K="auto", tree=None, accept=accept)


def fast_drafter(models: Models, N: int) -> str:
    """Return the drafter that --fast stands for: look-ups and the draft model. They draft for an int8 copy of the
    target if that pays. N: the tokens to generate. Raises UserError."""
    return f"int8/{LOOK_UP_OR_DRAFT}" if copy_pays(models, N) else LOOK_UP_OR_DRAFT


def copy_pays(models: Models, N: int) -> bool:
    """Whether an int8 copy of the target, which has to fit beside it, saves more time in N tokens than it takes to
    make. Raises UserError."""
    target = models.spec("target")
    if not target.folder or target.dtype != "float32":
        return False  # a function has no weights; a copy of bfloat16 saves too little
    copy = target._replace(dtype="int8")
    is_large = copy.n_bytes >= LARGE_BYTES
    return is_large and models.engine.copy_is_quick(N) and copy_fits(models)


def copy_fits(models: Models) -> bool:
    """Whether the memory holds an int8 copy beside the two models."""
    try:
        models.check(["target", "draft", "int8"])
    except UserError:
        return False
    return True
