"""The NumPy engine: gpt2() with a KV cache, behind the contract model(x, n_last) -> distributions."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from speculative.blog.gpt2 import attention, gelu, gpt2, layer_norm
from speculative.engines.vocabulary import to_draft, to_target
from speculative.support.errors import UserError

NO_TOKENS = np.empty(0, int)

SQRT_HALF = math.sqrt(0.5)
ERF = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


def gelu_by_erf(x):  # [n_seq, n_hidden] -> [n_seq, n_hidden]
    """The function that gpt2.gelu approximates: x times the chance that a normal variable is below it."""
    return 0.5 * x * (1 + ERF(x * SQRT_HALF).astype(x.dtype))


def relu(x):  # [n_seq, n_hidden] -> [n_seq, n_hidden]
    return np.maximum(x, 0)


ACTIVATIONS = {"gelu_new": gelu, "gelu": gelu_by_erf, "relu": relu}  # by their names in config.json


class KVCache:
    """The keys and values of the first `length` tokens, for every layer. Forgetting is moving `length` back."""

    def __init__(self, n_layer: int, n_head: int, n_ctx: int, d_head: int):
        self.length = 0
        self.sees = None  # [n_new, n] in a tree: 1 where a new token sees another one
        self.keys = np.empty((n_layer, n_head, n_ctx, d_head), np.float32)
        self.values = np.empty((n_layer, n_head, n_ctx, d_head), np.float32)
        self.layers = [partial(self.attend, keys, values) for keys, values in zip(self.keys, self.values, strict=True)]

    def attend(self, keys, values, q, k, v):  # [n_head, n_ctx, d_head] twice, [n_head, n_new, d_head] thrice
        """Appends k and v to one layer's keys and values, and attends from q to them all -> [n_head, n_new, d_head]."""
        n = self.length + k.shape[1]
        keys[:, self.length : n] = k
        values[:, self.length : n] = v
        return attention(q, keys[:, :n], values[:, :n], self.sees)

    def move(self, slots: np.ndarray, to: int) -> None:  # [n]
        """Moves what is held for these tokens to the places from `to` on."""
        for held in (self.keys, self.values):
            held[:, :, to : to + len(slots)] = held[:, :, slots]


class PlainPass(KVCache):
    """gpt2.py with its cache: tokens that come after the first `length` -> logits of the last n_last, of which hidden
    [n_last, n_embd] is the last block's output."""

    def __init__(self, params: dict, hparams: dict):
        n_head = hparams["n_head"]
        super().__init__(hparams["n_layer"], n_head, hparams["n_ctx"], hparams["n_embd"] // n_head)
        activation = ACTIVATIONS[hparams.get("activation_function", "gelu_new")]
        self.gpt2 = partial(gpt2, **params, n_head=n_head, cache=self, activation=activation)
        self.ln_f = params["ln_f"]
        self.wte = params["wte"]

    def __call__(self, tokens, n_last: int, positions=None, sees=None) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """In a tree, positions [n] and sees [n, length + n] say where the tokens stand and which others they see."""
        self.sees = sees
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it shows in the logits
            return self.gpt2(tokens, n_last=n_last, positions=positions)

    def output(self, x) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The output layer alone: the logits of rows that the last block might have given."""
        return layer_norm(x, **self.ln_f) @ self.wte.T


class CachedModel:
    """model(x, n_last) -> [n_last, n_vocab], computing only what the previous call did not.

    It remembers the tokens whose keys and values it holds, keeps the longest prefix that they share with x and feeds
    the rest. So a rejected draft, another prompt, a draft that is one token behind: all are just another x.
    """

    def __init__(
        self,
        params: dict,
        hparams: dict,
        to_probs: Callable,
        new_pass: Callable = PlainPass,
        name: str = "the model",
    ):
        """to_probs: logits [n, n_vocab] -> distributions [n, n_vocab]. new_pass: PlainPass, or what does the same.
        name: what a message calls it."""
        self.params = params
        self.hparams = hparams
        self.new_pass = new_pass
        self.name = name
        self.n_ctx = hparams["n_ctx"]
        self.shared = hparams.get("shared")  # of a draft, the ids that it shares with its target, if not all
        self.weight_bytes = n_bytes(params)  # what a token reads, beside the cache (and though of wpe only a row)
        self.to_probs = to_probs
        self.forward = new_pass(params, hparams)
        self.forget()

    def with_probs(self, to_probs: Callable) -> "CachedModel":
        """The same weights, with another way from logits to distributions and a cache of its own."""
        return CachedModel(self.params, self.hparams, to_probs, self.new_pass, self.name)

    def forget(self) -> None:
        """Forgets which tokens the cache holds: the next x shares no prefix with it and is computed whole."""
        self.tokens = NO_TOKENS  # those whose keys and values are held,
        self.parents = None  # and each one's parent: see logits

    def __call__(self, x, n_last: int = 1) -> np.ndarray:  # [n] -> [n_last, n_vocab]
        """Raises ValueError where x does not fit into the context or has fewer than n_last tokens; and UserError where
        a row has no largest logit, because the weights are damaged."""
        return self.to_probs(self.logits(np.asarray(x), n_last))  # [n_last, n_vocab]

    def tree(self, x, tree, nodes=None) -> np.ndarray:  # [n], trees.Tree, [m] -> [m, n_vocab]
        """The distributions after these nodes (default: all) of a tree of drafts, whose root is the last token of x.

        Each node sees the text and the path to itself, and nothing else of the tree. Raises ValueError as above.
        """
        x = np.asarray(x)  # [n]
        if nodes is None:
            nodes = range(len(tree.tokens))
        tokens = np.append(x, tree.tokens[1:]).astype(int)  # [n + n_nodes - 1]; node i stands at n - 1 + i
        parents = np.append(in_line(len(x)), np.add(tree.parents[1:], len(x) - 1).astype(int))  # [n + n_nodes - 1]
        first = min(nodes)
        logits = self.logits(tokens, len(tree.tokens) - first, parents)
        return self.to_probs(logits[np.subtract(nodes, first)])  # [m, n_vocab]

    def logits(self, tokens, n_last: int, parents=None) -> np.ndarray:  # [n], [n] -> [n_last, n_vocab]
        """The logits of the last n_last tokens. Each token follows its parent, which stands before it; where parents is
        None, the token before it."""
        check_length(len(tokens), n_last, self.n_ctx)
        held = self.tokens, self.parents
        self.forget()  # so that an interrupted pass leaves an empty cache behind and not a wrong one
        n = self.forward.length = min(self.bring_together(*held, tokens, parents), len(tokens) - n_last)
        positions = sees = None
        if parents is not None and (parents[n:] != in_line(len(tokens))[n:]).any():
            sees = lineage(parents, n)  # [len(tokens) - n, len(tokens)]
            positions = sees.sum(axis=1) - 1  # [len(tokens) - n]
        if self.shared:
            logits = self.forward(to_draft(tokens[n:], self.shared), n_last, positions, sees)  # [n_last, its n_vocab]
            logits = to_target(logits, self.shared)  # [n_last, n_vocab]
        else:
            logits = self.forward(tokens[n:], n_last, positions, sees)  # [n_last, n_vocab]
        check_finite(logits, self.name, len(tokens) - n_last + 1)
        self.tokens = tokens
        self.parents = parents
        return logits

    def output(self, h, first: int) -> np.ndarray:  # [n, n_embd] -> [n, n_vocab]
        """The logits of what the last block might have given, as heads guess it. first: the position of the token that
        the first row is about. Raises UserError as above."""
        logits = self.forward.output(h)  # [n, n_vocab]
        check_finite(logits, f"{self.name}, with its heads,", first)
        return logits

    def bring_together(self, held_tokens, held_parents, tokens, parents) -> int:  # [n_held] twice, [n] twice
        """Moves what the cache holds elsewhere, as a path that was walked down a tree, to where it stands in tokens ->
        how many of these, from the first on, need not be computed."""
        n, elsewhere = places(held_tokens, held_parents, tokens, parents)
        if elsewhere:
            self.forward.move(np.array(elsewhere), n)
        return n + len(elsewhere)

    def hidden(self, x) -> np.ndarray | None:  # [n] -> [n_embd]
        """The last block's output for the last token of x; None if that was not among the last call's rows."""
        n, elsewhere = places(self.tokens, self.parents, np.asarray(x), None)
        if not len(x) or n + len(elsewhere) < len(x):
            return None
        last = elsewhere[-1] if elsewhere else n - 1
        first = len(self.tokens) - len(self.forward.hidden)  # of the tokens whose rows the last call gave
        return self.forward.hidden[last - first] if last >= first else None


def in_line(n: int) -> np.ndarray:  # -> [n]
    """The parents of tokens that each follow the one before."""
    return np.arange(-1, n - 1)


def places(held_tokens, held_parents, tokens, parents) -> tuple[int, list[int]]:  # [n_held] twice, [n] twice
    """The number of tokens, from the first on, that are held where they stand; and the places where those after them
    are held, up to the first that is not. Parents may be None: see CachedModel.logits."""
    n = common_prefix(held_tokens, tokens)
    if held_parents is None and parents is None:
        return n, []
    held_parents = in_line(len(held_tokens)) if held_parents is None else held_parents
    parents = in_line(len(tokens)) if parents is None else parents
    n = min(n, common_prefix(held_parents, parents))
    place = [*range(n)]
    for token, parent in zip(tokens[n:], parents[n:], strict=True):
        held_parent = place[parent] if parent >= 0 else -1
        same = (held_tokens == token) & (held_parents == held_parent)  # [n_held]
        if not same.any():
            break
        place.append(int(same.argmax()))
    return n, place[n:]


def lineage(parents: np.ndarray, n: int = 0) -> np.ndarray:  # [m] -> [m - n, m] bool
    """Row i is true at token n + i and at all that it descends from."""
    m = len(parents)
    straight = common_prefix(parents, in_line(m))  # tokens that each follow the one before
    first = min(n, straight)
    sees = np.tri(m - first, m, first, dtype=bool)  # [m - first, m]
    for i in range(straight, m):
        parent = parents[i]
        if parent < straight:
            sees[i - first] = np.arange(m) <= parent
        else:
            sees[i - first] = sees[parent - first]
        sees[i - first, i] = True
    return sees[n - first :]


def check_length(n: int, n_last: int, n_ctx: int) -> None:
    """Raises ValueError where a text of n tokens does not fit, or has fewer than are asked for."""
    if n == 0:
        raise ValueError("there is no token to go on from: an empty text begins with <|endoftext|>, the encoder's eot")
    if not n_last <= n <= n_ctx:
        raise ValueError(f"{n} tokens: the context holds {n_ctx}, and {n_last} rows were asked for")


def check_finite(logits: np.ndarray, name: str, first: int) -> None:  # [n, n_vocab]
    """Raises UserError where a row holds NaN or +inf, of which no distribution can be made. (-inf is a probability of
    0.) name: the model's; first: the position of the token that the first row is about."""
    if math.isfinite(np.maximum.reduce(logits, axis=None)):  # max() takes twice as long on a short row
        return
    row = int(np.argmin(np.isfinite(logits.max(axis=-1))))
    raise not_finite(name, first + row)


def not_finite(name: str, position: int) -> UserError:
    damaged = "its weights are damaged, or too large to compute with"
    compare = "in their folder, `sha256sum -c SHA256SUMS` compares them with the download"
    return UserError(f"{name} gives logits that are not finite, at position {position}: {damaged}; {compare}")


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:  # [n_a], [n_b] -> how many leading tokens are the same
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]  # [n]
    return int(differ.argmax()) if differ.any() else n


def n_bytes(params) -> int:
    """The bytes of every array and packed weight in a nested dict of parameters."""
    if hasattr(params, "nbytes"):
        return params.nbytes
    parts = params.values() if isinstance(params, dict) else params
    return sum(map(n_bytes, parts))
