"""--verify: the checks of measure/verify.py on the models and flags that were given, instead of a run."""

from functools import partial

from speculative.cli.exits import fail
from speculative.cli.flags import Options
from speculative.cli.models import create_draft_fn, create_probs_fns
from speculative.lookahead import AutoK
from speculative.measure import verify


def verify_models(o: Options, encoder, target_model, draft_model, input_ids: list[int], ngram_text: str) -> None:
    """Prints the checks and the verdict. Exit status 1 where one fails."""

    def decoders(temperature):
        to_probs, draft_to_probs = create_probs_fns(o, temperature)
        draft = draft_model and draft_model.with_probs(draft_to_probs)
        create_draft = create_draft_fn(o, encoder, draft, temperature, ngram_text)
        return verify.Decoders(target_model.with_probs(to_probs), create_draft, options={"lenience": o.lenience})

    n_ctx = min(model.n_ctx for model in (target_model, draft_model) if model)
    prompts = [ids[verify.most_new(o.K) - n_ctx :] for ids in [input_ids, *map(encoder.encode, verify.PROMPTS)]]
    checks = verify.verify(decoders, o.temperature, prompts, AutoK if o.K == "auto" else o.K, seed=o.seed)
    if not verify.show(checks, print=partial(print, flush=True)):
        fail("", 1)
