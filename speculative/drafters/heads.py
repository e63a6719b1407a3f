"""Heads on the target: guesses of the tokens to come from the target's last output, without a draft model.

The output of the target's last block for a token, h [n_embd], becomes through its final layer norm and output matrix
the distribution of the next token. Head i turns it into that of the token i after the next one:

    p_i = to_probs(layer_norm(h + SiLU(h W_i + b_i)) wteᵀ)

A window ends with a token of the target's own, the next one after its last accepted token. So from the h of that
accepted token, head 1 guesses the first draft of the window to come, head 2 the second, and so on. No head knows what
the others have guessed: guesses are cheap and get worse with each place. They are drawn from p, so nothing is lost.

Source: Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", section
2.1 (Medusa-1: the target stays as it is). Their heads begin after the final layer norm, and have output matrices of
their own.
"""

import os
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from speculative.checkpoints.disk import bad_file
from speculative.checkpoints.hugging_face import read_file
from speculative.checkpoints.weights import array_of
from speculative.drafters.base import Context, Draft, Drafter, DraftTree, Loading, until_unsure
from speculative.drafters.model import model_tree
from speculative.sampling import Proposal, sample
from speculative.support.errors import Option, UserError

NAME = "heads"
FILE = "heads.safetensors"  # in the target's folder


class Heads(NamedTuple):
    w: np.ndarray  # [n_heads, n_embd, n_embd]
    b: np.ndarray  # [n_heads, n_embd]
    path: str = ""  # the path of their file
    target: str | None = None  # the fingerprint of the target that they were trained for

    def __call__(self, h):  # [n_embd] -> [n_heads, n_embd]
        x = h @ self.w + self.b  # [n_heads, n_embd]
        return h + x / (1 + np.exp(-np.maximum(x, -80)))  # SiLU, without overflow


def fingerprint(hparams: dict, ln_f: dict) -> str:
    """The marks of a target: its shape, and its last layer norm, which every training changes."""
    sizes = [value for value in hparams.values() if type(value) is int]
    marks = np.array(sizes, "<i8").tobytes()
    for name in ("g", "b"):
        marks += np.asarray(ln_f[name], "<f4").tobytes()  # [n_embd]
    return sha256(marks).hexdigest()


def guesses(context: Context, x):  # [n] -> [n_heads, n_vocab]
    """The distributions that the heads guess for the tokens after x. There are no rows if this decode has not called
    the target on the text yet."""
    target = context.models["target"]
    text = x[:-1]  # [n - 1]; the last token of x is the target's own, which it has not been fed yet
    h = target.hidden_after(text)  # [n_embd]
    if h is None:
        return np.empty((0, context.n_vocab), np.float32)
    heads = context.models[NAME]
    return context.filters(target.network.output(heads(h), len(x) + 1))  # [n_heads, n_vocab]


class HeadsOfTarget(Drafter):
    name = role = NAME
    mark = "h"
    needs_weights = True
    not_on_jax = "JAX's models keep no output of the last block"

    def load(self, models: Loading) -> Heads:
        """The heads from the target's folder. Raises UserError if there are none, or none of its shape."""
        target = models.spec("target")
        path = os.path.join(target.folder, FILE)
        n_embd = target.hparams["n_embd"]
        if not os.path.isfile(path):
            make = f"python -m training heads --target_model_size {os.path.basename(target.folder)}"
            raise UserError(f"{path} does not exist: {make} makes it, or choose another ", Option("drafter"))
        tensors, metadata = read_file(path)
        if sorted(tensors) != ["b", "w"]:
            raise bad_file(path, "it has to hold the tensors w and b, and no other")
        heads = Heads(array_of(tensors["w"], "w"), array_of(tensors["b"], "b"), path, metadata.get("target"))
        n = max(1, len(heads.w))
        if (heads.w.shape, heads.b.shape) != ((n, n_embd, n_embd), (n, n_embd)):
            shapes = f"{heads.w.shape} and {heads.b.shape}"
            raise bad_file(path, f"w and b are {shapes}, not [n, {n_embd}, {n_embd}] and [n, {n_embd}]")
        return heads

    def check(self, loaded: Heads, models: Loading) -> None:
        """Raise UserError if the heads were trained for another target of the same shape."""
        target = models["target"]
        if loaded.target != fingerprint(target.hparams, target.params["ln_f"]):
            raise UserError(
                f"{loaded.path} was trained for another target, of the same shape: delete it, and make one for this "
                "model with python -m training heads"
            )

    def chain(self, context: Context) -> Draft:
        """A token from each head in turn."""

        def draft(x, k, go_on=None):  # [n], k -> [m], [m, n_vocab], m <= n_heads
            p = guesses(context, x)  # [n_heads or 0, n_vocab]
            n = min(k, len(p))
            margins = [1 / (i + 1) for i in range(n)]  # each head knows less than the one before
            m = until_unsure(margins, go_on)
            tokens = [sample(p_i, context.rng) for p_i in p[:m]]
            return Proposal(tokens, p[:m], [NAME] * m, margins=margins[:m])

        return draft

    def tree(self, context: Context) -> DraftTree:
        """The same with several guesses for each token: all nodes of a depth have children from one head."""

        def draft(x, widths):
            p = guesses(context, x)  # [n_heads or 0, n_vocab]

            def rows_of(x, tree, nodes):  # -> [len(nodes), n_vocab]
                depths = [len(tree.path(node)) for node in nodes]
                return p[depths]

            draft_tree = model_tree(rows_of, context.rng, context.greedy, NAME)
            return draft_tree(x, widths[: len(p)])

        return draft
