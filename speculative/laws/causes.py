"""The cause of a wrong law: each mistake is made in a loop of ours, and named if its laws are the same in all cases."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from speculative.laws.forms import Form
from speculative.laws.paths import EXACT, distance
from speculative.laws.texts import law_of_texts
from speculative.support.errors import UserError

MOST_CASES = 3  # of the wrong ones of a line of CASES, and of its others, in which a mistake must have the same law

LOOP = """
import numpy as np

IS_BLOGS = HAS_NAN = True

def sample(p):
    return np.random.choice(np.arange(len(p)), p=p)

def positive(x, q):
    x = np.maximum(x, 0)
    return x / x.sum() if HAS_NAN or x.any() else q

def speculative_sampling(x, draft_model, target_model, N, K):
    x, T = [*x], len(x) + N
    full = trust = False  # whether the window before was accepted whole, and whether any was
    while len(x) < T:
        n = len(x)
        x_draft, p = x, []
        for _ in range(K if IS_BLOGS else min(K, T - n - 1)):
            p.append(draft_model(x_draft)[-1])
            x_draft = [*x_draft, sample(p[-1])]
        q = target_model(x_draft)[n - 1 :]
        was_full, full = full, True
        for i, j in enumerate(x_draft[n:]):
            u = np.random.random()
            if u < q[i][j] / p[i][j]:
                x = [*x, j]
            else:
                x = [*x, sample(positive(q[i] - p[i], q[i]))]
                full = False
                break
        if full:
            x = [*x, sample(q[-1])]
            trust = True
    return x
"""
TEST, REST, BONUS = "u < q[i][j] / p[i][j]", "positive(q[i] - p[i], q[i])", "sample(q[-1])"
LEFT, FROM = "q[i] - p[i]", "target_model(x_draft)"

# (the mistake, a text of LOOP, the text that replaces it, ...)
MISTAKES: list[tuple[str, ...]] = [
    ("the drafts are the draft's likeliest tokens, not drawn", "sample(p[-1])", "np.argmax(p[-1])"),
    ("a draft is drawn from the row of p before the last", "sample(p[-1])", "sample(draft_model(x_draft)[-2:][0])"),
    ("every draft is accepted", TEST, "True"),
    ("the test is p / q, not q / p", TEST, "u < p[i][j] / max(q[i][j], 1e-9)"),
    ("the test is q alone, not q / p", TEST, "u < q[i][j]"),
    ("the test is the wrong way round: a draft is accepted if u is above q / p", TEST, "u > q[i][j] / p[i][j]"),
    ("the test has no random number: a draft is accepted if q >= p", TEST, "q[i][j] >= p[i][j]"),
    ("a draft is accepted if it is the target's likeliest token", TEST, "j == np.argmax(q[i])", REST, "q[i]"),
    ("a draft is accepted if it is the target's likeliest token", TEST, "j == np.argmax(q[i])"),
    ("a draft of probability 0 to the target is accepted", TEST, f"q[i][j] == 0 or {TEST}"),
    ("the test reads the row of q after the draft, not before it", TEST, "u < q[i + 1][j] / p[i][j]"),
    ("the test reads the last row of q for each draft", TEST, "u < q[-1][j] / p[i][j]"),
    ("the test reads the first row of q for each draft", TEST, "u < q[0][j] / p[i][j]"),
    ("the test is the product of the ratios so far", TEST, "u < np.prod([q[k][t] / p[k][t] for k, t in enumerate(x_draft[n : n + i + 1])])"),
    ("one random number tests all drafts of a window", "        for i, j", "        u = np.random.random()\n        for i, j", "            u = np.random.random()\n", ""),
    ("the first draft of a window is accepted untested", TEST, f"i < 1 or {TEST}"),
    ("from the second draft of a window on they are accepted untested", TEST, f"i > 0 or {TEST}"),
    ("from the third draft of a window on they are accepted untested", TEST, f"i > 1 or {TEST}"),
    ("after a full acceptance every draft is accepted", TEST, f"trust or {TEST}"),
    ("in the window after a full acceptance every draft is accepted", TEST, f"was_full or {TEST}"),
    ("the last token of the text is accepted untested", TEST, f"len(x) == T - 1 or {TEST}"),
    ("a rejected draft is replaced by a draw from q, not from max(0, q - p)", LEFT, "q[i]"),
    ("a rejected draft is replaced by a draw from p, not from max(0, q - p)", LEFT, "p[i]"),
    ("a rejected draft is replaced by a draw from q without it, not from max(0, q - p)", LEFT, "np.where(np.arange(len(q[i])) == j, 0, q[i])"),
    ("a rejected draft is replaced by the likeliest token of the residual, not by a draw", f"sample({REST})", f"np.argmax({REST})"),
    ("a rejected draft is replaced by the likeliest token of the residual, not by a draw", f"sample({REST})", "np.argmax(q[i] - p[i])"),
    ("the residual is max(0, p - q), not max(0, q - p)", REST, "positive(p[i] - q[i], p[i])"),
    ("the residual is |q - p|, not max(0, q - p)", LEFT, "abs(q[i] - p[i])"),
    ("the residual subtracts a number, the draft's p, not a row", LEFT, "q[i] - p[i][j]"),
    ("the residual reads the row of q after the draft, not before it", REST, "positive(q[i + 1] - p[i], q[i + 1])"),
    ("the residual reads the last row of p", LEFT, "q[i] - p[-1]"),
    ("the residual reads the first rows of q and p", REST, "positive(q[0] - p[0], q[0])"),
    ("the residual keeps q where it is above p, without subtracting p", LEFT, "np.where(q[i] > p[i], q[i], 0)"),
    ("the residual is not normalised before the draw", f"sample({REST})", "min(sum(np.random.random() > np.cumsum(np.maximum(q[i] - p[i], 0))), len(q[i]) - 1)"),
    ("the random number of the test is used again to draw the replacement", f"sample({REST})", f"min(sum(u > np.cumsum({REST})), len(q[i]) - 1)"),
    ("the bonus token is drawn from the row of q before the last", BONUS, "sample(q[-2 if len(q) > 1 else -1])"),
    ("the bonus token is drawn from the first row of q", BONUS, "sample(q[0])"),
    ("the bonus token is the target's likeliest, not drawn", BONUS, "np.argmax(q[-1])"),
    ("the bonus token is the last draft again", BONUS, "(x_draft[n:] or [sample(q[-1])])[-1]"),
    ("a token too many: another one follows the token that replaces a rejected draft", "if full:", "if True:"),
    ("the drafts after a rejected one are still tested: break is missing", "                break\n", ""),
    ("the drafts after a rejected one are still tested: break is missing", "                break\n", "", "if full:", "if True:"),
    ("the accepted drafts are dropped if a later one is rejected", f"x = [*x, sample({REST})]", f"x = [*x[:n], sample({REST})]"),
    ("after a full acceptance the target's last row is used once more", "        for i, j", "        q[0] = last if was_full else q[0]\n        last = q[-1]\n        for i, j"),
    ("after a rejection the target's cache holds the rejected token", FROM, FROM.replace("x_draft", "[*x[:-1], j, *x_draft[n:]] if n > T - N and not full else x_draft")),
]  # fmt: skip


def planted(source: str, name: str, *replaced: str) -> Callable:
    """The function of this name in the source, with each text replaced by the one after it."""
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in source, old
        source = source.replace(old, new)
    defined: dict = {}
    exec(source, defined)
    return defined[name]


def other_rows(laws: dict) -> str | None:
    """The cause, if the first token follows the target's row without its unlikely tokens, or at another temperature.

    At another temperature the logarithms of both rows, without their means, differ by a factor, which is the power.
    """
    logs = []  # of the target's row and of f, [n] twice
    is_cut = False
    for case, law in laws.items():
        q = case.models()[1](case.prompt, 1)[0].astype(float)  # [n_vocab]
        f = np.bincount([text[0] for text in law], [*law.values()], case.n_vocab)  # [n_vocab]
        kept = f > 0  # [n_vocab]
        least = min(q[kept])
        if least == 0 or max(q[~kept], default=0) > least:
            return None
        is_cut |= q[~kept].any()
        both = np.log([q[kept], f[kept]])  # [2, n]
        logs.append(both - both.mean(axis=1, keepdims=True))
    log_q, log_f = np.concatenate(logs, axis=1)  # [n] each
    power = log_q @ log_f / (log_q @ log_q) if log_q.any() else 1.0
    if not np.allclose(log_f, power * log_q, 1e-4, 1e-4):
        return None
    if abs(power - 1) > 0.01:
        return f"the tokens follow the target's rows at another temperature: {1 / power:.2g} times theirs"
    return "the tokens follow the target's rows without their unlikely tokens: a filter on one side" if is_cut else None


def cause_of(decode: Callable, laws: dict, wrong: list) -> str | None:
    """Return the mistake that explains all these laws; None if none does, or more than two do. wrong: the cases whose
    law is not the target's."""
    if any(len(text) > case.N for case, law in laws.items() for text in law):
        return "more than N tokens are added"
    cases = telling_cases(laws, wrong)
    if has_laws(decode, {case: case.law() for case in cases}, reseeds=False):
        return "random numbers are used twice: a seed or a generator of the same seed begins again"
    has_nan = any(() in law for law in laws.values())
    # The blog's windows have always K drafts, ours end with the text; and in the blog's an empty residual is NaN.
    for is_blogs in (True, False):
        form = f"IS_BLOGS, HAS_NAN = {is_blogs}, {has_nan}"
        causes = mistakes_with({case: laws[case] for case in cases}, "IS_BLOGS = HAS_NAN = True", form)
        if 0 < len(causes) < 3:
            return " or ".join(causes)
    return None if has_nan else other_rows(laws)


def telling_cases(laws: dict, wrong: list) -> list:
    """The cases in which a mistake must have the same law: of each line the quickest, the wrong ones first."""

    def n_paths(case):
        """About how many paths a mistake takes, because each draft is one of 3 tokens, and is kept or gives way to one
        of the other 2."""
        return len(laws[case]) * 9**case.K

    lines = defaultdict(list)
    for case in sorted(laws, key=n_paths):
        lines[case not in wrong, case.line].append(case)
    return [case for line in sorted(lines) for case in lines[line][:MOST_CASES]]


def mistakes_with(laws: dict, *form: str) -> list:
    """The names of the mistakes that have these laws. form: a text of LOOP, and what replaces it."""
    causes = {}
    for name, *replaced in MISTAKES:
        loop = planted(LOOP, "speculative_sampling", *form, *replaced)
        if has_laws(Form(loop).decode, laws):
            causes[name] = True  # some have the same name
    return [*causes]


def has_laws(decode: Callable, laws: dict, reseeds: bool = True) -> bool:
    """Whether this is how texts are decoded that have these laws."""
    try:
        return all(distance(law_of_texts(decode, case, reseeds=reseeds), law) < EXACT for case, law in laws.items())
    except UserError:  # the mistake cannot be made there
        return False
