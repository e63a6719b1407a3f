"""The law of public samplers: which of them draw the target's texts?

    python -m benchmarks public FOLDER [NAME ...]

FOLDER holds a checkout of each project, FOLDER/OWNER/NAME, at the commit of the list below. One at several commits is
FOLDER/OWNER/NAME@VERSION. Nothing of theirs is kept here. What is added to each is a function of samplers/adapters.py,
which returns the project's own in one of the law's forms. Each runs in a process of its own, which needs PyTorch,
transformers, einops and MLX (requirements-law.txt).
"""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple
from unittest.mock import MagicMock

import speculative
from benchmarks.samplers.listed import SAMPLERS, Sampler
from benchmarks.tables import parser_of
from speculative.law.samplers import drawn, following, guard
from speculative.law.samplers.verdicts import Verdict
from speculative.support.errors import UserError, did_you_mean

HOME = Path(__file__).parents[1]
ADAPTERS = HOME / "benchmarks" / "samplers" / "adapters.py"
OURS = ("encoder", "gpt2", "main", "utils")  # names of the blog's files, which other projects have too
NOT_COMPILED = {"PYTORCH_JIT": "0", "TORCHDYNAMO_DISABLE": "1"}  # compiled code cannot be followed
MOST_NODES, MOST_PATHS = 5_000, 500  # fewer than the law's, since there are many samplers
MOST_SECONDS = (60, 600)  # seconds of a text, for which a machine with other work takes longer
SECONDS_OF_DRAWS = 90  # more than the law's: JAX compiles each shape first
HEADINGS = ("file", "function", "verdict", "distance", "cause", "lines added")


class Row(NamedTuple):
    """A row of the table, in the order of HEADINGS."""

    file: str  # a link to it at its version, named after its project
    function: str
    verdict: str
    distance: str
    cause: str
    lines: str


class Checkout(MetaPathFinder, Loader):
    """Finds the modules of a checkout, without its __init__ files, and stand-ins for the modules that it imports in
    vain."""

    def __init__(self, root: Path, stand_ins: tuple[str, ...]):
        self.root = root
        self.stand_ins = stand_ins

    def find_spec(self, fullname, path=None, target=None):
        parents = [fullname.rsplit(".", i)[0] for i in range(fullname.count(".") + 1)]
        if any(name in self.stand_ins for name in parents):
            return ModuleSpec(fullname, self, is_package=True)
        folder = self.root / fullname.replace(".", "/")
        if not folder.is_dir() or f"+{fullname}" in self.stand_ins:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        return spec

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def enter(root: Path, sampler: Sampler) -> None:
    """Let this process import a checkout's modules before any of ours."""
    for name in OURS:
        sys.modules.pop(name, None)
    sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(HOME)))]
    sys.meta_path.insert(0, Checkout(root, sampler.stand_ins))


def judge(root: Path, name: str) -> Row:
    """Take the law of a sampler, whose checkout is at root. It changes this process: call it in one of its own."""
    sampler = SAMPLERS[name]
    n_lines = lines_added(name)
    enter(root / sampler.folder, sampler)
    try:
        adapters = runpy.run_path(str(ADAPTERS), run_name="law")
        verdict = speculative.law(adapters[name]())
    except UserError as error:  # without its hint, as what was printed
        return row_of(sampler, f"cannot tell: {''.join(error.sentence)}", "", n_lines)
    except ImportError as error:
        return row_of(sampler, f"cannot tell: {error}", "", n_lines)
    return row_of(sampler, in_short(verdict), f"{verdict.distance:.2g}", n_lines)


def row_of(sampler: Sampler, verdict: str, distance: str, lines: str = "") -> Row:
    place = f"blob/{sampler.version}/{sampler.file}" if sampler.file else f"tree/{sampler.version}"
    link = f"[{sampler.project}](https://github.com/{sampler.project}/{place})"
    cause = sampler.cause if verdict.startswith("not lossless") else ""
    return Row(link, sampler.function, verdict, distance, cause, lines)


def in_short(verdict: Verdict) -> str:
    """The first sentence of a verdict, without the distance."""
    sentence = verdict.words.split("\n")[0]
    if verdict.lossless is None:
        return sentence.split(" of each")[0].lower()
    return re.split("[:.] ", sentence)[0].lower()


def lines_added(name: str) -> str:
    """Count the lines that an adapter adds: those between the first and the last, without imports and comments."""
    text = ADAPTERS.read_text(encoding="utf-8")
    [adapter] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    lines = [line.strip() for line in text.split("\n")[adapter.lineno : adapter.end_lineno - 1]]
    return str(sum(not line.startswith(("#", '"""', "import ", "from ")) and line != "" for line in lines))


def checkout_of(sampler: Sampler, folder: Path) -> Path:
    """Where a project is in a folder, at a sampler's version."""
    root = folder / f"{sampler.project}@{sampler.version}"
    return root if root.is_dir() else folder / sampler.project


def row_in_a_process(folder: Path, name: str) -> Row:
    """The row of a sampler, judged by another Python."""
    sampler = SAMPLERS[name]
    root = checkout_of(sampler, folder)
    if sampler.file and not (root / sampler.file).is_file():
        return row_of(sampler, f"not there: {root / sampler.file}", "")
    command = [sys.executable, "-c", f"from benchmarks.public import child; child({str(root)!r}, {name!r})"]
    run = subprocess.run(command, env=os.environ | NOT_COMPILED, capture_output=True, text=True)
    if run.returncode:
        return row_of(sampler, f"cannot tell: {run.stderr.strip().rsplit(os.linesep)[-1]}", "")
    return Row(*json.loads(run.stdout.strip().split("\n")[-1]))


def child(root: str, name: str) -> None:
    """Print a row as JSON."""
    following.MOST_NODES, following.MOST_PATHS, following.MOST_NODES_OF_LINE = MOST_NODES, MOST_PATHS, 0
    guard.MOST_SECONDS = MOST_SECONDS
    drawn.SECONDS = SECONDS_OF_DRAWS
    print(json.dumps(judge(Path(root), name)))


def main(argv: list[str]) -> None:
    parser = parser_of("public", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the checkouts are")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(SAMPLERS)}")
    o = parser.parse_args(argv)
    unknown = [name for name in o.names if name not in SAMPLERS]
    if unknown:
        hint = did_you_mean(unknown[0], SAMPLERS)
        raise UserError(f"{unknown[0]:.80} is not a sampler of the list: python -m benchmarks public --help", hint=hint)
    print(*(f"|{'|'.join(cells)}|" for cells in (HEADINGS, ["---"] * len(HEADINGS))), sep="\n")
    for name in o.names or SAMPLERS:
        row = row_in_a_process(o.folder.resolve(), name)
        print(f"|{'|'.join(row)}|", flush=True)
