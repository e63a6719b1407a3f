"""Exact output distributions of whatever is registered.

A World is a Session over networks of a few tokens, so that everything that is registered decodes as in the product.
"""

import copy
from functools import cache
from itertools import repeat, tee
from types import SimpleNamespace

import numpy as np

from speculative.drafters import DRAFTERS
from speculative.drafters.heads import Heads
from speculative.drafters.model import model_drafter
from speculative.drafters.user import UserDrafter
from speculative.engines import model
from speculative.engines.model import Model
from speculative.engines.network import CachedNetwork, Rows
from speculative.law.paths import distance, law_of
from speculative.law.samplers.cases import coarse, generator_of, model_of
from speculative.lookahead import learned
from speculative.run import decode
from speculative.run.cost_timer import CostTimer
from speculative.run.load import Models, ModelSpec, new_models_of
from speculative.run.options import ModelOptions, make_options
from speculative.run.plan import MODEL_ROLES
from speculative.run.session import Session
from speculative.sampling import autoregressive_sampling


def text_distribution(decode):
    """decode(rng) -> Steps -> {the tokens of all steps: their exact probability}."""
    return law_of(lambda rng: tuple(token for step in decode(rng) for token in step.tokens))


def twins(rng):
    """Two generators of one seed: they give the same numbers."""
    return [SimpleNamespace(random=numbers.__next__) for numbers in tee(rng.random() for _ in repeat(None))]


def row_model(seed, n_vocab):
    """A random model, which by default gives the row after the last token."""
    rows = model_of(cache(lambda *context: coarse(generator_of(seed, *context), n_vocab)))
    return lambda x, n_last=1: rows(x, n_last)


class Clock:
    """In place of the module time, where a call of a network is all that takes time."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


N_EMBD = 3
FILES = SimpleNamespace(folder="", missing=dict, padded_from=None)  # of models that have none
SECONDS = {"target": 1.0, "draft": 0.1}  # for a row; of a copy 0.3


class RandomNetwork(CachedNetwork):
    """A network with the logits of a random model."""

    def __init__(self, seed, n_vocab, clock=None, seconds=1.0):
        rng = np.random.default_rng(9)
        self.model = row_model(seed, n_vocab)
        self.clock = clock or Clock()
        self.seconds = seconds
        self.hparams = {"n_vocab": n_vocab, "n_ctx": 99, "n_embd": N_EMBD, "n_layer": 0}
        self.n_ctx = 99
        self.wte = rng.standard_normal((n_vocab, N_EMBD)).astype(np.float32)  # [n_vocab, n_embd]
        self.forward = self  # its pass, which has last_block

    def forget(self):
        """It has no cache."""

    def rows(self, x, n_last=1):  # [n]
        self.clock.now += self.seconds * (1 + 0.05 * (n_last - 1))
        with np.errstate(divide="ignore"):
            return Rows(np.log(self.model(x, n_last)), n_read=1)  # [n_last, n_vocab]

    def last_block(self, x):  # [n] -> [n_embd]
        """It depends on the last two tokens."""
        rng = np.random.default_rng([int(token) for token in x[-2:]])
        return rng.standard_normal(N_EMBD).astype(np.float32)

    def output(self, h, first):  # [n, n_embd] -> [n, n_vocab]
        return (h @ self.wte.T).astype(np.float32)


def distinct(to_probs):
    """The same function, which computes equal rows once."""
    known = cache(lambda content, shape: to_probs(np.frombuffer(content, np.float32).reshape(shape)))
    return lambda logits: known(logits.tobytes(), logits.shape)


class Networks(Models):
    """The models of a session: a random network for each role, and the parts that drafters load."""

    def __init__(self, o, n_vocab, seed):
        vars(self).update(vars(new_models_of(o, quiet=True)))
        self.n_vocab = n_vocab
        self.seed = seed
        self.clock = Clock()
        rng = np.random.default_rng(2)
        self.loaded["heads"] = Heads(rng.standard_normal((2, N_EMBD, N_EMBD)), rng.standard_normal((2, N_EMBD)))
        for number, role in enumerate(MODEL_ROLES):
            seconds = SECONDS.get(role, 0.3)
            self.loaded[role] = RandomNetwork(seed + 1000 * number, n_vocab, self.clock, seconds)

    def time_call(self, role, x, n_rows):
        """In place of CostTimer.time_call."""
        return SECONDS.get(role, 0.3) * (1 + 0.05 * (n_rows - 1))

    def spec(self, role):
        encoder = SimpleNamespace(
            n_vocab=self.n_vocab, id_to_bytes={0: b"a"}, encode=lambda text, **_: [0, 1, 2 % self.n_vocab, 0, 1, 1]
        )
        return ModelSpec(role, role, FILES, "float32", encoder, RandomNetwork(0, self.n_vocab).hparams)


PROMPT = [0, 1, 0, 1]


class World:
    """A session over such networks, for texts after PROMPT; time passes when a network is called.

    There is one drafter more: "users", a function that draws from a model of its own.
    """

    def __init__(self, monkeypatch, seed=7, n_vocab=3, **options):
        """options: those of load_pair, at temperature 1 if nothing else is said."""
        o = make_options(ModelOptions, {"temperature": 1} | options)
        networks = Networks(o, n_vocab, seed)
        self.clock = networks.clock
        for module in (learned, model):
            monkeypatch.setattr(module, "time", self.clock)
        monkeypatch.setitem(DRAFTERS, "users", UserDrafter(self.users))
        self.row = row_model(seed + 9000, n_vocab)
        self.rng = np.random.default_rng(0)
        self.session = Session(o, networks)
        self.setup = self.session.setup
        # These networks have no keys and values to share.
        monkeypatch.setattr(decode, "with_shared_caches", lambda networks, copies: networks)
        self.setup.new_model = lambda network, filters, role: Model(network, distinct(filters), role)
        self.target = self.session.model("target")
        monkeypatch.setattr(CostTimer, "time_call", lambda self, *given: networks.time_call(*given))
        self.session.measure(PROMPT)
        self.learned = self.setup.learned

    def users(self, x, k):
        return model_drafter(self.row, self.rng)(x, k)[:2]

    def steps(self, N, rng):
        """A decode that knows of no other: K auto has learned nothing yet."""
        self.setup.learned = copy.deepcopy(self.learned)
        self.session.forget()
        self.clock.now = 0.0
        self.rng = rng
        return self.session.steps("speculative", PROMPT, N, rng)

    def distance(self, N):
        """Total variation from the target's own N tokens."""
        expected = text_distribution(lambda rng: autoregressive_sampling(PROMPT, self.target, N, rng))
        return distance(expected, text_distribution(lambda rng: self.steps(N, rng)))
