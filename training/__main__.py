"""Train models for speculative sampling. `python -m training COMMAND --help` shows the flags of one command.

    python -m training pair --files books.txt --out pair
    python -m training distil --target_model_size tiny-target --first_layers 1 --prompts my.txt --out my-draft
    python -m training heads --target_model_size tiny-target --prompts my.txt
    python -m training online --target_model_size tiny-target --draft_model_size tiny-draft --prompts my.txt --out new

All four run the loop in loop.py. An interrupted command continues from its last checkpoint if it is given again.
"""

import argparse
import importlib
from importlib.util import find_spec

import speculative.support.early  # noqa: F401  # Ctrl-C during the imports of a command is one line
from speculative.support.errors import UserError, guarded, install

LIBRARIES = ("jax", "optax", "safetensors")  # libraries that a small installation lacks

FLAGS = {  # {name: (default, help)}; a list takes several values, and a flag without a default is required
    "target_model_size": (str, "the target"),
    "draft_model_size": ("", "the draft to begin with"),
    "first_layers": (0, "begin with this number of the target's layers, in place of a draft model"),
    "models_dir": ("models", "folder of the models"),
    "out": (str, "name of the new draft in models_dir, or the folder of the pair"),
    "files": ([str], "text in UTF-8: empty lines between paragraphs, <|endoftext|> between works"),
    "prompts": (str, ".jsonl with objects that have a prompt, or one prompt a line"),
    "text": ("target", "which model writes the rows; mixed: each writes half"),
    "temperature": ([1.0], "of the rows: one, or several in equal parts"),
    "divergence": ("jsd", "distance of p from q"),
    "heads": (4, "number of heads"),
    "target": ([2048, 256, 192, 3, 12], "n_vocab n_ctx n_embd n_head n_layer of the target"),
    "n_prompt": (48, "a longer prompt is cut to this number of tokens"),
    "n_tokens": (64, "tokens to generate for each prompt"),
    "K": (4, "lookahead"),
    "every": (8, "texts between two updates of the draft"),
    "n_steps": (8, "steps in an update"),
    "n_buffer": (64, "texts that are kept to learn from"),
    "steps": (1000, "steps of training"),
    "draft_steps": (5000, "steps of the draft, which has one layer"),
    "n_batch": (8, "rows in a step"),
    "n_seq": (64, "tokens in a row"),
    "n_rows": (4096, "rows that the target writes"),
    "rate": (0.2, "highest learning rate, times n_embd"),
    "seed": (0, "random seed"),
}
CHOICES = {"text": ("target", "draft", "mixed"), "divergence": ("kl", "reverse_kl", "jsd", "tvd")}
LEARNING = "target_model_size models_dir prompts temperature n_batch rate seed"
COMMANDS = {  # {name: (help, its flags, other defaults)}
    "pair": (
        "train a target on text, and distil a draft from it; the bundled pair is of this kind",
        "files out target steps draft_steps n_rows seed",
        {"steps": 22000, "n_rows": 16384},
    ),
    "distil": (
        "teach a draft the distributions of a target, so that more of its drafts are accepted",
        f"{LEARNING} draft_model_size first_layers out text divergence steps n_rows n_seq",
        {},
    ),
    "heads": (
        "train heads on a target, for --drafter heads",
        f"{LEARNING} heads steps n_rows n_seq",
        {"steps": 2000, "n_rows": 2048, "temperature": [0.0, 1.0], "rate": 0.4},
    ),
    "online": (
        "serve prompts with a draft that learns between them; on a CPU it costs more time than it saves",
        f"{LEARNING} draft_model_size out divergence n_prompt n_tokens K every n_steps n_buffer",
        {"rate": 0.05},
    ),
}


def new_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m training", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command, (text, flags, defaults) in COMMANDS.items():
        add = commands.add_parser(command, help=text, description=text).add_argument
        for flag in flags.split():
            default, help = FLAGS[flag]
            default = defaults.get(flag, default)
            how = {"nargs": "+"} if isinstance(default, list) else {"choices": CHOICES.get(flag)}
            first = default[0] if isinstance(default, list) else default
            if first is str:
                add(f"--{flag}", required=True, help=help, **how)
            else:
                add(f"--{flag}", type=type(first), default=default, help=f"{help} [{default}]", **how)
    return parser


def main(argv: list[str] | None = None) -> None:
    parser = new_parser()
    o = parser.parse_args(argv)
    if not o.command:
        return parser.print_help()
    if not all(map(find_spec, LIBRARIES)):
        raise UserError(f"python -m training needs more libraries: {install('training')}")
    importlib.import_module(f"training.{o.command}").main(o)


if __name__ == "__main__":
    with guarded(interrupted="interrupted: the same command continues from the last checkpoint"):
        main()
