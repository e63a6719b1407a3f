"""--verify: the checks of measure/verify.py on the models and flags that were given, instead of a run."""

import itertools
from dataclasses import replace
from functools import partial

from plumbing.exits import fail
from speculative.cli.devices import create_decoder, runs_as_one_loop
from speculative.cli.flags import Options
from speculative.cli.models import create_draft_fn, create_probs_fns, create_scoring_fn
from speculative.cli.trees import tree_decoder, with_trees
from speculative.engines import packed
from speculative.lookahead import AutoK
from speculative.measure import verify
from speculative.trees import regular

# How far apart two logits may be that rounding alone brings into another order, by the format of what is multiplied.
# Over the bundled prompts, the distance of two logits of the bundled target changes by up to 5e-5 (float32) and 0.26
# (bfloat16) from NumPy in float32 to JAX.
ROUNDING = {"float32": 1e-3, "bfloat16": 0.3, "int8": 1e-3}


def verify_models(o: Options, encoder, target_model, draft_model, input_ids: list[int], ngram_text: str) -> None:
    """Prints the checks and the verdict. Exit status 1 where one fails."""
    n_ctx = min(model.n_ctx for model in (target_model, draft_model) if model)
    prompts = [ids[verify.most_new(o.K) - n_ctx :] for ids in [input_ids, *map(encoder.encode, verify.PROMPTS)]]

    def decoders(temperature):
        to_probs, draft_to_probs = create_probs_fns(o, temperature)
        models = target_model.with_probs(to_probs), draft_model and draft_model.with_probs(draft_to_probs)
        create_draft = create_draft_fn(replace(o, tree=None), encoder, models, temperature, ngram_text)
        if o.tree:
            create_draft = with_trees(create_draft, create_draft_fn(o, encoder, models, temperature, ngram_text))
        found = verify.Decoders(models[0], create_draft, options={"lenience": o.lenience})
        found = found._replace(scoring=create_scoring_fn(o, models[0]))
        if o.engine == "jax":
            found = found._replace(logits=target_model.with_probs(lambda logits: logits), rounding=ROUNDING[o.dtype])
        if runs_as_one_loop(o):
            found = found._replace(**on_device(o, target_model, draft_model, temperature))
        return found

    K = tree_decoder(o.tree) if o.tree else AutoK if o.K == "auto" else o.K
    checks = verify.verify(decoders, o.temperature, prompts, K, seed=o.seed)
    if o.tree:
        shape = regular((2, 2, 1) if o.tree == "auto" else o.tree)
        nodes = (verify.check_nodes(decoders(t), prompts, shape) for t in [o.temperature or 1.0])  # when its turn comes
        checks = itertools.chain(checks, nodes)
    if not verify.show(map(partial(explained, o), checks), print=partial(print, flush=True)):
        fail("", 1)


def explained(o: Options, check: verify.Check) -> verify.Check:
    """With the cause of a failure that is to be expected: without numba, rows are not equal to the bit."""
    if check.passed or check.name not in ("greedy", "rows", "nodes") or o.engine != "numpy" or packed.kernels():
        return check
    cause = "numba is missing, and NumPy adds up several rows in another order than one: pip install numba"
    return check._replace(detail=f"{check.detail} ({cause})")


def on_device(o: Options, target_model, draft_model, temperature: float) -> dict:
    """Both decoders as the device runs them, behind the signatures of sampling.py. What they are compared to is
    computed by the models alone, and filtered by NumPy."""
    decoder = create_decoder(o, target_model, draft_model, temperature)

    def decode(x, N, K, rng):
        return decoder.speculative(x, N, K, int(rng.integers(2**32)))

    return {
        "autoregressive": lambda x, model, N, rng: decode(x, N, 0, rng),
        "speculative": lambda x, draft, model, N, K, rng, lenience: decode(x, N, K, rng),
    }
