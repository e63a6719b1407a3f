"""Runs at the edges of the context, many in one process, many at the same time: the texts are those of a single run."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import main
from plumbing.errors import UserError
from speculative.cli.load import encode, load_id_pair
from speculative.drafters import KINDS
from speculative.engines import memory

ROOT = Path(main.__file__).parent
N_CTX = 128  # of the tiny pair


@pytest.fixture
def decode(tiny_pair, tmp_path, capsys, monkeypatch):
    """(flags) -> the JSON of a run of main."""

    def decode(**flags):
        path = str(tmp_path / "run.json")
        flags = {"models_dir": str(tiny_pair), "target_model_size": "target", "draft_model_size": "draft"} | flags
        main.main(json=path, quiet=True, **flags)
        return json.loads(Path(path).read_text(encoding="utf-8"))

    return decode


def tokens(run, decoder):
    return run[decoder]["samples"][0]["tokens"]


EDGES = {
    "one token to the end": {"prompt": "x" * (N_CTX - 1), "n_tokens_to_generate": 1},
    "to the end": {"prompt": "xyz", "n_tokens_to_generate": N_CTX - 3},
    "K far above N": {"prompt": "the", "n_tokens_to_generate": 5, "K": 10**6},
    "K far above the context": {"prompt": "x" * (N_CTX - 40), "n_tokens_to_generate": 40, "K": 10**17},
}
DRAFTERS = [*KINDS, "prompt_lookup+ngram", "model/ngram", "model/prompt_lookup"]
HOW = [{"drafter": name} for name in DRAFTERS if name != "heads"] + [{"K": "auto"}]
TREES = {"2,2,1": 10, "auto": 24}  # nodes: so many places of the context are a tree's


CASES = [(edge, how) for edge in EDGES for how in HOW if not ("K" in EDGES[edge] and "K" in how)]  # it chooses K itself
ON_JAX = [(edge, how) for edge, how in CASES if how in ({"drafter": "model"}, {"K": "auto"})]  # each compiles its own


@pytest.mark.parametrize(
    ("edge", "how", "engine"),
    [*((*case, "numpy") for case in CASES), *(pytest.param(*case, "jax", marks=pytest.mark.slow) for case in ON_JAX)],
    ids=str,
)
def test_the_edges_of_the_context(edge, how, engine, decode, tmp_path):
    """At temperature 0 the two texts are the same, of N tokens, whatever drafts."""
    (tmp_path / "text").write_text("the thing in the thing")
    if "ngram" in how.get("drafter", ""):
        how = how | {"ngram_text": str(tmp_path / "text")}
    run = decode(**EDGES[edge], **how, engine=engine)
    new = tokens(run, "speculative")
    assert len(new) == EDGES[edge]["n_tokens_to_generate"] and new == tokens(run, "autoregressive")


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("n_prompt", [3, N_CTX - 40])
def test_the_edges_of_the_context_with_a_tree(tree, n_prompt, decode):
    """A token more than fits is refused in one line; all that fits is decoded."""
    flags = {"prompt": "xyz" + "x" * (n_prompt - 3), "tree": tree}
    N = N_CTX - n_prompt - TREES[tree]
    with pytest.raises(UserError, match="of a context of 128"):
        decode(**flags, n_tokens_to_generate=N + 4)
    run = decode(**flags, n_tokens_to_generate=N)
    new = tokens(run, "speculative")
    assert len(new) == N and new == tokens(run, "autoregressive")


@pytest.mark.slow
def test_many_decodes_in_one_process(tiny_pair):
    """Memory, open files and threads do not grow, and the last text is the first."""
    pair = load_id_pair("draft", "target", str(tiny_pair), K=4, temperature=1.0, draft_dtype="int8")
    x = encode(pair.encoder, "the")

    def decode():
        decoders = pair.autoregressive, pair.speculative
        steps = [decoder(x, 12, np.random.default_rng(3)) for decoder in decoders]
        return [[int(token) for step in of_one for token in step.tokens] for of_one in steps]

    def taken():
        kilobytes = memory.read_number("/proc/self/status", "VmRSS:") or 0
        return kilobytes, len(os.listdir("/proc/self/fd")) if kilobytes else 0, threading.active_count()

    first = decode()
    for _ in range(20):
        decode()
    before = taken()
    assert all(decode() == first for _ in range(1000))
    after = taken()
    assert after[1:] == before[1:] and after[0] - before[0] < 4096, (before, after)  # 4 MB: the allocator's own


@pytest.mark.slow
def test_runs_at_the_same_time():
    """Each decodes the text that a run alone does."""
    command = [sys.executable, "main.py", "--demo", "--quiet", "--n_tokens_to_generate=20"]
    runs = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    texts = [[line for line in run.communicate()[0].splitlines() if not line.startswith("Time")] for run in runs]
    assert all(run.returncode == 0 for run in runs) and all(text == texts[0] for text in texts)
    assert len([line for line in texts[0] if line.startswith("Text = ")]) == 2


@pytest.mark.slow
def test_first_runs_at_the_same_time(tmp_path):
    """All compile at once, into one cache; the next run finds it whole, and does not compile."""
    pytest.importorskip("numba")
    command = [sys.executable, "main.py", "--demo", "--quiet", "--n_tokens_to_generate=5"]
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    start = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    runs = [subprocess.Popen(command, **start) for _ in range(2)]
    for run in runs:
        _, err = run.communicate()
        assert run.returncode == 0 and "compiling" in err
    done = subprocess.run(
        command, **{key: value for key, value in start.items() if "std" not in key}, capture_output=True
    )
    assert done.returncode == 0 and "compiling" not in done.stderr
