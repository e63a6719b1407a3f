"""The usual mistakes in speculative sampling, each made in a loop of ours.

A mistake is a few edits of the loop's text, as somebody would have typed it. So the loop can be read beside the blog's,
without a switch wherever a mistake can be made, and a new mistake is a name and a line.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from speculative.law.paths import EXACT, distance
from speculative.law.samplers.cases import Case
from speculative.law.samplers.guard import law_of_texts
from speculative.law.samplers.sampler import Sampler
from speculative.support.errors import UserError

LOOP = """
import numpy as np

IS_BLOGS = HAS_NAN = True  # Mistake.loop sets them

def sample(p):
    return np.random.choice(np.arange(len(p)), p=p)

def max_fn(x, q):  # if nothing is above 0: NaN, as in the blog, or q
    x_max = np.where(x > 0, x, 0)
    return x_max / np.sum(x_max) if HAS_NAN or x_max.any() else q

def inverse_cdf(u, p):  # the draw from p that u makes, for mistakes that do not sample
    return min(sum(u > np.cumsum(p)), len(p) - 1)

def speculative_sampling(x, draft_model, target_model, N, K):
    x, T = [*x], len(x) + N
    all_accepted = accepted_once = False  # all drafts of the last window; for mistakes, those of any window
    while len(x) < T:
        n = len(x)
        x_draft, p = x, []
        for _ in range(K if IS_BLOGS else min(K, T - n - 1)):
            p.append(draft_model(x_draft)[-1])
            x_draft = [*x_draft, sample(p[-1])]
        q = target_model(x_draft)[n - 1 :]
        accepted_before = all_accepted  # for mistakes too
        all_accepted = True
        for i, j in enumerate(x_draft[n:]):
            u = np.random.random()
            if u < q[i][j] / p[i][j]:
                x = [*x, j]
            else:
                x = [*x, sample(max_fn(q[i] - p[i], q[i]))]
                all_accepted = False
                break
        if all_accepted:
            x = [*x, sample(q[-1])]
            accepted_once = True
    return x
"""

# The name of a mistake, and under it its edits: what stands in LOOP => what stands there by mistake.
TABLE = """
the drafts are the draft's likeliest tokens, not drawn
    sample(p[-1])  =>  np.argmax(p[-1])

a draft is drawn from the row of p before the last
    sample(p[-1])  =>  sample(draft_model(x_draft)[-2:][0])

a draft of probability below 0.4 is dropped after it was drawn
    sample(p[-1])]  =>  *filter(lambda j: p[-1][j] >= 0.4 and len(x_draft) == n + len(p) - 1, [sample(p[-1])])]

every draft is accepted
    u < q[i][j] / p[i][j]  =>  True

the test is p / q, not q / p
    u < q[i][j] / p[i][j]  =>  u < p[i][j] / max(q[i][j], 1e-9)

the test is q alone, not q / p
    u < q[i][j] / p[i][j]  =>  u < q[i][j]

the test is the wrong way round: a draft is accepted if u is above q / p
    u < q[i][j] / p[i][j]  =>  u > q[i][j] / p[i][j]

the test has no random number: a draft is accepted if q >= p
    u < q[i][j] / p[i][j]  =>  q[i][j] >= p[i][j]

a draft is accepted if it is the target's likeliest token
    u < q[i][j] / p[i][j]  =>  j == np.argmax(q[i])
    max_fn(q[i] - p[i], q[i])  =>  q[i]

a draft is accepted if it is the target's likeliest token
    u < q[i][j] / p[i][j]  =>  j == np.argmax(q[i])

a draft of probability 0 to the target is accepted
    u < q[i][j] / p[i][j]  =>  q[i][j] == 0 or u < q[i][j] / p[i][j]

the test reads the row of q after the draft, not before it
    u < q[i][j] / p[i][j]  =>  u < q[i + 1][j] / p[i][j]

the test reads the last row of q for each draft
    u < q[i][j] / p[i][j]  =>  u < q[-1][j] / p[i][j]

the test reads the first row of q for each draft
    u < q[i][j] / p[i][j]  =>  u < q[0][j] / p[i][j]

the test is the product of the ratios so far
    u < q[i][j] / p[i][j]  =>  u < np.prod([q[k][t] / p[k][t] for k, t in enumerate(x_draft[n : n + i + 1])])

one random number tests all drafts of a window
    u = np.random.random()  =>  u = u if i else np.random.random()

the first draft of a window is accepted untested
    u < q[i][j] / p[i][j]  =>  i < 1 or u < q[i][j] / p[i][j]

from the second draft of a window on they are accepted untested
    u < q[i][j] / p[i][j]  =>  i > 0 or u < q[i][j] / p[i][j]

from the third draft of a window on they are accepted untested
    u < q[i][j] / p[i][j]  =>  i > 1 or u < q[i][j] / p[i][j]

after a full acceptance every draft is accepted
    u < q[i][j] / p[i][j]  =>  accepted_once or u < q[i][j] / p[i][j]

in the window after a full acceptance every draft is accepted
    u < q[i][j] / p[i][j]  =>  accepted_before or u < q[i][j] / p[i][j]

the last token of the text is accepted untested
    u < q[i][j] / p[i][j]  =>  len(x) == T - 1 or u < q[i][j] / p[i][j]

a rejected draft is replaced by a draw from q, not from max(0, q - p)
    q[i] - p[i]  =>  q[i]

a rejected draft is replaced by a draw from p, not from max(0, q - p)
    q[i] - p[i]  =>  p[i]

a rejected draft is replaced by a draw from q without it, not from max(0, q - p)
    q[i] - p[i]  =>  np.where(np.arange(len(q[i])) == j, 0, q[i])

a rejected draft is replaced by the likeliest token of the residual, not by a draw
    sample(max_fn(q[i] - p[i], q[i]))  =>  np.argmax(max_fn(q[i] - p[i], q[i]))

a rejected draft is replaced by the likeliest token of the residual, not by a draw
    sample(max_fn(q[i] - p[i], q[i]))  =>  np.argmax(q[i] - p[i])

the residual is max(0, p - q), not max(0, q - p)
    max_fn(q[i] - p[i], q[i])  =>  max_fn(p[i] - q[i], p[i])

the residual is |q - p|, not max(0, q - p)
    q[i] - p[i]  =>  abs(q[i] - p[i])

the residual subtracts a number, the draft's p, not a row
    q[i] - p[i]  =>  q[i] - p[i][j]

the residual reads the row of q after the draft, not before it
    max_fn(q[i] - p[i], q[i])  =>  max_fn(q[i + 1] - p[i], q[i + 1])

the residual reads the last row of p
    q[i] - p[i]  =>  q[i] - p[-1]

the residual reads the first rows of q and p
    max_fn(q[i] - p[i], q[i])  =>  max_fn(q[0] - p[0], q[0])

the residual keeps q where it is above p, without subtracting p
    q[i] - p[i]  =>  np.where(q[i] > p[i], q[i], 0)

the residual is not normalised before the draw
    sample(max_fn(q[i] - p[i], q[i]))  =>  inverse_cdf(np.random.random(), np.maximum(q[i] - p[i], 0))

the random number of the test is used again to draw the replacement
    sample(max_fn(q[i] - p[i], q[i]))  =>  inverse_cdf(u, max_fn(q[i] - p[i], q[i]))

the bonus token is drawn from the row of q before the last
    sample(q[-1])  =>  sample(q[-2 if len(q) > 1 else -1])

the bonus token is drawn from the first row of q
    sample(q[-1])  =>  sample(q[0])

the bonus token is the target's likeliest, not drawn
    sample(q[-1])  =>  np.argmax(q[-1])

the bonus token is the last draft again
    sample(q[-1])  =>  (x_draft[n:] or [sample(q[-1])])[-1]

a token too many: another one follows the token that replaces a rejected draft
    if all_accepted:  =>  if True:

the drafts after a rejected one are still tested: break is missing
    break  =>  pass

the drafts after a rejected one are still tested: break is missing
    break  =>  pass
    if all_accepted:  =>  if True:

the accepted drafts are dropped if a later one is rejected
    x = [*x, sample(max_fn(q[i] - p[i], q[i]))]  =>  x = [*x[:n], sample(max_fn(q[i] - p[i], q[i]))]

after a full acceptance the target's last row is used once more
    all_accepted = True  =>  q[0] = last if accepted_before else q[0]; last = q[-1]; all_accepted = True

after a rejection the target's cache holds the rejected token
    target_model(x_draft)  =>  target_model([*x[:-1], j, *x_draft[n:]] if n > T - N and not all_accepted else x_draft)
"""
# In the last edit j is still the draft that the window before rejected. A cache that was not cut off holds it at the
# place of x[-1], the token that replaced it. There is a window before if n > T - N.


class Edit(NamedTuple):
    old: str
    new: str


class Mistake(NamedTuple):
    """Mistakes that are told by the same words have the same name."""

    name: str
    edits: tuple[Edit, ...]

    def loop(self, kind: "LoopKind", has_nan: bool) -> Callable | None:
        """LOOP with this mistake; None if it cannot be made in a loop of this kind. has_nan: whether an empty residual
        becomes NaN, as in the blog."""
        source = LOOP if kind.has_bonus else LOOP.replace(BONUS, "")
        if not all(edit.old in source for edit in self.edits):
            return None
        loop = patched(source, "speculative_sampling", self.edits)
        loop.__globals__.update(IS_BLOGS=kind.is_blogs, HAS_NAN=has_nan)
        return loop


class LoopKind(NamedTuple):
    """The properties of a loop beside its mistake."""

    is_blogs: bool  # whether all windows have K drafts, as the blog's; ours end with the text
    has_bonus: bool = True  # whether a token follows if all drafts of a window are accepted


BONUS = "            x = [*x, sample(q[-1])]\n"  # the line of LOOP for the bonus token
LOOP_KINDS = LoopKind(is_blogs=True), LoopKind(is_blogs=False), LoopKind(is_blogs=True, has_bonus=False)


def mistake_in(paragraph: str) -> Mistake:
    name, *lines = paragraph.strip().splitlines()
    return Mistake(name, tuple(Edit(*line.strip().split("  =>  ")) for line in lines))


MISTAKES = [mistake_in(paragraph) for paragraph in TABLE.split("\n\n")]


def patched(source: str, name: str, edits: Iterable[Edit]) -> Callable:
    """The function of this name in the source after the edits."""
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    defined: dict = {}
    exec(source, defined)
    return defined[name]


# ---- The cause of a wrong law ----------------------------------------------------------------------------------------
#
# Each mistake is made in a loop of ours, and named if its laws are the same. They are compared in a few cases of each
# line, three wrong ones and three right ones. If no mistake has these laws, the rows themselves may be others than the
# target's.


MOST_CASES = 3  # cases of a line, wrong ones and right ones each, in which a mistake must have the same law


def cause_of(decode: Callable, laws: dict, wrong: list) -> str | None:
    """Return the mistake that explains all these laws; None if none does, or more than two do. wrong: the cases whose
    law is not the target's."""
    if any(len(text) > case.N for case, law in laws.items() for text in law):
        return "more than N tokens are added"
    cases = telling_cases(laws, wrong)
    # Would the laws be right if a seed that comes again gave other numbers?
    if has_laws(decode, {case: case.law() for case in cases}, reseeds=False):
        return "random numbers are used twice: a seed or a generator of the same seed begins again"
    has_nan = any(() in law for law in laws.values())
    for kind in LOOP_KINDS:
        causes = mistakes_with({case: laws[case] for case in cases}, kind, has_nan)
        if 0 < len(causes) < 3:
            return " or ".join(causes)
    return None if has_nan else other_rows(laws)


def telling_cases(laws: dict, wrong: list) -> list:
    """The cases in which a mistake must have the same law: of each line the quickest wrong ones, then the quickest of
    the others."""

    def n_paths(case):
        """About how many paths a mistake takes, because each draft is one of 3 tokens, and is kept or gives way to one
        of the other 2."""
        return len(laws[case]) * 9**case.K

    lines = defaultdict(list)  # {(whether their laws are right, line): its cases}
    for case in sorted(laws, key=n_paths):
        lines[case not in wrong, case.line].append(case)
    return [case for key in sorted(lines) for case in lines[key][:MOST_CASES]]


def mistakes_with(laws: dict, kind: LoopKind, has_nan: bool) -> list[str]:
    """The names of the mistakes that have these laws in a loop of this kind: see Mistake.loop.

    The loop draws from np.random, whose numbers are unknown: the stand-ins of the function are still in their places.
    """
    loops = {mistake: mistake.loop(kind, has_nan) for mistake in MISTAKES}
    names = [mistake.name for mistake, loop in loops.items() if loop and has_laws(Sampler(loop).decode, laws)]
    return [*dict.fromkeys(names)]


def has_laws(decode: Callable, laws: dict, reseeds: bool = True) -> bool:
    """Whether this decoder has these laws."""
    try:
        return all(distance(law_of_texts(decode, case, reseeds=reseeds), law) < EXACT for case, law in laws.items())
    except UserError:  # the mistake cannot be made there
        return False


def other_rows(laws: dict) -> str | None:
    """The cause, if the first token follows the target's row without its unlikely tokens, or at another temperature."""
    pairs = []  # pairs of the target's row q and the law f of the first token, [n_vocab] each
    for case, law in laws.items():
        q = case.models()[1](case.prompt, 1)[0].astype(float)  # [n_vocab]
        pairs.append((q, first_token_law(case, law)))
    if not all(keeps_likeliest(q, f) for q, f in pairs):
        return None
    power = power_of(pairs)
    if power is None:
        return None
    if abs(power - 1) > 0.01:
        return f"the tokens follow the target's rows at another temperature: {1 / power:.2g} times theirs"
    if any(q[f == 0].any() for q, f in pairs):
        return "the tokens follow the target's rows without their unlikely tokens: a filter on one side"
    return None


def first_token_law(case: Case, law: dict) -> np.ndarray:  # -> f [n_vocab]
    """The probabilities of a text's first token."""
    first_tokens = [text[0] for text in law]
    return np.bincount(first_tokens, [*law.values()], case.n_vocab)


def keeps_likeliest(q, f) -> bool:  # [n_vocab] each
    """Whether the tokens of f are q's, or those of them that q makes likeliest."""
    kept = f > 0  # [n_vocab]
    least = min(q[kept])
    return least > 0 and max(q[~kept], default=0) <= least


def power_of(pairs: list) -> float | None:
    """The power of q that gives f in all pairs, as at another temperature, which is 1 / power; None if there is none.

    The logarithms of both rows, without their means, then differ by this factor.
    """
    logs = []  # logarithms of q and of f, [2, n] each
    for q, f in pairs:
        kept = f > 0  # [n_vocab]
        both = np.log([q[kept], f[kept]])  # [2, n]
        logs.append(both - both.mean(axis=1, keepdims=True))
    log_q, log_f = np.concatenate(logs, axis=1)  # [n] each
    power = log_q @ log_f / (log_q @ log_q) if log_q.any() else 1.0
    return power if np.allclose(log_f, power * log_q, 1e-4, 1e-4) else None
