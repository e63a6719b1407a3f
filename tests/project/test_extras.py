"""A flag that needs a missing extra says so before any work begins; the rest works without it."""

import pytest
from tiny import ROOT, python

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
        (["training", "pair", "--files", "text.txt", "--out", "pair"], "training"),
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


@pytest.mark.parametrize("words", ["speculative --demo -n 6 --json a.json --html b.html", "benchmarks full_size -h"])
def test_what_needs_no_extra(words, tmp_path):
    """The stand-ins import all that they need for -h; 6.8 GB are not written."""
    done = slim(*words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
