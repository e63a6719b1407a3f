"""This CPU's vector registers and instructions.

The tiles of packed weights are laid out for it, and the kernels are built for it. LLVM would translate any choice to
any CPU; this one fits. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, if set, make this CPU stand in for a lesser one.
"""

import contextlib
import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speculative.support.compiling import has_numba

BLOCK = 32  # inputs that share a scale where rows are rounded; rows are filled up to whole blocks
REGISTERS = 2  # of weights side by side in a tile


@dataclass(frozen=True)
class Cpu:
    """The defaults serve where nothing is compiled, and packing alone is left to do."""

    vector: int = 16  # float32s in a register
    # Rows in one pass over a tile. Each has two registers of sums, here 20 of 32; the rest hold weights, x and scales.
    rows: int = 10
    fused: bool = True  # whether a multiply-add is one instruction, rounded once
    features: frozenset[str] = frozenset()  # by LLVM's names

    @property
    def lanes(self) -> int:
        """Output channels in a tile."""
        return REGISTERS * self.vector


class Dot(NamedTuple):
    """The instruction that a format's sums of products are made with, on one CPU."""

    name: str | None  # LLVM's name for it; None where the CPU has none and simpler ones do
    inputs: int  # that it takes at once; they lie side by side in a tile
    unsigned: bool = False  # whether it takes weights as 0 to 255


@functools.cache
def this_cpu() -> Cpu:
    if not has_numba():
        return Cpu()
    import numba
    from llvmlite import binding

    given = numba.config.CPU_FEATURES
    features = (binding.get_host_cpu_features().flatten() if given is None else given).split(",")
    arm = binding.get_process_triple().startswith(("aarch64", "arm64"))
    if arm and sys.platform == "linux" and given is None:  # LLVM does not look for these there; the system knows
        getauxval = ctypes.CDLL(None).getauxval
        AT_HWCAP = 16
        AT_HWCAP2 = 26
        for name, where, bit in (("dotprod", AT_HWCAP, 20), ("bf16", AT_HWCAP2, 14)):
            if getauxval(where) & 1 << bit:
                features.append(f"+{name}")

    features = frozenset(feature[1:] for feature in features if feature.startswith("+"))
    vector = 16 if "avx512f" in features else 8 if "avx" in features else 4
    rows = 10 if vector == 16 or arm else 5  # 32 registers, or 16
    return Cpu(vector, rows, arm or "fma" in features, features)


def cache_bytes(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """The bytes of the largest cache; a usual size where the system does not tell."""
    found = []
    for path in Path(folder).glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            found.append(1024 * int(path.read_text().strip().removesuffix("K")))
    return max(found, default=2**26)
