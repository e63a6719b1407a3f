"""Runs the tests on other Pythons, without some packages and in other surroundings, and prints a table.

python tests/platforms.py FOLDER [--rows NAME ...] [--all] [--through COMMAND]

FOLDER keeps the environments that it makes (2 GB for each Python), a copy of the checkout and what came out, so that
the table has the last result of every row. The Pythons must be on the PATH. Without --all the tests are those of QUICK,
which leave out training, the benchmarks and the browser.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

QUICK = {
    *(
        "bundled",
        "checkpoint_faults",
        "cli_faults",
        "compiled",
        "drafters",
        "encoder",
        "endings",
        "endurance",
        "filters",
    ),
    *("flags", "gpt2", "jax", "kernels", "lookahead", "main", "memory", "packed", "sampling", "sharding", "stop"),
    *("trees", "tree_runs", "utils", "verify"),
}


class Row(NamedTuple):
    python: str = ""  # of which an environment is made; "": the one that runs this
    without: str = ""  # a package that cannot be imported
    instead: str = ""  # what pip installs over what the lock has
    env: dict = {}  # noqa: RUF012
    one_core: bool = False
    folder: str = "checkout"


ROWS = {
    "Python 3.10": Row("python3.10"),
    "Python 3.11": Row("python3.11"),
    "Python 3.12": Row("python3.12"),
    "Python 3.13": Row("python3.13"),
    "NumPy 1.26, Python 3.10": Row("python3.10", instead="numpy==1.26.4"),
    "without numba": Row(without="numba"),
    "without tensorflow": Row(without="tensorflow"),
    "without jax": Row(without="jax"),
    "one core": Row(one_core=True),
    "LC_ALL=C": Row(env=C_LOCALE),
    "a latin-1 terminal": Row(env={"PYTHONIOENCODING": "latin-1"}),
    "a path with spaces, é and 東京": Row(folder="a checkout of é and 東京"),
}


def environment(row: Row, folder: Path) -> str:
    """The Python that runs a row; its environment is made where it is not there yet."""
    if not row.python:
        return sys.executable
    place = folder / "environments" / f"{row.python} {row.instead}".strip().replace(" ", "-")
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (place / "complete").exists():
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([row.python, "-m", "venv", "--clear", place], check=True)
        subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements.lock"], check=True)
        subprocess.run([*pip, "-r", ROOT / "requirements-dev.txt", *row.instead.split()], check=True)
        (place / "complete").touch()
    return str(python)


def copy_checkout(place: Path) -> None:
    """What git knows of the checkout, and nothing that was made beside it."""
    shutil.rmtree(place, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)


def surroundings(row: Row, folder: Path) -> dict:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONUTF8", "PYTHONPATH")} | row.env
    if row.without:
        shadow = folder / f"without {row.without}"
        shadow.mkdir(parents=True, exist_ok=True)
        line = f'raise ModuleNotFoundError("No module named {row.without}", name="{row.without}")'
        (shadow / f"{row.without}.py").write_text(line)
        env["PYTHONPATH"] = str(shadow)
    return env


def run(row: Row, folder: Path, files: list[str], through: list[str]) -> dict:
    """Runs each file of tests in a process of its own -> how many passed, and why the others did not."""
    python, checkout, report = environment(row, folder), folder / row.folder, folder / "report.xml"
    found = {"python": "", "numpy": "", "passed": 0, "failed": [], "skipped": {}}
    copy_checkout(checkout)
    env = surroundings(row, folder)
    versions = "import sys, numpy; print(*sys.version_info[:3], sep='.', end=' '); print(numpy.__version__)"
    found["python"], found["numpy"] = subprocess.check_output([python, "-c", versions], text=True).split()
    skipped = Counter()
    one_core = (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})) if row.one_core else None
    for file in files:
        command = [*through, python, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}", f"tests/{file}"]
        report.unlink(missing_ok=True)
        done = subprocess.run(command, cwd=checkout, env=env, preexec_fn=one_core, capture_output=True)
        (folder / "last.txt").write_bytes(done.stdout + done.stderr)
        if not report.exists():
            found["failed"].append(f"{file}: ended with {done.returncode}")
            continue
        for case in ET.parse(report).iter("testcase"):
            name = f"{file}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                found["failed"].append(name)
                print(f"  failed: {name}", flush=True)
            elif (skip := case.find("skipped")) is not None:
                skipped[re.sub(r"^could not import '(\w+)'.*", r"\1 cannot be imported", skip.get("message", ""))] += 1
            else:
                found["passed"] += 1
    return found | {"skipped": dict(skipped)}


def table(results: dict) -> str:
    lines = ["| | Python | NumPy | tests | passed | failed | skipped |", "|---|---|---|---|---:|---:|---:|"]
    for name, found in results.items():
        counts = found["passed"], len(found["failed"]), sum(found["skipped"].values())
        lines.append(
            f"| {name} | {found['python']} | {found['numpy']} | {found['tests']} | {' | '.join(map(str, counts))} |"
        )
    for name, found in results.items():
        reasons = [f"{n} × {why}" for why, n in sorted(found["skipped"].items(), key=lambda item: -item[1])]
        lines += ["", f"{name}: {'; '.join(reasons)}"] if reasons else []
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--all", action="store_true", help="all tests that are not slow")
    parser.add_argument("--through", default="", help="a command that each process is started by, such as nice")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    files = sorted(path.name for path in (ROOT / "tests").glob("test_*.py") if args.all or path.stem[5:] in QUICK)
    for name in args.rows:
        row = ROWS[name]
        if row.python and not shutil.which(row.python):
            print(f"{name}: there is no {row.python} on the PATH", flush=True)
            continue
        print(name, flush=True)
        tests = {"tests": "all" if args.all else "quick"}
        results[name] = run(row, folder, files, shlex.split(args.through)) | tests
        kept.write_text(json.dumps({name: results[name] for name in ROWS if name in results}), encoding="utf-8")
    print(table({name: results[name] for name in ROWS if name in results}))


if __name__ == "__main__":
    main()
