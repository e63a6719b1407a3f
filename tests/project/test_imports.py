"""Imports point one way: main, the session, the engines, the method, the network and its files; and in no circle."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest
from tiny import ROOT

# From the top down: a module may import modules of its line or below. The package itself is a door: its load_pair is
# imported when it is asked for.
FLOORS = (
    "benchmarks",
    "main speculative.__main__",
    "speculative.__init__",
    "speculative.cli",
    "speculative.verify speculative.report training",
    "speculative.run",
    "speculative.law speculative.lookahead",
    "speculative.drafters",
    "speculative.engines",
    "speculative.rules",
    "speculative.trees",
    "speculative.filters speculative.sampling",
    "utils",
    "speculative.checkpoints",
    "encoder gpt2 speculative.version speculative.blog",
    "speculative.support",
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names.split()}
BLOG = {"main", "gpt2", "utils", "encoder"}  # the package imports them from speculative.blog
FOLDERS = ("benchmarks", "training", "speculative")
PATHS = [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))]
SOURCES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PATHS}  # "speculative.__init__"


def floor(module):
    """The number of the line in FLOORS that names the module, or the folder that it is in."""
    while module not in FLOOR:
        module = module.rpartition(".")[0]
    return FLOOR[module]


def nodes_of(path):
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imports(module):
    """The modules of ours that a module names in an import, wherever that stands in it."""
    found = set()
    for node in nodes_of(SOURCES[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are written in full"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if {name, f"{name}.__init__"} & {*SOURCES} else node.module for name in names}
    ours = module.startswith("speculative.")
    assert not ours or not found & BLOG, f"{module}: a gpt2.py beside a user's script would come in the place of ours"
    found = {name.removeprefix("speculative.blog.") for name in found}
    return {one for name in found for one in (name, f"{name}.__init__") if one in SOURCES} - {module}


@pytest.mark.parametrize("module", SOURCES)
def test_no_module_imports_from_a_floor_above(module):
    assert {name for name in imports(module) if floor(name) < floor(module)} == set()


def test_there_is_no_circle():
    try:
        TopologicalSorter({module: imports(module) for module in SOURCES}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_method_and_the_network_stand_alone():
    assert imports("speculative.sampling") == {"speculative.support.errors"}
    assert imports("gpt2") == set()


def test_the_law_uses_the_method_and_is_used_by_the_commands_alone():
    files = {module for module in SOURCES if module.startswith("speculative.law.")}
    method = {"sampling", "filters", "drafters.base", "support.errors"}
    assert set().union(*map(imports, files)) - files <= {f"speculative.{name}" for name in method}
    users = {module for module in SOURCES if module.startswith("speculative.") and imports(module) & files} - files
    assert users <= {"speculative.__init__", "speculative.__main__"}


def test_no_test_imports_a_test():
    """What tests share stands in tests/support."""
    paths = [*ROOT.glob("tests/**/*.py")]
    tests = {path.stem for path in paths if path.stem.startswith("test_")}
    for path in paths:
        nodes = [*nodes_of(path)]
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not {name.rpartition(".")[2] for name in imported} & tests, path
