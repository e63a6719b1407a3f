"""OpenAI's checkpoints, as TensorFlow writes them: model.ckpt.index and model.ckpt.data-00000-of-00001.

The data file is all tensors, one after the other. The index is a table as LevelDB writes it: blocks of sorted keys, of
which each stores only how it differs from the key before; a block that lists the blocks; and at the end the place of
that one. The keys are the tensors' names, the values protocol buffers. Each block and each tensor has a CRC32C.

Source: LevelDB's doc/table_format.md; TensorFlow's tensor_bundle.proto; Protocol Buffers' encoding.
"""

from collections.abc import Iterator

from speculative.checkpoints.official import TF_DATA, TF_INDEX
from speculative.checkpoints.tensors import Tensor, bad_file, build_params, mapped, masked_crc32c

FOOTER = 48  # bytes at the end of the index: the places of two blocks, padding, and MAGIC
MAGIC = bytes.fromhex("57fb808b247547db")
FLOAT32 = 1  # TensorFlow's number of the type


def load_gpt2_params_from_tf_ckpt(tf_ckpt_path: str, hparams: dict, *convert_and_progress) -> dict:
    """Read models/124M/model.ckpt, for example -> the parameters of gpt2.gpt2, as build_params makes them."""
    return build_params(read_index(tf_ckpt_path), hparams, *convert_and_progress)


def read_index(tf_ckpt_path: str) -> dict[str, Tensor]:
    """Return {name: Tensor}. Raises UserError if the index is damaged."""
    path = tf_ckpt_path.removesuffix("model.ckpt") + TF_INDEX
    data_path = tf_ckpt_path.removesuffix("model.ckpt") + TF_DATA
    data = mapped(data_path)
    tensors = {}
    try:
        for key, value in read_table(bytes(mapped(path))):
            # Outside of model/ a training run keeps its own numbers, the optimizer's for example.
            if key.startswith(b"model/"):
                tensors[key.decode().removeprefix("model/")] = Tensor(data_path, data, *read_entry(value))
    except (ValueError, IndexError) as error:
        raise bad_file(path, f"damaged ({error})") from None
    return tensors


def read_entry(message: bytes) -> tuple[str, tuple[int, ...], int, int]:
    """Read a BundleEntryProto -> (type, shape, first byte, CRC32C)."""
    entry = fields(message)
    if entry.get(1) != [FLOAT32]:
        raise ValueError(f"a tensor is of TensorFlow's type {entry.get(1)}, not float32")
    [shape] = entry[2]
    dimensions = fields(shape).get(2, [])
    [begin] = entry.get(4, [0])
    [crc32c] = entry[6]
    return "float32", tuple(fields(dimension).get(1, [0])[0] for dimension in dimensions), begin, crc32c


def read_table(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value)s of a table. Raises ValueError or IndexError."""
    if not table.endswith(MAGIC):
        raise ValueError("it is not a table, or cut short")
    at = len(table) - FOOTER
    for _ in range(2):  # the first block is of no use here
        begin, at = read_varint(table, at)
        n_bytes, at = read_varint(table, at)
    for _, place in read_block(table, begin, n_bytes):
        begin, at = read_varint(place, 0)
        n_bytes, _ = read_varint(place, at)
        yield from read_block(table, begin, n_bytes)


def read_block(table: bytes, begin: int, n_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value)s of a block. Raises ValueError or IndexError."""
    block = table[begin : begin + n_bytes + 1]  # the last byte says whether the block is compressed
    if masked_crc32c(block) != int.from_bytes(table[begin + n_bytes + 1 :][:4], "little") or block[-1]:
        raise ValueError("a block is compressed, or its CRC32C is wrong")
    # At the end of a block are the places of some keys, to be searched, and their number.
    end = n_bytes - 4 * (int.from_bytes(block[n_bytes - 4 : n_bytes], "little") + 1)
    key = b""
    at = 0
    while at < end:
        n_shared, at = read_varint(block, at)
        n_new, at = read_varint(block, at)
        n_value, at = read_varint(block, at)
        key = key[:n_shared] + block[at : at + n_new]
        yield key, block[at + n_new : at + n_new + n_value]
        at += n_new + n_value


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return (a number of 7 bits a byte, the lowest first; the place after it). Raises IndexError."""
    value = 0
    shift = 0
    while content[at] >= 128:
        value |= (content[at] & 127) << shift
        shift += 7
        at += 1
    return value | content[at] << shift, at + 1


def fields(message: bytes) -> dict[int, list]:
    """Return {number of a field: its values}, numbers or bytes, of a protocol buffer. Raises ValueError."""
    found = {}
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, kind = divmod(tag, 8)
        if kind == 0:
            value, at = read_varint(message, at)
        elif kind == 2:
            n_bytes, at = read_varint(message, at)
            value = message[at : at + n_bytes]
            at += n_bytes
        elif kind == 5:
            value = int.from_bytes(message[at : at + 4], "little")
            at += 4
        else:
            raise ValueError(f"a field is of kind {kind}")
        found.setdefault(number, []).append(value)
    return found
