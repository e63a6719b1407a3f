"""Interrupts runs of the bundled pair at random moments of each phase, and prints a table of how they ended.

python tools/ctrl_c.py [N] [--phases NAME ...]

Each of N runs (200) of a phase is interrupted once. It should end with 130 and one line, within a second, have
printed what was decoded until then, and leave nothing half-written; or it had ended before. Compiling starts with an
empty cache every time, and takes minutes where the others take seconds: N / 5 runs.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PHASES = ["imports", "compiling", "loading", "autoregressive", "speculative", "report", "writing"]
FLAGS = "--demo --n_tokens_to_generate=100 --n_samples=2 --json=run.json --verbose".split()  # noqa: SIM905
PAGE = "--demo --n_tokens_to_generate=100 --html=run.html".split()  # noqa: SIM905

# Runs main.py, and says in a pipe what begins: imports at once, the rest where main.py calls it.
MARKED = """
import os, runpy, sys
from speculative.support import exits
from speculative.cli import flags

pipe, root = int(sys.argv.pop(1)), os.getcwd()

def mark(name):
    os.write(pipe, f"{name}\\n".encode())

def marked(space, name, phase):
    inner = space[name]
    def outer(*args, **kwargs):
        mark(phase(args) if callable(phase) else phase)
        return inner(*args, **kwargs)
    space[name] = outer

def run(main, doc, inner=flags.run):
    from speculative.cli import outcome
    from speculative.engines import runtime
    marked(main.__globals__, "Session", "loading")
    marked(runtime.__dict__, "warm_up", "compiling")
    marked(main.__globals__, "run_sampling_fn", lambda args: args[0].split()[0].lower())
    marked(main.__globals__, "show_report", "report")
    for name in ("write_json", "write_text"):
        marked(outcome.__dict__, name, "writing")
    inner(main, doc)

flags.run, begin = run, exits.begin
exits.begin = lambda: (begin(), mark("imports"))
sys.argv[0] = "main.py"
os.chdir(sys.argv.pop(1))
runpy.run_path(os.path.join(root, "main.py"), run_name="__main__")
mark("end")
"""


def start(phase, folder):
    """-> (a process that ignores Ctrl-C until main.py sees to it, the end of a pipe that says what it begins)."""
    reader, writer = os.pipe()
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if phase == "compiling":
        env |= {"NUMBA_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
    words = PAGE if phase == "writing" and random.random() < 0.5 else FLAGS
    command = [sys.executable, "-c", MARKED, str(writer), str(folder), *words]
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=err, pass_fds=[writer])
    signal.signal(signal.SIGINT, handler)
    os.close(writer)
    return process, open(reader)


def spans(phase, folder):
    """{phase: (when it began, when the next one did)} of a run that is not interrupted."""
    process, marks = start(phase, folder)
    times = [(mark.strip(), time.perf_counter()) for mark in marks]
    assert process.wait() == 0, (folder / "err").read_text()
    return {name: (at, after) for (name, at), (_, after) in pairwise(times)}


def interrupted(phase, seconds, folder):
    """One run, interrupted up to so many seconds after the phase began -> (status, seconds that it took to end)."""
    for path in folder.glob("run.*"):
        path.unlink()
    process, marks = start(phase, folder)
    for mark in marks:
        if mark.strip() == phase:
            time.sleep(random.random() * seconds)
            break
    process.send_signal(signal.SIGINT)
    took = 0.0
    before = time.perf_counter()
    while process.poll() is None:
        time.sleep(0.002)
        now = time.perf_counter()
        took += min(now - before, 0.1)  # more is a time in which this process did not run either
        before = now
    return process.returncode, took


def fault(phase, status, took, folder, texts):
    """The fault that was found, or ""."""
    out, err = ((folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
    # "token/s" and "/200", 2 samples of 100 tokens, are of progress bars
    lines = [line for line in re.split("[\r\n]", err) if line.strip() and "token/s" not in line and "/200" not in line]
    lines = [line for line in lines if not line.startswith(("compiling the forward pass", "loading "))]
    left = {path.name for path in folder.glob("run.*")} - {"run.json", "run.html"}
    if (status, lines) not in ((0, []), (130, ["interrupted"])):
        return f"status {status}, {lines}"
    if took > 1:
        return f"{took:.2f} s"
    if left:
        return f"left {left}"
    if (folder / "run.json").exists():
        json.loads((folder / "run.json").read_text(encoding="utf-8"))
    shown = re.findall(r"^Text = (.*)$", out, re.MULTILINE)
    whole = {"autoregressive": 0, "speculative": 1, "report": 2, "writing": 2}.get(phase, 0)
    if len(shown) < whole or not all(any(text.startswith(part) for text in texts) for part in shown):
        return f"printed {shown}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=200)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    o = parser.parse_args()
    print("| interrupted in | runs | 130 | ended before | faults | longest, s | median, s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for phase in o.phases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            begun, after = spans(phase, folder)[phase]
            texts = re.findall(r"^Text = (.*)$", (folder / "out").read_text(encoding="utf-8"), re.MULTILINE)
            ended = []
            faults = []
            for _ in range(o.n // 5 if phase == "compiling" else o.n):
                status, took = interrupted(phase, after - begun, folder)
                ended.append((status, took))
                faults += filter(None, [fault(phase, status, took, folder, texts)])
        counts = [sum(status == one for status, _ in ended) for one in (130, 0)]
        times = [took for status, took in ended if status]
        print(f"| {phase} | {len(ended)} | {counts[0]} | {counts[1]} | {len(faults)} ", end="")
        print(f"| {max(times, default=0):.2f} | {median(times or [0]):.2f} |", flush=True)
        for line in faults[:5]:
            print(f"{phase}: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
