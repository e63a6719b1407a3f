"""--verify: the checks of measure/verify.py on the session that was asked for, instead of a run."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from speculative.engines import formats
from speculative.measure import verify
from speculative.measure.decoders import OWN, Check, Decoders
from speculative.session import Session
from speculative.support.errors import UserError
from speculative.trees import regular

NOT_COVERED = (
    "Not covered: the weights, tokens and settings themselves (sha256sum -c SHA256SUMS, in a model's folder,\n"
    "compares the files with those that were downloaded)."
)


def verify_session(session: Session, prompt: str, others: Sequence[str] = verify.PROMPTS, **limits) -> None:
    """Print the checks, of this prompt and the others, and a summary. Exit status 1 if one fails. limits: those of
    verify.verify."""
    o = session.options
    N = o.n_tokens_to_generate
    n_new = verify.most_new(N, o.K)
    if session.n_ctx < n_new + 2:
        raise UserError(f"--verify decodes {n_new} tokens here, too many for a context of {session.n_ctx}")
    n_kept = session.n_ctx - n_new
    # Of each prompt its end, so that what is decoded after it fits into the context.
    prompts = [session.encode(text)[-n_kept:] for text in (prompt, *others)]
    checks = verify.verify(partial(decoders, session), o.temperature, prompts, o.K, N, seed=o.seed, **limits)
    if o.tree:
        checks = itertools.chain(checks, nodes(session, prompts))
    passed = verify.show(checks, print=partial(print, flush=True))
    print(NOT_COVERED)
    if not passed:
        sys.exit(1)


def decoders(session: Session, temperature: float) -> Decoders:
    """The decoders that verify checks, at this temperature."""
    o = session.options
    here = session.changed(temperature=temperature)
    if here.timed:
        here.ready([""], 1)
    others = {}

    def speculative(x, N, K, rng):
        if K == OWN:
            return here.speculative_steps(x, N, rng)
        if K not in others:
            Ks = (K, *o.K[1:]) if isinstance(o.K, tuple) else K
            others[K] = here.changed(K=Ks, tree=None)
            others[K].measure_costs(x[:8])
        return others[K].speculative_steps(x, N, rng)

    both = Decoders(
        here.model("target"),
        here.drafter,
        here.autoregressive_steps,
        speculative,
        f"tree {','.join(map(str, o.tree))}" if o.tree else str(o.K),
    )
    if o.engine == "numpy":
        return both
    logits = session.models["target"].with_probs(lambda logits: logits)
    return both._replace(logits=logits, rounding=formats.on_jax(o.dtype).tolerance)


def nodes(session: Session, prompts: list) -> Iterator[Check]:
    """The check of a tree's rows: a generator, so that it is made when its turn comes."""
    o = session.options
    yield verify.check_nodes(decoders(session, o.temperature or 1.0), prompts, regular(o.tree))
