"""Runs the tests on other Pythons, without some packages and in other surroundings, and prints a table.

python tools/platforms.py FOLDER [--rows NAME ...] [--files NAME ...]

FOLDER keeps the environments that it makes (2 GB for each Python), copies of the checkout and what came out, so that
the table has the last result of every file in every row. The Pythons must be on the PATH. Without --files the tests are
those of QUICK, which take half a minute; --files all runs all that are not slow.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

QUICK = "bundled drafters encoder endings flags gpt2 memory packed sampling stop utils verify".split()  # noqa: SIM905


class Row(NamedTuple):
    python: str = ""  # of which an environment is made; "": the one that runs this
    without: str = ""  # a package that cannot be imported
    env: dict = {}  # noqa: RUF012
    one_core: bool = False
    folder: str = "checkout"


ROWS = {
    "Python 3.10": Row("python3.10"),
    "Python 3.11": Row("python3.11"),
    "Python 3.12": Row("python3.12"),
    "Python 3.13": Row("python3.13"),
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
    place = folder / "environments" / row.python
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (place / "complete").exists():
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([row.python, "-m", "venv", "--clear", place], check=True)
        subprocess.run([*pip, "--require-hashes", "-r", ROOT / "requirements.lock"], check=True)
        subprocess.run(
            [
                *pip,
                "-r",
                ROOT / "requirements-dev.txt",
            ],
            check=True,
        )
        (place / "complete").touch()
    return str(python)


def copy_checkout(place: Path) -> None:
    """Copies the files that git knows of, with their times, by which numba knows what it has compiled."""
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)


def surroundings(row: Row, folder: Path) -> dict:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONUTF8", "PYTHONPATH")} | row.env
    if row.without:
        shadow = folder / f"without {row.without}"
        shadow.mkdir(parents=True, exist_ok=True)
        line = f'raise ModuleNotFoundError("No module named {row.without}", name="{row.without}")'
        (shadow / f"{row.without}.py").write_text(line)
        env["PYTHONPATH"] = str(shadow)
    return env


def run(row: Row, folder: Path, files: list[str]) -> dict:
    """-> {"versions": "3.11.7 2.4.6", "files": {name of a file of tests: {test: "", or why it did not pass}}}."""
    python = environment(row, folder)
    checkout = folder / row.folder
    report = folder / "report.xml"
    copy_checkout(checkout)
    report.unlink(missing_ok=True)
    one_core = (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})) if row.one_core else None
    command = [python, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}"]
    command += [f"tests/test_{name}.py" for name in files]
    done = subprocess.run(
        command, cwd=checkout, env=surroundings(row, folder), preexec_fn=one_core, capture_output=True
    )
    (folder / "last.txt").write_bytes(done.stdout + done.stderr)
    if not report.exists():
        raise SystemExit(f"pytest ended with {done.returncode}: {folder / 'last.txt'} says why")
    found = {name: {} for name in files}
    for case in ET.parse(report).iter("testcase"):
        why = ""
        for kind in ("failure", "error", "skipped"):
            if (element := case.find(kind)) is not None:
                why = re.sub(r"^could not import '(.*?)'.*", r"without \1", element.get("message", ""))
                why = f"{kind}: {why}"
        module = re.search(r"test_(\w+)", f"{case.get('classname')} {case.get('name')}")[1]
        found[module][case.get("name")] = why.split("\n")[0]
    versions = "import sys, numpy; print(*sys.version_info[:3], sep='.', end=' '); print(numpy.__version__)"
    return {"versions": subprocess.check_output([python, "-c", versions], text=True).split(), "files": found}


def table(results: dict) -> str:
    lines = [
        "| | Python | NumPy | files | passed | failed | skipped |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for name, result in results.items():
        outcomes = [why for tests in result["files"].values() for why in tests.values()]
        skipped = Counter(why.removeprefix("skipped: ") for why in outcomes if why.startswith("skipped"))
        reasons = "; ".join(f"{n} × {why}" for why, n in skipped.most_common())
        failed = sum(why.startswith(("failure", "error")) for why in outcomes)
        cells = [*result["versions"], len(result["files"]), outcomes.count(""), failed, reasons]
        lines.append(f"| {' | '.join(map(str, [name, *cells]))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--files", nargs="+", default=QUICK, metavar="NAME", help="main for tests/test_main.py")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    everything = sorted(path.stem[5:] for path in (ROOT / "tests").glob("test_*.py"))
    for name in args.rows:
        row = ROWS[name]
        if row.python and not shutil.which(row.python):
            print(f"{name}: there is no {row.python} on the PATH", flush=True)
            continue
        result = run(row, folder, everything if args.files == ["all"] else args.files)
        for tests in result["files"].values():
            for test, why in tests.items():
                if why.startswith(("failure", "error")):
                    print(f"{name}: {test}: {why:.150}", flush=True)
        result["files"] = results.get(name, {}).get("files", {}) | result["files"]
        results = {known: (results | {name: result}).get(known) for known in ROWS}
        results = {known: result for known, result in results.items() if result}
        kept.write_text(json.dumps(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
