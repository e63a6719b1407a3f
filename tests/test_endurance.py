"""Runs at the edges of the context, many in one process, many at the same time: the texts are those of a single run."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from tiny import ROOT, decoded, refusal, texts, tokens_of

from speculative import load_pair
from speculative.drafters import KINDS
from speculative.engines import memory

N_CTX = 128  # of the tiny pair
EDGES = {
    "one token to the end": {"prompt": "x" * (N_CTX - 1), "n_tokens_to_generate": 1},
    "to the end": {"prompt": "xyz", "n_tokens_to_generate": N_CTX - 3},
    "K far above N": {"prompt": "the", "n_tokens_to_generate": 5, "K": 10**6},
    "K far above the context": {"prompt": "x" * (N_CTX - 40), "n_tokens_to_generate": 40, "K": 10**17},
}
DRAFTERS = [*KINDS, "prompt_lookup+ngram", "model/ngram", "self/model"]
HOW = [{"drafter": name} for name in DRAFTERS if name != "heads"] + [{"K": "auto"}]
TREES = {"2,2,1": 10, "auto": 24}  # nodes: so many places of the context are a tree's
CASES = [(edge, how) for edge in EDGES for how in HOW if not ("K" in EDGES[edge] and "K" in how)]  # it chooses K itself
USUAL = [(edge, how) for edge, how in CASES if how in ({"drafter": "model"}, {"K": "auto"})]
QUICK = [case for case in CASES if case in USUAL or case[0] in ("to the end", "K far above the context")]
SLOW = [(*case, "numpy") for case in CASES if case not in QUICK] + [(*case, "jax") for case in USUAL]  # which compiles


def equal_texts(run_json, **flags):
    """At temperature 0 the two texts are the same, of N tokens, whatever drafts."""
    _, document = run_json(quiet=True, threads=None, **flags)
    [new], [expected] = tokens_of(document), tokens_of(document, "autoregressive")
    return new == expected and len(new) == flags["n_tokens_to_generate"]


@pytest.mark.parametrize(
    ("edge", "how", "engine"),
    [*((*case, "numpy") for case in QUICK), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=str,
)
def test_the_edges_of_the_context(edge, how, engine, run_json, tmp_path):
    (tmp_path / "text").write_text("the thing in the thing")
    if "ngram" in how.get("drafter", ""):
        how = how | {"ngram_text": str(tmp_path / "text")}
    assert equal_texts(run_json, **EDGES[edge], **how, engine=engine)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("n_prompt", [3, N_CTX - 40])
def test_the_edges_of_the_context_with_a_tree(tree, n_prompt, run_json):
    """A token more than fits is refused in one line; all that fits is decoded."""
    flags = {"prompt": "xyz" + "x" * (n_prompt - 3), "tree": tree}
    N = N_CTX - n_prompt - TREES[tree]
    assert "of a context of 128" in refusal(run_json, **flags, n_tokens_to_generate=N + 4)
    assert equal_texts(run_json, **flags, n_tokens_to_generate=N)


@pytest.mark.slow
def test_many_decodes_in_one_process_take_no_more_memory(tiny_pair):
    """Memory, open files and threads do not grow, and the last text is the first."""
    pair = load_pair("draft", "target", models_dir=tiny_pair, K=4, temperature=1.0, draft_dtype="int8").pair
    x = pair.encoder.encode("the")

    def decode():
        return [
            decoded(decoder(x, 12, np.random.default_rng(3))) for decoder in (pair.autoregressive, pair.speculative)
        ]

    def taken():
        kilobytes = memory.read_number("/proc/self/status", "VmRSS:") or 0
        return kilobytes, len(os.listdir("/proc/self/fd")) if kilobytes else 0, threading.active_count()

    first = decode()
    for _ in range(20):
        decode()
    before = taken()
    assert all(decode() == first for _ in range(1000))
    after = taken()
    assert after[1:] == before[1:], (before, after)
    assert after[0] - before[0] < 4096, (before, after)  # 4 MB: the allocator's own


def demo(cache):
    """main.py --demo, started, with its compiled kernels in this folder."""
    command = [sys.executable, "main.py", "--demo", "--quiet", "--n_tokens_to_generate=20"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, **streams)


@pytest.mark.slow
def test_first_runs_at_the_same_time_share_one_cache(tmp_path):
    """All compile at once, into one cache, and say so in a line; the next run finds it whole, and does not compile. On
    a machine that is so busy too, each decodes the same text."""
    pytest.importorskip("numba")
    runs = [demo(tmp_path) for _ in range(4)]
    said = [one.communicate() for one in runs]
    assert all(one.returncode == 0 for one in runs)
    assert [err.count("compiling the forward pass") for _, err in said] == [1] * 4
    after = demo(tmp_path)
    out, err = after.communicate()
    assert (after.returncode, err) == (0, "")
    assert {texts(one) for one, _ in said} == {texts(out)}
    assert texts(out)[0] == texts(out)[1]
