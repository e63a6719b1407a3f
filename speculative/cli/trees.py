"""--tree: from the flags to a decoder that drafts trees."""

from collections.abc import Callable
from types import SimpleNamespace

from plumbing.errors import UserError
from speculative.autotree import NODES, AutoTree
from speculative.cli.flags import Options
from speculative.drafters import Parts, drafter_names
from speculative.trees import (
    by_paths,
    first_tree_of,
    head_tree,
    lookup_tree,
    model_tree,
    n_nodes,
    regular,
    tree_speculative_sampling,
)


def check_tree(o: Options, n_prompt: int, n_ctx: int) -> None:
    """Raises UserError where the tree does not go with the other options, or does not fit."""
    if o.tree is None:
        return
    if o.engine != "numpy":
        raise UserError("--tree needs --engine numpy: JAX's loop drafts chains")
    if bad := [name for name in drafter_names(o.drafter) if name.startswith("staged")]:
        raise UserError(
            f"--tree works with model, prompt_lookup, ngram, heads, or any of them joined by +: {bad[0]} drafts a chain"
        )
    depth, nodes = (0, NODES) if o.tree == "auto" else (len(o.tree), n_nodes(o.tree))
    if depth >= o.n_tokens_to_generate:
        raise UserError(
            f"a tree of {depth} levels needs --n_tokens_to_generate of at least {depth + 1}, not "
            f"{o.n_tokens_to_generate}: a level for each token but the last"
        )
    if (needed := n_prompt + o.n_tokens_to_generate + nodes) > n_ctx:
        raise UserError(
            f"the prompt, {o.n_tokens_to_generate} more tokens and a tree of {nodes} nodes take {needed} places of a "
            f"context of {n_ctx}: shorten one of them"
        )


def create_tree_draft(o: Options, parts: Parts, temperature: float) -> Callable:
    """The drafter of the options as one that gives trees: draft(x, shape) -> Tree.

    Where the target decodes greedily, siblings are the tokens that the draft ranks highest, and nothing is drawn.
    """
    greedy = temperature == 0
    drafters = {
        "model": lambda: model_tree(parts.model.tree, parts.rng, greedy),
        "ngram": lambda: model_tree(by_paths(parts.ngram), parts.rng, greedy),
        "heads": lambda: head_tree(parts.heads, parts.rng, greedy),
        "prompt_lookup": lambda: lookup_tree(parts.n_vocab),
    }
    return first_tree_of(*(drafters[name]() for name in drafter_names(o.drafter)))


def with_trees(create_draft: Callable, create_tree_draft: Callable) -> Callable:
    """A drafter of chains, by which --verify orders its histograms, with one of trees as its attribute tree."""

    def create(rng):
        draft = create_draft(rng)
        both = lambda x, k: draft(x, k)  # noqa: E731
        both.tree = create_tree_draft(rng)
        return both

    return create


def tree_decoder(tree) -> Callable:
    """Stands for K in --verify: a factory of decoders with such trees."""

    def decode(x, draft, target_model, N, rng, **options):
        if tree == "auto":
            return AutoTree().decode(x, draft.tree, target_model.tree, N, rng, **options)
        return tree_speculative_sampling(x, draft.tree, target_model.tree, N, regular(tree), rng, **options)

    create = lambda: SimpleNamespace(decode=decode)  # noqa: E731
    create.name = f"tree {tree if tree == 'auto' else ','.join(map(str, tree))}"
    return create
