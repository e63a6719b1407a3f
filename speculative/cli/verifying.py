"""--verify: the checks of measure/verify.py on the models and flags that were given, instead of a run."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from speculative.autotree import AutoTree
from speculative.cli.exits import fail
from speculative.cli.flags import Options
from speculative.cli.models import create_draft_fn, create_probs_fns
from speculative.lookahead import AutoK
from speculative.measure import verify
from speculative.trees import regular, tree_speculative_sampling


def verify_models(o: Options, encoder, target_model, draft_model, input_ids: list[int], ngram_text: str) -> None:
    """Prints the checks and the verdict. Exit status 1 where one fails."""

    chain = replace(o, tree=None)

    def decoders(temperature):
        to_probs, draft_to_probs = create_probs_fns(o, temperature)
        draft = draft_model and draft_model.with_probs(draft_to_probs)
        create_draft = create_draft_fn(chain, encoder, draft, temperature, ngram_text)
        if o.tree:
            create_draft = with_trees(create_draft, create_draft_fn(o, encoder, draft, temperature, ngram_text))
        return verify.Decoders(target_model.with_probs(to_probs), create_draft, options={"lenience": o.lenience})

    n_ctx = min(model.n_ctx for model in (target_model, draft_model) if model)
    prompts = [ids[verify.most_new(o.K) - n_ctx :] for ids in [input_ids, *map(encoder.encode, verify.PROMPTS)]]
    K = tree_decoder(o.tree) if o.tree else AutoK if o.K == "auto" else o.K
    checks = verify.verify(decoders, o.temperature, prompts, K, seed=o.seed)
    if o.tree:
        shape = regular((2, 2, 1) if o.tree == "auto" else o.tree)
        checks = itertools.chain(
            checks, (verify.check_nodes(decoders(t), prompts, shape) for t in [o.temperature or 1.0])
        )
    if not verify.show(checks, print=partial(print, flush=True)):
        fail("", 1)


def with_trees(create_draft: Callable, create_tree_draft: Callable) -> Callable:
    """A drafter of chains, which the law is tested by, that has one of trees as its attribute tree."""

    def create(rng):
        draft = create_draft(rng)
        both = lambda x, k: draft(x, k)  # noqa: E731
        both.tree = create_tree_draft(rng)
        return both

    return create


def tree_decoder(tree) -> Callable:
    """What stands for K in verify: makes what decodes with such trees."""

    def decode(x, draft, target_model, N, rng, **options):
        if tree == "auto":
            return AutoTree().decode(x, draft.tree, target_model.tree, N, rng, **options)
        return tree_speculative_sampling(x, draft.tree, target_model.tree, N, regular(tree), rng, **options)

    create = lambda: SimpleNamespace(decode=decode)  # noqa: E731
    create.name = f"tree {tree if tree == 'auto' else ','.join(map(str, tree))}"
    return create
