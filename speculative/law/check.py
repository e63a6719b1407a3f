"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME]

The function NAME decodes with random models of 2 to 64 tokens: small probabilities, zeros, ties, nearly equal and
greedy rows are among them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes
are then made in a loop of ours, and the one that gives the same law is named.

The status is 0 if it is lossless, 1 if it is not, 2 if that cannot be told.
"""

import contextlib
import functools
import inspect
import io
import os
import random
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speculative.drafters.base import Context
from speculative.drafters.model import model_drafter
from speculative.filters import GREEDY
from speculative.law.paths import (
    EXACT,
    NoDistribution,
    TooLarge,
    TracedRandom,
    Unfollowed,
    Walk,
    distance,
    law_of,
    random_model,
)
from speculative.sampling import max_fn, residual, speculative_sampling
from speculative.support.errors import UserError, first_line
from speculative.user_functions import as_drafter

MOST_PATHS = 5_000  # of a case; larger ones are left out
MOST_SECONDS = 30  # for all cases; those that are not reached by then are left out
CAUSE_SECONDS = 5  # for the search of a cause
MOST_STILL = 10  # seconds that one path may take
PROMPTS = {1: [1], 2: [0, 1], 4: [1, 0, 0, 1]}
SMALLEST = 1e-4  # of the probabilities above 0


class Case(NamedTuple):
    """A pair of random models, and the lengths."""

    N: int
    K: int
    n_vocab: int
    n_prompt: int
    kind: str
    number: int

    @property
    def prompt(self) -> list[int]:
        return PROMPTS[self.n_prompt]

    def models(self) -> tuple[Callable, Callable]:
        """The draft and the target: model(x, n_last=0) -> distributions; by default for each token of x."""
        parts = 4 if self.kind in ("coarse", "greedy") else 2**16
        support = {"coarse": 0, "greedy": 0, "pairs": 2}.get(self.kind, self.n_vocab)
        draft, target = (random_model(2 * self.number + i, self.n_vocab, parts, support) for i in (0, 1))
        if self.kind == "near":
            return (lambda x, n_last=0: near(target(x, n_last))), target
        if self.kind == "pairs":
            return (lambda x, n_last=0: swapped(target(x, n_last))), target
        if self.kind == "greedy":
            return (lambda x, n_last=0: GREEDY(draft(x, n_last))), (lambda x, n_last=0: GREEDY(target(x, n_last)))
        if self.kind == "wide":
            return (lambda x, n_last=0: GREEDY(draft(x, n_last))), target
        return draft, target


def cases_of(N: int, K: int, n_vocab: int, n_prompt: int, **numbers: int) -> list[Case]:
    return [Case(N, K, n_vocab, n_prompt, kind, i) for kind, n in numbers.items() for i in range(n)]


# A full acceptance is followed by another window if N >= K + 2, and in our own loop by another draft if N >= K + 3. In
# "pairs" at most two tokens follow each text, so that longer texts have few enough paths; "wide" has more tokens than
# the usual top-k keeps.
CASES = [
    *cases_of(1, 1, 3, 4, small=6, coarse=4, near=4, greedy=2),
    *cases_of(2, 1, 3, 2, small=6, coarse=6, near=2, greedy=2),
    *cases_of(1, 2, 3, 1, small=2, coarse=2, greedy=2),
    *cases_of(2, 2, 3, 2, small=2, coarse=4, near=1, greedy=2),
    *cases_of(4, 1, 3, 1, pairs=3, coarse=2),
    *cases_of(4, 2, 3, 4, pairs=3, greedy=3),
    *cases_of(4, 3, 3, 2, pairs=1, greedy=2),
    *cases_of(5, 2, 3, 2, pairs=1, greedy=2),
    *cases_of(5, 3, 3, 1, pairs=1, greedy=3),
    *cases_of(1, 1, 5, 2, small=4),
    *cases_of(2, 1, 5, 1, coarse=2, pairs=2),
    *cases_of(1, 1, 64, 2, wide=2),
    *cases_of(3, 2, 2, 2, small=4),
    *cases_of(4, 2, 2, 4, small=2),
]


def near(q: np.ndarray) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
    """Rows whose largest and smallest probabilities differ by 1 / 1024 from those of q."""
    i = np.arange(len(q))
    q = q.copy()
    largest, smallest = q.argmax(axis=-1), q.argmin(axis=-1)  # [n] twice
    q[i, largest] -= 2**-10
    q[i, smallest] += 2**-10
    return q


def swapped(q: np.ndarray) -> np.ndarray:  # [n, n_vocab] -> [n, n_vocab]
    """Rows whose probabilities above 0 are those of q in the opposite order."""
    p = q.copy()
    for row in p:
        row[row > 0] = row[row > 0][::-1]
    return p


def law_of_model(model: Callable, n: int, prompt: list[int]) -> dict:
    """The law of the first n tokens after the prompt."""
    law: dict = {(): 1.0}
    for _ in range(n):
        rows = {text: model([*prompt, *text], 1)[0] for text in law}  # [n_vocab] each
        law = {(*text, j): law[text] * float(q) for text in law for j, q in enumerate(rows[text]) if q}
    return law


# ---- The function, and the mistakes that people make -----------------------------------------------------------------


RESIDUALS = (lambda p, q, i, j: residual(q[i], p[i])), (lambda p, q, i, j: max_fn(q[i] - p[i]))  # ours, the blog's


def rule_with(residual_fn=RESIDUALS[0], accept=None, bonus=None, again=False) -> Callable:
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
            tokens.append(rng.choice(len(q[i]), p=residual_fn(p, q, i, j)))
            if not again:
                return tokens
            break
        return [*tokens, rng.choice(len(q[-1]), p=bonus(p, q))]

    return rule


# fmt: off
MISTAKES: dict[str, dict] = {
    "every draft is accepted": {"accept": lambda p, q, i, j: 1},
    "a rejected draft is replaced by a draw from q, not from max(0, q - p)": {"residual_fn": lambda p, q, i, j: q[i]},
    "the residual is max(0, p - q), not max(0, q - p)": {"residual_fn": lambda p, q, i, j: residual(p[i], q[i])},
    "the residual is |q - p|, not max(0, q - p)": {"residual_fn": lambda p, q, i, j: max_fn(abs(q[i] - p[i]))},
    "the residual subtracts a number, the draft's p, not a row": {
        "residual_fn": lambda p, q, i, j: max_fn(q[i] - p[i][j]),
    },
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
    """The function in decode(draft, target, case, draws) -> the N tokens after the prompt. Raises UserError if its
    parameters are none of FORMS."""
    whole: list[bool] = []  # if the text is returned with its prompt, as the first case shows

    def blogs(draft, target, case, draws):  # up to K tokens more than N
        result = function(np.array(case.prompt), draft, target, case.N, case.K, **dict.fromkeys(held, draws))
        text = ids_of(result, case.n_vocab)
        whole[1:] = []
        whole.append(text[: case.n_prompt] == case.prompt)
        text = text[case.n_prompt * whole[0] :]
        if len(text) < case.N:
            raise Unfollowed(f"it returned {len(text)} new tokens in place of {case.N}")
        return text[: case.N] if len(text) <= case.N + case.K else text

    def one_by_one(draft, target, case, draws):
        text: list[int] = []
        for _ in range(case.N):
            row = target([*case.prompt, *text], 1)[0]  # [n_vocab]
            text += ids_of([function(row, *[draws][: len(names) - 1], **dict.fromkeys(held, draws))], case.n_vocab)
        return text

    parameters = inspect.signature(function).parameters
    kinds = np.random.Generator | np.random.RandomState | random.Random
    held = {name for name, one in parameters.items() if isinstance(one.default, kinds)}  # ours are given for them
    named = ("N", "K", "rng")
    names = [n for n, one in parameters.items() if n not in held and (one.default is one.empty or n in named)]
    match names:
        case [_, _, _, "N", "K"] if not isinstance(function, type):
            return blogs
        case [_, _, _, "N", "K", "rng", *_]:
            return decoder_with(loop=function)
        case ["proposal", "q", "rng"]:
            return decoder_with(lambda proposal, q, rng: ids_of(function(proposal, q, rng), q.shape[1]))
        case ["x", "k", *_]:
            return decoder_with(drafter=as_drafter(function))
        case ["p"] | ["p", "rng"]:
            return one_by_one
        case ["x"]:
            return decoder_with(rule_with(residual_fn=lambda p, q, i, j: function(q[i] - p[i])))
    raise UserError(f"the parameters ({', '.join(names)}) are not those of a sampler: see python -m speculative law")


def decoder_with(rule=None, drafter=None, loop=speculative_sampling, n_more: int = 0) -> Callable:
    """Our loop, as decoder_of returns it, of which one part may be another. n_more: tokens after the first N."""

    def decode(draft, target, case, draws):
        context = Context(case.n_vocab, draws, GREEDY, False, {})
        propose = drafter.chain(context) if drafter else model_drafter(lambda x: draft(x, 1), draws)
        last = lambda x, n_last=1: target(x, n_last)  # noqa: E731
        accept = {"accept": rule} if rule else {}
        text: list[int] = []
        for step in loop(case.prompt, propose, last, case.N + n_more, case.K, draws, **accept):
            text += step.tokens
            if n_more and len(text) >= case.N:
                return text[: case.N]
        return text

    return decode


# ---- The check -------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What the check found."""

    lossless: bool
    distance: float  # the largest total variation distance from the target's law
    case: Case | None  # the one that goes wrong
    cause: str | None
    covered: str  # the cases that were tried
    words: str  # as the command prints them


def ids_of(result, n_vocab: int) -> list[int]:
    """The ids of whatever a function returned: a list, a generator, an array or a tensor. Raises Unfollowed."""
    if not hasattr(result, "__iter__"):
        raise Unfollowed(f"it returned {type(result).__name__}, not tokens")
    if not isinstance(result, np.ndarray):
        result = list(result)
    try:
        ids = np.array(result).ravel() if len(result) else np.zeros(0)  # [n]
        if (ids == ids.astype(int)).all() and (ids >= 0).all() and (ids < n_vocab).all():
            return ids.astype(int).tolist()
    except (TypeError, ValueError):
        pass
    raise Unfollowed(f"it returned {result!r:.60}, not ids below {n_vocab}")


def check_law(function: Callable) -> Verdict:
    """Compare the law of a function's texts with the target's, from the smallest cases to the largest.

    Raises UserError if its parameters are none of FORMS, it raises an error, its random numbers cannot be followed, or
    no case is small enough.
    """
    decode = decoder_of(function)
    decode.variables = variables_of(function)  # type: ignore[attr-defined]
    laws = {}  # {case: its law}
    far: dict[Case, float] = {}  # {case: distance from the target's law}
    wrong: list[Case] = []
    too_large: list[Case] = []
    without: dict[int, str] = {}  # {n_vocab: why it has no cases}
    until = time.monotonic() + MOST_SECONDS
    reason = ""
    for _, cases in groupby(CASES, key=lambda case: case[:4]):
        if wrong and time.monotonic() > until - MOST_SECONDS + CAUSE_SECONDS:
            break
        is_last = bool(wrong)  # one size more than the first that is wrong tells the mistakes apart
        for case in cases:
            if case.n_vocab in without:
                continue
            if time.monotonic() > until or (len(too_large) > 1 and not far):
                too_large.append(case)
                continue
            try:
                laws[case] = law_of_texts(decode, case)
            except TooLarge as error:
                reason = str(error)
                too_large.append(case)
                continue
            except Raised as error:  # it may be written for one vocabulary
                if case.n_vocab == 3 or not far:
                    raise
                without[case.n_vocab] = str(error)
                continue
            far[case] = distance(laws[case], law_of_model(case.models()[1], case.N, case.prompt))
        wrong = [case for case in far if far[case] > EXACT]
        if is_last:
            break
    if not far:
        raise UserError(f"{name_of(function)}: {reason or 'no case is small enough'}")
    covered = coverage([*far], len(too_large), without)
    if wrong:
        worst = max((case for case in wrong if case[:4] == wrong[0][:4]), key=far.__getitem__)
        words = [f"Not lossless: the distance is {far[worst]:.2g}.", *counterexample(decode, worst, laws[worst])]
        few = sorted({case.kind: case for case in wrong[::-1]}.values(), key=wrong.index)[:4]  # one of each kind
        cause = cause_of(decode, {case: laws[case] for case in few})
        words += [f"Usual cause: {cause}."] if cause else []
        return Verdict(False, far[worst], worst, cause, covered, "\n".join(words))
    largest = max(far.values())
    words = [f"Lossless: {len(far)} cases, largest distance {largest:.0e}.", covered]
    return Verdict(True, largest, None, None, covered, "\n".join(words))


def coverage(cases: list[Case], n_too_large: int, without: dict[int, str]) -> str:
    """These cases in words, and what they cannot see."""
    lists = [", ".join(map(str, sorted({case[i] for case in cases}))) for i in range(4)]  # N, K, n_vocab, n_prompt
    words = f"Covered: vocabularies of {lists[2]} tokens, prompts of {lists[3]}, N = {lists[0]}, K = {lists[1]}, "
    words += f"probabilities down to {SMALLEST:g}."
    if n_too_large:
        words += f" Left out for their size: {n_too_large} cases."
    for n_vocab, reason in without.items():
        words += f"\nLeft out: a vocabulary of {n_vocab} ({reason})."
    return words + "\nNot seen: what shows only in longer texts, with more drafts or with larger vocabularies."


def name_of(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__)


def variables_of(function: Callable) -> list[dict]:
    """The variables that a function may take its random numbers from: its modules', and its object's own."""
    while isinstance(function, functools.partial):
        function = function.func
    found = [getattr(getattr(function, "__self__", None), "__dict__", {})]
    plain = inspect.unwrap(getattr(function, "__func__", function))
    found.append(getattr(plain, "__globals__", {}))
    folder = os.path.dirname(found[-1].get("__file__") or "")
    for module in [*sys.modules.values()]:  # its helpers, in the same folder
        file = getattr(module, "__file__", None)
        if folder and file and os.path.dirname(file) == folder and not module.__name__.startswith("speculative"):
            found.append(vars(module))
    return found


class Raised(UserError):
    """An error that the function raised."""


def raised(error: BaseException) -> Raised:
    """The error with the last line of the user's code in it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(HERE)]
    place = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}: " if frames else ""
    for frame in reversed(frames):
        if not any(part in frame.filename for part in ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen")):
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}: "
            break
    if isinstance(error, UserError):
        return Raised(f"{place}{error}")
    words = f": {first_line(error)}" if str(error).strip() else ""
    return Raised(f"{place}{type(error).__name__}{words}")


HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Unfollowed in what takes longer, if this is the main thread of a system that has such alarms."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise Unfollowed(f"no progress: one text takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def law_of_texts(decode: Callable, case: Case, outcome_of: Callable | None = None, reseeds: bool = True) -> dict:
    """The law of the texts, or of outcome_of(text, walk). The text is () if a draw is impossible. Raises UserError."""
    draws = TracedRandom(Walk(reseeds))

    def watched(model, windows):
        def rows(x, *args, **options):
            draws.walk.idle()
            if windows:
                draws.walk.windows.append(tuple(map(int, np.ravel(x))))
            return model(x, *args, **options)

        return rows

    draft, target = (watched(model, i) for i, model in enumerate(case.models()))

    def program(draws):
        try:
            with limited(MOST_STILL):
                text = tuple(map(int, decode(draft, target, case, draws)))
        except NoDistribution:
            text = ()
        except TooLarge:
            raise
        except (Exception, SystemExit) as error:
            raise raised(error) from error
        return outcome_of(text, draws.walk) if outcome_of else text

    with draws.everywhere(*getattr(decode, "variables", [])):
        return law_of(program, draws, MOST_PATHS)


def counterexample(decode: Callable, case: Case, law: dict) -> list[str]:
    """A case in words: the text whose probability is most wrong, and the likeliest way to it."""
    draft, target = case.models()
    expected = law_of_model(target, case.N, case.prompt)
    text = max(law | expected, key=lambda text: abs(law.get(text, 0) - expected.get(text, 0)))
    by_path = law_of_texts(decode, case, lambda text, walk: (text, tuple(str(one) for one in walk.numbers if one)))
    ways = [(weight, path) for (outcome, path), weight in by_path.items() if outcome == text]
    p, q = (" ".join(f"{p_j:.3g}" for p_j in model(case.prompt, 1)[0]) for model in (draft, target))
    found = f"The text {[*text]} should have probability {expected.get(text, 0):.6f}, and has {law.get(text, 0):.6f}."
    if () in law:
        found = "Something is drawn from numbers that are not probabilities: NaN, or their sum is not 1."
    elif ways:
        found += f"\nThe likeliest way to it has random numbers from {', '.join(max(ways)[1]) or '(none)'}."
    return [
        f"The smallest case: a vocabulary of {case.n_vocab} tokens, prompt {case.prompt}, N = {case.N}, K = {case.K}.",
        f"After the prompt the draft has p = [{p}], the target q = [{q}].",
        found,
    ]


def cause_of(decode: Callable, laws: dict[Case, dict]) -> str | None:
    """The mistake that explains these laws of wrong cases, if one is known."""

    until = time.monotonic() + CAUSE_SECONDS

    def explains(other: Callable, expected: Callable = laws.get, **how) -> bool:
        if time.monotonic() > until:
            return False
        try:
            return all(distance(law_of_texts(other, case, **how), expected(case)) < EXACT for case in laws)
        except UserError:  # this mistake cannot be made there
            return False

    if any(len(text) > case.N for case, law in laws.items() for text in law):
        return "more than N tokens are added"
    if explains(decode, lambda case: law_of_model(case.models()[1], case.N, case.prompt), reseeds=False):
        return "random numbers are used twice: a seed or a generator of the same seed begins again"
    for case in laws:
        if time.monotonic() > until:
            return None
        drafts = law_of_texts(decode, case, lambda text, walk, case=case: (walk.windows or [()])[0][case.n_prompt :])
        lengths = {*map(len, drafts)}
        if len(lengths) == 1 and distance(drafts, law_of_model(case.models()[0], max(lengths), case.prompt)) > EXACT:
            return "the drafts are not drawn from the p that tests them"
    forms = [*product((0, 9), RESIDUALS)]  # the blog's loop adds up to K tokens more than N; of ours it ends after N
    for cause, part in MISTAKES.items():
        rules = [(n_more, rule_with(**{"residual_fn": residual_fn} | part)) for n_more, residual_fn in forms]
        if any(explains(decoder_with(rule, n_more=n_more)) for n_more, rule in rules):
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
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            defined = runpy.run_path(str(file), run_name="law")
    except (ModuleNotFoundError, UserError):
        raise
    except (Exception, SystemExit) as error:
        raise raised(error) from error
    name = name or "speculative_sampling"
    if not callable(defined.get(name)):
        functions = [name for name, one in defined.items() if inspect.isfunction(one) and one.__module__ == "law"]
        raise UserError(f"{file} has no function {name}: it has {', '.join(functions) or 'none'}")
    verdict = check_law(defined[name])
    print(verdict.words)
    sys.exit(not verdict.lossless)
