"""Rules of acceptance: which drafts are accepted, and the distribution that the token after them is drawn from.

The paper's rule is sampling.token_by_token. Here are block verification, which accepts more drafts and is lossless too,
and two rules that are not lossless: lenient and typical acceptance. Each judges by random numbers u: fresh ones to
accept drafts, and those of a step once more to explain it.

To add a rule, write a function that returns a Rule, and its entry in RULES. For a rule that tests one draft after the
other, one_by_one makes the Rule from two functions of p and q.
"""

import contextlib
import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import wraps
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from speculative.filters import is_typical
from speculative.sampling import Proposal, Step, ratio, residual, sample, token_by_token
from speculative.support.errors import UserError, did_you_mean, first_line
from speculative.trees import sibling_by_sibling


class Rule(NamedTuple):
    """A rule, as --accept names it."""

    name: str
    accept: Callable  # accept(proposal, q, rng) -> tokens
    # judge(proposal, q, u) -> the accepted drafts; [n_vocab], the distribution of the token after them; {"u", "p", "q",
    # "passed"} of each draft that was tested, with w and h of a block. u: an iterator of random numbers, one for a test
    judge: Callable | None
    chances: Callable  # chances(step) -> the chance of acceptance at each position that was tested
    accept_tree: Callable | None = None  # accept_tree(tree, q, rng) -> tokens, if judge takes a trees.Tree, too
    blocks: bool = False  # whether all drafts are tested, and a test depends on the drafts before
    lossless: bool = True
    formula: str = "Σ min(p, q) = 1 - TVD(p, q)"  # of the chance of acceptance at a position


def rule_of(name: str, judge: Callable, chances: Callable, **about: Any) -> Rule:
    """The rule that accepts drafts as judge says. about: other fields of Rule."""

    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        tokens, rest, _ = judge(proposal, q, (rng.random() for _ in count()))
        return [*tokens, sample(rest, rng)]

    return Rule(name, accept, judge, chances, **about)


# ---- Token by token, and rules that change its test ------------------------------------------------------------------


def one_by_one(
    name: str,
    overlap: Callable = np.minimum,
    residual_fn: Callable = residual,
    truncate: Callable = lambda q: q,
    **about: Any,
) -> Rule:
    """A rule that tests one draft after the other, from its two parts, in the paper min(p, q) and max(0, q - p).

    overlap(q, p): the part of p that is accepted. So token j passes with chance overlap[j] / p[j], and any draft with
    chance Σ overlap (Leviathan et al. 2023, corollary 3.6). residual_fn(q, p): the distribution of the token that
    replaces a rejected draft. truncate(q): the rows that are used in place of the target's.
    """

    def judge(proposal, q, u):  # q [m + 1, n_vocab]
        return sibling_by_sibling(proposal, truncate(q), u, overlap, residual_fn)

    def chances(step):
        return acceptance_by_depth(step, truncate(step.q), overlap, residual_fn)

    rule = rule_of(name, judge, chances, **about)
    return rule._replace(accept_tree=rule.accept)


def acceptance_by_depth(step: Step, q, overlap: Callable, residual_fn: Callable) -> list[float]:
    """The chance that one of the children is accepted, for each node of the path that has any.

    q, overlap, residual_fn: the parts of the rule. The last child counts with Σ overlap. Each child before it counts
    with the ratio of the token that was drawn, because the p of its later siblings depends on that token.
    """
    proposal = step.proposal
    children = proposal.children
    chances = []
    for node in [node for node in step.path if children[node]]:
        *others, last = children[node]
        remaining = q[node]  # [n_vocab]
        accepted = 0.0  # the chance that one of the others is accepted
        for child in others:
            p = proposal.p[child - 1]  # [n_vocab]
            accepted += (1 - accepted) * ratio(overlap(remaining, p), p, proposal.tokens[child - 1])
            remaining = residual_fn(remaining, p)  # [n_vocab]
        chances.append(accepted + (1 - accepted) * float(np.sum(overlap(remaining, proposal.p[last - 1]))))
    return chances


# The paper's rule. Its accept is the blog's loop; that of one_by_one gives the same tokens.
TOKEN = one_by_one("token")._replace(accept=token_by_token)


def lenient(b: float) -> Rule:
    """The paper's rule with u drawn from [0, b). With b below 1 more drafts are accepted, and the tokens are
    distributed neither as the target's nor as the draft's. At temperature 0 it changes nothing.

    Source: Leviathan et al. 2023, appendix "Lenience"; toyllm draws u from [0, b).
    """
    return one_by_one(
        f"lenient:{b:g}",
        overlap=lambda q, p: np.minimum(p, q / b),  # [n_vocab] twice -> [n_vocab]
        lossless=False,
        formula=f"Σ min(p, q / {b:g})",
    )


def typical(epsilon: float) -> Rule:
    """A draft is accepted if the target finds it probable enough, whatever its probability was to the draft. The
    target's own tokens are drawn from the probable ones, too. It is not lossless.

    Source: Cai et al. 2024, "Medusa", section 2.3.1, with δ = √ε, their default; Hewitt et al. 2022, "Truncation
    Sampling as Language Model Desmoothing", section 3.3, which samples from the same tokens (η-sampling).
    """
    return one_by_one(
        f"typical:{epsilon:g}",
        overlap=lambda q, p: np.where(q > 0, p, 0),  # [n_vocab] twice -> [n_vocab]
        residual_fn=lambda q, p: q,  # [n_vocab] twice -> [n_vocab]
        truncate=lambda q: typical_tokens(q, epsilon),  # [n, n_vocab] -> [n, n_vocab]
        lossless=False,
        formula="Σ p of the tokens that are typical",
    )


def typical_tokens(q, epsilon: float):  # [n, n_vocab] -> [n, n_vocab]
    """Return each row with its typical tokens only."""
    q = np.where(is_typical(q, epsilon), q, 0)  # [n, n_vocab]
    return q / np.sum(q, axis=-1, keepdims=True)


# ---- Block verification ----------------------------------------------------------------------------------------------


def block_by_block(proposal: Proposal, q, u: Iterator[float]) -> tuple:  # q [m + 1, n_vocab]
    """Test the drafts as a block: lossless like token_by_token, and it accepts at least as many drafts on average.

    Token by token, an unlucky early draft throws away good later ones. Here the longest prefix whose last draft passes
    its test is accepted. The next token is sampled from max(0, w q - p), normalised. The rule draws one random number
    for each draft, and one for that token.

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2.
    """
    w, h = block_chances(proposal, q)
    n_accepted = 0
    tests = []
    for i, (j, u_i) in enumerate(zip(proposal.tokens, u, strict=False), start=1):
        if u_i < h[i]:
            n_accepted = i
        chances = {"p": float(proposal.p[i - 1][j]), "q": float(q[i - 1][j])}
        tests.append({"u": u_i, **chances, "passed": u_i < h[i], "w": w[i], "h": h[i]})
    rest = q[n_accepted]  # [n_vocab]
    if n_accepted < len(proposal.tokens):
        rest = residual(w[n_accepted] * rest, proposal.p[n_accepted])  # [n_vocab]
    return proposal.tokens[:n_accepted], rest, tests


def block_chances(proposal: Proposal, q) -> tuple[list[float], list[float]]:  # -> [m + 1] twice
    """w[i], the chance that draft i is accepted, by its own test or a later one; and h[i], that its own test passes.

    Draft i is tokens[i - 1], and w[0] = 1 belongs to no draft. w is the product of the ratios q / p so far, cut to 1
    after each. With s the mass of max(0, w q - p) at the place after draft i, h = s / (s + (1 - w)).
    """
    m = len(proposal.tokens)
    w = [1.0]
    h = [1.0]
    for i, j in enumerate(proposal.tokens, start=1):
        w.append(min(1.0, w[-1] * ratio(q[i - 1], proposal.p[i - 1], j)))
        if i == m:  # no test comes after the last draft's
            h.append(w[i])
            continue
        s = float(np.sum(np.maximum(w[i] * q[i] - proposal.p[i], 0), dtype=np.float64))
        # If s = 0 and w = 1, p and q are equal there and the next draft is accepted for certain: any h would do.
        h.append(s / (s + (1 - w[i])) if s > 0 or w[i] < 1 else 1.0)
    return w, h


def chances_by_block(step: Step) -> list[float]:
    """The chance that one more draft is accepted, Σ min(p, w q) / w, with the w of the draft before it."""
    w, _ = block_chances(step.proposal, step.q)
    n_tested = min(step.accepted + 1, step.drafted)
    return [float(np.sum(np.minimum(step.proposal.p[i], w[i] * step.q[i]))) / w[i] for i in range(n_tested)]


BLOCK = rule_of("block", block_by_block, chances_by_block, blocks=True, formula="Σ min(p / w, q), by block")


# ---- --accept --------------------------------------------------------------------------------------------------------

# name: (the rule's function, the range of its number if it takes one)
RULES: dict[str, tuple[Callable, tuple | None]] = {
    "token": (lambda: TOKEN, None),
    "block": (lambda: BLOCK, None),
    "lenient": (lenient, (1e-6, 1)),
    "typical": (typical, (1e-6, 0.999999)),
}


def parse_rule(text: str, functions: Mapping[str, Rule] = MappingProxyType({})) -> Rule:
    """ "token", "block", "lenient:0.5" or "typical:0.1" -> the rule. functions: of the user. Raises UserError."""
    if text in functions:
        return functions[text]
    name, _, number = text.partition(":")
    make, limits = RULES.get(name, (None, None))
    if make and not limits and not number:
        return make()
    with contextlib.suppress(ValueError):  # not a number
        if limits and limits[0] <= float(number) <= limits[1]:
            return make(float(number))
    forms = [
        f"{name}:B, B from {limits[0]:g} to {limits[1]}" if limits else name for name, (_, limits) in RULES.items()
    ]
    hint = "" if name in RULES else did_you_mean(name, RULES)
    raise UserError(f"--accept must be one of: {'; '.join(forms)}; not {text!r:.80}{hint}")


# ---- A user's function -----------------------------------------------------------------------------------------------

NOT_IDS = (TypeError, ValueError, OverflowError)  # raised for something that is not a list of numbers


def name_of(function: Callable, taken: Container[str]) -> str:
    """Return the function's own name, with _function after it if something else has that name."""
    name = re.sub(r"\W", "", str(getattr(function, "__name__", ""))) or "function"
    return f"{name}_function" if name in taken else name


def ids_of(given: Any) -> list[int]:
    """Return token ids as whole numbers. Raises one of NOT_IDS."""
    given = list(given)
    ids = [int(token) for token in given]
    if ids != given:
        raise ValueError(f"{given} are not token ids")
    return ids


def as_rule(function: Callable) -> Rule:
    """Return accept(proposal, q, rng) -> tokens as a rule. The function's attribute lossless = True claims that it
    keeps the target's distribution. The chances of its tests are unknown: α is not measured, the page shows no tests.
    """
    name = name_of(function, RULES)

    @wraps(function)
    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        try:
            tokens = ids_of(function(proposal, q, rng))
        except NOT_IDS as error:
            raise UserError(f"the rule {name} should return a list of tokens: {first_line(error)}") from error
        *accepted, last = tokens or [-1]
        if accepted != [*proposal.tokens][: len(accepted)] or len(tokens) > len(q) or not 0 <= last < q.shape[1]:
            some = ", ".join(map(str, tokens[:8])) or "no token"
            raise UserError(f"the rule {name} returns {some}: it should be the accepted drafts, then one more token id")
        return tokens

    lossless = bool(getattr(function, "lossless", False))
    return Rule(name, accept, None, lambda step: [], lossless=lossless, formula="unknown")
