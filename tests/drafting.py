"""Any drafter there is, made from its Kind alone: for the tests that run over the registry."""

from types import SimpleNamespace

import numpy as np
from safetensors.numpy import save_file

from speculative.drafters import kinds_of, make_drafter
from speculative.drafters.base import Parts, Setting
from speculative.drafters.heads import FILE, fingerprint

N_EMBD = 3


class Network:
    """The parts of the target's network that a drafter may use: its last block's output, and its output layer."""

    def __init__(self, n_vocab):
        rng = np.random.default_rng(9)
        self.hparams = {"n_vocab": n_vocab, "n_embd": N_EMBD}
        self.params = {"ln_f": {"g": np.ones(N_EMBD, np.float32), "b": np.zeros(N_EMBD, np.float32)}}
        self.wte = rng.standard_normal((n_vocab, N_EMBD)).astype(np.float32)  # [n_vocab, n_embd]

    def hidden(self, x):  # [n] -> [n_embd]
        """It depends on the last two tokens."""
        rng = np.random.default_rng([int(token) for token in x[-2:]])
        return rng.standard_normal(N_EMBD).astype(np.float32)

    def output(self, h, first):  # [n, n_embd] -> [n, n_vocab]
        return h @ self.wte.T


def prepared(name, folder, network, tokens):
    """The parts that every kind in the name prepares from the target's folder, with its flags as they are by default.

    The heads lie in the folder. Whatever text the kinds read has these tokens.
    """
    rng = np.random.default_rng(2)
    heads = {"w": rng.standard_normal((2, N_EMBD, N_EMBD)), "b": rng.standard_normal((2, N_EMBD))}
    whose = fingerprint(network.hparams, network.params["ln_f"])
    save_file({key: a.astype(np.float32) for key, a in heads.items()}, folder / FILE, {"target": whose})
    kinds = kinds_of(name)
    encoder = SimpleNamespace(n_vocab=network.hparams["n_vocab"], encode=lambda text, **options: tokens)
    options = {flag.name: flag.default for kind in kinds for flag in kind.flags}
    setting = Setting(str(folder), network.hparams, encoder, options)
    return {kind.name: kind.prepare(setting) for kind in kinds if kind.prepare}


def drafter_of(name, rng, n_vocab, trees=False, **parts):
    """The drafter of that name, of such Parts, with a K of 1 in each level."""
    return make_drafter(name, Parts(n_vocab, rng, **{"inner_K": (1,) * name.count("/")} | parts), trees)
