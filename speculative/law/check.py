"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME]

The function NAME decodes with random models of 2 to 64 tokens: small probabilities, zeros, ties, nearly equal and
greedy rows are among them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes
are then made in a loop of ours, and the one that gives the same laws is named.

The status is 0 if it is lossless, 1 if it is not, 2 if that cannot be told.
"""

import contextlib
import inspect
import io
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speculative.drafters.base import Context
from speculative.drafters.model import model_drafter
from speculative.filters import GREEDY
from speculative.law.cases import CASES, SMALLEST, Case, law_of_model
from speculative.law.causes import cause_of
from speculative.law.paths import EXACT, TooLarge, distance
from speculative.law.texts import MOST_PATHS, Raised, errors_as_lines, ids_of, law_of_texts, raised, somebodys_code
from speculative.law.traced import NoDistribution, loaded
from speculative.law.unknown import Unfollowed
from speculative.sampling import sample, speculative_sampling, token_by_token
from speculative.support.errors import UserError
from speculative.user_functions import as_drafter

FEW_PATHS = 300  # of a case after one that is wrong
FORMS = """\
speculative_sampling(x, draft_model, target_model, N, K)   the blog's: its models return a row for each token of x;
                                                           rng may follow
speculative_sampling(x, draft, target_model, N, K, rng)    ours, which yields Steps
a rule (proposal, q, rng), a drafter (x, k), sample(p), sample(p, rng), max_fn(x)"""


class Verdict(NamedTuple):
    """The result of the check."""

    lossless: bool
    distance: float  # the largest total variation distance from the target's law
    case: Case | None  # the one that goes wrong
    cause: str | None
    covered: str  # the cases that were tried
    words: str  # as the command prints them


# ---- The forms of a function -----------------------------------------------------------------------------------------


def decoder_of(function: Callable, left_out: dict) -> Callable:
    """The function in decode(draft, target, case, rng) -> the N tokens after the prompt. Raises UserError if its
    parameters are none of FORMS. left_out: gets what is left out, and why."""
    has_prompt: list[bool] = []  # whether the text is returned with its prompt, as the first one shows

    def blogs(draft, target, case, rng):  # up to K tokens more than N
        more = [rng] if "rng" in names else []
        text = ids_of(function(np.array(case.prompt), draft, target, case.N, case.K, *more), case.n_vocab)
        has_prompt.append(text[: case.n_prompt] == case.prompt)
        text = text[case.n_prompt * has_prompt[0] :]
        if len(text) < case.N:
            raise Unfollowed(f"it returned {len(text)} new tokens in place of {case.N}")
        return text[: case.N] if len(text) <= case.N + case.K else text

    def one_by_one(draft, target, case, rng):
        text: list[int] = []
        for _ in range(case.N):
            row = target([*case.prompt, *text], 1)[0]  # [n_vocab]
            text += ids_of([function(row, rng) if "rng" in names else function(row)], case.n_vocab)
        return text

    def rule(proposal, q, rng):  # q [m + 1, n_vocab]
        try:
            if tokens := ids_of(function(proposal, q, rng), q.shape[1]):
                return tokens
            raise Unfollowed(f"the rule returns no token after {len(proposal.tokens)} drafts, and should add one")
        except (NoDistribution, UserError):
            raise
        except Exception as error:  # our loop ends with a window of no drafts, which others do not have
            if proposal.tokens:
                raise
            left_out.setdefault("windows without a draft", str(raised(error)))
            return [sample(q[-1], rng)]

    def with_residual(proposal, q, rng):
        for i, j in enumerate(proposal.tokens):
            if rng.random() >= q[i][j] / proposal.p[i][j]:
                return [*proposal.tokens[:i], rng.choice(len(q[i]), p=function(q[i] - proposal.p[i]))]
        return [*proposal.tokens, sample(q[-1], rng)]

    parameters = inspect.signature(function).parameters
    names = [n for n, one in parameters.items() if one.default is one.empty or n in ("N", "K", "rng")]
    match names:
        case [_, _, _, "N", "K"] | [_, "draft_model", _, "N", "K", "rng"]:
            return blogs
        case [_, _, _, "N", "K", "rng", *_]:
            return decoder_with(loop=function)
        case ["proposal", "q", "rng"]:
            return decoder_with(rule)
        case ["x", "k", *_]:
            return decoder_with(drafter=as_drafter(function))
        case ["p"] | ["p", "rng"]:
            return one_by_one
        case ["x"]:
            return decoder_with(with_residual)
    raise UserError(f"the parameters ({', '.join(names)}) are not those of a sampler: see python -m speculative law")


def decoder_with(rule=token_by_token, drafter=None, loop=speculative_sampling) -> Callable:
    """Our loop, as decoder_of returns it, of which one part may be another."""

    def decode(draft, target, case, rng):
        context = Context(case.n_vocab, rng, GREEDY, False, {})
        propose = drafter.chain(context) if drafter else model_drafter(lambda x: draft(x, 1), rng)
        accept = {} if rule is token_by_token else {"accept": rule}
        steps = loop(case.prompt, propose, lambda x, n_last=1: target(x, n_last), case.N, case.K, rng, **accept)
        return [token for step in steps for token in step.tokens]

    return decode


# ---- The check -------------------------------------------------------------------------------------------------------


def check_law(function: Callable) -> Verdict:
    """Compare the law of a function's texts with the target's, from the smallest cases to the largest.

    Raises UserError if its parameters are none of FORMS, it raises an error, its random numbers cannot be followed, or
    a case has too many paths.
    """
    libraries = loaded()
    found: Verdict | UserError
    try:
        with somebodys_code():
            found = verdict_on(function)
    except UserError as error:
        found = error
    if libraries != loaded():  # it imported one, whose random numbers were not ours yet
        return check_law(function)
    if isinstance(found, UserError):
        raise found
    return found


def verdict_on(function: Callable) -> Verdict:
    left_out: dict = {}  # {a vocabulary, or a kind of window: the reason}
    decode = decoder_of(function, left_out)
    laws: dict[Case, dict] = {}
    far: dict[Case, float] = {}  # {case: distance from the target's law}
    for case in CASES:
        is_wrong = any(one > EXACT for one in far.values())
        if case.n_vocab in left_out:
            continue
        try:
            laws[case] = law_of_texts(decode, case, most=FEW_PATHS if is_wrong else MOST_PATHS)
            far[case] = distance(laws[case], law_of_model(case.models()[1], case.N, case.prompt))
        except TooLarge:
            if is_wrong:
                break
            raise
        except Raised as error:  # it may be written for one vocabulary
            if case.n_vocab == 3 or not far:
                raise
            left_out[case.n_vocab] = str(error)
    covered = coverage([*far], left_out)
    most = max(far.values())
    wrong = [case for case in far if far[case] > EXACT]
    if not wrong:
        words = f"Lossless: {len(far)} cases, largest distance {most:.0e}.\n{covered}"
        return Verdict(True, most, None, None, covered, words)
    worst = max((case for case in wrong if case[:4] == wrong[0][:4]), key=far.__getitem__)
    words = f"Not lossless: the distance is {far[worst]:.2g}.\n{counterexample(worst, laws[worst])}"
    cause = cause_of(decode, laws, wrong)
    return Verdict(False, far[worst], worst, cause, covered, f"{words}\nUsual cause: {cause}." if cause else words)


def coverage(cases: list[Case], left_out: dict) -> str:
    """These cases in words, and what they cannot see."""
    lists = [", ".join(map(str, sorted({case[i] for case in cases}))) for i in range(4)]  # N, K, n_vocab, n_prompt
    words = f"Covered: vocabularies of {lists[2]} tokens, prompts of {lists[3]}, N = {lists[0]}, K = {lists[1]}, "
    words += f"probabilities down to {SMALLEST:g}."
    for what, reason in left_out.items():
        words += f"\nLeft out: {f'a vocabulary of {what}' if isinstance(what, int) else what} ({reason})."
    return words + "\nNot seen: what shows only in longer texts, with more drafts or with larger vocabularies."


def counterexample(case: Case, law: dict) -> str:
    """A case in words, with the text whose probability is most wrong."""
    draft, target = case.models()
    expected = law_of_model(target, case.N, case.prompt)
    text = max(law | expected, key=lambda text: abs(law.get(text, 0) - expected.get(text, 0)))
    p, q = (" ".join(f"{p_j:.3g}" for p_j in model(case.prompt, 1)[0]) for model in (draft, target))
    found = f"The text {[*text]} should have probability {expected.get(text, 0):.6f}, and has {law.get(text, 0):.6f}."
    if () in law:
        found = "Something is drawn from numbers that are not probabilities: NaN, or their sum is not 1."
    return (
        f"The smallest case: a vocabulary of {case.n_vocab} tokens, prompt {case.prompt}, N = {case.N}, K = {case.K}.\n"
        f"After the prompt the draft has p = [{p}], the target q = [{q}].\n{found}"
    )


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
        with contextlib.redirect_stdout(io.StringIO()), errors_as_lines():
            defined = runpy.run_path(str(file), run_name="law")
    except ModuleNotFoundError:
        raise
    name = name or "speculative_sampling"
    if not callable(defined.get(name)):
        functions = [name for name, one in defined.items() if inspect.isfunction(one) and one.__module__ == "law"]
        raise UserError(f"{file} has no function {name}: it has {', '.join(functions) or 'none'}")
    verdict = check_law(defined[name])
    print(verdict.words)
    sys.exit(not verdict.lossless)
