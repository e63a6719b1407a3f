"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME] [--thorough]
    python -m speculative law NOTEBOOK.ipynb[:NAME]
    python -m speculative law package.module[:NAME]

The function NAME decodes with random models of 2 to 64 tokens: small probabilities, zeros, ties, nearly equal and
greedy rows are among them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes
are then made in a loop of ours, and the one that gives the same laws is named. If its random numbers cannot be
followed, as those of JAX, texts are drawn and counted. With --thorough more models are tried, which takes several times
as long.

The status is 0 if it is lossless, 1 if it is not, 2 if that cannot be told exactly.
"""

import ast
import contextlib
import importlib
import inspect
import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from speculative.law.samplers.following import follow
from speculative.law.samplers.functions import decoding_method
from speculative.law.samplers.guard import as_user_errors, running
from speculative.law.samplers.sampler import FORMS, ForeignParameters
from speculative.law.samplers.verdicts import Verdict, drawn_verdict, exact_verdict
from speculative.sampling import Proposal
from speculative.support.errors import UserError, did_you_mean

STATUS = {True: 0, False: 1, None: 2}
THOROUGH = "--thorough"


class LawPackage(ModuleType):
    """This package, which is called like its function: speculative.law(function)."""

    def __call__(self, function: Callable, thorough: bool = False) -> Verdict:
        return law(function, thorough)


sys.modules[__name__].__class__ = LawPackage


def law(function: Callable, thorough: bool = False) -> Verdict:
    """Compare the law of a function's texts with the target's: exactly, else by texts that are drawn.

    thorough: whether to follow more cases, which takes several times as long.
    The function keeps the Verdict as its attribute `verdict`, which report/make_record.py shows where a decode has it
    as its rule. Raises UserError if its parameters are none of FORMS, or if it raises an error.
    """
    checked = function
    with as_user_errors():
        if isinstance(function, type):
            checked = function()
    if not inspect.isroutine(checked):
        checked = decoding_method(checked)
    had_torch = "torch" in sys.modules
    findings = follow(checked, thorough)
    if had_torch != ("torch" in sys.modules):  # it imported PyTorch, whose numbers were not ours yet
        findings = follow(checked, thorough)
    verdict = drawn_verdict(checked, findings) if findings.not_followed else exact_verdict(findings)
    with contextlib.suppress(AttributeError):  # a method has no attributes
        function.verdict = verdict  # type: ignore[attr-defined]
    return verdict


# ---- For a file that makes somebody's function a sampler -------------------------------------------------------------


def as_tensors(proposal: Proposal, q) -> tuple:
    """Return the drafts [1, m], the rows p that they were drawn from [1, m, n_vocab] and the target's q [1, m + 1,
    n_vocab] as PyTorch's tensors: for a rule(proposal, q, rng)."""
    from speculative.law.samplers.outputs import tensors_of

    return tensors_of(proposal, q)


def as_model(model: Callable, temperature: float = 1.0) -> Any:
    """Return a model of speculative_sampling(x, draft_model, target_model, N, K) as one of Hugging Face's with a cache:
    model(input_ids, past_key_values=None).logits [1, n, n_vocab]. temperature: the one that the sampler divides by."""
    from speculative.law.samplers.outputs import Network

    return Network(model, temperature)


# ---- The command -----------------------------------------------------------------------------------------------------


def main(words: list[str]) -> None:
    """The command. It ends with a STATUS. Raises UserError."""
    names = [word for word in words if word != THOROUGH]
    if len(names) != 1 or names[0] in ("-h", "--help"):
        return print(f"{(__doc__ or '').strip()}\n\nForms of NAME, by default speculative_sampling:\n\n{FORMS}")
    try:
        verdict = law(function_at(names[0]), thorough=THOROUGH in words)
    except ForeignParameters as error:
        print(error.file, flush=True)
        raise
    print(verdict.words, flush=True)  # here, so that a full disk is explained
    sys.exit(STATUS[verdict.lossless])


# ---- The function of a place -----------------------------------------------------------------------------------------


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
    """Return the names that a file, a notebook or a module defines, this name among them."""
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
    """Return the names that a file defines which imports other files of its package by dots."""
    imports = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    n_folders = max(node.level for node in imports)
    while (file.parents[n_folders - 1] / "__init__.py").is_file() or n_folders < 1:
        n_folders += 1
    root = file.parents[n_folders]
    sys.path.insert(0, str(root))
    return vars(importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts)))


def names_in_notebook(file: Path, name: str) -> dict[str, Any]:
    """Return the names that the cells of a notebook define, in their order. A statement that fails is left out, such as
    one that loads a missing model; its error is raised if the name is not defined then."""
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
