"""Measure speculative sampling on this machine: python -m benchmarks NAME [--help]"""

import importlib
import sys

from speculative.support.errors import UserError, guarded

COMMANDS = {  # {name: help}; those that are not presets of grid.py are a file of that name
    "sweep": "both decoders over K: speedup, acceptance rate and predictions; two pictures",
    "drafters": "every drafter with every K",
    "trees": "trees of drafts beside chains",
    "levels": "a quantized copy of the target as the drafter, alone and with the draft model for it; a picture",
    "rules": "token by token beside block verification",
    "predictions": "the error of the predicted speedup",
    "figure1": "Chen et al., Figure 1: the time of a text, the acceptance rate and the time of an iteration; a picture",
    "table1": "Chen et al., Table 1: the time of a token, and that nothing is lost",
    "iterations": "how many iterations a text takes, and how that varies",
    "lenience": "the price of acceptance that is not lossless",
    "theory": "the formulas of Leviathan et al., with a run's point; a picture",
    "walkthrough": "the first half of docs/walkthrough.md, computed anew",
    "kernels": "forward passes of 1 to 17 rows and of a prompt; --peers: also JAX, transformers and llama.cpp",
    "assumption": "a window's time over a row's, against batch and context",
    "start": "the time from Enter to the first token",
    "full_size": "write checkpoints of 124M and 1558M that compute what the bundled pair computes",
    "images": "the README's pictures of a run and of the workbench",
}


def main(argv: list[str] | None = None) -> None:
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        return print("\n".join([__doc__, "", *(f"  {name:12} {text}" for name, text in COMMANDS.items())]))
    if name not in COMMANDS:
        raise UserError(f"{name:.80} is not a benchmark: python -m benchmarks lists them")
    from benchmarks import grid

    if name in grid.PRESETS:
        return grid.main(name, words)
    importlib.import_module(f"benchmarks.{name}").main(words)


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to continue")
