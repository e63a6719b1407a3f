"""A quantized copy of the target drafts for it: the target's own weights, rounded to fewer bytes.

A copy in a quarter of the bytes takes about a quarter of the target's time for a token, nearly always makes the
target's choice, and needs neither training nor a second download. As it is itself a large model, a small one may draft
for it: int8/model.

Source: Georganas et al. 2025, "ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts".
"""

from speculative.drafters.model import drafts_of
from speculative.engines.formats import FORMATS

ROUNDED = [*FORMATS][1:]  # all but float32
SPECS = [
    drafts_of(
        name,
        name,
        phrase=f"{name} copy of the target",
        mark="c",
        scale=0.04,
        needs_weights=True,
    )
    for name in ROUNDED
]
