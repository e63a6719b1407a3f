"""The command without numba and llvmlite: it decodes with gpt2.py itself, in every weight format."""

import numpy as np
from tiny import python, texts

from gpt2 import gpt2
from speculative.options import DEMO

N = 12
COMMAND = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, "")
import main
from speculative.support.errors import guarded

guarded(lambda: main.run(main.main, main.__doc__, sys.argv[1:]))
"""


def test_the_demonstration_decodes_the_text_of_gpt2(bundled):
    """The demonstration's prompt and its greedy text, by gpt2.py and nothing else of ours."""
    encoder, hparams, params = bundled["tiny-target"]
    x = encoder.encode(DEMO["prompt"])
    for _ in range(N):
        x.append(int(np.argmax(gpt2(x, **params, n_head=hparams["n_head"])[-1])))
    done = python("-c", COMMAND, "--demo", f"--n_tokens_to_generate={N}")
    assert done.returncode == 0, done.stderr
    assert texts(done.stdout) == (encoder.decode(x),) * 2
    assert "numba is not installed, or switched off, so NumPy multiplies" in done.stderr
