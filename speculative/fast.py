"""What --fast stands for: look-ups and the draft model, for an int8 copy of the target if that pays. Whether it pays is
decided by the small files of the models, before any weights are read."""

from dataclasses import replace

from speculative.loading import Models
from speculative.options import AnyOptions
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
    is_large = target.folder and target._replace(dtype="int8").n_bytes >= LARGE_BYTES
    # a copy of bfloat16 saves too little
    if not (is_large and target.dtype == "float32" and models.engine.copy_pays(N)):
        return False
    try:
        models.check(["target", "draft", "int8"])
    except UserError:
        return False
    return True
