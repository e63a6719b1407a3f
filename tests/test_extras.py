"""A flag that needs a missing extra says so before any work begins; the rest works without it."""

import json

import pytest
from tiny import ROOT, python, tokens_of

EXTRAS = ("scipy", "starlette", "uvicorn", "jax", "optax", "matplotlib", "tensorflow")

BLOCKED = f"""
import runpy
import sys

sys.modules.update(dict.fromkeys({EXTRAS!r}))  # an import of None fails
sys.path.insert(0, {str(ROOT)!r})
module = sys.argv[1]
sys.argv = ["-m", *sys.argv[2:]]  # as python -m has it while the package is imported
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def slim(*words, **options):
    return python("-c", BLOCKED, *words, **options)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["speculative", "--demo", "--verify"], "verify"),
        (["speculative", "--demo", "--serve"], "serve"),
        (["speculative", "--demo", "--engine", "jax"], "jax"),
        (["training", "pair", "--files", "text.txt", "--out", "pair"], "jax"),
        (["benchmarks", "sweep", "--out", "sweep"], "training"),
        (["benchmarks", "accelerator"], "jax"),
    ],
)
def test_what_needs_an_extra_says_which(words, extra, tmp_path):
    done = slim(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f'pip install -e ".[{extra}]" -c requirements.txt' in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_and_its_page_need_no_extra(tmp_path):
    words = "--demo --threads 1 --n_tokens_to_generate 6 --json run.json --html p.html"
    done = slim("speculative", *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [tokens] = tokens_of(json.loads((tmp_path / "run.json").read_text(encoding="utf-8")))
    assert len(tokens) == 6


def test_stand_ins_need_neither_jax_nor_tensorflow(tmp_path):
    """All that is imported for them; 6.8 GB are not written."""
    done = slim("benchmarks", "full_size", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
