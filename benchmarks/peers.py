"""The time of others for the same work on this machine: the JAX engine and transformers.

    pip install -r benchmarks/requirements.txt
    python -m benchmarks kernels 124M 1558M --models_dir MODELS_DIR --peers

All read the same safetensors. Each peer runs in a process of its own, one after another; one that is not installed is
skipped with a line, and so is one whose process dies.
"""

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.tables import take_turns
from speculative.support.errors import first_line

ROWS = (1, 5, 9, 17)
CONTEXT = 64  # tokens in the cache when rows are timed
PROMPT = 512  # tokens, or as many as the model can see
TOKENS = np.random.default_rng(0).integers(0, 256, PROMPT).tolist()


def take_all_turns(feed, read, prompt, rounds):
    """feed(n) passes n rows after the context; read(prompt) a prompt, up to the logits of its last token -> the
    seconds as of kernels.measure."""
    times = take_turns({n: partial(feed, n) for n in ROWS}, rounds)
    return times | take_turns({"prompt": partial(read, prompt)}, 3) | {"prompt_tokens": len(prompt)}


def time_transformers(folder, dtype, threads, rounds):
    import torch
    from safetensors.torch import load_file
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    hparams = json.loads(Path(folder, "hparams.json").read_text())
    hparams.pop("stand_in", None)
    config = GPT2Config(vocab_size=hparams.pop("n_vocab"), n_positions=hparams.pop("n_ctx"), **hparams)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    tensors = load_file(Path(folder, "model.safetensors"))
    tensors = {name.removeprefix("transformer."): a.to(getattr(torch, dtype)) for name, a in tensors.items()}
    model.transformer.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    model.eval()
    cache = DynamicCache()

    def feed(n):
        model(torch.tensor([TOKENS[:n]]), past_key_values=cache)
        cache.crop(-n)

    def read(prompt):
        model(torch.tensor([prompt]), logits_to_keep=1)

    with torch.inference_mode():
        model(torch.tensor([TOKENS[:CONTEXT]]), past_key_values=cache)
        return take_all_turns(feed, read, TOKENS[: config.n_positions], rounds)


def time_jax(folder, dtype, threads, rounds):
    """The JAX engine's forward pass, with exactly as many rows, and a cache twice as long as the context."""
    import jax

    from speculative.checkpoints.loading import load_encoder_and_hparams, load_params
    from speculative.engines.jax.sharding import place

    _, hparams = load_encoder_and_hparams(folder)
    network = place(partial(load_params, folder, hparams), hparams, dtype)
    step = jax.jit(network.forward, donate_argnames="cache", static_argnames="n_last")
    tokens = np.array(TOKENS[: hparams["n_ctx"]], np.int32)
    cache = network.new_cache(2 * CONTEXT)
    _, cache = step(network.params, tokens[:CONTEXT], np.int32(0), cache)
    large_cache = network.new_cache(len(tokens))

    def feed(n):
        nonlocal cache
        logits, cache = step(network.params, tokens[:n], np.int32(CONTEXT), cache)
        jax.block_until_ready(logits)

    def read(prompt):
        nonlocal large_cache
        logits, large_cache = step(network.params, prompt, np.int32(0), large_cache, n_last=1)
        jax.block_until_ready(logits)

    return take_all_turns(feed, read, tokens, rounds)


PEERS = {f"JAX {dtype}": (time_jax, dtype, "jax") for dtype in ("float32", "bfloat16", "int8")}
PEERS |= {f"transformers {dtype}": (time_transformers, dtype, "torch") for dtype in ("float32", "bfloat16")}


def installed() -> list[str]:
    """The names in PEERS that are installed."""
    if missing := [peer for peer in PEERS if not find_spec(PEERS[peer][2])]:
        print(f"not installed: {', '.join(missing)} (pip install -r benchmarks/requirements.txt)", file=sys.stderr)
    return [peer for peer in PEERS if peer not in missing]


def measure(peer: str, folder: str, threads: int, rounds: int) -> dict | None:
    """The result of its time_..., from a process of its own; None, and a line, if it fails or its process dies."""
    time, dtype, _ = PEERS[peer]
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(time, folder, dtype, threads, rounds).result()
    except Exception as error:
        print(f"{peer}: {type(error).__name__}: {first_line(error)}", file=sys.stderr)
        return None
