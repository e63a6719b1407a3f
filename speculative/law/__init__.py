"""Is a sampler lossless? The exact law of its texts beside the target's, over random models.

    python -m speculative law FILE.py[:NAME] [--thorough]

The function NAME decodes with random models of 2 to 64 tokens: small probabilities, zeros, ties, nearly equal and
greedy rows are among them. If the law of its texts is not the target's, the smallest case is shown. The usual mistakes
are then made in a loop of ours, and the one that gives the same laws is named. If its random numbers cannot be
followed, as those of JAX, texts are drawn and counted. With --thorough more models are tried, which takes several times
as long.

The status is 0 if it is lossless, 1 if it is not, 2 if that cannot be told exactly.
"""

import contextlib
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from speculative.law.samplers.following import follow
from speculative.law.samplers.guard import as_user_errors, running
from speculative.law.samplers.sampler import FORMS
from speculative.law.samplers.verdicts import Verdict, drawn_verdict, exact_verdict
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
    The function keeps the Verdict as its attribute `verdict`, which report/observe.py shows where a decode has it as
    its rule. Raises UserError if its parameters are none of FORMS, or if it raises an error.
    """
    checked = function
    if isinstance(function, type):
        with as_user_errors():
            checked = function()
    had_torch = "torch" in sys.modules
    findings = follow(checked, thorough)
    if had_torch != ("torch" in sys.modules):  # it imported PyTorch, whose numbers were not ours yet
        findings = follow(checked, thorough)
    verdict = drawn_verdict(checked, findings) if findings.not_followed else exact_verdict(findings)
    with contextlib.suppress(AttributeError):  # a method has no attributes
        function.verdict = verdict  # type: ignore[attr-defined]
    return verdict


# ---- The command -----------------------------------------------------------------------------------------------------


def main(words: list[str]) -> None:
    """The command. It ends with a STATUS. Raises UserError."""
    names = [word for word in words if word != THOROUGH]
    if len(names) != 1 or names[0] in ("-h", "--help"):
        return print(f"{(__doc__ or '').strip()}\n\nForms of NAME, by default speculative_sampling:\n\n{FORMS}")
    path, _, name = names[0].partition(".py:")
    verdict = law(function_in(path, name or "speculative_sampling"), thorough=THOROUGH in words)
    print(verdict.words)
    sys.exit(STATUS[verdict.lossless])


def function_in(path: str, name: str) -> Callable:
    """The function of this name in a file, which is run. Raises UserError."""
    file = Path(path if path.endswith(".py") else f"{path}.py")
    if not file.is_file():
        raise UserError(f"{file} is not a file: python -m speculative law FILE.py[:NAME]")
    defined = names_in(file)
    if not callable(defined.get(name)):
        functions = [key for key, thing in defined.items() if inspect.isfunction(thing) and thing.__module__ == "law"]
        hint = did_you_mean(name, functions)
        raise UserError(f"{file} has no function {name}: it has {', '.join(functions) or 'none'}", hint=hint)
    return defined[name]


def names_in(file: Path) -> dict:
    """What a file defines, which is run without a word. Raises UserError."""
    sys.path.insert(0, str(file.resolve().parent))
    with running(file.name), as_user_errors():
        return runpy.run_path(str(file), run_name="law")
