"""The blog's own code beside ours: the same models, prompt and flags, one after the other.

    git clone --recursive https://github.com/jaymody/speculative-sampling theirs
    python -m benchmarks blog theirs --models_dir full

Its main.py runs as it is, with the gpt2.py of its picoGPT; checkpoints are read by our utils.py, which knows more forms
of them. Both are given all other flags, which have the blog's names. At temperature 0 the texts should be equal. The
last column is the time of the whole command, from Enter to the prompt, for which --beside adds other programs. A fair
one has as many threads (-t; ours takes one for each core) and decodes as many tokens: llama-speculative-simple gives up
to K more than -n says.

    --beside "llama-completion -m 1558M.gguf -t 2 --temp 0 -n 40 -no-cnv -p 'Alan Turing ...'" \\
        "llama-speculative-simple -m 1558M.gguf -md 124M.gguf -t 2 --spec-draft-n-max 4 --temp 0 -n 36 -p '...'"
"""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.tables import parser_of, table
from speculative.support.errors import UserError
from utils import load_encoder_hparams_and_params

ROOT = Path(__file__).parents[1]
RUN = re.compile(r"(?ms)^Time = ([0-9.]+) ?(m?s)\nText = (.*?)\n(?=\nSpeculative Decode|\n[0-9.]+ times as fast|\Z)")
THEIRS = """if True:
    import runpy, sys
    sys.path.insert(0, sys.argv.pop(1))
    import utils  # ours
    del sys.path[0]
    sys.modules.pop("gpt2", None)
    runpy.run_path("main.py", run_name="__main__")"""


def run(name: str, words: list, folder: Path | None = None, n_texts: int = 2) -> tuple[dict, str]:
    """-> a row of the table, and the text of speculative sampling. Raises UserError if the program fails."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.perf_counter()
    done = subprocess.run([*map(str, words)], cwd=folder, stdout=subprocess.PIPE, text=True)
    row = {"code": name, "Enter_to_prompt": time.perf_counter() - began}
    found = RUN.findall(done.stdout) if n_texts else []
    if done.returncode or len(found) != n_texts:
        raise UserError(f"{name} ended with status {done.returncode} and {len(found)} texts of {n_texts}: see above")
    for decoder, (number, unit, _) in zip(("autoregressive", "speculative"), found, strict=False):
        row[decoder] = float(number) / (1000 if unit == "ms" else 1)
    if found:
        row["speedup"] = row["autoregressive"] / max(row["speculative"], 0.005)
    return row, found[-1][2] if found else ""


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
    ours = [sys.executable, "main.py", *flags]
    rows, texts = zip(
        run("the blog's", [sys.executable, "-c", THEIRS, ROOT, *flags], o.path),
        run("ours", ours, ROOT),
        run("ours, --fast", [*ours, "--fast"], ROOT),
        strict=True,
    )
    others = [run(Path(words[0]).name, words, n_texts=0)[0] for words in map(shlex.split, o.beside)]
    print(table([*rows, *others], "code autoregressive:.2f speculative:.2f speedup:.2f Enter_to_prompt:.2f"))
    encoder, _, _ = load_encoder_hparams_and_params(o.target_model_size, str(o.models_dir))
    theirs, *others = (encoder.encode(text) for text in texts)
    for row, tokens in zip(rows[1:], others, strict=True):
        same = [a == b for a, b in zip(tokens, theirs, strict=False)]  # theirs may be up to K tokens longer
        where = "equal to the blog's" if all(same) else f"another one from token {same.index(False) + 1} on"
        print(f"{row['code']}: the text of {len(tokens)} tokens, with the prompt, is {where}")
