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

import contextlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from speculative.law.samplers.following import follow
from speculative.law.samplers.functions import decoding_method
from speculative.law.samplers.guard import as_user_errors
from speculative.law.samplers.sampler import FORMS, ForeignParameters
from speculative.law.samplers.sources import function_at
from speculative.law.samplers.verdicts import Verdict, drawn_verdict, exact_verdict
from speculative.sampling import Proposal

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
