"""Write checkpoints of the official shapes, 124M and 1558M, that compute the bundled pair's logits.

    python -m benchmarks full_size OUT_DIR
    python main.py --models_dir OUT_DIR --draft_model_size 124M --target_model_size 1558M

A token costs the same as with the official weights; text and acceptance rate are those of models/tiny-draft and
models/tiny-target. Writing both takes 6.8 GB of disk, 0.5 GB of memory and half a minute. A model grows in

- Width. Each channel of the residual stream is repeated, so often that at least two channels are left over. Those get
  the mean of the others. So layer norm finds the same mean, and a standard deviation that is smaller by a factor. All
  weights that write to the stream are larger by that factor. Weights that read it are divided by the repetitions.
- Heads, hidden units and layers. Those that the small model lacks have weights of 0.
- Vocabulary. The new tokens are strings of bytes that UTF-8 never uses, so no text has them. Nor does a model choose
  them: the last layer norm sets two of the channels that are left over to 1 and -1. Each token of the small model has
  the same weight for both, so they cancel; the weights of the new ones make their logits -200.
- Positions. Those beyond the small context repeat its last one.
"""

import json
import math
import re
import struct
import tempfile
from itertools import count, islice, product
from pathlib import Path

import numpy as np
from speculative.blog.encoder import BYTE_TO_CHAR

from benchmarks.runs import MODELS
from benchmarks.tables import parser_of
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.loading import load_params
from speculative.checkpoints.official import HPARAMS
from speculative.checkpoints.tensors import checkpoint_shapes, parameter_count
from speculative.support.errors import UserError

GROWN = {"124M": MODELS / "tiny-draft", "1558M": MODELS / "tiny-target"}
UNLIKELY = -200.0  # the logit of a new token: at temperature 1 its probability is 0 in float32
NEVER_IN_UTF8 = [BYTE_TO_CHAR[byte] for byte in (0xC0, 0xC1, *range(0xF5, 0x100))]


def growth(old, new):
    """The repetitions of a channel, the channels left over, and the factor by which the stream is larger."""
    times = (new["n_embd"] - 2) // old["n_embd"]
    n_left = new["n_embd"] - times * old["n_embd"]
    return times, n_left, math.sqrt(new["n_embd"] / (new["n_embd"] - n_left))


def grow(tensors, old, new):
    """The tensors {name: array} of a model with hparams old -> (name, array) of one with hparams new, one at a time."""
    times, n_left, scale = growth(old, new)

    def widen(a, left_over):  # [old n_embd, ...], [1, ...] -> [new n_embd, ...]
        return np.concatenate([a] * times + [left_over] * n_left)

    for name, shape in checkpoint_shapes(new).items():
        grown = np.zeros(shape, np.float32)
        if name in tensors:
            a = tensors[name]
            if re.search(r"wte|wpe|c_proj", name):  # writes: its last axis is the stream
                a = scale * widen(a.T, np.mean(a.T, axis=0, keepdims=True, dtype=np.float64).astype(np.float32)).T
            elif re.search(r"(c_attn|c_fc)/w", name):  # reads: its first axis is the stream
                a = widen(a / times, np.zeros_like(a[:1]))
            elif "ln_" in name:
                a = widen(a / scale if name.endswith("g") else a, np.zeros_like(a[:1]))
            if "c_attn" in name:  # queries, keys and values, each with its heads first
                a, grown = (array.reshape(*array.shape[:-1], 3, -1) for array in (a, grown))
            grown[tuple(map(slice, a.shape))] = a
        if name == "wpe":
            grown[old["n_ctx"] :] = grown[old["n_ctx"] - 1]
        elif name == "wte":
            grown[old["n_vocab"] :, -2:] = UNLIKELY / 2, -UNLIKELY / 2
        elif name.startswith("ln_f"):
            grown /= scale * times  # wte reads the stream too, at the scale at which it writes
            grown[-2:] = (1, -1) if name.endswith("b") else 0
        yield name, grown.reshape(shape)


def write_safetensors(path: Path, hparams: dict, tensors) -> None:
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
        for _, array in tensors:
            f.write(np.ascontiguousarray(array, "<f4"))


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
    write_safetensors(folder / "model.safetensors", new, grow(tensors, old, new))


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
