"""Measure speculative sampling on this machine: python -m benchmarks NAME [--help]"""

import importlib
import sys

import speculative.support.early  # noqa: F401  # Ctrl-C during the imports below is one line
from benchmarks import grid
from speculative.support.errors import UserError, did_you_mean, guarded

FILES = {  # {name of a file: help}
    "theory": "the formulas of Leviathan et al., with a run's point; a picture",
    "experts": "the experts that a window of a mixture touches: a formula, and a simulation",
    "walkthrough": "the tables of docs/walkthrough.md, computed anew",
    "kernels": "forward passes of 1 to 17 rows and of a prompt",
    "cores": "forward passes by the number of threads, beside the bandwidth of memory",
    "accelerator": "the JAX engine on its device: calls of 1 to 33 rows, both loops, compiling",
    "batches": "several prompts at a time: tokens a second by texts and K, and where drafts stop to pay",
    "prices": "settings beside each other without a clock: calls, priced by a table of a machine",
    "blog": "the blog's own code beside ours, from a clone of its repository",
    "public": "the law of public samplers, from checkouts of their repositories",
    "results": "the table of README: the samplers in turns after prompts of prose",
    "start": "the time from Enter to the first token",
    "full_size": "write checkpoints of 124M and 1558M that compute the bundled pair's logits",
    "race": "a picture that moves: both decoders of a run on one time axis",
    "output": "the keys of docs/output.md, from the comments of the record's fields",
    "pages": "every measured table and every picture of docs/, made anew",
}


def main(argv: list[str] | None = None) -> None:
    commands = {name: preset.help for name, preset in grid.PRESETS.items()} | FILES
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        return print("\n".join([__doc__ or "", "", *(f"  {name:12} {text}" for name, text in commands.items())]))
    if name not in commands:
        hint = did_you_mean(name, commands)
        raise UserError(f"{name:.80} is not a benchmark: python -m benchmarks lists them", hint=hint)
    if name in grid.PRESETS:
        return grid.main(name, words)
    importlib.import_module(f"benchmarks.{name}").main(words)


if __name__ == "__main__":
    with guarded(interrupted="interrupted; with --out, run again to continue"):
        main()
