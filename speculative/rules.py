"""Rules of acceptance: which drafts are accepted, and the distribution that the token after them is drawn from.

The paper's rule is sampling.token_by_token. Here are two more that lose nothing: block verification, which accepts more
drafts, and matching, which accepts fewer; and two that are not lossless: lenient and typical acceptance. Each judges by
random numbers u: fresh ones to accept drafts, and those of a step once more to explain it (run/observer.py).

To add a rule, write a class with judge and chances, or a OneByOne if it tests one draft after the other; its entry in
RULES; its words in report/words.py; its name in the help of --accept, and in CHOICES["accept"] of cli/help.py.
A device has it if RULES of engines/jax/sampling.py does.
"""

import contextlib
from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from speculative.filters import is_typical
from speculative.sampling import Proposal, Step, ratio, residual, sample, token_by_token
from speculative.support.errors import Option, UserError, did_you_mean
from speculative.trees import Drafts, children_of, draft_at, path_of, without


class Tested(NamedTuple):
    """The test of a draft j."""

    u: float  # the random number
    p: float  # p(j)
    q: float  # q(j), of the rest of q that the siblings before it have left
    passed: bool
    w: float | None = None  # in a block: the chance that j is accepted, by its own test or a later one
    h: float | None = None  # in a block: the chance that its own test passes


class Judgement(NamedTuple):
    """The decision of a rule about a proposal."""

    accepted: list[int]  # the drafts
    rest: np.ndarray  # [n_vocab], the distribution of the token after them
    origin: str  # the origin of rest: "q", a row of the target's; "residual", the rest of it after a rejection
    tests: list[Tested]  # the tests of the drafts that were tested


class Rule:
    """A rule, as --accept names it."""

    kind = ""  # "lenient" of lenient:0.5
    letter = ""  # the letter of the number after the name, B of lenient:B; "" if the rule takes no number
    least = most = 0.0  # the range of that number
    lossless = True
    blocks = False  # whether all drafts are tested, and a test depends on the drafts before
    takes_trees = False  # whether judge takes a trees.Tree, too
    explains = True  # whether it has judge: a user's function tells no tests

    def __init__(self, number: float = 1.0):
        self.number = number

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number:g}" if self.letter else self.kind

    def judge(self, proposal: Drafts, q, u: Iterator[float]) -> Judgement:  # q [m + 1, n_vocab]
        """Test the drafts. u: random numbers, one for each test."""
        raise NotImplementedError

    def chances(self, step: Step) -> list[float]:
        """The chance of acceptance at each position that was tested; [] if it is unknown."""
        return []

    def accept(self, proposal: Drafts, q, rng) -> list[int]:  # q [m + 1, n_vocab]
        """Accept drafts as judge says, and draw the token after them -> the tokens."""
        numbers = (rng.random() for _ in count())
        judgement = self.judge(proposal, q, numbers)
        return [*judgement.accepted, sample(judgement.rest, rng)]

    def accept_tree(self, tree: Drafts, q, rng) -> list[int]:  # q [1 + m, n_vocab]
        """As accept, always by judge: Token.accept is token_by_token, which takes chains alone."""
        return Rule.accept(self, tree, q, rng)


# ---- Token by token, and rules that change its test ------------------------------------------------------------------


class OneByOne(Rule):
    """A rule that tests one draft after the other. Its parts are in the paper min(p, q) and max(0, q - p)."""

    takes_trees = True

    def overlap(self, q, p):  # [n_vocab] twice -> [n_vocab]
        """The part of p that is accepted. So token j passes with chance overlap[j] / p[j], and any draft with chance
        Σ overlap (Leviathan et al. 2023, corollary 3.6)."""
        return np.minimum(p, q)

    def residual_of(self, q, p, j: int):  # [n_vocab] twice, id -> [n_vocab]
        """The distribution of the token that replaces the rejected draft j."""
        return residual(q, p)

    def truncate(self, q):  # [n, n_vocab] -> [n, n_vocab]
        """The rows that are used in place of the target's."""
        return q

    def judge(self, proposal, q, u) -> Judgement:  # q [1 + m, n_vocab]
        """Steps 3 and 4 of a tree: token_by_token, with several children to test at each position. proposal: a Tree, or
        a Proposal, whose drafts are a chain."""
        q = self.truncate(q)  # [1 + m, n_vocab]
        children = children_of(proposal)  # [1 + m]
        tokens: list[int] = []
        tests = []

        # Step 3: walk down from the root.
        untested = [*children[0]]
        rest = q[0]  # [n_vocab]
        origin = "q"
        while untested:
            child = untested.pop(0)
            j, p = draft_at(proposal, child)  # id, [n_vocab]
            u_j = next(u)
            passed = u_j < ratio(self.overlap(rest, p), p, j)
            tests.append(Tested(u_j, float(p[j]), float(rest[j]), passed))
            if passed:  # it is the next node
                tokens.append(j)
                untested = [*children[child]]
                rest = q[child]  # [n_vocab]
                origin = "q"
            else:  # less of q is left for its siblings
                rest = self.residual_of(rest, p, j)  # [n_vocab]
                origin = "residual"

        # Step 4: the next token is drawn from the rest of q if every child was rejected, and at a leaf from its
        # row.
        return Judgement(tokens, rest, origin, tests)

    def chances(self, step):
        """The chance that one of the children is accepted, for each node of the path that has any.

        The last child counts with Σ overlap. Each child before it counts with the ratio of the token that was drawn,
        because the p of its later siblings depends on that token.
        """
        q = self.truncate(step.q)  # [1 + m, n_vocab]
        children = children_of(step.proposal)
        chances = []
        for node in path_of(step):
            if not children[node]:
                continue
            *others, last = children[node]
            remaining = q[node]  # [n_vocab]
            accepted = 0.0  # the chance that one of the others is accepted
            for child in others:
                j, p = draft_at(step.proposal, child)  # id, [n_vocab]
                accepted += (1 - accepted) * ratio(self.overlap(remaining, p), p, j)
                remaining = self.residual_of(remaining, p, j)  # [n_vocab]
            _, p = draft_at(step.proposal, last)
            accepted += (1 - accepted) * float(np.sum(self.overlap(remaining, p)))
            chances.append(accepted)
        return chances


class Token(OneByOne):
    """The paper's rule. Chains are accepted by token_by_token, the blog's Steps 3 and 4. Rule.accept gives the same
    tokens."""

    kind = "token"

    def accept(self, proposal, q, rng):  # q [m + 1, n_vocab]
        return token_by_token(proposal, q, rng)


TOKEN = Token()


def papers_chances(step: Step, rule: Rule) -> list[float]:
    """The chances of a step by the paper's rule, for a rule that changes its test; [] for others."""
    return TOKEN.chances(step) if isinstance(rule, OneByOne) and not isinstance(rule, Token) else []


class Match(OneByOne):
    """A draft stays if it is the target's own sample, as llama.cpp and mlx-lm decide: the draft's p takes no part.

    Given the draft j, the sample is j with chance q(j), and one of the other tokens otherwise. So each token is a
    sample of q, whatever was drafted; but Σ p q drafts are accepted where token by token accepts Σ min(p, q).
    """

    kind = "match"

    def overlap(self, q, p):  # [n_vocab] twice -> [n_vocab]
        return p * q

    def residual_of(self, q, p, j):  # [n_vocab] twice, id -> [n_vocab]
        return without(q, j)


class Lenient(OneByOne):
    """The paper's rule with u drawn from [0, B). With B below 1 more drafts are accepted, and the tokens are
    distributed neither as the target's nor as the draft's. At temperature 0 it changes nothing.

    Source: Leviathan et al. 2023, appendix "Lenience"; toyllm draws u from [0, B).
    """

    kind = "lenient"
    letter = "B"
    least, most = 1e-6, 1
    lossless = False

    def overlap(self, q, p):  # [n_vocab] twice -> [n_vocab]
        return np.minimum(p, q / self.number)


class Typical(OneByOne):
    """A draft is accepted if the target finds it probable enough, whatever its probability was to the draft. The
    target's own tokens are drawn from the probable ones, too. It is not lossless.

    Source: Cai et al. 2024, "Medusa", section 2.3.1, with δ = √ε, their default; Hewitt et al. 2022, "Truncation
    Sampling as Language Model Desmoothing", section 3.3, which samples from the same tokens (η-sampling).
    """

    kind = "typical"
    letter = "E"  # ε
    least, most = 1e-6, 0.999999
    lossless = False

    def overlap(self, q, p):  # [n_vocab] twice -> [n_vocab]
        return np.where(q > 0, p, 0)

    def residual_of(self, q, p, j):  # [n_vocab] twice, id -> [n_vocab]
        return q

    def truncate(self, q):  # [n, n_vocab] -> [n, n_vocab]
        q = np.where(is_typical(q, self.number), q, 0)  # [n, n_vocab]
        return q / np.sum(q, axis=-1, keepdims=True)


# ---- Block verification ----------------------------------------------------------------------------------------------


class Block(Rule):
    """Test the drafts as a block: lossless like token_by_token, and it accepts at least as many drafts on average.

    Token by token, an unlucky early draft throws away good later ones. Here the longest prefix whose last draft passes
    its test is accepted. The next token is sampled from max(0, w q - p), normalised. The rule draws one random number
    for each draft, and one for that token.

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2.
    """

    kind = "block"
    blocks = True

    def judge(self, proposal, q, u) -> Judgement:  # q [m + 1, n_vocab]
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

    def chances(self, step):
        """The chance that one more draft is accepted, Σ min(p, w q) / w, with the w of the draft before it."""
        w, _ = block_chances(step.proposal, step.q)
        n_tested = min(step.n_accepted + 1, step.n_drafted)
        chances = []
        for i in range(n_tested):
            overlap = np.minimum(step.proposal.p[i], w[i] * step.q[i])  # [n_vocab]
            chances.append(float(np.sum(overlap)) / w[i])
        return chances


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


# ---- --accept --------------------------------------------------------------------------------------------------------

RULES: dict[str, type[Rule]] = {rule.kind: rule for rule in (Token, Block, Match, Lenient, Typical)}


def parse_rule(text: str, functions: Mapping[str, Rule] = MappingProxyType({})) -> Rule:
    """Return the rule that "token", "block" or "lenient:0.5" names. functions: the user's. Raises UserError."""
    if text in functions:
        return functions[text]
    kind, _, argument = text.partition(":")
    rule = RULES.get(kind)
    if rule and not rule.letter and not argument:
        return rule()
    if rule and rule.letter:
        with contextlib.suppress(ValueError):
            number = float(argument)
            if rule.least <= number <= rule.most:
                return rule(number)
    forms = "; ".join(map(form, RULES.values()))
    hint = "" if rule else did_you_mean(kind, RULES)
    raise UserError(Option("accept"), f" must be one of: {forms}; not {text!r:.80}", hint=hint)


def form(rule: type[Rule]) -> str:
    """How a rule is typed."""
    if not rule.letter:
        return rule.kind
    return f"{rule.kind}:{rule.letter}, {rule.letter} from {rule.least:g} to {rule.most}"
