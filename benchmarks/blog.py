"""The blog's own code beside ours: the same models, prompt and flags, one after the other.

    git clone --recursive https://github.com/jaymody/speculative-sampling theirs
    python -m benchmarks blog theirs --models_dir full

Its main.py runs as it is, with the gpt2.py of its picoGPT; checkpoints are read by our utils.py, which knows more forms
of them. Both are given all other flags, which have the blog's names. At temperature 0 the texts should be equal. The
last column is the time of the whole command, from Enter to the prompt, for which --beside adds other programs. A fair
one has as many threads (-t; ours takes one for each core) and decodes as many tokens: llama-speculative-simple gives up
to K more than -n says, and drafts only with --spec-type.

    --beside "llama-completion -m 1558M.gguf -t 2 --temp 0 -n 40 -no-cnv -p 'Alan Turing ...'" \\
        "llama-speculative-simple -m 1558M.gguf -md 124M.gguf -t 2 --spec-type draft-simple \\
         --spec-draft-n-max 4 --temp 0 -n 36 -p '...'"
"""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import parser_of, table
from speculative.support.errors import UserError
from utils import load_encoder_hparams_and_params

ROOT = Path(__file__).parents[1]
RUN = re.compile(r"(?ms)^Time = ([0-9.]+) ?(m?s)\nText = (.*?)\n(?=\nSpeculative Decode|\n[0-9.]+ times as fast|\Z)")
UNITS = {"s": 1.0, "ms": 0.001}
THEIRS = """if True:
    import runpy, sys
    sys.path.insert(0, sys.argv.pop(1))
    import utils  # ours
    del sys.path[0]
    sys.modules.pop("gpt2", None)
    runpy.run_path("main.py", run_name="__main__")"""


class Timed(NamedTuple):
    """A program that has run. Times are in seconds; only programs that print the blog's lines have the decoders'."""

    name: str
    whole: float  # seconds of the command, from Enter to the prompt
    decoders: list[float]  # autoregressive, then speculative
    text: str  # the text of speculative sampling

    def row(self) -> dict:
        """Return the row of the table."""
        row = {"code": self.name, "Enter_to_prompt": self.whole}
        if self.decoders:
            slow, fast = self.decoders
            row |= {"autoregressive": slow, "speculative": fast, "speedup": slow / max(fast, 0.005)}
        return row


def run(name: str, words: list, folder: Path | None = None, n_texts: int = 2) -> Timed:
    """Run a program that prints n_texts texts in the blog's form. Raises UserError if it fails."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.perf_counter()
    done = subprocess.run([*map(str, words)], cwd=folder, stdout=subprocess.PIPE, text=True)
    whole = time.perf_counter() - began
    texts = RUN.findall(done.stdout) if n_texts else []
    if done.returncode or len(texts) != n_texts:
        raise UserError(f"{name} ended with status {done.returncode} and {len(texts)} texts of {n_texts}: see above")
    decoders = [float(number) * UNITS[unit] for number, unit, _ in texts]
    return Timed(name, whole, decoders, texts[-1][2] if texts else "")


def compare_texts(model_size: str, models_dir: Path, blogs: Timed, ours: list[Timed]) -> None:
    """Print whether each of our texts is the blog's, which may be up to K tokens longer."""
    encoder, _, _ = load_encoder_hparams_and_params(model_size, str(models_dir))
    expected = encoder.encode(blogs.text)
    for program in ours:
        tokens = encoder.encode(program.text)
        same = [a == b for a, b in zip(tokens, expected, strict=False)]
        where = "equal to the blog's" if all(same) else f"another one from token {same.index(False) + 1} on"
        print(f"{program.name}: the text of {len(tokens)} tokens, with the prompt, is {where}")


def main(argv: list[str]) -> None:
    parser = parser_of("blog", __doc__)
    parser.add_argument("path", type=Path, help="a clone of the blog's repository, with picoGPT")
    parser.add_argument("--models_dir", type=Path, default=ROOT / "models", help="folder of the models")
    parser.add_argument("--target_model_size", default="1558M", help="target model")
    parser.add_argument("--beside", nargs="*", default=[], metavar="COMMAND", help="other programs, to be timed")
    o, more = parser.parse_known_args(argv)
    for needed in (o.path / "main.py", o.path / "picoGPT" / "gpt2.py"):
        if not needed.exists():
            raise UserError(f"{needed} is missing: git clone --recursive the blog's repository")
    flags = ["--models_dir", o.models_dir.resolve(), "--target_model_size", o.target_model_size, *more]
    command = [sys.executable, "main.py", *flags]
    blogs = run("the blog's", [sys.executable, "-c", THEIRS, ROOT, *flags], o.path)
    ours = [run("ours", command, ROOT), run("ours, --fast", [*command, "--fast"], ROOT)]
    others = []
    for words in map(shlex.split, o.beside):
        others.append(run(Path(words[0]).name, words, n_texts=0))
    rows = [program.row() for program in (blogs, *ours, *others)]
    print(table(rows, "code autoregressive:.2f speculative:.2f speedup:.2f Enter_to_prompt:.2f"))
    compare_texts(o.target_model_size, o.models_dir, blogs, ours)
