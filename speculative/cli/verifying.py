"""--verify: the checks of measure/verify.py on the pair and the flags that were given, instead of a run."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from speculative.decoding import Pair, lookaheads
from speculative.engines import cpu, formats
from speculative.measure import verify
from speculative.measure.verify import Check, Choice, Decoders
from speculative.session import Session
from speculative.support.options import Options
from speculative.trees import regular

NOT_COVERED = (
    "Not covered: the weights, tokens and settings themselves (sha256sum -c SHA256SUMS, in a model's folder,\n"
    "compares the files with those that were downloaded)."
)


def verify_session(session: Session, prompt: str, others: Sequence[str] = verify.PROMPTS, **limits) -> None:
    """Prints the checks, of this prompt and the others, and the verdict. Exit status 1 where one fails. limits: those
    of verify.verify."""
    o = session.options
    pair = session.pair
    N = o.n_tokens_to_generate
    n_kept = pair.n_ctx - verify.most_new(N, o.K)
    # Of each prompt its end, so that what is decoded after it fits into the context.
    prompts = [session.encode(text)[-n_kept:] for text in (prompt, *others)]
    checks = verify.verify(partial(decoders, o, pair), o.temperature, prompts, choice(o), N, seed=o.seed, **limits)
    if o.tree:
        checks = itertools.chain(checks, nodes(o, pair, prompts))
    passed = verify.show(map(partial(explained, o), checks), print=partial(print, flush=True))
    print(NOT_COVERED)
    if not passed:
        sys.exit(1)


def choice(o: Options) -> int | Choice:
    """The words of the flags about K or the tree."""
    if isinstance(o.K, int) and not o.tree:
        return o.K
    widths = o.tree if isinstance(o.tree, str) else ",".join(map(str, o.tree or ()))
    K = "/".join(map(str, o.K)) if isinstance(o.K, tuple) else o.K
    name = f"tree {widths}" if o.tree else str(K)
    return Choice(name, lambda: lookaheads(o.K, o.tree, o.drafter)[0])


def decoders(o: Options, pair: Pair, temperature: float) -> Decoders:
    """The decoders that verify checks, at this temperature."""
    pair = pair.at(pair.filters._replace(temperature=temperature))
    autoregressive, speculative = pair.samplers()
    both = Decoders(
        pair.target,
        pair.create_drafter,
        speculative=speculative,
        rule=pair.accept,
        autoregressive=autoregressive,
    )
    if o.engine == "numpy":
        return both
    logits = pair.target.with_probs(lambda logits: logits)
    return both._replace(logits=logits, rounding=formats.on_jax(o.dtype).tolerance)


def nodes(o: Options, pair: Pair, prompts: list) -> Iterator[Check]:
    """The check of a tree's rows: a generator, so that it is made when its turn comes."""
    widths = (2, 2, 1) if o.tree == "auto" else o.tree
    yield verify.check_nodes(decoders(o, pair, o.temperature or 1.0), prompts, regular(widths))


def explained(o: Options, check: Check, has_numba: Callable[[], bool] = cpu.has_numba) -> Check:
    """With the cause of a failure that is to be expected: without numba, rows are not equal to the bit."""
    if check.passed or check.name not in ("greedy", "rows", "nodes") or o.engine != "numpy" or has_numba():
        return check
    cause = "numba is missing, and NumPy adds up several rows in another order than one: pip install numba"
    return check._replace(detail=f"{check.detail} ({cause})")
