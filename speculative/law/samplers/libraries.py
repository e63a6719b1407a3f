"""What is a library's: an installed package, the standard library or this package. It keeps its own random numbers.

So does a library that is imported while the stand-ins are in their places.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep  # this package
PARTS = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen", HERE)  # of the paths of libraries' files


def is_file_of_library(path: str) -> bool:
    return any(part in path for part in PARTS)


def is_library(names: dict) -> bool:
    """Whether a module with these names is one of a library."""
    file = str(names.get("__file__", ""))
    is_builtin = not file and getattr(names.get("__spec__"), "origin", None) in ("built-in", "frozen")
    return is_builtin or is_file_of_library(file)


class Imports:
    """A finder of modules, which is asked before all others. A library that is imported meanwhile gets and keeps what
    the modules held, not the stand-ins: it draws its names and keys with them."""

    def __init__(self, modules: list[ModuleType]):
        self.held = [(vars(module), {**vars(module)}) for module in modules]

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and is_file_of_library(str(spec.origin)):
            self.watch(spec.loader)
        return spec

    def watch(self, loader: Any) -> None:
        """Let the loader run its module's code with the real things.

        Its method exec_module runs the code, the only moment at which the module takes what the others hold. So an
        attribute of the same name hides the method until then, and is deleted: the module keeps its loader.
        """
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            with self.given_back():
                execute(module)

        loader.exec_module = exec_module

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        before = [{**names} for names, _ in self.held]
        for names, held in self.held:
            names.update(held)
        try:
            yield
        finally:
            for (names, _), stand_ins in zip(self.held, before, strict=True):
                names.update(stand_ins)
