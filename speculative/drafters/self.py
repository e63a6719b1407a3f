"""The target drafts for itself: its own weights, rounded to fewer bytes.

A copy in a quarter of the bytes costs a quarter of a row, nearly always makes the target's choice, and needs neither
training nor a second download. As it is itself a large model, a small one may draft for it: self/model.

Source: Georganas et al. 2025, "ML-SpecQD: Multi-Level Speculative Decoding with Quantized Drafts".
"""

from speculative.drafters.model import drafts_of
from speculative.support import arguments
from speculative.support.arguments import Flag

KIND = drafts_of(
    "copy",
    "self",
    help="a copy of the target, rounded (--self_dtype); pays where the target is large",
    words="rounded copy",
    flags=(
        Flag(
            "self_dtype",
            arguments.text,
            "weight format of the target's copy; auto: int8, or less for an int8 target",
            "auto",
        ),
    ),
    color="bright_green",
    expected=(19.0, 20.0),
)
