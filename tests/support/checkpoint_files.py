"""The bundled models, and the files of a model in OpenAI's and Hugging Face's form."""

import itertools
import json
import struct

from tiny import ROOT, vocabulary

from speculative.checkpoints.openai import masked_crc32c

MODELS = ROOT / "models"


PROMPT = "the thing in"


USUAL = {"target_model_size": "target", "draft_model_size": "draft", "threads": 1, "prompt": PROMPT}
USUAL["n_tokens_to_generate"] = 12


def write_small_files(folder, hparams):
    """hparams.json, and a vocabulary of 260 tokens: the bytes, three merges and <|endoftext|>."""
    (folder / "hparams.json").write_text(json.dumps(hparams))
    merges = [("t", "h"), ("th", "e"), ("i", "n")]
    (folder / "encoder.json").write_text(json.dumps(vocabulary(merges)))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]))


def write_tf(folder, arrays, prefix="model.ckpt"):
    """OpenAI's form, as TensorFlow's SaveV2 writes it: see speculative/checkpoints/openai.py. The import of TensorFlow
    takes seconds, so test_utils.py alone asks it whether this is its form."""
    entries = {b"": b"\x08\x01\x1a\x02\x08\x01"}  # one data file
    data = b""
    for name in sorted(arrays):
        array = arrays[name][None] if name.endswith("/w") else arrays[name]
        sizes = [b"\x08" + varint(n) for n in array.shape]
        shape = b"".join(b"\x12" + varint(len(size)) + size for size in sizes)
        content = array.tobytes()
        entry = b"\x08\x01\x12" + varint(len(shape)) + shape
        if data:
            entry += b"\x20" + varint(len(data))
        entry += b"\x28" + varint(len(content)) + b"\x35" + checksum(content)
        entries[f"model/{name}".encode()] = entry
        data += content
    table = block(entries)
    places = [varint(0) + varint(len(table) - 5)]  # a block's checksum and the byte before it do not count
    for content in ({}, {max(entries): places[0]}):  # no other tables, and the index of the blocks
        places.append(varint(len(table)) + varint(len(block(content)) - 5))
        table += block(content)
    footer = (places[1] + places[2]).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    (folder / f"{prefix}.index").write_bytes(table + footer)
    (folder / f"{prefix}.data-00000-of-00001").write_bytes(data)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{prefix}"\nall_model_checkpoint_paths: "{prefix}"\n')


def block(entries):
    """A block of a LevelDB table: of each key what differs from the one before, the place of the first, and their
    number."""
    content, before = b"", b""
    for key, value in entries.items():
        n_shared = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, key, strict=False))])
        new = key[n_shared:]
        content += varint(n_shared) + varint(len(new)) + varint(len(value)) + new + value
        before = key
    content += struct.pack("<2I", 0, 1) + b"\0"  # not compressed
    return content + checksum(content)


def varint(n):
    return bytes([n]) if n < 128 else bytes([128 + n % 128]) + varint(n // 128)


def checksum(content):
    return struct.pack("<I", masked_crc32c(content))


def write_safetensors(path, arrays, prefix=""):
    """Hugging Face's form, written by their library."""
    from safetensors.numpy import save_file

    save_file({prefix + hugging_face_name(name): array for name, array in arrays.items()}, path)


def hugging_face_name(name):
    """ "h0/attn/c_attn/w" -> "h.0.attn.c_attn.weight"."""
    *path, last = name.split("/")
    if not path:
        return f"{last}.weight"
    path = [*("h", path[0][1:]), *path[1:]] if path[0][1:].isdigit() else path
    return ".".join([*path, "bias" if last == "b" else "weight"])
