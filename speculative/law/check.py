"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME]

The function NAME decodes with random models of 3 tokens: zeros, ties, nearly equal and greedy rows are among
them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes are then made in a
loop of ours, and the one that gives the same law is named.
"""

import inspect
import os
import runpy
import sys
from collections.abc import Callable
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speculative.drafters.base import Context
from speculative.drafters.model import model_drafter
from speculative.drafters.user_function import spec_of
from speculative.filters import GREEDY
from speculative.law.paths import EXACT, Draws, NoDistribution, TooLarge, Walk, distance, law_of, random_model
from speculative.sampling import max_fn, residual, speculative_sampling
from speculative.support.errors import UserError

MOST_PATHS = 5_000  # of a case; larger ones are left out
N_VOCAB = 3
PROMPT = [0, 1]
SIZES = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2)]  # N, K
KINDS = ["plain", "coarse", "near", "greedy"]


class Case(NamedTuple):
    """A pair of random models, and the lengths."""

    N: int
    K: int
    kind: str
    number: int

    def models(self) -> tuple[Callable, Callable]:
        """The draft and the target: model(x, n_last=0) -> distributions; by default for each token of x."""
        parts = 4 if self.kind in ("coarse", "greedy") else 2**16
        draft, target = (random_model(2 * self.number + i, N_VOCAB, parts) for i in (0, 1))
        if self.kind == "near":
            return (lambda x, n_last=0: near(target(x, n_last))), target
        if self.kind == "greedy":
            return (lambda x, n_last=0: GREEDY(draft(x, n_last))), (lambda x, n_last=0: GREEDY(target(x, n_last)))
        return draft, target


CASES = [Case(*size, kind, i) for size in SIZES for kind in KINDS for i in range(12)]


def near(q: np.ndarray) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
    """Rows whose largest and smallest probabilities differ by 1 / 1024 from those of q."""
    i = np.arange(len(q))
    largest, smallest = q.argmax(axis=-1), q.argmin(axis=-1)  # [n] twice
    q[i, largest] -= 2**-10
    q[i, smallest] += 2**-10
    return q


def law_of_model(model: Callable, n: int) -> dict:
    """The law of the first n tokens after PROMPT."""
    law: dict = {(): 1.0}
    for _ in range(n):
        rows = {text: model([*PROMPT, *text], 1)[0] for text in law}  # [n_vocab] each
        law = {(*text, j): law[text] * float(q) for text in law for j, q in enumerate(rows[text]) if q}
    return law


# ---- The function, and the mistakes that people make -----------------------------------------------------------------


RESIDUALS = (lambda p, q, i, j: residual(q[i], p[i])), (lambda p, q, i, j: max_fn(q[i] - p[i]))  # ours, the blog's


def rule_with(rest=RESIDUALS[0], accept=None, bonus=None, again=False) -> Callable:
    """sampling.token_by_token, with a part in place of its own. again: a token follows one that replaced a draft."""
    accept = accept or (lambda p, q, i, j: q[i][j] / p[i][j])
    bonus = bonus or (lambda p, q: q[-1])

    def rule(proposal, q, rng):  # q [m + 1, n_vocab]
        p = proposal.p  # [m, n_vocab]
        tokens = []
        for i, j in enumerate(proposal.tokens):
            if rng.random() < accept(p, q, i, j):
                tokens.append(j)
                continue
            tokens.append(rng.choice(len(q[i]), p=rest(p, q, i, j)))
            if not again:
                return tokens
            break
        return [*tokens, rng.choice(len(q[-1]), p=bonus(p, q))]

    return rule


# fmt: off
MISTAKES: dict[str, dict] = {
    "a rejected draft is replaced by a draw from q, not from max(0, q - p)": {"rest": lambda p, q, i, j: q[i]},
    "the residual is max(0, p - q), not max(0, q - p)": {"rest": lambda p, q, i, j: residual(p[i], q[i])},
    "the residual is |q - p|, not max(0, q - p)": {"rest": lambda p, q, i, j: max_fn(abs(q[i] - p[i]))},
    "the residual subtracts a number, the draft's p, not a row": {"rest": lambda p, q, i, j: max_fn(q[i] - p[i][j])},
    "every draft is accepted": {"accept": lambda p, q, i, j: 1},
    "the test is p / q, not q / p": {"accept": lambda p, q, i, j: p[i][j] / max(q[i][j], 1e-9)},
    "the test is q alone, not q / p": {"accept": lambda p, q, i, j: q[i][j]},
    "the test reads the row of q after the draft, not before it": {"accept": lambda p, q, i, j: q[i + 1][j] / p[i][j]},
    "the bonus token is drawn from the row of q before the last": {"bonus": lambda p, q: q[-2 if len(q) > 1 else -1]},
    "a token too many: another one follows the token that replaces a rejected draft": {"again": True},
}
# fmt: on

FORMS = """\
speculative_sampling(x, draft_model, target_model, N, K)   the blog's: its models return a row for each token of x
speculative_sampling(x, draft, target_model, N, K, rng)    ours, which yields Steps
a rule (proposal, q, rng), a drafter (x, k), sample(p), sample(p, rng), max_fn(x)"""


def decoder_of(function: Callable) -> Callable:
    """The function in decode(draft, target, case, draws) -> the N tokens after PROMPT. Raises UserError if its
    parameters are none of FORMS."""

    def blogs(draft, target, case, draws):  # up to K tokens more than N
        return function(np.array(PROMPT), draft, target, case.N, case.K)[len(PROMPT) :][: case.N]

    def one_by_one(draft, target, case, draws):
        text: list[int] = []
        for _ in range(case.N):
            text.append(function(target([*PROMPT, *text], 1)[0], *[draws][: len(names) - 1]))
        return text

    names = [*inspect.signature(function).parameters]
    match names:
        case [_, _, _, "N", "K"]:
            return blogs
        case [_, _, _, "N", "K", "rng", *_]:
            return ours(loop=function)
        case ["proposal", "q", "rng"]:
            return ours(function)
        case ["x", "k"]:
            return ours(drafter=spec_of(function, ()))
        case ["p"] | ["p", "rng"]:
            return one_by_one
        case ["x"]:
            return ours(rule_with(rest=lambda p, q, i, j: function(q[i] - p[i])))
    raise UserError(f"the parameters ({', '.join(names)}) are not those of a sampler: see python -m speculative law")


def ours(rule=None, drafter=None, loop=speculative_sampling, n_more: int = 0) -> Callable:
    """Our loop, as decoder_of returns it, of which one part may be another. n_more: tokens after the first N."""

    def decode(draft, target, case, draws):
        context = Context(N_VOCAB, draws, GREEDY, False, {})
        propose = drafter.chain(context) if drafter else model_drafter(lambda x: draft(x, 1), draws)
        last = lambda x, n_last=1: target(x, n_last)  # noqa: E731
        accept = {"accept": rule} if rule else {}
        text: list[int] = []
        for step in loop(PROMPT, propose, last, case.N + n_more, case.K, draws, **accept):
            text += step.tokens
            if n_more and len(text) >= case.N:
                return text[: case.N]
        return text

    return decode


# ---- The check -------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What check_law found."""

    lossless: bool
    distance: float  # the largest total variation distance from the target's law
    words: str  # as the command prints them


def check_law(function: Callable) -> Verdict:
    """Compare the law of a function's texts with the target's, from the smallest cases to the largest.

    Raises UserError if its parameters are none of FORMS, its random numbers cannot be followed, or no case is small
    enough.
    """
    decode = decoder_of(function)
    decode.variables = getattr(inspect.unwrap(function), "__globals__", {})  # type: ignore[attr-defined]
    laws = {}  # {case: its law}
    far = {}  # {case: distance from the target's law}
    wrong: list[Case] = []
    for _, cases in groupby(CASES, key=lambda case: (case.N, case.K)):
        is_last = bool(wrong)  # one size more than the first that is wrong tells the mistakes apart
        for case in cases:
            try:
                laws[case] = law_of_texts(decode, case)
            except TooLarge as error:
                reason = str(error)
                continue
            far[case] = distance(laws[case], law_of_model(case.models()[1], case.N))
        wrong = [case for case in far if far[case] > EXACT]
        if is_last:
            break
    if wrong:
        worst = max((case for case in wrong if case[:2] == wrong[0][:2]), key=far.__getitem__)
        words = [f"Not lossless: the distance is {far[worst]:.2g}.", *counterexample(decode, worst, laws[worst])]
        cause = cause_of(decode, {case: laws[case] for case in wrong})
        words += [f"Usual cause: {cause}."] if cause else []
        return Verdict(False, far[worst], "\n".join(words))
    if not far:
        raise UserError(f"{function.__name__}: {reason}")
    left_out = f" ({len(CASES) - len(far)} are too large)" if len(far) < len(CASES) else ""
    largest = max(far.values())
    return Verdict(True, largest, f"Lossless: {len(far)} cases{left_out}, largest distance {largest:.0e}")


def law_of_texts(decode: Callable, case: Case, outcome_of: Callable | None = None, reseeds: bool = True) -> dict:
    """The law of the texts, or of outcome_of(text, walk). The text is () if a draw is impossible."""
    draws = Draws(Walk(reseeds))
    draft, target = case.models()

    def watched(x, *args, **options):
        draws.walk.windows.append(tuple(map(int, x)))
        return target(x, *args, **options)

    def program(draws):
        try:
            text = tuple(map(int, decode(draft, watched, case, draws)))
        except NoDistribution:
            text = ()
        return outcome_of(text, draws.walk) if outcome_of else text

    with draws.everywhere(getattr(decode, "variables", {})):
        return law_of(program, draws, MOST_PATHS)


def counterexample(decode: Callable, case: Case, law: dict) -> list[str]:
    """A case in words: the text whose probability is most wrong, and the likeliest way to it."""
    draft, target = case.models()
    expected = law_of_model(target, case.N)
    text = max(law | expected, key=lambda text: abs(law.get(text, 0) - expected.get(text, 0)))
    by_path = law_of_texts(decode, case, lambda text, walk: (text, tuple(map(str, walk.numbers))))
    ways = [(weight, path) for (outcome, path), weight in by_path.items() if outcome == text]
    p, q = (" ".join(f"{p_j:.3g}" for p_j in model(PROMPT, 1)[0]) for model in (draft, target))
    found = f"The text {[*text]} should have probability {expected.get(text, 0):.4f}, and has {law.get(text, 0):.4f}."
    if () in law:
        found = "Something is drawn from numbers that are not probabilities: NaN, or their sum is not 1."
    elif ways:
        found += f"\nThe likeliest way to it has random numbers from {', '.join(max(ways)[1]) or '(none)'}."
    return [
        f"The smallest case: {N_VOCAB} tokens in the vocabulary, prompt {PROMPT}, N = {case.N}, K = {case.K}.",
        f"After the prompt the draft has p = [{p}], the target q = [{q}].",
        found,
    ]


def cause_of(decode: Callable, laws: dict[Case, dict]) -> str | None:
    """The mistake that explains these laws of wrong cases, if one is known."""

    def explains(other: Callable, expected: Callable = laws.get, **how) -> bool:
        return all(distance(law_of_texts(other, case, **how), expected(case)) < EXACT for case in laws)

    if any(len(text) > case.N for case, law in laws.items() for text in law):
        return "more than N tokens are added"
    if explains(decode, lambda case: law_of_model(case.models()[1], case.N), reseeds=False):
        return "random numbers are used twice: a seed or a generator of the same seed begins again"
    for case in laws:
        drafts = law_of_texts(decode, case, lambda text, walk: walk.windows[0][len(PROMPT) :])
        lengths = {*map(len, drafts)}
        if len(lengths) == 1 and distance(drafts, law_of_model(case.models()[0], *lengths)) > EXACT:
            return "the drafts are not drawn from the p that tests them"
    forms = [*product((0, 9), RESIDUALS)]  # the blog's loop adds up to K tokens more than N; of ours it ends after N
    for cause, part in MISTAKES.items():
        if any(explains(ours(rule_with(**{"rest": rest} | part), n_more=more)) for more, rest in forms):
            return cause
    return None


def main(words: list[str]) -> None:
    """The command. It ends with status 0 if the function is lossless, else 1. Raises UserError."""
    if len(words) != 1 or words[0] in ("-h", "--help"):
        return print(f"{__doc__.strip()}\n\nForms of NAME, by default speculative_sampling:\n\n{FORMS}")
    path, _, name = words[0].partition(".py:")
    file = Path(path if path.endswith(".py") else f"{path}.py")
    if not file.is_file():
        raise UserError(f"{file} is not a file: python -m speculative law FILE.py[:NAME]")
    sys.path.insert(0, str(file.resolve().parent))
    os.environ["TQDM_DISABLE"] = "1"
    defined = runpy.run_path(str(file), run_name="law")
    name = name or "speculative_sampling"
    if not inspect.isfunction(defined.get(name)):
        functions = [name for name, one in defined.items() if inspect.isfunction(one) and one.__module__ == "law"]
        raise UserError(f"{file} has no function {name}: it has {', '.join(functions) or 'none'}")
    verdict = check_law(defined[name])
    print(verdict.words)
    sys.exit(not verdict.lossless)
