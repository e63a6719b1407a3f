"""The paper's two algorithms, under the blog's names and in its order.

x is the sequence of token ids, n its length, N the number of tokens to generate, T the final length and K the number
of drafts in a window. **p is the draft's distribution, q the target's**, as in the paper and the blog. (Leviathan et
al. 2023 swap p and q and write γ for K.)

A model is a function from tokens to distributions: model(x, n_last=1) -> [n_last, n_vocab], the distributions of the
tokens that follow each of the last n_last tokens of x. Weights, temperature and the KV cache are hidden inside it.

Source: Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling", Algorithms 1 and 2;
the blog post "Speculative Sampling".
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from speculative.support.errors import UserError, first_line

ROUNDING = 0.01  # how far the sum of a distribution may be from 1, as in float16


class Proposal(NamedTuple):
    """Up to k tokens that may come after x. tokens[i] was drawn from p[i], given x and the tokens before it; p[i] is
    one-hot if nothing was drawn at random. The loop reads no other field: the report and --K auto do."""

    tokens: Sequence[int] | np.ndarray  # [m], 0 <= m <= k
    p: Sequence | np.ndarray  # [m, n_vocab]
    source: Sequence[str] = ()  # [m], the name of the drafter that proposed each token
    inner: Sequence = ()  # the Steps by which a staged drafter made this proposal
    margins: Sequence[float] = ()  # [m], how sure the drafter was: the distance of its two largest logits, or the like


NOTHING = Proposal([], [])


class Step(NamedTuple):
    """One iteration of a loop, and so one call of the target model."""

    tokens: list[int]  # the new ids: the accepted drafts, then one token of the target
    proposal: Any  # a Proposal, or a trees.Tree
    q: Sequence | np.ndarray  # [m + 1, n_vocab], the target's distributions

    @property
    def n_drafted(self) -> int:
        return len(self.proposal.tokens)

    @property
    def n_accepted(self) -> int:
        return len(self.tokens) - 1


def max_fn(x: np.ndarray) -> np.ndarray:  # [n_vocab] -> [n_vocab]
    """(x)_+ of the paper: max(0, x), normalised to a distribution. All zeros if nothing in x is above 0."""
    x_max = np.maximum(x, 0)  # [n_vocab]
    return x_max / max(x_max.sum(), np.finfo(x.dtype).tiny)  # [n_vocab]


def residual(q: np.ndarray, p: np.ndarray) -> np.ndarray:  # [n_vocab] twice -> [n_vocab]
    """max_fn(q - p), or q if nothing is left because p and q are equal up to rounding."""
    q_without_p = max_fn(q - p)  # [n_vocab]
    return q_without_p if q_without_p.any() else q


def sample(p: np.ndarray, rng: np.random.Generator) -> int:  # [n_vocab] -> id
    """Draw one id from the distribution p, with exactly one random number, and never an id of probability 0."""
    u = rng.random()  # drawn in any case, so that the random numbers after it do not depend on p
    argmax = int(np.argmax(p))
    if p[argmax] == 1:  # one-hot, as at temperature 0: to add up 50,257 zeros would take long
        return argmax
    cumulative = np.cumsum(p, dtype=np.float64)  # [n_vocab]
    # "right" steps over ids of probability 0, whose cumulative sum is that of the id before.
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def ratio(q: np.ndarray, p: np.ndarray, j: int) -> float:  # [n_vocab] twice, id
    """q(j) / p(j). Raises UserError if p(j) is 0, as j cannot have been drawn from p then, or if p is of another
    vocabulary than q."""
    if len(p) != len(q):
        raise UserError(f"the drafter's rows of p have {len(p)} entries, and the model's {len(q)}: one for each id")
    if p[j] == 0:
        raise UserError(f"the drafter proposed token {j}, whose p is 0: the token must be drawn from p")
    return float(q[j]) / float(p[j])


def autoregressive_sampling(x, model: Callable, N: int, rng: np.random.Generator) -> Iterator[Step]:
    """Algorithm 1, auto-regressive sampling: one call of the model gives one token, N times."""
    x = list(x)  # [n]
    for _ in range(N):
        q = as_distributions(model(x), 1)  # [1, n_vocab]
        token = sample(q[-1], rng)
        x = [*x, token]  # [n + 1]
        yield Step([token], NOTHING, q)


def token_by_token(proposal: Proposal, q, rng: np.random.Generator) -> list[int]:  # q [m + 1, n_vocab]
    """Steps 3 and 4 of the blog's loop. The tokens are distributed as the target's own (the paper's Theorem 1)."""
    p = proposal.p  # [m, n_vocab]
    tokens = []

    # Step 3: accept each draft with probability min(1, q / p). At the first rejection, resample from max(0, q - p).
    for i, j in enumerate(proposal.tokens):
        if rng.random() < ratio(q[i], p[i], j):
            tokens.append(int(j))
        else:
            return [*tokens, sample(residual(q[i], p[i]), rng)]

    # Step 4: if all drafts were accepted, the target's last distribution gives a bonus token.
    return [*tokens, sample(q[-1], rng)]


def speculative_sampling(x, draft, target_model, N, K, rng, accept=token_by_token) -> Iterator[Step]:
    """Algorithm 2, speculative sampling: one call of the target gives up to K + 1 tokens, N tokens in all.

    draft(x, k) -> Proposal of at most k tokens, or (tokens, p). accept(proposal, q, rng) -> the tokens to add:
    token_by_token, or a rule of rules.py. (In the blog p[i] and q[i] belong to position i of a text, here to draft i.)
    """
    draft = without_go_on(draft)  # draft(x, k)
    x = list(x)  # [n]
    n = len(x)
    T = n + N

    while n < T:
        # Step 1: the draft proposes up to K tokens. The target adds one token of its own, so leave room for it.
        k = min(K, T - n - 1)
        proposal = as_proposal(draft(x, k), k)  # tokens [m], p [m, n_vocab]
        m = len(proposal.tokens)

        # Step 2: the target scores all drafts in one call; q[i] is its distribution in the place of tokens[i].
        x_draft = [*x, *proposal.tokens]  # [n + m]
        q = as_distributions(target_model(x_draft, n_last=m + 1), m + 1)  # [m + 1, n_vocab]

        # Steps 3 and 4: accept drafts from left to right, and add one token of the target.
        tokens = accept(proposal, q, rng)
        x = [*x, *tokens]  # [n + len(tokens)]
        n = len(x)
        yield Step(tokens, proposal, q)


# ---- What a user's functions are called with, and return -------------------------------------------------------------


NOT_IDS = (TypeError, ValueError, OverflowError)  # raised for something that is not a list of numbers


def without_go_on(draft: Callable) -> Callable:
    """Return the drafter as draft(x, k). One that needs go_on, by which --K auto ends a proposal early, is given
    None."""
    parameters = parameters_of(draft)
    needs_go_on = "go_on" in parameters and parameters["go_on"].default is inspect.Parameter.empty
    return (lambda x, k: draft(x, k, None)) if needs_go_on else draft


def parameters_of(function: Callable) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by their names; none of a function that does not tell them."""
    try:
        return inspect.signature(function).parameters
    except ValueError:  # some functions that are not written in Python
        return {}


def as_proposal(given: Any, k: int, name: str = "the drafter") -> Any:
    """Return the proposal of a drafter that returned a Proposal or (tokens, p), with tokens [m] and p [m, n_vocab] as
    arrays, and a trees.Tree as it is. k: the most drafts. name: the drafter's, in messages.

    Raises UserError if the tokens cannot have been drawn from p: the text would no longer be the target's, unnoticed.
    """
    if not isinstance(given, Proposal):
        if hasattr(given, "parents"):  # a Tree
            return given
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise UserError(
                f"{name} should return (tokens, p), not {given!r:.80}",
                hint="drafters.model.model_drafter(model, rng) makes a drafter of a model",
            )
        given = Proposal(*given)
    try:
        tokens = np.array(whole_numbers(given.tokens), int)  # [m]
        p = np.asarray(given.p) if len(tokens) else np.empty((0, 1), np.float32)  # [m, n_vocab]
        if not np.can_cast(p.dtype, np.float64, "same_kind"):
            raise TypeError(f"p is {p.dtype}")
        sums = np.sum(p, axis=-1)  # [m]
        is_distribution = bool(np.all(np.abs(sums - 1) <= ROUNDING) and np.min(p, initial=0) >= 0)
    except NOT_IDS as error:
        raise UserError(f"{name} should return (tokens, p): {first_line(error)}") from error
    m = len(tokens)
    if m > k:
        raise UserError(f"{name} proposes {m} tokens, and {k} were asked for")
    if p.ndim != 2 or len(p) != m:
        raise UserError(f"{name} gives p of shape {p.shape} for {m} tokens: each has to have its own row, [n_vocab]")
    for token in tokens:
        if not 0 <= token < p.shape[1]:
            raise UserError(f"{name} proposes the token {token}: ids go from 0 to {p.shape[1] - 1}")
    if not is_distribution:
        raise UserError(f"{name} gives rows of p that are not distributions: entries >= 0 whose sum is 1")
    return given._replace(tokens=read_only(tokens), p=read_only(p))


def whole_numbers(given: Iterable) -> list[int]:
    """Return token ids as whole numbers. Raises one of NOT_IDS."""
    given = list(given)
    ids = [int(token) for token in given]
    if ids != given:
        raise ValueError(f"{given} are not token ids")
    return ids


def as_distributions(rows: np.ndarray, n: int) -> np.ndarray:  # [n or more, n_vocab] -> [n, n_vocab]
    """The last n rows that a model returned. Raises UserError if they are not distributions."""
    dtype = getattr(rows, "dtype", None)
    is_array = getattr(rows, "ndim", 0) == 2 and getattr(dtype, "kind", "") == "f"  # a PyTorch dtype has no kind
    if not is_array or len(rows) < n:
        returned = type(rows).__name__
        if dtype is not None:
            returned = f"{dtype}{[*rows.shape]}"
        raise UserError(
            f"the model returned {returned}: model(x, n_last={n}) has to return a float array of NumPy, [{n}, n_vocab]"
        )
    rows = rows[len(rows) - n :]
    rows = np.asarray(rows) if isinstance(rows, np.ndarray) else rows  # a np.matrix would give sums of another shape
    sums = np.sum(rows, axis=-1)  # [n]
    if not (np.all(np.abs(sums - 1) <= ROUNDING) and np.min(rows) >= 0):
        raise UserError(
            "the model returned rows that are not distributions (entries of at least 0 whose sum is 1), perhaps "
            "logits: softmax makes them so"
        )
    return read_only(rows)


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of an array for a user's function: an error if it writes to it. An array of another
    library is returned as it is."""
    if isinstance(array, np.ndarray):
        array = array.view()
        array.setflags(write=False)
    return array
