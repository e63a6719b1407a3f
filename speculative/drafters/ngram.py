"""An n-gram model as the draft: it counts in the text so far, and in a training text where one is given.

It pays where the target is slow and the text is like the one that it has counted in.
"""

from collections.abc import Callable

import numpy as np

from speculative.drafters.base import DrafterSpec
from speculative.drafters.lookup import earlier_ends
from speculative.drafters.model import model_drafter, model_tree
from speculative.support.texts import read_text
from speculative.trees import by_paths

NAME = "ngram"
LONGEST = 3  # tokens of an n-gram
NOWHERE = np.array([], np.int64)  # no places


def ngram_log_model(n_vocab: int, tokens=()) -> Callable:
    """log_model(x, n_last) -> log p [n_last, n_vocab], which counts n-grams in tokens (a training text) and in x.

    Each order n mixes the tokens that followed the last n - 1 tokens so far with the order below:

        p_n(t) = (count(t) + types * p_(n-1)(t)) / (total + types)

    total is the number of tokens that followed them and types the number of different ones, as the chance of a new one
    is about types in total (Witten and Bell 1991). Below the single tokens is the uniform distribution, with the weight
    of one token. So every p is above 0 and their sum is 1, even after unseen tokens. Temperature and filters are
    applied to log p, as to a network's logits.

    Nothing is remembered between calls: x is short and may be cut back, so it is counted anew.
    """
    tokens = np.asarray(tokens, np.int64)  # [n_tokens]
    singles = (np.bincount(tokens, minlength=n_vocab) + 1 / n_vocab).astype(np.float32)  # [n_vocab]
    tables = [count_ngrams(tokens, n, n_vocab) for n in range(2, LONGEST + 1)]

    def row(x):  # [n] -> [n_vocab]
        p = singles.copy()  # [n_vocab]
        np.add.at(p, x, np.float32(1))
        p /= len(tokens) + len(x) + 1
        places = earlier_ends(x)  # of the last token, of the last two, ...
        for n, table in enumerate(tables[: len(x)], start=2):
            ids, counts = followers(table, x[len(x) - (n - 1) :], n_vocab)  # [n_seen], [n_seen]
            new = x[next(places, NOWHERE) + 1]  # [n_places]
            ids = np.append(ids, new)
            counts = np.append(counts, np.ones(len(new), np.float32))
            if not len(ids):
                break  # a context that was not seen makes every longer one unseen too
            types = len(np.unique(ids))
            weight = 1 / (float(counts.sum()) + types)
            p *= types * weight
            np.add.at(p, ids, counts * weight)
        return p

    def log_model(x, n_last=1):  # [n] -> [n_last, n_vocab]
        x = np.asarray(x)  # [n]
        rows = np.stack([row(x[:end]) for end in range(len(x) - n_last + 1, len(x) + 1)])  # [n_last, n_vocab]
        return np.log(rows)  # [n_last, n_vocab]

    return log_model


def count_ngrams(tokens: np.ndarray, n: int, n_vocab: int):  # [n_tokens] -> [n_distinct] int64, [n_distinct] float32
    """The distinct n-grams in order, each as the number whose digits in base n_vocab are its tokens; their counts.

    Three tokens of a vocabulary below two million fit into 64 bits.
    """
    n_keys = max(0, len(tokens) - n + 1)
    keys = np.zeros(n_keys, np.int64)  # [n_keys]
    for i in range(n):
        keys *= n_vocab
        keys += tokens[i : i + n_keys]
    distinct, counts = np.unique(keys, return_counts=True)
    return distinct, counts.astype(np.float32)


def followers(table, context: np.ndarray, n_vocab: int):  # context [n - 1] -> ids [n_seen], counts [n_seen]
    """The tokens that follow a context in a table of n-grams, where those that begin with it are neighbours."""
    keys, counts = table
    first = 0
    for token in context:
        first = (first + int(token)) * n_vocab
    begin, end = np.searchsorted(keys, [first, first + n_vocab])
    return keys[begin:end] - first, counts[begin:end]


def load(models) -> Callable:
    """Count once -> a log_model."""
    encoder = models.spec("target").encoder
    text = read_text(models.ngram_text, "text for n-grams") if models.ngram_text else ""
    return ngram_log_model(encoder.n_vocab, encoder.encode(text, allowed_special=True))


SPEC = DrafterSpec(
    name=NAME,
    phrase="n-gram",
    mark="n",
    chain=lambda context: model_drafter(context.models[NAME], context.rng, NAME),
    tree=lambda context: model_tree(by_paths(context.models[NAME]), context.rng, context.greedy, NAME),
    roles=(NAME,),
    has_model=True,
    load=load,
)
