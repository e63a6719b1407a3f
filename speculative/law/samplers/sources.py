"""Somebody's function by its place: a file, a notebook or a module, and a name in it."""

import ast
import importlib
import inspect
import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speculative.law.samplers.guard import as_user_errors, running
from speculative.support.errors import UserError, did_you_mean

PLACES = "FILE.py[:NAME], NOTEBOOK.ipynb[:NAME] or package.module[:NAME]"
RUN_AS = "law"  # the __name__ of a file that is run
# The statements of a notebook that are run. The others show what somebody did with its functions.
DEFINITIONS = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS |= ast.Assign | ast.AnnAssign | ast.If | ast.Try


def function_at(place: str) -> Callable:
    """Return the function of a place: one of PLACES. Its file is run. Raises UserError.

    NAME is speculative_sampling if it is not given. It may be a class, or the method of one: CLASS.METHOD.
    """
    path, name = split(place)
    first, _, method = name.partition(".")
    sys.path.insert(0, str(Path(path).resolve().parent))
    with running(Path(path).name), as_user_errors():
        defined = names_in(path, first)
        thing = defined.get(first)
        if method and isinstance(thing, type):
            thing = getattr(thing(), method, None)
    if not callable(thing):
        modules = (RUN_AS, defined.get("__name__"))
        functions = [key for key, other in defined.items() if getattr(other, "__module__", "") in modules]
        functions = [key for key in functions if inspect.isfunction(defined[key])]
        hint = did_you_mean(name, functions)
        raise UserError(f"{path} has no function {name}: it has {', '.join(functions) or 'none'}", hint=hint)
    return thing


def split(place: str) -> tuple[str, str]:
    """The file or module of a place, and the name. Raises UserError if there is no such file."""
    parts = re.fullmatch(r"(.+\.(?:py|ipynb)|.+?)(?::([^:/\\]*))?", place)
    path, name = parts.groups() if parts else (place, "")
    name = name or "speculative_sampling"
    if Path(f"{path}.py").is_file():
        return f"{path}.py", name
    is_module = re.fullmatch(r"\w+(\.\w+)+", path) and not path.endswith((".py", ".ipynb"))
    if not is_module and not Path(path).is_file():
        raise UserError(f"{path} is not a file: python -m speculative law {PLACES}")
    return path, name


def names_in(path: str, name: str) -> dict[str, Any]:
    """What a file, a notebook or a module defines, among it this name."""
    if path.endswith(".ipynb"):
        return names_in_notebook(Path(path), name)
    if not path.endswith(".py"):
        return vars(importlib.import_module(path))
    try:
        return runpy.run_path(path, run_name=RUN_AS)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
    return names_in_package(Path(path).resolve())


def names_in_package(file: Path) -> dict[str, Any]:
    """What a file defines that imports other files of its package by dots."""
    imports = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    n_folders = max(node.level for node in imports)
    while (file.parents[n_folders - 1] / "__init__.py").is_file() or n_folders < 1:
        n_folders += 1
    root = file.parents[n_folders]
    sys.path.insert(0, str(root))
    return vars(importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts)))


def names_in_notebook(file: Path, name: str) -> dict[str, Any]:
    """What the cells of a notebook define, in their order. What fails is left out, as a model that is not there; its
    error is raised if the name is not defined then."""
    defined: dict[str, Any] = {"__name__": RUN_AS}
    errors: list[Exception] = []
    cells = [cell for cell in json.loads(file.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        source = re.sub(r"^(\s*)[%!?].*$", r"\1pass", source, flags=re.MULTILINE)  # commands of the notebook's own
        try:
            statements = ast.parse(source).body
        except SyntaxError as error:
            errors.append(error)
            continue
        for statement in statements:
            if isinstance(statement, DEFINITIONS):
                code = compile(ast.Module([statement], []), f"{file.name}, cell {number}", "exec")
                try:
                    exec(code, defined)
                except Exception as error:
                    errors.append(error)
    if errors and name not in defined:
        raise errors[0]
    return defined
