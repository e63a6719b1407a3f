"""Refusals in a line, before gigabytes are downloaded and read: vocabularies that differ, too long a prompt, too
large a tree, too little memory, too full a disk.
"""

from collections.abc import Callable, Collection, Sequence

from speculative import drafters
from speculative.autotree import NODES
from speculative.checkpoints.folders import missing_files, model_folder
from speculative.checkpoints.official import WEIGHT_BYTES
from speculative.engines import devices, memory
from speculative.measure.verify import most_new
from speculative.support.errors import UserError
from speculative.trees import n_nodes

Context = tuple[int, str]  # the tokens that fit into the smallest, and in words whose it is


def different(target: str, draft: str) -> UserError:
    return UserError(f"{draft} and {target} have different vocabularies, so one cannot draft for the other")


def check_length(context: Context, longest: int, n_new: int) -> None:
    """Raises UserError where the longest prompt and what is to be decoded do not fit into the smallest context."""
    n_ctx, whose = context
    if longest + n_new > n_ctx:
        raise UserError(
            f"the prompt's {longest} tokens and {n_new} more exceed the context of {n_ctx} tokens{whose}: "
            "shorten the prompt or lower --n_tokens_to_generate"
        )


def check_verify(context: Context, N: int, K) -> None:
    """Raises UserError where what --verify decodes, N tokens or two windows, does not fit into the context."""
    n_new = most_new(N, K)
    n_ctx, whose = context
    if n_ctx < n_new + 2:
        flag = f"--n_tokens_to_generate {N}" if n_new == N else f"--K {K}"
        raise UserError(f"--verify with {flag} decodes {n_new} tokens, too many for a context of {n_ctx}{whose}")


def check_tree(drafter: str, tree: tuple[int, ...] | str, n_prompt: int, n_new: int, context: Context) -> None:
    """Raises UserError where the drafter drafts no trees, or such a tree does not fit."""
    drafters.check_tree(drafter)
    if tree == "auto":
        depth = 0  # its trees are cut to what is left to decode
        nodes = NODES
    else:
        depth = len(tree)
        nodes = n_nodes(tree)
    if depth >= n_new:
        raise UserError(
            f"a tree of depth {depth} needs --n_tokens_to_generate of at least {depth + 1}, not {n_new}: a level for "
            "each token but the last"
        )
    n_ctx, whose = context
    needed = n_prompt + n_new + nodes
    if needed > n_ctx:
        raise UserError(
            f"the prompt, {n_new} more tokens and a tree of {nodes} nodes take {needed} places of a context of "
            f"{n_ctx}{whose}: shorten one of them"
        )


def check_memory(
    models: Sequence[tuple[dict, str]],
    engine: str,
    mesh: int,
    n_cached: int | None,
    accelerator: Callable = devices.accelerator,
) -> None:
    """Raises UserError where the models, (hparams, dtype) each, do not fit into the memory in which they are to lie.

    n_cached: tokens of all prompts that are decoded together, where these are several.
    """
    device = None if engine == "numpy" else accelerator()
    free = devices.free_memory(device, mesh) if device is not None else memory.available()
    memory.check(models, free, n_cached, jax=engine == "jax")


def check_disk(models_dir: str, model_sizes: Collection[str]) -> None:
    """Raises UserError where the weights that are to be downloaded do not fit on the disk together."""
    missing = [size for size in model_sizes if missing_files(model_folder(size, models_dir))]
    if missing:
        from speculative.checkpoints.download import check_disk

        check_disk(f"{models_dir}/", sum(WEIGHT_BYTES.get(size, 0) for size in missing))
