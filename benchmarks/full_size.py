"""Write checkpoints of the official shapes, 124M and 1558M, that compute the bundled pair's logits.

    python -m benchmarks full_size OUT_DIR
    python main.py --models_dir OUT_DIR --draft_model_size 124M --target_model_size 1558M

A token costs the same as with the official weights; text and acceptance rate are those of models/tiny-draft and
models/tiny-target, as speculative/checkpoints/padded.py pads them. Writing both takes 6.8 GB of disk, 0.5 GB of memory
and half a minute.
"""

import json
import math
import re
import struct
import tempfile
from collections.abc import Iterable
from itertools import count, islice, product
from pathlib import Path

import numpy as np
from speculative.blog.encoder import BYTE_TO_CHAR

from benchmarks.runs import MODELS
from benchmarks.tables import parser_of
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.folder import load_params
from speculative.checkpoints.names import HPARAMS
from speculative.checkpoints.padded import Padding
from speculative.checkpoints.weights import checkpoint_shapes, parameter_count
from speculative.support.errors import UserError

GROWN = {"124M": MODELS / "tiny-draft", "1558M": MODELS / "tiny-target"}
UNLIKELY = -200.0  # the logit of a new token: at temperature 1 its probability is 0 in float32
NEVER_IN_UTF8 = [BYTE_TO_CHAR[byte] for byte in (0xC0, 0xC1, *range(0xF5, 0x100))]


def write_safetensors(path: Path, hparams: dict, arrays: Iterable[np.ndarray]) -> None:
    """A header, then one tensor after the other, under Hugging Face's names: only one is in memory at a time."""
    header = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in checkpoint_shapes(hparams).items():
        begin = end
        end = end + 4 * math.prod(shape)
        layer, _, last = re.sub(r"^h(\d+)", r"h.\1", name.replace("/", ".")).rpartition(".")
        theirs = f"{layer}.bias" if last == "b" else f"{layer or last}.weight"
        header[theirs] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of 8 bytes
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for array in arrays:
            f.write(np.ascontiguousarray(array, "<f4"))


class Grown(Padding):
    """How a model with hparams old becomes one with hparams new, which may have more positions and tokens.

    The positions beyond the small context repeat its last one. The new tokens should be strings of bytes that UTF-8
    never uses, so no text has them. Nor does a model choose them: of the two channels that the last layer norm sets to
    1 and -1 their weights make logits of -200.
    """

    def pad(self, name: str, a: np.ndarray | None) -> np.ndarray:
        grown = super().pad(name, a)
        if name == "wpe":
            n_ctx = self.old["n_ctx"]
            grown[n_ctx:] = grown[n_ctx - 1]
        elif name == "wte":
            new_tokens = grown[self.old["n_vocab"] :]  # [n, new n_embd], a view
            new_tokens[:, -2] = UNLIKELY / 2
            new_tokens[:, -1] = -UNLIKELY / 2
        return grown


def grow_model(small: Path, folder: Path, new: dict) -> None:
    """Write the model in the folder small, grown to hparams new, to a new folder. Its tokens keep their ids."""
    vocab = json.loads((small / "encoder.json").read_text(encoding="utf-8"))
    merges = (small / "vocab.bpe").read_text(encoding="utf-8")
    never = ("".join(chars) for n in count(2) for chars in product(NEVER_IN_UTF8, repeat=n))
    for token in islice(never, new["n_vocab"] - len(vocab)):
        vocab[token] = len(vocab)
        merges += f"{token[:-1]} {token[-1]}\n"
    old = load_hparams(str(small / "hparams.json"))
    tensors = {}
    load_params(str(small), old, tensors.setdefault)
    folder.mkdir(parents=True)
    (folder / "encoder.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "vocab.bpe").write_text(merges, encoding="utf-8", newline="\n")
    stand_in = f"it computes what {small.name} does, at the shape and cost of {folder.name}"
    (folder / "hparams.json").write_text(json.dumps(new | {"stand_in": stand_in}), encoding="utf-8")
    padding = Grown(old, new)
    padded = (padding.pad(name, tensors.get(name)) for name in checkpoint_shapes(new))
    write_safetensors(folder / "model.safetensors", new, padded)


def main(argv: list[str]) -> None:
    parser = parser_of("full_size", __doc__)
    parser.add_argument("out_dir", type=Path)
    out = parser.parse_args(argv).out_dir
    for size in GROWN:
        if (out / size).exists():
            raise UserError(f"{out / size} already exists: delete it, or name another folder")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as unfinished:
        for size, small in GROWN.items():
            print(f"{size}: {parameter_count(HPARAMS[size]):,} parameters", flush=True)
            grow_model(small, Path(unfinished, size), HPARAMS[size])
        for size in GROWN:
            Path(unfinished, size).rename(out / size)
