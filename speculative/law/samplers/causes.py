"""The cause of a wrong law: each mistake is made in a loop of ours, and named if its laws are the same.

They are compared in a few cases of each line, three wrong ones and three right ones. If no mistake has these laws, the
rows themselves may be others than the target's.
"""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from speculative.law.paths import EXACT, distance
from speculative.law.samplers.cases import Case
from speculative.law.samplers.mistakes import MISTAKES
from speculative.law.samplers.sampler import Sampler
from speculative.law.samplers.texts import law_of_texts
from speculative.support.errors import UserError

MOST_CASES = 3  # of a line, wrong ones and right ones each, in which a mistake must have the same law


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
    for is_blogs in (True, False):
        causes = mistakes_with({case: laws[case] for case in cases}, is_blogs, has_nan)
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


def mistakes_with(laws: dict, is_blogs: bool, has_nan: bool) -> list[str]:
    """The names of the mistakes that have these laws in a loop of this kind: see Mistake.loop.

    The loop draws from np.random, whose numbers are unknown: the stand-ins of the function are still in their places.
    """
    names = [mistake.name for mistake in MISTAKES if has_laws(Sampler(mistake.loop(is_blogs, has_nan)).decode, laws)]
    return [*dict.fromkeys(names)]


def has_laws(decode: Callable, laws: dict, reseeds: bool = True) -> bool:
    """Whether this decoder has these laws."""
    try:
        return all(distance(law_of_texts(decode, case, reseeds=reseeds), law) < EXACT for case, law in laws.items())
    except UserError:  # the mistake cannot be made there
        return False


def other_rows(laws: dict) -> str | None:
    """The cause, if the first token follows the target's row without its unlikely tokens, or at another temperature."""
    pairs = []  # of the target's row q and the law f of the first token, [n_vocab] each
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
    logs = []  # of q and of f, [2, n] each
    for q, f in pairs:
        kept = f > 0  # [n_vocab]
        both = np.log([q[kept], f[kept]])  # [2, n]
        logs.append(both - both.mean(axis=1, keepdims=True))
    log_q, log_f = np.concatenate(logs, axis=1)  # [n] each
    power = log_q @ log_f / (log_q @ log_q) if log_q.any() else 1.0
    return power if np.allclose(log_f, power * log_q, 1e-4, 1e-4) else None
