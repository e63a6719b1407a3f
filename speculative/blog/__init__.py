"""The blog's four files: main, gpt2, utils, encoder. In the repository they are at its top, in a wheel here.

The product imports them by this name, so that it works beside a reader's own gpt2.py.
"""

from pathlib import Path

__path__.append(str(Path(__file__).parents[2]))
