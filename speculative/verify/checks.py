"""--verify: check that speculative texts have the target's distribution, with these models, this engine and options.

Four checks, each of which sees a kind of mistake that the others may miss:

- greedy: at temperature 0 the speculative tokens are the autoregressive ones, for every prompt and K;
- sampled: the tokens of both decoders follow the target's distribution, which is computed directly;
- drafts: drafted tokens follow the p that the drafter reports;
- rows: those of the target that the decoders read, of windows and of trees, are equal to the bit to those that are
  computed one by one, whatever the cache held (with --engine c; for the others, the first check says how close the best
  logits are where two texts differ first).

All but the first are in sampled.py.
"""

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from speculative.run.greedy import greedy_difference
from speculative.run.session import Session
from speculative.run.values import as_typed
from speculative.support.errors import UserError
from speculative.support.progress import working
from speculative.verify.sampled import Check, check_sampled, tokens_of

PROMPTS = (
    "The lighthouse keeper had not spoken to anyone for a week when",
    'def median(numbers):\n    """The middle of the sorted numbers."""\n',
    "one two three one two three one two three one two",
    "Crème brûlée, 東京, naïve, 3.14159, and then",
)
Texts = Sequence[np.ndarray]  # [n_prompts][n]

ABOUT = (
    "Both decoders are compared with the target itself, in about a minute. Texts are drawn as long as there is time:\n"
    "the more there are, the smaller the shift of a distribution that would show."
)
NOT_COVERED = (
    "Not covered: the weights, tokens and settings themselves (sha256sum -c SHA256SUMS, in a model's folder,\n"
    "compares the files with those that were downloaded)."
)


def verify(session: Session, prompt: str, others: Sequence[str] = PROMPTS, what_runs: str = "", **limits: int) -> None:
    """Print each check of this prompt and the others when it is done, then a summary. Exit status 1 if one fails.

    what_runs: the engine and the models, in words. limits: those of check_sampled. Raises UserError.
    """
    N = session.options.n_tokens_to_generate
    n_new = max(N, 2 * (1 + outer_K(session)))
    if session.n_ctx < n_new + 2:
        raise UserError(f"--verify decodes {n_new} tokens here, too many for a context of {session.n_ctx}")
    prompts = []
    for text in (prompt, *others):
        end = session.encode(text)[n_new - session.n_ctx :]  # the tokens decoded after it fit into the context
        prompts.append(np.array(end))
    print("Verify\n------")
    if what_runs:
        print(what_runs)
    print(ABOUT)
    done = []
    for check in checks(session, prompts, N, **limits):
        status = "passed" if check.passed else "FAILED"
        print(f"{status}  {check.name}: {check.detail}", flush=True)
        done.append(check)
    print(f"Summary: {summary(done)}.\n{NOT_COVERED}")
    if not all(check.passed for check in done):
        sys.exit(1)


def summary(done: Sequence[Check]) -> str:
    """Say whether all checks passed, and how small a loss the check of the speculative tokens would have shown."""
    if not all(check.passed for check in done):
        return "NOT lossless, for the reasons above"
    shifts = [check.shift for check in done if check.shift]  # the speculative tokens come first
    return "no loss found" + (f"; a shift above {shifts[0]:.1%} would have shown" if shifts else "")


def outer_K(session: Session) -> int:
    """The number of drafts in a window; 4 if the run chooses it."""
    K = session.plan.Ks[0]
    return 4 if K == "auto" else int(K)


def checks(session: Session, prompts: Texts, N: int, **limits) -> Iterator[Check]:
    """Yield each check when it is done. prompts: token ids; greedy decoding adds N tokens to each."""
    yield check_greedy(changed(session, prompts[0], temperature=0), prompts, N)
    sampled = changed(session, prompts[0], temperature=session.options.temperature or 1)
    yield from check_sampled(sampled, prompts, outer_K(session), **limits)


def changed(session: Session, x: np.ndarray, **options) -> Session:  # x [n]
    """The session with other options, its costs measured after the end of this text."""
    session = session.changed(**options)
    session.measure(x)
    return session


def check_greedy(session: Session, prompts: Texts, N: int) -> Check:
    """Compare the texts of both decoders at temperature 0, token for token, with several K. Except with --engine c,
    they may differ at a near tie."""
    sessions = with_several_K(session, prompts[0])
    sentences = []
    is_defect = False
    with working("comparing greedy texts", len(sessions), "K") as bar:
        expected = greedy_texts(session, "autoregressive", prompts, N)
        for K, other in sessions.items():
            texts = expected, greedy_texts(other, "speculative", prompts, N)
            difference = greedy_difference(session, prompts, texts)
            if difference:
                sentences.append(f"K = {K}: {difference.text}")
                is_defect |= difference.is_defect
            bar.update(1)
    n_tokens = N * len(prompts) * len(sessions)
    equal = f"{n_tokens} speculative tokens equal the autoregressive ones "
    equal += f"({len(prompts)} prompts, K = {', '.join(sessions)})"
    return Check("greedy", not is_defect, " ".join(sentences) or equal)


def with_several_K(session: Session, x: np.ndarray) -> dict[str, Session]:  # x [n]
    """Return {K: the session with this K of the outermost level}, with the K or the tree that it has last."""
    o = session.options
    inner = o.K[1:] if isinstance(o.K, tuple) else ()
    sessions = {}
    for K in (1, 2, 4, 8):
        sessions[str(K)] = changed(session, x, tree=None, K=(K, *inner))
    own = f"tree {as_typed('tree', o.tree)}" if o.tree else as_typed("K", o.K)
    sessions.setdefault(own, session)
    return sessions


def greedy_texts(session: Session, decoder: str, prompts: Texts, N: int) -> list[list[int]]:
    """Return the N tokens that a decoder adds to each prompt."""
    rng = np.random.default_rng(0)
    return [tokens_of(session.steps(decoder, x, N, rng)) for x in prompts]
