"""Drafters: what proposes the tokens. A drafter is draft(x, k) -> (tokens [m], p [m, n_vocab]) with m <= k.

Losslessness asks no more than this: tokens[i] was drawn from p[i], given x and the tokens before it; p[i] is one-hot
where nothing was drawn; and a drawn token must be proposed, even an improbable one. A bad drafter costs time and
changes nothing else.

A composite drafter records in draft.proposers who proposed each token of its last call, and a staged one in draft.inner
how many tokens its inner drafter proposed there and how many of those the draft model accepted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from plumbing.errors import UserError
from speculative.sampling import sample, speculative_sampling


def model_drafter(model: Callable, rng: np.random.Generator) -> Callable:
    """The blog's draft model: a smaller model, decoded autoregressively. Draws from the generator of its decoder."""

    def draft(x, k):  # [n], k -> [k], [k, n_vocab]
        tokens, p = [], []
        for _ in range(k):
            [p_i] = model(np.append(x, tokens).astype(int))  # [n_vocab]; astype as [] would make it float64
            p.append(p_i)
            tokens.append(sample(p_i, rng))
        return tokens, p

    return draft


def head_drafter(heads: Callable, rng: np.random.Generator) -> Callable:
    """A token from each head of the target in turn: heads(x) -> [n_heads, n_vocab], or no rows (heads.head_model)."""

    def draft(x, k):  # [n], k -> [m], [m, n_vocab], m <= n_heads
        p = heads(x)[:k]  # [m, n_vocab]
        return [sample(p_i, rng) for p_i in p], p

    return draft


def earlier_ends(x: np.ndarray, n_max: int):  # [n] -> [n_1], [n_2], ..., at most n_max arrays
    """Where the last token of x stood before, then where the last two did, and so on, while there are such places.

    A position is where the match ends: what followed stands at position + 1.
    """
    ends = np.arange(len(x) - 1)  # [n - 1]
    for n in range(1, n_max + 1):
        ends = ends[ends >= n - 1]
        ends = ends[x[ends - (n - 1)] == x[len(x) - n]]  # [n_n]
        if not len(ends):
            return
        yield ends


def prompt_lookup(n_vocab: int, n_max: int = 3) -> Callable:
    """Proposes what followed the last n tokens where they stood before: n_max of them, or if need be fewer, down to 1.

    Of several such places it takes the last. Where x ends before k tokens have followed, what followed is repeated
    (as LZ77 copies): after a b c a b c come, for k = 5, a b c a b. Where no place is found, nothing is proposed.

    Source: Saxena 2023, "Prompt Lookup Decoding".
    """

    def draft(x, k):  # [n], k -> [k] or [0], [k, n_vocab] or [0, n_vocab]
        x = np.asarray(x)  # [n]
        tokens = []
        for ends in earlier_ends(x, n_max):  # the longest match comes last, and stays
            tokens = np.resize(x[ends[-1] + 1 :], k).tolist()  # [k], cut or repeated
        p = np.zeros((len(tokens), n_vocab), np.float32)  # [m, n_vocab]
        p[np.arange(len(tokens)), tokens] = 1
        return tokens, p

    return draft


def ngram_model(n_vocab: int, to_probs: Callable, tokens=(), n_max: int = 3) -> Callable:
    """A model, model(x, n_last) -> [n_last, n_vocab], that counts n-grams in tokens (a training text) and in x.

    Each order of it mixes what followed the last n - 1 tokens so far with the order below:

        p_n(t) = (count(t) + types * p_(n-1)(t)) / (total + types)

    total being how often anything followed them and types how many different tokens did, as the chance of something
    new is about types in total (Witten and Bell 1991). Below the single tokens lies the uniform distribution, with the
    weight of one token. So every p is above 0 and their sum is 1, also where nothing has been seen. to_probs, which is
    given log p, applies temperature and the like.

    Nothing is remembered between calls: the counts in x are taken anew, since x is short and may be cut back.
    """
    tokens = np.asarray(tokens, np.int64)  # [n_tokens]
    singles = (np.bincount(tokens, minlength=n_vocab) + 1 / n_vocab).astype(np.float32)  # [n_vocab]
    tables = [count_ngrams(tokens, n, n_vocab) for n in range(2, n_max + 1)]

    def row(x):  # [n] -> [n_vocab]
        p = singles.copy()  # [n_vocab]
        np.add.at(p, x, np.float32(1))
        p /= len(tokens) + len(x) + 1
        here = list(earlier_ends(x, n_max - 1))
        for n, table in enumerate(tables, start=2):
            if len(x) < n - 1:
                break
            ids, counts = followers(table, x[len(x) - (n - 1) :], n_vocab)  # [n_seen], [n_seen]
            if n - 2 < len(here):
                new = x[here[n - 2] + 1]  # [n_here]
                ids, counts = np.append(ids, new), np.append(counts, np.ones(len(new), np.float32))
            if not len(ids):
                break  # a context that was not seen makes every longer one unseen too
            types = len(np.unique(ids))
            weight = 1 / (float(counts.sum()) + types)
            p *= types * weight
            np.add.at(p, ids, counts * weight)
        return p

    def model(x, n_last=1):  # [n] -> [n_last, n_vocab]
        x = np.asarray(x)  # [n]
        rows = np.stack([row(x[:end]) for end in range(len(x) - n_last + 1, len(x) + 1)])  # [n_last, n_vocab]
        return to_probs(np.log(rows))  # [n_last, n_vocab]

    return model


def count_ngrams(tokens: np.ndarray, n: int, n_vocab: int):  # [n_tokens] -> [n_distinct] int64, [n_distinct] float32
    """The distinct n-grams in order, each as the number whose digits in base n_vocab are its tokens; their counts."""
    if n_vocab**n >= 2**63:
        raise ValueError(f"{n}-grams over {n_vocab} tokens do not fit into 64 bits")
    keys = np.zeros(max(0, len(tokens) - n + 1), np.int64)  # [n_tokens - n + 1]
    for i in range(n):
        keys = keys * n_vocab + tokens[i : i + len(keys)]
    distinct, counts = np.unique(keys, return_counts=True)
    return distinct, counts.astype(np.float32)


def followers(table, context: np.ndarray, n_vocab: int):  # context [n - 1] -> ids [n_seen], counts [n_seen]
    """What follows a context in a table of n-grams: those that begin with it are neighbours there."""
    keys, counts = table
    first = 0
    for token in context:
        first = (first + int(token)) * n_vocab
    begin, end = np.searchsorted(keys, [first, first + n_vocab])
    return keys[begin:end] - first, counts[begin:end]


def staged(model: Callable, inner_draft: Callable, K: int, rng: np.random.Generator) -> Callable:
    """model_drafter, itself sped up: speculative sampling with the draft model as the target and a cheaper drafter.

    What comes out is distributed as the draft model's own, so p are the rows that it gave for these places, whoever
    proposed the tokens. inner_draft draws from the same rng: another of the same seed would not be independent.

    Source: Spector and Re 2023, "Accelerating LLM Inference with Staged Speculative Decoding".
    """

    def draft(x, k):  # [n], k -> [k], [k, n_vocab]
        tokens, p, rows, draft.proposers, draft.inner = [], [], None, [], (0, 0)

        def recorded(x, n_last):
            nonlocal rows
            rows = model(x, n_last)  # [n_last, n_vocab]
            return rows

        for step in speculative_sampling(x, inner_draft, recorded, k, K, rng):
            tokens += step.tokens
            p += [*rows[: len(step.tokens)]]
            draft.proposers += [*proposers(inner_draft, step.drafted)[: step.accepted], "model"]
            draft.inner = (draft.inner[0] + step.drafted, draft.inner[1] + step.accepted)
        return tokens, p

    return draft


def first_of(*drafters: Callable) -> Callable:
    """The proposal of the first drafter that has one. It has to decide whether it has one before it draws a token."""

    def draft(x, k):  # [n], k -> [m], [m, n_vocab]
        for drafter in drafters:
            tokens, p = drafter(x, k)
            if len(tokens):
                break
        draft.proposers, draft.inner = proposers(drafter, len(tokens)), getattr(drafter, "inner", None)
        return tokens, p

    return draft


def proposers(drafter: Callable, m: int) -> list[str]:
    """Who proposed each of the m tokens of a drafter's last call: whom it noted, or else itself, by its name."""
    return getattr(drafter, "proposers", None) or [getattr(drafter, "name", "")] * m


# ---- By name ---------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """What the functions below make drafters of."""

    n_vocab: int
    rng: np.random.Generator  # the decoder's own
    ngram: Callable  # ngram_model(...)
    model: Callable | None = None  # the draft model, where one is needed
    heads: Callable | None = None  # heads.head_model(...), where the target has heads
    K_inner: int = 4  # the lookahead within a staged draft


# name -> (whether it needs a draft model, Parts -> drafter)
DRAFTERS = {
    "model": (True, lambda parts: model_drafter(parts.model, parts.rng)),
    "prompt_lookup": (False, lambda parts: prompt_lookup(parts.n_vocab)),
    "ngram": (False, lambda parts: model_drafter(parts.ngram, parts.rng)),
    "heads": (False, lambda parts: head_drafter(parts.heads, parts.rng)),
    "staged": (True, lambda parts: staged(parts.model, make_drafter("ngram", parts), parts.K_inner, parts.rng)),
    "staged_lookup": (
        True,
        lambda parts: staged(parts.model, make_drafter("prompt_lookup", parts), parts.K_inner, parts.rng),
    ),
}


def drafter_names(name: str) -> list[str]:
    """ "a+b" -> ["a", "b"]. Raises UserError for one that does not exist."""
    names = name.split("+")
    for part in names:
        if part not in DRAFTERS:
            raise UserError(
                f"unknown drafter {part!r:.80}: there are {', '.join(DRAFTERS)}, and any of them joined by +"
            )
    return names


def needs_model(name: str) -> bool:
    return any(DRAFTERS[part][0] for part in drafter_names(name))


def make_drafter(name: str, parts: Parts) -> Callable:
    """The drafter of that name; of "a+b", the first of a and b that proposes something."""
    drafters = []
    for part in drafter_names(name):
        drafters.append(DRAFTERS[part][1](parts))
        drafters[-1].name = part
    return first_of(*drafters)
