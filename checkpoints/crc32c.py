"""CRC32C, the checksum of TensorFlow's files, eight bytes at a time.

On x86 it is an instruction: nine gigabytes a second. Elsewhere tables are looked up: two.
Source: Kounavis and Berry 2008, "Novel Table Lookup-Based Algorithms for High-Performance CRC Generation".
"""

import functools
from collections.abc import Callable

import numpy as np

from plumbing.compiling import announced, compiled

POLYNOMIAL = 0x82F63B78  # Castagnoli's, its highest power in the lowest bit


@functools.cache
def tables() -> np.ndarray:  # -> uint32 [8, 256]
    """tables[k, b]: what is left of a byte b with k zeros after it."""
    left = np.zeros((8, 256), np.uint32)
    left[0] = np.arange(256)
    for _ in range(8):
        left[0] = (left[0] >> 1) ^ np.where(left[0] & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    for k in range(1, 8):
        left[k] = (left[k - 1] >> 8) ^ left[0][left[k - 1] & 255]
    return left


def looked_up(left, words, t):  # uint64, uint64 [n], uint32 [8, 256] -> what is left after the words
    for word in words:
        word ^= left
        left = np.uint64(0)
        for k in range(8):
            left ^= np.uint64(t[7 - k, (word >> np.uint64(8 * k)) & np.uint64(255)])
    return left


def by_instruction() -> Callable | None:
    """looked_up's twin by the CPU's own instruction; None where it has none that is known here."""
    from llvmlite import binding, ir
    from numba import config, types
    from numba.extending import intrinsic

    features = config.CPU_FEATURES
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    if not binding.get_process_triple().startswith("x86_64") or "+sse4.2" not in features.split(","):
        return None

    @intrinsic
    def crc32(typing, left, word):
        def codegen(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * 2)
            return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=kind), arguments)

        return types.uint64(types.uint64, types.uint64), codegen

    def stepped(left, words, t):
        for word in words:
            left = crc32(left, word)
        return left

    return stepped


@functools.cache
def divide() -> Callable:
    """looked_up or its twin, compiled."""
    function = compiled(by_instruction() or looked_up)
    with announced("the checksum of OpenAI's checkpoints"):
        function(np.uint64(0), np.empty(0, np.uint64), tables())
    return function


def masked_crc32c(content: bytes | np.ndarray, divide_fn: Callable | None = None) -> int:  # uint8 [n]
    """As it stands in the files, where a sum of what holds sums would have too many zeros."""
    content = np.frombuffer(content, np.uint8)  # [n]
    n = len(content) // 8 * 8
    words = np.frombuffer(content, np.uint64, n // 8)  # [n / 8]
    left = int((divide_fn or divide())(np.uint64(0xFFFFFFFF), words, tables()))
    for byte in content[n:].tolist():
        left = left >> 8 ^ int(tables()[0, (left ^ byte) & 255])
    crc = left ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
