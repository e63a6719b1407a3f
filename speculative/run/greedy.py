"""The first difference of two greedy texts, in words, and whether rounding explains it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from speculative.engines.network import common_prefix
from speculative.filters import margins_of
from speculative.run.session import Session


@dataclass(frozen=True)
class Difference:
    """The first difference of two greedy texts of each prompt."""

    text: str  # where it is, and whether rounding explains it
    is_defect: bool  # whether rounding does not explain it


def greedy_difference(session: Session, inputs: Sequence, texts: Sequence) -> Difference | None:
    """Return where two greedy texts of each prompt differ first; None if they are equal.

    Rounding explains a difference if the two best logits are close there. texts: the new tokens of each prompt, of both
    decoders.
    """
    most = 0.0 if session.exact else session.engine.tolerance(session.options.dtype)
    logits_after = session.models["target"].logits
    sentences = []
    is_defect = False
    for number, (x, a, b) in enumerate(zip(inputs, *texts, strict=True), start=1):
        at = common_prefix(a, b)
        if at == min(len(a), len(b)):
            continue
        logits = logits_after(np.array([*x, *a[:at]]))  # [1, n_vocab]
        [apart] = margins_of(logits)
        verdict = "rounding can change their order"
        if apart > most:
            verdict = f"a defect, as rounding changes the order of logits that are at most {most:g} apart"
            is_defect = True
        which = f"for prompt {number}, " if len(inputs) > 1 else ""
        sentences.append(
            f"{which}first difference at position {len(x) + at}: token {a[at]} or {b[at]}, where the two best "
            f"logits are {apart:.2g} apart: {verdict}."
        )
    return Difference(" ".join(sentences), is_defect) if sentences else None
