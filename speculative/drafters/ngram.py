"""An n-gram model as the draft: it counts in the text so far, and in a training text where one is given.

It pays where the target is slow and the text is like the one that it has counted in.
"""

from collections.abc import Callable
from itertools import islice, zip_longest

import numpy as np

from speculative.drafters.base import Context, Draft, Drafter, DraftTree, Loading
from speculative.drafters.lookup import earlier_matches, matches_in
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
    order = np.argsort(tokens[:-1], kind="stable")  # [n_tokens - 1], the places of each token side by side
    in_order = tokens[order]  # [n_tokens - 1]

    def row(x):  # [n] -> [n_vocab]
        p = singles.copy()  # [n_vocab]
        np.add.at(p, x, np.float32(1))
        p /= len(tokens) + len(x) + 1
        begin, end = np.searchsorted(in_order, [x[-1], x[-1] + 1])
        in_tokens = matches_in(tokens, order[begin:end], x)  # ids after the last token, after the last two, ...
        in_both = zip_longest(in_tokens, earlier_matches(x), fillvalue=NOWHERE)
        for there, here in islice(in_both, LONGEST - 1):
            following = np.append(tokens[there + 1], x[here + 1])  # [total]
            ids, counts = np.unique(following, return_counts=True)  # [types]
            weight = 1 / (len(following) + len(ids))
            p *= len(ids) * weight
            np.add.at(p, ids, counts.astype(np.float32) * weight)
        return p

    def log_model(x, n_last=1):  # [n] -> [n_last, n_vocab]
        x = np.asarray(x)  # [n]
        rows = np.stack([row(x[:end]) for end in range(len(x) - n_last + 1, len(x) + 1)])  # [n_last, n_vocab]
        return np.log(rows)  # [n_last, n_vocab]

    return log_model


class NGram(Drafter):
    name = role = NAME
    phrase = "n-gram"
    mark = "n"
    has_model = True

    def load(self, models: Loading) -> Callable:
        """Count once -> a log_model."""
        encoder = models.spec("target").encoder
        text = read_text(models.ngram_text, "text for n-grams") if models.ngram_text else ""
        return ngram_log_model(encoder.n_vocab, encoder.encode(text, allowed_special=True))

    def chain(self, context: Context) -> Draft:
        return model_drafter(context.models[NAME], context.rng, NAME)

    def tree(self, context: Context) -> DraftTree:
        return model_tree(by_paths(context.models[NAME]), context.rng, context.greedy, NAME)
