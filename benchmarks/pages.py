"""Make the measured tables and the pictures of docs/ anew.

    python -m benchmarks pages paper theory
    python -m benchmarks pages demo.svg page.png

A measured table is a block of ```text below a block of ```sh, whose command printed it. The tables take an hour, the
pictures two minutes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.images import PICTURES
from benchmarks.quiet import DOUBTED, undisturbed
from benchmarks.tables import parser_of
from speculative.support.errors import UserError
from speculative.support.files import write_text

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(```sh\n([^`]*?)\n```\n\n```text\n)(.*?)(?=```)", re.DOTALL)


def measured(block: re.Match) -> str:
    """The block with the output that its command has now. Raises UserError."""
    head, command, _ = block.groups()
    print(f"$ {command}", flush=True)
    environment = dict(os.environ)
    beside = Path(sys.executable).parent  # where python is this one
    environment["PATH"] = os.pathsep.join([str(beside), os.environ["PATH"]])

    def run() -> str:
        done = subprocess.run(command, shell=True, cwd=DOCS.parent, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise UserError(f"{command!r} ended with status {done.returncode}; the page is as it was")
        return done.stdout

    return head + undisturbed(run, lambda shown: "its speedup is doubtful" if DOUBTED in shown else None)


def main(argv: list[str]) -> None:
    parser = parser_of("pages", __doc__)
    pages = {path.stem: path for path in sorted(DOCS.glob("*.md")) if BLOCK.search(path.read_text("utf-8"))}
    names = [*pages, *PICTURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} [all]")
    for name in parser.parse_args(argv).names or names:
        if name not in names:
            raise UserError(f"{name:.80} is neither a page with a measured table nor a picture: of {', '.join(names)}")
        if name in PICTURES:
            PICTURES[name](DOCS / name)
        else:
            write_text(str(pages[name]), BLOCK.sub(measured, pages[name].read_text("utf-8")))
