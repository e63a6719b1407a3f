"""The picture in the README: a real run of main.py in colour, as SVG.

python -m benchmarks.picture [docs/demo.svg] [flags of main.py; default: --demo --color]
"""

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from plumbing.errors import UserError
from plumbing.exits import guarded
from plumbing.files import check_writable

ROOT = Path(__file__).parents[1]


def main(argv=None) -> None:
    path, *flags = (sys.argv[1:] if argv is None else argv) or ["docs/demo.svg"]
    if path in ("-h", "--help"):
        return print(__doc__)
    if path.startswith("-"):
        raise UserError(f"the picture's file comes first, and then main.py's flags: {path:.80} is none")
    flags = flags or ["--demo", "--color"]
    check_writable(path)
    command = [sys.executable, str(ROOT / "main.py"), *flags]
    run = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ | {"FORCE_COLOR": "1"})
    if run.returncode:  # what was wrong is on standard error by now
        raise UserError(f"main.py ended with status {run.returncode}, so there is nothing to draw")
    console = Console(record=True, width=100, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(run.stdout.strip("\n")))
    console.save_svg(path, title="python main.py " + " ".join(flags))


if __name__ == "__main__":
    guarded(main)
