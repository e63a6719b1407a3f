"""--verify: check that speculative texts have the target's distribution, with these models, this engine and options.

Five checks, each of which sees a kind of mistake that the others may miss:

- greedy: at temperature 0 the speculative tokens are the autoregressive ones, for every prompt and K;
- rows: a row of the target is the same to the bit, whatever rows are computed with it and whatever the cache held
  (with --engine c; for the others, the first check says how close the best logits are where two texts differ first);
- sampled: the tokens of both decoders follow the target's distribution, which is computed directly;
- drafts: drafted tokens follow the p that the drafter reports;
- nodes: the row of each node of a tree is that of its path alone (with --engine c).

The sampled ones are in sampled.py.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from speculative.engines.model import common_prefix, margin
from speculative.law.sampled import Check, check_sampled, direct, tokens_of
from speculative.measure.report import engine_line
from speculative.options import as_typed
from speculative.session import Session
from speculative.support.errors import UserError
from speculative.support.progress import working

PROMPTS = (
    "The lighthouse keeper had not spoken to anyone for a week when",
    'def median(numbers):\n    """The middle of the sorted numbers."""\n',
    "one two three one two three one two three one two",
    "Crème brûlée, 東京, naïve, 3.14159, and then",
)
ABOUT = (
    "Both decoders are compared with the target itself, in about a minute. Texts are drawn as long as there is time:\n"
    "the more there are, the smaller the shift of a distribution that would show."
)
NOT_COVERED = (
    "Not covered: the weights, tokens and settings themselves (sha256sum -c SHA256SUMS, in a model's folder,\n"
    "compares the files with those that were downloaded)."
)


def verify(session: Session, prompt: str, others: Sequence[str] = PROMPTS, **limits) -> None:
    """Print each check of this prompt and the others when it is done, then a summary. Exit status 1 if one fails.

    limits: those of check_sampled. Raises UserError.
    """
    N = session.options.n_tokens_to_generate
    n_new = max(N, 2 * (1 + outer_K(session)))
    if session.n_ctx < n_new + 2:
        raise UserError(f"--verify decodes {n_new} tokens here, too many for a context of {session.n_ctx}")
    # Of each prompt its end, so that what is decoded after it fits into the context.
    prompts = [np.array(session.encode(text)[n_new - session.n_ctx :]) for text in (prompt, *others)]
    print(f"Verify\n------\n{engine_line(session)}\n{ABOUT}")
    done = []
    for check in checks(session, prompts, N, **limits):
        print(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}", flush=True)
        done.append(check)
    passed = all(check.passed for check in done)
    shifts = [check.shift for check in done if check.shift]  # that of the speculative tokens comes first
    found = "NOT lossless, for the reasons above"
    if passed:
        found = "no loss found" + (f"; a shift above {shifts[0]:.1%} would have shown" if shifts else "")
    print(f"Summary: {found}.\n{NOT_COVERED}")
    if not passed:
        sys.exit(1)


def outer_K(session: Session) -> int:
    """The number of drafts in a window; 4 if the run chooses it."""
    K = session.options.K
    K = K[0] if isinstance(K, tuple) else K
    return K if isinstance(K, int) else 4


def checks(session: Session, prompts: Sequence[np.ndarray], N: int, **limits) -> Iterator[Check]:
    """Yield each check when it is done. prompts: token ids; greedy decoding adds N tokens to each."""
    yield check_greedy(changed(session, prompts[0], temperature=0), prompts, N)
    sampled = changed(session, prompts[0], temperature=session.options.temperature or 1)
    if session.engine.exact:
        most = max(8, outer_K(session)) + 1
        what = f", in windows of 1 to {most}, equal to the bit those computed alone"
        yield compare("rows", rows_of_windows(sampled, prompts, most), what)
    yield from check_sampled(sampled, prompts, outer_K(session), **limits)
    if session.options.tree and session.engine.exact:
        yield compare("nodes", rows_of_nodes(sampled, prompts), " of trees equal to the bit those of their paths")


def changed(session: Session, x: np.ndarray, **options) -> Session:  # x [n]
    """The session with other options, its costs measured after the end of this text."""
    session = session.changed(**options)
    session.measure_costs(x[-8:])
    return session


def check_greedy(session: Session, prompts: Sequence[np.ndarray], N: int) -> Check:
    """Compare the texts of both decoders at temperature 0, token for token. Except with --engine c, they may
    differ at a near tie."""
    o = session.options
    with_K = {K: (K, *o.K[1:]) if isinstance(o.K, tuple) else K for K in (1, 2, 4, 8)}  # K of the outermost level
    sessions = {str(n): changed(session, prompts[0], tree=None, K=K) for n, K in with_K.items()}
    sessions.setdefault(f"tree {as_typed('tree', o.tree)}" if o.tree else as_typed("K", o.K), session)
    n_tokens = 0
    margins = []
    tolerance = session.engine.tolerance(o.dtype)
    rng = np.random.default_rng(0)
    with working("comparing greedy texts", len(prompts) * len(sessions), "text") as bar:
        for number, x in enumerate(prompts, start=1):
            expected = tokens_of(session.steps("autoregressive", x, N, rng))
            for name, other in sessions.items():
                actual = tokens_of(other.steps("speculative", x, N, rng))
                bar.update(1)
                at = common_prefix(np.array(actual), np.array(expected))
                n_tokens += at
                if actual == expected:
                    continue
                margins.append(margin(session.models["target"], [*x, *expected[:at]]))
                if session.engine.exact or at == min(len(actual), len(expected)) or margins[-1] > tolerance:
                    difference = f"prompt {number}, K = {name}: the first difference is at new token {at + 1}"
                    apart = f", where the two best logits are {margins[-1]:.2g} apart"
                    return Check("greedy", False, difference + apart)
    detail = f"{n_tokens} speculative tokens equal the autoregressive ones ({len(prompts)} prompts, "
    detail += f"K = {', '.join(sessions)})"
    if margins:
        detail += f"; {len(margins)} texts part, where the two best logits are {max(margins):.2g} apart at most"
    return Check("greedy", True, detail)


def compare(name: str, found: Iterable[tuple], what: str) -> Check:
    """Compare rows with others, to the bit. found: (where they are from, the rows, the others), [n, n_vocab] each."""
    n_compared = 0
    for where, rows, right in found:
        n_compared += len(rows)
        if not np.array_equal(rows, right):
            gap = float(np.max(np.abs(rows - right)))
            return Check(name, False, f"{where}: other rows than one by one, by up to {gap:.2g}")
    return Check(name, True, f"{n_compared} rows{what}")


def rows_of_windows(session: Session, prompts: Sequence[np.ndarray], most: int) -> Iterator[tuple]:
    """The last rows of each prompt in windows of 1 to `most` rows, also after a rejection; and one by one."""
    model = session.model("target")
    for number, x in enumerate(prompts, start=1):
        n = len(x)
        here = min(most, n - 1)
        session.models["target"].forget()
        alone = np.stack([model(x[:end])[0] for end in range(n - here + 1, n + 1)])  # [here, n_vocab]
        for n_rows in range(1, here + 1):
            right = alone[here - n_rows :]  # [n_rows, n_vocab]
            where = f"prompt {number}, {n_rows} rows"
            yield f"{where}, cached", model(x, n_rows), right
            model(np.append(x[: n - n_rows], (x[n - n_rows :] + 1) % right.shape[1]), n_rows)
            yield f"{where}, after a rejected window", model(x, n_rows), right
        yield f"{where}, from an empty cache", direct(session, x, here), alone


def rows_of_nodes(session: Session, prompts: Sequence[np.ndarray]) -> Iterator[tuple]:
    """The rows of a tree, scored in one call; and those of each path as a text."""
    for number, x in enumerate(prompts, start=1):
        target = session.model("target")
        target(x[:-1])  # heads draft from the target's last state
        tree = session.drafter(np.random.default_rng(0), target=target).tree(x, session.options.tree)
        rows = target.score_tree(x, tree)  # [n_nodes, n_vocab]
        for node in range(len(rows)):
            yield f"prompt {number}, node {node}", rows[node : node + 1], direct(session, [*x, *tree.path(node)], 1)
