"""The cause of a wrong law: each mistake is made in a loop of ours, and named if its laws are the same in all cases."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from speculative.law.cases import Case, law_of_model
from speculative.law.paths import EXACT, distance
from speculative.law.texts import law_of_texts
from speculative.law.unknown import Unfollowed
from speculative.support.errors import UserError

CAUSE_SECONDS = 5  # of CPU time for the search of a cause
MOST_CASES = 12  # wrong ones, and others, in which a mistake must have the same law

LOOP = """
def decode(draft, target, case, rng):
    x, K, N, n_prompt = case.prompt, case.K, case.N, case.n_prompt
    T = n_prompt + N
    full = trust = False  # whether the window before was accepted whole, and whether any was
    pick = lambda p: rng.choice(len(p), p=p)
    while len(x) < T:
        n = len(x)
        tokens, p = [], []
        for _ in range(room(K, T - n - 1)):
            p.append(draft([*x, *tokens], 1)[0])
            tokens.append(pick(p[-1]))
        q = target([*x, *tokens], len(tokens) + 1)
        was_full, full = full, True
        for i, j in enumerate(tokens):
            u = rng.random()
            if u < q[i][j] / p[i][j]:
                x = [*x, j]
            else:
                x = [*x, pick(positive(q[i] - p[i], q[i]))]
                full = False
                break
        if full:
            x = [*x, pick(q[-1])]
            trust = bool(tokens)
    return x[n_prompt:T]
"""
TEST, REST, BONUS = "u < q[i][j] / p[i][j]", "positive(q[i] - p[i], q[i])", "pick(q[-1])"
LEFT, STALE, FROM = "q[i] - p[i]", "if n > n_prompt and not full else", "[*x, *tokens]"

# (the mistake, what stands in LOOP, what stands there by mistake, ...)
MISTAKES: list[tuple[str, ...]] = [
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
    ("the test reads the first row of p for each draft", TEST, "u < q[i][j] / p[0][j]"),
    ("the test is the product of the ratios so far", TEST, "u < np.prod([q[k][t] / p[k][t] for k, t in enumerate(tokens[: i + 1])])"),
    ("one random number tests all drafts of a window", "        for i, j", "        u = rng.random()\n        for i, j", "            u = rng.random()\n", ""),
    ("the first draft of a window is accepted untested", TEST, f"i < 1 or {TEST}"),
    ("from the second draft of a window on they are accepted untested", TEST, f"i > 0 or {TEST}"),
    ("from the third draft of a window on they are accepted untested", TEST, f"i > 1 or {TEST}"),
    ("after a full acceptance every draft is accepted", TEST, f"trust or {TEST}"),
    ("in the window after a full acceptance every draft is accepted", TEST, f"was_full or {TEST}"),
    ("the last token of the text is accepted untested", TEST, f"len(x) == T - 1 or {TEST}"),
    ("a rejected draft is replaced by a draw from q, not from max(0, q - p)", LEFT, "q[i]"),
    ("a rejected draft is replaced by a draw from p, not from max(0, q - p)", LEFT, "p[i]"),
    ("a rejected draft is replaced by a draw from q without it, not from max(0, q - p)", LEFT, "np.where(np.arange(len(q[i])) == j, 0, q[i])"),
    ("a rejected draft is replaced by the likeliest token of the residual, not by a draw", f"pick({REST})", f"np.argmax({REST})"),
    ("a rejected draft is replaced by the likeliest token of the residual, not by a draw", f"pick({REST})", "np.argmax(q[i] - p[i])"),
    ("the residual is max(0, p - q), not max(0, q - p)", REST, "positive(p[i] - q[i], p[i])"),
    ("the residual is |q - p|, not max(0, q - p)", LEFT, "abs(q[i] - p[i])"),
    ("the residual subtracts a number, the draft's p, not a row", LEFT, "q[i] - p[i][j]"),
    ("the residual reads the row of q after the draft, not before it", REST, "positive(q[i + 1] - p[i], q[i + 1])"),
    ("the residual reads the last row of p", LEFT, "q[i] - p[-1]"),
    ("the residual reads the first rows of q and p", REST, "positive(q[0] - p[0], q[0])"),
    ("the residual keeps q where it is above p, without subtracting p", LEFT, "np.where(q[i] > p[i], q[i], 0)"),
    ("the residual is not normalised before the draw", f"pick({REST})", "min(sum(rng.random() > np.cumsum(np.maximum(q[i] - p[i], 0))), len(q[i]) - 1)"),
    ("the random number of the test is used again to draw the replacement", f"pick({REST})", f"sum(u > np.cumsum({REST}))"),
    ("the bonus token is drawn from the row of q before the last", BONUS, "pick(q[-2 if len(q) > 1 else -1])"),
    ("the bonus token is drawn from the first row of q", BONUS, "pick(q[0])"),
    ("the bonus token is drawn from the draft's row, not the target's", BONUS, f"pick(draft({FROM}, 1)[0])"),
    ("the bonus token is the target's likeliest, not drawn", BONUS, "np.argmax(q[-1])"),
    ("the bonus token is the last draft again", BONUS, "(tokens or [pick(q[-1])])[-1]"),
    ("a token too many: another one follows the token that replaces a rejected draft", "if full:", "if True:"),
    ("the drafts after a rejected one are still tested: break is missing", "                break\n", ""),
    ("the drafts after a rejected one are still tested: break is missing", "                break\n", "", "if full:", "if True:"),
    ("the accepted drafts are dropped if a later one is rejected", f"x = [*x, pick({REST})]", f"x = [*x[:n], pick({REST})]"),
    ("after a full acceptance the draft's cache lacks the last draft", "pick(p[-1])", f"pick(draft([t for k, t in enumerate({FROM}) if not full or k != n - 2], 1)[0])"),
    ("after a full acceptance the target's last row is used once more", "        for i, j", "        q[0] = last if was_full else q[0]\n        last = q[-1]\n        for i, j"),
    ("after a rejection the draft's cache holds the rejected token", "pick(p[-1])", f"pick(draft([*x[:-1], j, *tokens] {STALE} {FROM}, 1)[0])"),
    ("after a rejection the draft's cache holds the rejected token", f"draft({FROM}, 1)", f"draft([*x[:-1], j, *tokens] {STALE} {FROM}, 1)"),
    ("after a rejection the target's cache holds the rejected token", f"target({FROM}", f"target([*x[:-1], j, *tokens] {STALE} {FROM}"),
]  # fmt: skip
OF_DRAFTS = ("pick(p[-1])", f"pick(drawn(case, {FROM}))")


def loop_with(replaced: tuple[str, ...], **names) -> Callable:
    """LOOP with other parts, and these functions in it."""
    source = LOOP
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        source = source.replace(old, new)
    defined = {"np": np, **names}
    exec(source, defined)
    return defined["decode"]


def form_of(decode: Callable, laws: dict[Case, dict]) -> dict[str, Callable]:
    """The functions of LOOP, as the decoder seems to have them: the blog's windows have always K drafts, ours end with
    the text; and in the blog's an empty residual is NaN."""
    case = next(iter(laws))  # N = 1, so that ours drafts nothing
    n_read = max(law_of_texts(decode, case, lambda text, walk: max(map(len, walk.windows), default=0)))
    is_nan = any(() in law for law in laws.values())

    def positive(x, q):
        x = np.maximum(x, 0)  # [n_vocab]
        return x / x.sum() if is_nan or x.any() else q

    return {"room": (lambda K, left: K) if n_read > case.n_prompt else min, "positive": positive}


def prefixes(law: dict) -> dict:
    """{each beginning of a text: its chance}"""
    found: dict = defaultdict(float)
    for text, weight in law.items():
        for n in range(len(text) + 1):
            found[text[:n]] += weight
    return found


def conditionals(law: dict, case: Case) -> Iterator[tuple]:
    """For each text before the N-th token: the law of its next token, and the target's, [n_vocab] twice."""
    chances = prefixes(law)
    for text in [text for text in chances if len(text) < case.N]:
        found = np.array([chances.get((*text, j), 0) / chances[text] for j in range(case.n_vocab)])  # [n_vocab]
        yield found, case.models()[1]([*case.prompt, *text], 1)[0].astype(float)


@np.errstate(all="ignore")
def other_target(laws: dict[Case, dict]) -> str | None:
    """The cause, if each token follows the target's row without its unlikely tokens, or at another temperature."""
    if any(() in law for law in laws.values()):
        return None
    rows = [row for case, law in laws.items() for row in conditionals(law, case)]
    firsts = [next(conditionals(law, case)) for case, law in laws.items() if case.N > 1]  # each with a test before it
    if all(np.ptp(f[f > 0] / q[f > 0]) < 1e-4 and max(q[f == 0], default=0) <= min(q[f > 0]) for f, q in rows):
        is_cut = any(np.any((f == 0) & (q > 0)) for f, q in firsts)
        return (
            "the tokens follow the target's rows without their unlikely tokens: a filter on one side"
            if is_cut
            else None
        )
    if any(np.any((f > 0) != (q > 0)) for f, q in rows):
        return None
    logs = [(np.log(f[q > 0]), np.log(q[q > 0])) for f, q in rows if np.ptp(q[q > 0]) > 0]
    power = np.ptp(logs[0][0]) / np.ptp(logs[0][1])
    if abs(power - 1) > 0.01 and all(np.allclose(f - f[0], power * (q - q[0]), 1e-4, 1e-4) for f, q in logs):
        return f"the tokens follow the target's rows at another temperature: {1 / power:.2g} times theirs"
    return None


def cause_of(decode: Callable, laws: dict[Case, dict], wrong: list[Case]) -> str | None:
    """Return the mistake that explains all these laws; None if none does, or more than two do. wrong: first a case
    whose law is not the target's."""
    until = time.process_time() + CAUSE_SECONDS
    by_cost = sorted(laws, key=lambda case: len(laws[case]) * 9**case.K)
    wrong = [case for case in by_cost if case in wrong][:MOST_CASES]
    cases = wrong + [case for case in by_cost if case not in wrong][:MOST_CASES]

    def explains(other: Callable, expected: Callable = laws.get, n_least: int | None = None, **how) -> bool:
        """Whether its laws are the expected ones in all cases; in n_least wrong ones, if there are cases in which it has none."""
        n_equal = 0
        for case in cases:
            if time.process_time() > until:
                return False
            try:
                if distance(law_of_texts(other, case, **how), expected(case)) > EXACT:
                    return False
                n_equal += case in wrong
            except UserError:  # this mistake cannot be made there
                if n_least is None:
                    return False
        return n_least is None or n_equal >= n_least

    if any(len(text) > case.N for case, law in laws.items() for text in law):
        return "more than N tokens are added"
    if explains(decode, lambda case: law_of_model(case.models()[1], case.N, case.prompt), reseeds=False):
        return "random numbers are used twice: a seed or a generator of the same seed begins again"
    if cause := other_target(laws):
        return cause
    form = form_of(decode, laws)
    found = {name: None for name, *replaced in MISTAKES if explains(loop_with((*replaced,), **form))}
    if not found:
        drawn = {c: prefixes(law_of_texts(decode, c, lambda text, walk: (walk.windows or [()])[0])) for c in wrong[:8]}

        def draft_row(case, x):  # the law of the drafts after x, as the first window has it
            if not any(drawn.get(case, {}).get((*x, j)) for j in range(case.n_vocab)):
                raise Unfollowed("a later window")
            return [drawn[case].get((*x, j), 0) / drawn[case][tuple(x)] for j in range(case.n_vocab)]

        if explains(loop_with(OF_DRAFTS, drawn=draft_row, **form), n_least=2):
            return "the drafts are not drawn from the p that tests them"
        if all(lost(laws[case], law_of_model(case.models()[1], case.N, case.prompt)) for case in wrong):
            return "something is drawn from numbers that are not probabilities: NaN, or their sum is not 1"
    return " or ".join(found) if 0 < len(found) < 3 else None


def lost(law: dict, expected: dict) -> bool:
    """Whether a draw is impossible on some paths, and no text comes too often."""
    return () in law and all(weight < expected.get(text, 0) + EXACT for text, weight in law.items() if text)
