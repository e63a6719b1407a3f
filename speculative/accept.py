"""Rules of acceptance: how many drafts of a window are kept, and what the target's own token after them is drawn from.

A rule is accept(proposal, q, rng) -> Accepted, for chains, and may have a twin for trees, accept(tree, q, rng). The
paper's, token_by_token, is in sampling.py, and block verification in block.py. Here are the lenient and the typical
rule, which change the paper's test, and the registry: to add a rule, write its function, and an entry for RULES.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from speculative.block import block_by_block
from speculative.block import chances as chances_by_block
from speculative.one_hot import OneHot
from speculative.sampling import Accepted, Own, Proposal, Step, Test, residual, token_at, token_by_token
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options
from speculative.trees import acceptance_by_depth, by_ratio, sibling_by_sibling


def passed_or_not(step: Step) -> list[float]:
    """1 or 0 for each test, in place of the chances, for a rule that does not tell them."""
    return [float(test.passed) for test in step.tests]


class Rule(NamedTuple):
    """A rule as a decoder takes it."""

    name: str  # its key in RULES
    chain: Callable = token_by_token  # accept(proposal, q, rng) -> Accepted
    tree: Callable | None = None  # accept(tree, q, rng) -> Accepted, where it has that
    chances: Callable = passed_or_not  # chances(step) -> the chance of acceptance at each position that was tested
    formula: str = "1 where the draft passed, else 0"  # of that chance
    independent: bool = True  # whether one chance may stand for all positions, as Leviathan's α does
    lossless: bool = True
    words: str = ""  # its name in a sentence, where it is not lossless
    value: float | None = None  # its flag's value
    # The page of a run shows these three:
    step: str = "Accept drafts by their tests"
    test: str = ""  # the comparison, in the names of the test's fields
    left: str = "what is left of q"  # the distribution that is resampled from

    @property
    def inner(self) -> Callable:
        """The rule inside the levels of a drafter: a lossless one, as p has to be what the tokens were drawn from."""
        return self.chain if self.lossless else token_by_token


# ---- The paper's rule, and what changes its test ---------------------------------------------------------------------


def one_by_one(proposal: Proposal, q, rng: np.random.Generator, test: Callable, rest: Callable) -> Accepted:
    """token_by_token with another test(u, p, q) -> Test, and another rest(q, p) in place of residual."""
    tokens = []
    tests = []
    q_own = q[len(proposal.tokens)]  # [n_vocab]
    for j, p_i, q_i in zip(map(int, proposal.tokens), proposal.p, q, strict=False):
        tests.append(test(rng.random(), float(p_i[j]), float(q_i[j])))
        if not tests[-1].passed:
            q_own = rest(q_i, p_i)  # [n_vocab]
            break
        tokens.append(j)
    own = Own(rng.random(), q_own)
    return Accepted([*tokens, token_at(*own)], tests, own)


def chances(step: Step, chance: Callable, rest: Callable = residual, rows: Callable = lambda q: q) -> list[float]:
    """chance(p, q) of each draft that was tested; in a tree, the chance that one of the siblings is accepted.

    rows(q) are the target's rows as the rule changes them before it tests; rest(q, p) is what it resamples from.
    """
    if isinstance(step.proposal, Proposal):
        pairs = zip(step.tests, step.proposal.p, rows(step.q), strict=False)
        return [chance(p_i, q_i) for _, p_i, q_i in pairs]
    return acceptance_by_depth(step._replace(q=rows(step.q)), chance, rest)


BY_RATIO = {
    "step": "Accept from left to right, while u · p < q",
    "test": "u · p < q",
    "left": "max(0, q − p), normalised: what q has and p lacks",
}


def token() -> Rule:
    def chance(p, q):  # [n_vocab] twice
        return float(np.sum(np.minimum(p, q)))

    return Rule(
        "token",
        token_by_token,
        sibling_by_sibling,
        partial(chances, chance=chance),
        formula="Σ min(p, q) = 1 - TVD(p, q)",
        **BY_RATIO,
    )


def lenient(b: float) -> Rule:
    """The paper's rule with u drawn from [0, b). With b below 1 more drafts are accepted, and the tokens are
    distributed neither as the target's nor as the draft's. At temperature 0 it changes nothing.

    Source: Leviathan et al. 2023, appendix "Lenience"; u from [0, b) is toyllm's way to write it.
    """

    def test(u, p, q):
        return by_ratio(u * b, p, q)

    def chance(p, q):  # [n_vocab] twice
        return float(np.sum(np.minimum(p, q / b)))

    return Rule(
        "lenience",
        partial(one_by_one, test=test, rest=residual),
        partial(sibling_by_sibling, test=test),
        partial(chances, chance=chance),
        formula=f"Σ min(p, q / {b:g})",
        lossless=False,
        words=f"lenience {b:g}",
        value=b,
        **BY_RATIO,
    )


def block() -> Rule:
    """See block.py. It has no form for trees."""
    return Rule(
        "block",
        block_by_block,
        chances=chances_by_block,
        formula="Σ min(p / w, q), by block",
        independent=False,
        step="Keep the drafts up to the last one that passes: u < h",
        test="u < h",
        left="max(0, w · q − p), normalised",
    )


# ---- Typical acceptance ----------------------------------------------------------------------------------------------


def probable(q, epsilon: float):  # [n, n_vocab] -> [n, n_vocab]
    """Each row cut to its probable tokens, q(x) > min(ε, √ε e**-H(q)), H the entropy in nats, and normalised.

    Where the target is sure of the next token, a probable one has more than ε. Where it could go many ways, e**-H(q) is
    about 1 over their number, and a share of that is enough. The likeliest token always stays.
    """
    if isinstance(q, OneHot):
        return q
    entropy = -np.sum(q * np.log(np.maximum(q, np.finfo(q.dtype).tiny)), axis=-1, keepdims=True)  # [n, 1]
    edge = np.minimum(epsilon, np.sqrt(epsilon) * np.exp(-entropy))  # [n, 1]
    left = np.where((q > edge) | (q == np.max(q, axis=-1, keepdims=True)), q, 0)  # [n, n_vocab]
    return left / np.sum(left, axis=-1, keepdims=True)


def typical(epsilon: float) -> Rule:
    """A draft is accepted if the target finds it probable enough, however much more probable it was to the draft.

    The target's own tokens are drawn from the probable ones, too. It is not lossless.

    Source: Cai et al. 2024, "Medusa", section 2.3.1, with δ = √ε, their default; Hewitt et al. 2022, "Truncation
    Sampling as Language Model Desmoothing", section 3.3, which samples from the same tokens (η-sampling).
    """
    rows = partial(probable, epsilon=epsilon)

    def test(u, p, q):  # u decides nothing
        return Test(u, p, q, q > 0)

    def rest(q, p):  # [n_vocab] twice -> [n_vocab]
        return q

    def accept_chain(proposal, q, rng):
        return one_by_one(proposal, rows(q), rng, test, rest)

    def accept_tree(tree, q, rng):
        return sibling_by_sibling(tree, rows(q), rng, test, rest)

    def chance(p, q):  # [n_vocab] twice
        return float(np.sum(p[np.asarray(q) > 0]))

    return Rule(
        "typical",
        accept_chain,
        accept_tree,
        partial(chances, chance=chance, rest=rest, rows=rows),
        formula="Σ p of the tokens that are typical",
        lossless=False,
        words=f"typical acceptance, ε = {epsilon:g},",
        value=epsilon,
        step="Accept from left to right what is typical of q",
        test="q > 0",
        left="q, cut to what is typical",
    )


# ---- The registry ----------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """One way to accept: --accept has its name, or it has a flag of its own."""

    make: Callable[..., Rule]  # of its flag's value, where it has a flag
    flag: Flag | None = None


RULES = {
    "token": Kind(token),
    "block": Kind(block),
    "lenience": Kind(
        lenient,
        Flag(
            "lenience",
            arguments.lenience,
            "below 1, more drafts are accepted, and the output is not the target's",
            default=1.0,
            excludes=("typical",),
            live=True,
        ),
    ),
    "typical": Kind(
        typical,
        Flag(
            "typical",
            arguments.typical,
            "Medusa's typical acceptance with this ε; the output is not the target's",
            only_engine="numpy",
            why="JAX's loop has --lenience",
            live=True,
        ),
    ),
}

TOKEN = token()


def choose(accept: str = "token", **values) -> Rule:
    """The rule that these values of the flags ask for."""
    for name, kind in RULES.items():
        value = values.get(name)
        if kind.flag and value not in (None, kind.flag.default):
            return kind.make(value)
    return RULES[accept].make()


def by_name() -> list[str]:
    """The rules that --accept names."""
    return [name for name, kind in RULES.items() if kind.flag is None]


def rule_named(value: str) -> str:
    return arguments.one_of(*by_name())(value)


def accepted_otherwise(o: Options) -> str:
    """The reason why --accept would do nothing with these options; "" where it does something."""
    if o.tree and RULES[o.accept].make().tree is None:
        return f"{o.accept} tests a chain, and --tree has a rule of its own"
    for name, kind in RULES.items():
        if kind.flag and getattr(o, name) != kind.flag.default:
            return f"--{name} is another rule, and a window is accepted by one"
    return ""


def check_tree(o: Options) -> None:
    """Raises UserError where trees are drafted, and the rule has no form for them. (Where both are given at once,
    --accept is of no use; but one may be changed after the other.)"""
    if o.tree and choose(**o.taken(flag.name for flag in FLAGS)).tree is None:
        raise UserError(f"--tree does not go with --accept {o.accept}, which tests a chain: set one to its default")


FLAGS = (
    Flag(
        "accept",
        rule_named,
        lambda: f"the rule of acceptance: {', '.join(by_name())}; block keeps more on average above temperature 0",
        "token",
        in_vain=accepted_otherwise,
        live=True,
    ),
    *(kind.flag for kind in RULES.values() if kind.flag),
)
