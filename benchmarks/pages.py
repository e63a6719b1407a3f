"""Rewrite the measured tables of docs/: run the command that begins each console block, and put its output below it.

    python -m benchmarks pages paper theory

A block begins with ```console, and its first line with $ and a command; a \\ at its end continues the command.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from speculative.support.errors import UserError
from speculative.support.files import write_text

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(```console\n\$ (.*?[^\\])\n)(.*?)(?=```)", re.DOTALL)


def measured(block: re.Match) -> str:
    """The block with the output that its command has now. Raises UserError."""
    print(f"$ {block[2]}", flush=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(block[2], shell=True, cwd=DOCS.parent, env=os.environ | {"PATH": path}, stdout=-1, text=True)
    if done.returncode:
        raise UserError(f"{block[2]!r} ended with status {done.returncode}; the page is as it was")
    return block[1] + done.stdout


def main(argv: list[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks pages", description=__doc__, formatter_class=raw)
    pages = {path.stem: path for path in sorted(DOCS.glob("*.md")) if BLOCK.search(path.read_text("utf-8"))}
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(pages)} [all]")
    for name in parser.parse_args(argv).pages or pages:
        if name not in pages:
            raise UserError(f"{name:.80} is not a page with a measured table: of {', '.join(pages)}")
        write_text(str(pages[name]), BLOCK.sub(measured, pages[name].read_text("utf-8")))
