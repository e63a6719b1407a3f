"""What this CPU can do: which vector registers it has, and which instructions for products of small whole numbers.

The tiles of packed weights are laid out for it, and the kernels are built for it. LLVM would translate any choice to
any CPU; this one fits. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, if set, make this CPU stand in for a lesser one.
"""

import ctypes
import functools
import os
import sys
from dataclasses import dataclass

import numpy as np

from plumbing.errors import UserError, first_line

BLOCK = 32  # inputs that share a scale where rows are rounded; rows are filled up to whole blocks


@dataclass(frozen=True)
class Cpu:
    """The defaults serve where nothing is compiled, and packing alone is left to do."""

    vector: int = 16  # float32s in a register
    # Rows in one pass over a tile. Each has two registers of sums, here 20 of 32; the rest hold weights, x and scales.
    rows: int = 10
    fused: bool = True  # whether a multiply-add is one instruction, rounded once
    # The instruction for sums of products of int8, and how many inputs it takes at once: four where bytes can be
    # multiplied (x86 calls it VNNI, ARM dotprod), else two that are widened to int16. All give the same numbers.
    dot: int = 4
    dot_name: str | None = None

    @property
    def lanes(self) -> int:
        """Output channels in a tile."""
        return 2 * self.vector

    @property
    def unsigned(self) -> bool:
        """Whether the instruction takes weights as 0 to 255."""
        return "vpdpbusd" in (self.dot_name or "")

    @property
    def rounded(self) -> type:
        """How a rounded input lies beside a weight; its value fits into int8."""
        return np.int8 if self.dot == 4 else np.int16

    @property
    def rounded_bytes(self) -> int:
        """Of a rounded block of inputs: the numbers, what they are to be multiplied by, and -128 times their sum."""
        return BLOCK * np.dtype(self.rounded).itemsize + 8


SDOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"


@functools.cache
def has_numba() -> bool:
    """Whether anything can be compiled here."""
    try:
        import numba
    except ImportError:
        return False
    except ValueError as error:  # a setting of its own in the environment
        raise UserError(f"numba cannot be used ({first_line(error)}): check what NUMBA_... is set to") from error
    return not numba.config.DISABLE_JIT


@functools.cache
def this_cpu() -> Cpu:
    if not has_numba():
        return Cpu()
    import numba
    from llvmlite import binding

    given = numba.config.CPU_FEATURES
    features = (binding.get_host_cpu_features().flatten() if given is None else given).split(",")
    arm = binding.get_process_triple().startswith(("aarch64", "arm64"))
    if arm and sys.platform == "linux" and given is None:  # LLVM does not look for dotprod there; the system knows
        AT_HWCAP = 16
        HWCAP_ASIMDDP = 1 << 20
        if ctypes.CDLL(None).getauxval(AT_HWCAP) & HWCAP_ASIMDDP:
            features.append("+dotprod")

    def has(feature):
        return f"+{feature}" in features

    vector = 16 if has("avx512f") else 8 if has("avx") else 4
    rows = 10 if has("avx512f") or arm else 5  # 32 registers, or 16
    fused = arm or has("fma")
    if has({16: "avx512vnni", 8: "avxvnni", 4: ""}[vector]):
        return Cpu(vector, rows, fused, 4, f"llvm.x86.avx512.vpdpbusd.{32 * vector}")
    if arm and has("dotprod"):
        return Cpu(vector, rows, fused, 4, SDOT)
    names = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
    needs = {16: "avx512bw", 8: "avx2", 4: "sse2"}
    return Cpu(vector, rows, fused, 2, f"llvm.x86.{names[vector]}" if has(needs[vector]) else None)


def most_threads() -> int:
    """How many threads can be asked for: one for each core that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
