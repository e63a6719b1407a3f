"""A flag that needs a missing extra says so before any work begins; the rest works without it."""

import json

from tiny import ROOT, python

EXTRAS = ("scipy", "starlette", "uvicorn", "jax", "optax", "matplotlib", "tensorflow")

BLOCKED = f"""
import contextlib
import io
import json
import runpy
import sys

sys.modules.update(dict.fromkeys({EXTRAS!r}))  # an import of None fails
sys.path.insert(0, {str(ROOT)!r})
results = []
for module, *words in json.loads(sys.argv[1]):
    sys.argv = ["-m", *words]  # as python -m has it while the package is imported
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as end:
            status = end.code or 0
    results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


def slim(*commands, cwd):
    """Run these commands, one after the other, without the extras -> (status, standard output, standard error) of
    each."""
    done = python("-c", BLOCKED, json.dumps([command.split() for command in commands]), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


NEEDS = {  # {command: the extra}
    "speculative --demo --verify": "verify",
    "speculative --demo --serve": "serve",
    "speculative --demo --engine jax": "jax",
    "training pair --files text.txt --out pair": "training",
    "benchmarks sweep --out sweep": "training",
    "benchmarks accelerator": "jax",
}


def test_what_needs_an_extra_says_which(tmp_path):
    for extra, (status, out, err) in zip(NEEDS.values(), slim(*NEEDS, cwd=tmp_path), strict=True):
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert f'pip install -e ".[{extra}]" -c requirements.txt' in err
    assert list(tmp_path.iterdir()) == []


def test_what_needs_no_extra(tmp_path):
    """The stand-ins import all that they need for -h; 6.8 GB are not written."""
    run = "speculative --demo --target_model_size tiny-target -n 6 --json a.json --html b.html"
    results = slim(run, "benchmarks full_size -h", cwd=tmp_path)
    assert [status for status, *_ in results] == [0, 0], results
