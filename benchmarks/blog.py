"""The blog's own code beside ours: the same models, prompt and flags, one after the other.

    git clone --recursive https://github.com/jaymody/speculative-sampling theirs
    python -m benchmarks blog theirs --models_dir full

Its main.py runs as it is, with the gpt2.py of its picoGPT; checkpoints are read by our utils.py, which knows more forms
of them. Both are given all other flags, which have the blog's names. At temperature 0 the texts should be equal.
"""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.tables import parser_of, table
from speculative.support.errors import UserError
from utils import load_encoder_hparams_and_params

ROOT = Path(__file__).parents[1]
RUN = re.compile(r"^Time = ([0-9.]+)s\nText = (.*?)\n(?=\nSpeculative Decode|\Z)", re.DOTALL | re.MULTILINE)
THEIRS = """if True:
    import runpy, sys
    sys.path.insert(0, sys.argv.pop(1))
    import utils  # ours
    del sys.path[0]
    sys.modules.pop("gpt2", None)
    runpy.run_path("main.py", run_name="__main__")"""


def run(name: str, words: list, folder: Path) -> tuple[dict, str]:
    """-> a row of the table, and the text of speculative sampling. Raises UserError if the program fails."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *map(str, words)], cwd=folder, stdout=subprocess.PIPE, text=True)
    found = RUN.findall(done.stdout)
    if done.returncode or len(found) != 2:
        raise UserError(f"{name} ended with status {done.returncode}, and gave {len(found)} texts of 2: see above")
    (plain, _), (speculative, text) = found
    seconds = {"autoregressive": float(plain), "speculative": float(speculative)}
    return {"code": name, **seconds, "speedup": float(plain) / max(float(speculative), 0.005)}, text


def main(argv: list[str]) -> None:
    parser = parser_of("blog", __doc__)
    parser.add_argument("path", type=Path, help="a clone of the blog's repository, with picoGPT")
    parser.add_argument("--models_dir", type=Path, default=ROOT / "models", help="folder of the models")
    parser.add_argument("--target_model_size", default="1558M", help="target model")
    o, more = parser.parse_known_args(argv)
    for needed in (o.path / "main.py", o.path / "picoGPT" / "gpt2.py"):
        if not needed.exists():
            raise UserError(f"{needed} is missing: git clone --recursive the blog's repository")
    flags = ["--models_dir", o.models_dir.resolve(), "--target_model_size", o.target_model_size, *more]
    ours = ["main.py", "--quiet", *flags]
    rows, texts = zip(
        run("the blog's", ["-c", THEIRS, ROOT, *flags], o.path),
        run("ours", ours, ROOT),
        run("ours, --fast", [*ours, "--fast"], ROOT),
        strict=True,
    )
    print(table(rows, "code autoregressive:.2f speculative:.2f speedup:.2f"))
    encoder, _, _ = load_encoder_hparams_and_params(o.target_model_size, str(o.models_dir))
    theirs, *others = (encoder.encode(text) for text in texts)
    for row, tokens in zip(rows[1:], others, strict=True):
        same = [a == b for a, b in zip(tokens, theirs, strict=False)]  # theirs may be up to K tokens longer
        where = "equal to the blog's" if all(same) else f"another one from token {same.index(False) + 1} on"
        print(f"{row['code']}: the text of {len(tokens)} tokens, with the prompt, is {where}")
