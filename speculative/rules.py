"""Rules of acceptance: which drafts are accepted, and the distribution that the token after them is drawn from.

The paper's rule is sampling.token_by_token. Here are two more that lose nothing: block verification, which accepts more
drafts, and matching, which accepts fewer; and two that are not lossless: lenient and typical acceptance. Each judges by
random numbers u: fresh ones to accept drafts, and those of a step once more to explain it (explain.py).

To add a rule, write a function that returns a Rule, its entry in RULES, and its words in measure/rule_words.py. For a
rule that tests one draft after the other, one_by_one makes the Rule from two functions of p and q.
"""

import inspect
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
from speculative.trees import Judgement, Tested, children_of, draft_at, path_of, sibling_by_sibling, without


class Rule(NamedTuple):
    """A rule, as --accept names it."""

    kind: str  # "lenient" of lenient:0.5
    accept: Callable  # accept(proposal, q, rng) -> tokens
    # judge(proposal, q, u) -> trees.Judgement. u: an iterator of random numbers, one for a test
    judge: Callable | None
    chances: Callable  # chances(step) -> the chance of acceptance at each position that was tested
    number: float | None = None  # 0.5 of lenient:0.5
    accept_tree: Callable | None = None  # accept_tree(tree, q, rng) -> tokens, if judge takes a trees.Tree, too
    blocks: bool = False  # whether all drafts are tested, and a test depends on the drafts before
    lossless: bool = True

    @property
    def name(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number:g}"


def rule_of(kind: str, judge: Callable, chances: Callable, **about: Any) -> Rule:
    """The rule that accepts drafts as judge says. about: other fields of Rule."""

    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        numbers = (rng.random() for _ in count())
        judgement = judge(proposal, q, numbers)
        return [*judgement.accepted, sample(judgement.rest, rng)]

    return Rule(kind, accept, judge, chances, **about)


# ---- Token by token, and rules that change its test ------------------------------------------------------------------


def one_by_one(
    kind: str,
    overlap: Callable = np.minimum,
    residual_fn: Callable = lambda q, p, j: residual(q, p),
    truncate: Callable = lambda q: q,
    **about: Any,
) -> Rule:
    """A rule that tests one draft after the other, from its two parts, in the paper min(p, q) and max(0, q - p).

    overlap(q, p): the part of p that is accepted. So token j passes with chance overlap[j] / p[j], and any draft with
    chance Σ overlap (Leviathan et al. 2023, corollary 3.6). residual_fn(q, p, j): the distribution of the token that
    replaces the rejected draft j. truncate(q): the rows that are used in place of the target's.
    """

    def judge(proposal, q, u):  # q [m + 1, n_vocab]
        return sibling_by_sibling(proposal, truncate(q), u, overlap, residual_fn)

    def chances(step):
        return acceptance_by_depth(step, truncate(step.q), overlap, residual_fn)

    rule = rule_of(kind, judge, chances, **about)
    return rule._replace(accept_tree=rule.accept)


def acceptance_by_depth(step: Step, q, overlap: Callable, residual_fn: Callable) -> list[float]:
    """The chance that one of the children is accepted, for each node of the path that has any.

    q, overlap, residual_fn: the parts of the rule. The last child counts with Σ overlap. Each child before it counts
    with the ratio of the token that was drawn, because the p of its later siblings depends on that token.
    """
    proposal = step.proposal
    children = children_of(proposal)
    chances = []
    for node in path_of(step):
        if not children[node]:
            continue
        *others, last = children[node]
        remaining = q[node]  # [n_vocab]
        accepted = 0.0  # the chance that one of the others is accepted
        for child in others:
            j, p = draft_at(proposal, child)  # id, [n_vocab]
            accepted += (1 - accepted) * ratio(overlap(remaining, p), p, j)
            remaining = residual_fn(remaining, p, j)  # [n_vocab]
        _, p = draft_at(proposal, last)
        accepted += (1 - accepted) * float(np.sum(overlap(remaining, p)))
        chances.append(accepted)
    return chances


# The paper's rule. Its accept is the blog's loop; that of one_by_one gives the same tokens.
TOKEN = one_by_one("token")._replace(accept=token_by_token)


def papers_chances(step: Step, rule: Rule) -> list[float]:
    """The chances of a step by the paper's rule, for a rule that changes its test; [] for others."""
    return TOKEN.chances(step) if rule.accept_tree and rule.kind != TOKEN.kind else []


# A draft stays if it is the target's own sample, as llama.cpp and mlx-lm decide: the draft's p takes no part. Given the
# draft j, the sample is j with chance q(j), and one of the other tokens otherwise. So each token is a sample of q,
# whatever was drafted; but Σ p q drafts are accepted where token by token accepts Σ min(p, q).
MATCH = one_by_one(
    "match",
    overlap=lambda q, p: p * q,  # [n_vocab] twice -> [n_vocab]
    residual_fn=lambda q, p, j: without(q, j),  # [n_vocab] twice, id -> [n_vocab]
)


def lenient(b: float) -> Rule:
    """The paper's rule with u drawn from [0, b). With b below 1 more drafts are accepted, and the tokens are
    distributed neither as the target's nor as the draft's. At temperature 0 it changes nothing.

    Source: Leviathan et al. 2023, appendix "Lenience"; toyllm draws u from [0, b).
    """
    return one_by_one(
        "lenient",
        number=b,
        overlap=lambda q, p: np.minimum(p, q / b),  # [n_vocab] twice -> [n_vocab]
        lossless=False,
    )


def typical(epsilon: float) -> Rule:
    """A draft is accepted if the target finds it probable enough, whatever its probability was to the draft. The
    target's own tokens are drawn from the probable ones, too. It is not lossless.

    Source: Cai et al. 2024, "Medusa", section 2.3.1, with δ = √ε, their default; Hewitt et al. 2022, "Truncation
    Sampling as Language Model Desmoothing", section 3.3, which samples from the same tokens (η-sampling).
    """
    return one_by_one(
        "typical",
        number=epsilon,
        overlap=lambda q, p: np.where(q > 0, p, 0),  # [n_vocab] twice -> [n_vocab]
        residual_fn=lambda q, p, j: q,  # [n_vocab] twice, id -> [n_vocab]
        truncate=lambda q: typical_tokens(q, epsilon),  # [n, n_vocab] -> [n, n_vocab]
        lossless=False,
    )


def typical_tokens(q, epsilon: float):  # [n, n_vocab] -> [n, n_vocab]
    """Return each row with its typical tokens only."""
    q = np.where(is_typical(q, epsilon), q, 0)  # [n, n_vocab]
    return q / np.sum(q, axis=-1, keepdims=True)


# ---- Block verification ----------------------------------------------------------------------------------------------


def block_by_block(proposal: Proposal, q, u: Iterator[float]) -> Judgement:  # q [m + 1, n_vocab]
    """Test the drafts as a block: lossless like token_by_token, and it accepts at least as many drafts on average.

    Token by token, an unlucky early draft throws away good later ones. Here the longest prefix whose last draft passes
    its test is accepted. The next token is sampled from max(0, w q - p), normalised. The rule draws one random number
    for each draft, and one for that token.

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2.
    """
    drafts = [int(j) for j in proposal.tokens]
    p = proposal.p  # [m, n_vocab]
    w, h = block_chances(proposal, q)
    n_accepted = 0
    tests = []
    for i, j in enumerate(drafts, start=1):
        u_i = next(u)
        passed = u_i < h[i]
        if passed:
            n_accepted = i
        p_j = float(p[i - 1][j])
        q_j = float(q[i - 1][j])
        tests.append(Tested(u_i, p_j, q_j, passed, w[i], h[i]))
    rest = q[n_accepted]  # [n_vocab]
    origin = "q"
    if n_accepted < len(drafts):
        rest = residual(w[n_accepted] * rest, p[n_accepted])  # [n_vocab]
        origin = "residual"
    return Judgement(drafts[:n_accepted], rest, origin, tests)


def block_chances(proposal: Proposal, q) -> tuple:  # -> [m + 1] twice
    """w[i], the chance that draft i is accepted, by its own test or a later one; and h[i], that its own test passes.

    Draft i is tokens[i - 1], and w[0] = 1 belongs to no draft. w is the product of the ratios q / p so far, cut to 1
    after each. With s the mass of max(0, w q - p) at the place after draft i, h = s / (s + (1 - w)).
    """
    p = proposal.p  # [m, n_vocab]
    w = [1.0]
    h = [1.0]
    for i, j in enumerate(proposal.tokens, start=1):
        w.append(min(1.0, w[-1] * ratio(q[i - 1], p[i - 1], j)))
        if i == len(p):  # no test comes after the last draft's
            h.append(w[i])
            break
        left = np.maximum(w[i] * q[i] - p[i], 0)  # [n_vocab]
        s = float(np.sum(left, dtype=np.float64))
        if s == 0 and w[i] == 1:  # p and q are equal there, and the next draft is accepted for certain: any h would do
            h.append(1.0)
        else:
            h.append(s / (s + (1 - w[i])))
    return w, h


def chances_by_block(step: Step) -> list[float]:
    """The chance that one more draft is accepted, Σ min(p, w q) / w, with the w of the draft before it."""
    w, _ = block_chances(step.proposal, step.q)
    n_tested = min(step.n_accepted + 1, step.n_drafted)
    chances = []
    for i in range(n_tested):
        overlap = np.minimum(step.proposal.p[i], w[i] * step.q[i])  # [n_vocab]
        chances.append(float(np.sum(overlap)) / w[i])
    return chances


BLOCK = rule_of(
    "block",
    block_by_block,
    chances_by_block,
    blocks=True,
)


# ---- --accept --------------------------------------------------------------------------------------------------------


class RuleEntry(NamedTuple):
    """A rule in the registry."""

    make: Callable[..., Rule]  # of its number, if it takes one
    letter: str = ""  # of that number, as in lenient:B
    least: float = 0.0
    most: float = 0.0

    def form(self, kind: str) -> str:
        """How it is typed."""
        return f"{kind}:{self.letter}, {self.letter} from {self.least:g} to {self.most}" if self.letter else kind

    def rule(self, argument: str) -> Rule | None:
        """The rule with this number. None if it is no number, or out of the range, or one too many."""
        if not self.letter:
            return None if argument else self.make()
        try:
            number = float(argument)
        except ValueError:
            return None
        return self.make(number) if self.least <= number <= self.most else None


RULES = {
    "token": RuleEntry(lambda: TOKEN),
    "block": RuleEntry(lambda: BLOCK),
    "match": RuleEntry(lambda: MATCH),
    "lenient": RuleEntry(lenient, "B", 1e-6, 1),
    "typical": RuleEntry(typical, "E", 1e-6, 0.999999),
}


def parse_rule(text: str, functions: Mapping[str, Rule] = MappingProxyType({})) -> Rule:
    """Return the rule that "token", "block" or "lenient:0.5" names. functions: the user's. Raises UserError."""
    if text in functions:
        return functions[text]
    kind, _, argument = text.partition(":")
    entry = RULES.get(kind)
    rule = entry.rule(argument) if entry else None
    if rule is None:
        forms = "; ".join(entry.form(kind) for kind, entry in RULES.items())
        hint = "" if entry else did_you_mean(kind, RULES)
        raise UserError(f"--accept must be one of: {forms}; not {text!r:.80}{hint}")
    return rule


# ---- A user's function -----------------------------------------------------------------------------------------------

NOT_IDS = (TypeError, ValueError, OverflowError)  # raised for something that is not a list of numbers


def name_of(function: Callable, taken: Container[str]) -> str:
    """Return the function's own name, with _function after it if something else has that name."""
    name = re.sub(r"\W", "", str(getattr(function, "__name__", ""))) or "function"
    return f"{name}_function" if name in taken else name


def check_parameters(function: Callable, form: str) -> None:
    """Raise UserError if a user's function cannot be called in this form, such as "draft(x, k)"."""
    parameters = form.split(",")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        name = name_of(function, ())
        raise UserError(f"{name} is called as {form}, and takes other parameters: give it these") from None
    except ValueError:
        return  # some functions that are not written in Python do not tell their parameters


def ids_of(given: Any) -> list[int]:
    """Return token ids as whole numbers. Raises one of NOT_IDS."""
    given = list(given)
    ids = [int(token) for token in given]
    if ids != given:
        raise ValueError(f"{given} are not token ids")
    return ids


def with_arrays(proposal: Proposal, n_vocab: int) -> Proposal:
    """The proposal of sampling.as_proposal as somebody's function sees it: p is [m, n_vocab], also without drafts."""
    return proposal._replace(p=np.reshape(proposal.p, (len(proposal.tokens), n_vocab)))  # [m, n_vocab]


def as_rule(function: Callable) -> Rule:
    """Return accept(proposal, q, rng) -> tokens as a rule. The function's attribute lossless = True claims that it
    keeps the target's distribution. The chances of its tests are unknown: α is not measured, the page shows no tests.
    """
    check_parameters(function, "accept(proposal, q, rng)")
    name = name_of(function, RULES)

    @wraps(function)
    def accept(proposal, q, rng):  # q [m + 1, n_vocab]
        n_vocab = q.shape[1]
        try:
            tokens = ids_of(function(with_arrays(proposal, n_vocab), q, rng))
        except NOT_IDS as error:
            raise UserError(
                f"the rule {name} should return a list of tokens, and only read its arrays: {first_line(error)}"
            ) from error
        *accepted, last = tokens or [-1]
        are_drafts = accepted == [*proposal.tokens][: len(accepted)]
        if not are_drafts or not 0 <= last < n_vocab:
            returned = ", ".join(map(str, tokens[:8])) or "no token"
            raise UserError(
                f"the rule {name} returns {returned}: it should be the accepted drafts, then one more token id"
            )
        return tokens

    lossless = bool(getattr(function, "lossless", False))
    return Rule(name, accept, judge=None, chances=lambda step: [], lossless=lossless)
