"""Helpers of many tests: random networks of a few thousand parameters, a model that counts, refusals, processes."""

import io
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from encoder import BYTE_TO_CHAR, END_OF_TEXT, Encoder
from speculative.checkpoints.weights import checkpoint_shapes, nested
from speculative.report.ending import texts_of
from speculative.report.record import Sample
from speculative.support.errors import UserError

ROOT = Path(__file__).parents[2]

MAIN = [
    "-c",
    """
import runpy, sys
from speculative.report import measuring, turns

turns.SHORT_SECONDS, measuring.TIMING_SECONDS = 0.0, (0.0, 0.5)  # no decode is repeated for the sake of its time
sys.argv[0] = "main.py"
runpy.run_path("main.py", run_name="__main__")
""",
]  # what Python is given in the place of main.py

HPARAMS = {"n_vocab": 50, "n_ctx": 24, "n_embd": 12, "n_head": 3, "n_layer": 3}


def with_values(f, **values):
    """Figures with other values, each in the part that has the field."""
    for name, value in values.items():
        for part in (f.comparison, f.account, f.predictions):
            if hasattr(part, name):
                changed = replace(part, **{name: value})
                f = replace(f, **{type(part).__name__.lower(): changed})
                break
        else:
            f = replace(f, **{name: value})
    return f


def text_of(record, kind):
    """The line of this kind of a run's ending, None if there is none."""
    return next(iter(texts_of(record, kind)), None)


def sample_of(steps):
    """The text of these steps."""
    sample = Sample()
    for step in steps:
        sample.add(step)
    return sample


def random_arrays(hparams, seed=0, scale=0.3):
    """{OpenAI's name: array}"""
    rng = np.random.default_rng(seed)
    shapes = checkpoint_shapes(hparams).items()
    return {name: (scale * rng.standard_normal(s) + name.endswith("/g")).astype(np.float32) for name, s in shapes}


def random_params(hparams=HPARAMS, seed=0):
    """The nested dict that gpt2.gpt2 takes."""
    return nested(random_arrays(hparams, seed))


def flatten(params, *path):
    """The nested dict -> {OpenAI's name: array}."""
    if not isinstance(params, dict):
        return {"/".join(path): params}
    blocks = {f"h{i}": block for i, block in enumerate(params.get("blocks", []))}
    children = {key: child for key, child in params.items() if key != "blocks"} | blocks
    return {name: array for key, child in children.items() for name, array in flatten(child, *path, key).items()}


def convert(params, function):
    """The nested dict of function(name, array)."""
    return nested({name: function(name, array) for name, array in flatten(params).items()})


def place(read, hparams, dtype, mesh, split):
    """A model on the devices of a mesh, as the engine makes it. read: read(convert)."""
    from speculative.engines import formats
    from speculative.engines.jax.sharding import new_network, placed

    network = new_network(hparams, dtype, mesh, split)
    return replace(network, params=read(partial(placed, network, formats.on_jax(dtype))))


def on_jax(read, hparams, dtype="float32"):
    """A model on the first of JAX's devices. read: read(convert), or the nested dict."""
    from speculative.engines.jax.sharding import make_mesh

    read = read if callable(read) else partial(convert, read)
    return place(read, hparams, dtype, make_mesh(1), split=False)


def first_layer(params, hparams):
    """A draft model for this target: its embeddings and its first layer, so that some drafts pass and some do not."""
    return {**params, "blocks": params["blocks"][:1]}, {**hparams, "n_layer": 1}


def logits_themselves(logits):
    """A to_probs for the tests that compare logits."""
    return logits


N_VOCAB = 7  # of the model that counts


def one_hot(*ids, n_vocab=N_VOCAB):  # -> [len(ids), n_vocab]
    return np.eye(n_vocab, dtype=np.float32)[list(ids)]


def counting_target(x, n_last=1):
    """A greedy model that counts: after id t comes (t + 1) % N_VOCAB."""
    return one_hot(*[(int(t) + 1) % N_VOCAB for t in x[len(x) - n_last :]])


def decoded(steps):
    """The tokens of all steps."""
    return [token for step in steps for token in step.tokens]


def vocabulary(merges):
    """{token: id}: the 256 bytes, what these pairs merge into, and <|endoftext|>."""
    return {token: i for i, token in enumerate([*BYTE_TO_CHAR.values(), *map("".join, merges), END_OF_TEXT])}


def encoder_of(*words):
    """An encoder of the bytes and of these words, with the tokens that they are merged from."""
    merges = []
    for word in words:
        chars = [BYTE_TO_CHAR[byte] for byte in word.encode()]
        merges += [("".join(chars[:i]), chars[i]) for i in range(1, len(chars))]
    return Encoder(vocabulary(merges), merges)


def tokens_of(document, decoder="speculative"):
    return [sample["tokens"] for sample in document[decoder]["samples"]]


def refusal(call, *args, **flags):
    """The line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        call(*args, **flags)
    line = str(caught.value)
    assert line
    assert line.isprintable()
    assert len(line) < 1000
    return line


def python(*words, shell="", **options):
    """Run `python WORDS` in the repository -> subprocess.run's result. shell: a line that starts it, as "$@",
    with other streams or limits."""
    options = {"cwd": ROOT, "capture_output": True, "text": True} | options
    started_by = ["sh", "-c", shell, "sh"] if shell else []
    return subprocess.run([*started_by, sys.executable, *words], **options)


class OneText:
    """A forward pass with the cache of one text: run(tokens, n_last, n_past) -> logits [n_last, n_vocab]."""

    def __init__(self, forward):
        self.forward = forward
        self.cache = forward.new_cache()

    def __call__(self, tokens, n_last, n_past=0, *sees):
        logits, self.hidden, *_ = self.forward(tokens, n_last, n_past, self.cache, *sees)
        return logits

    def __getattr__(self, name):
        return getattr(self.forward, name)


def type_in(monkeypatch, *lines):
    """Give lines to standard input."""
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8"))
