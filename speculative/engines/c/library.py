"""The C engine as a library: compiled at its first use, in a second or two, and kept for this user.

The file's name holds a hash of the source, the flags and the CPU. Two first starts at once, or one that is killed,
leave a whole file or none. arguments.h and threads.c declare the structs and tables, and Python reads the declarations:
so it fills the fields that C reads.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from ctypes import c_char_p, c_int64, c_ssize_t, c_uint32, c_void_p
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from speculative.checkpoints import openai
from speculative.engines.system import cpu, first_cache
from speculative.support.errors import first_line
from speculative.support.files import cache_home, replacing, size_of

# library.c includes all the others.
FILES = ["library.c", "cpu.h", "arguments.h", "rows.c", "products.c", "threads.c", "engine.c", "pack.c", "crc32c.c"]
FILES += ["amx.c"]
SOURCES = [Path(__file__).with_name(name) for name in FILES]
# Contracted as the source says and nowhere else: else a last bit could depend on which copy of a loop computes it.
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
FLAGS += ["-Werror=implicit-function-declaration", "-shared", "-fPIC", f"-DFIRST_CACHE={first_cache()}"]
CPU = cpu()
if "Intel" in CPU:  # there vdpbf16ps multiplies at half the rate of FMAs
    FLAGS.append("-DSLOW_DOT2")

# The flag that lets a compiler use all instructions of this CPU.
NATIVE = "-mcpu=native" if platform.machine().lower() in ("aarch64", "arm64") else "-march=native"


def compilers() -> list[list[str]]:
    """The commands to try: the one in CC, or cc; and the clang of the package ziglang. On Windows that is first, as gcc
    stores AVX registers there where they may not be."""
    zig = [sys.executable, "-m", "ziglang", "cc"]
    if os.environ.get("CC"):
        words = shlex.split(os.environ["CC"], posix=os.name == "posix")  # on Windows paths have backslashes
        return [[word.strip('"') for word in words], zig]
    if sys.platform == "darwin" and shutil.which("cc") == "/usr/bin/cc":
        if subprocess.run(["xcode-select", "-p"], capture_output=True).returncode:  # cc would open a window
            return [zig]
    return [zig, ["cc"]] if os.name == "nt" else [["cc"], zig]


def compile_with(compiler: list[str], flags: list[str], path: str) -> str:
    """Compile library.c, which includes all the others. Return "", or why this compiler cannot."""
    command = [*compiler, *FLAGS, *flags, str(SOURCES[0]), "-o", path, "-lm"]
    # zig first compiles a C library, on Windows in a minute or more, which it keeps.
    environment = os.environ | {"LC_ALL": "C", "ZIG_GLOBAL_CACHE_DIR": str(Path(path).parents[1] / "zig")}
    environment.pop("CC", None)  # zig asks it for the system's headers, and stops if CC is broken
    try:
        done = subprocess.run(command, env=environment, input="", capture_output=True, errors="replace")
    except OSError as error:  # there is no such command
        return first_line(error)
    if done.returncode == 0:
        return ""
    said = done.stderr.splitlines() or [f"{compiler[0]} ends with status {done.returncode}"]
    return next((line for line in said if "error" in line or "failed" in line), said[-1])


def build(folder: Path, announcement: str = "") -> Path:
    """The library in this folder, compiled now if it is missing. Raises OSError, RuntimeError."""
    tries = [*product(([NATIVE], []), compilers())]
    made_of = repr([*FLAGS, *tries, CPU, *map(Path.read_bytes, SOURCES)])
    path = folder / f"engine-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    if size_of(str(path)):  # a computer that loses power may leave an empty file
        return path
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    print(announcement, end="\n" if announcement else "", file=sys.stderr, flush=True)
    with replacing(path) as part:
        for flags, compiler in tries:
            failures.append(compile_with(compiler, flags, part))
            if not failures[-1]:
                return path
        raise RuntimeError("; ".join(dict.fromkeys(failures)))


class Library(ctypes.CDLL):
    """The C engine, compiled: its functions with their types, its structs and its tables by its own declarations."""

    def __init__(self, path: Path):
        """Raises OSError."""
        super().__init__(str(path))
        for name in ("lanes", "rows_of_a_group", "floats_of_sums", "tile_bytes", "run_pass"):
            getattr(self, name).restype = c_int64  # not self[name], which is a new function each time
        self.rows_of_a_group.argtypes = [c_int64]
        self.tile_bytes.argtypes = [c_int64, c_int64]
        self.pack.argtypes = [c_int64, c_void_p, *[c_int64] * 4, c_void_p]
        self.run_pass.argtypes = [c_void_p, c_int64]
        self.join_passes.argtypes = [c_int64]
        self.crc32c.argtypes = [c_void_p, c_int64]
        self.crc32c.restype = c_uint32
        self.instructions.restype = c_char_p
        self.numbers: dict[str, dict[str, int]] = {}  # {name of a table: {name: number}}
        for table in ("format", "activation", "result"):
            function = self[f"{table}_names"]
            function.restype = c_char_p
            names = function().decode().split()
            self.numbers[table] = {name: number for number, name in enumerate(names)}
        self.structs: dict[str, Any] = {}
        for name in ("Linear", "Norm", "Attn", "Mlp", "Block", "Scratch", "Text", "GPT2"):
            function = self[f"layout_of_{name}"]
            function.restype = c_char_p
            fields = fields_of(function().decode(), self.structs)
            self.structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.all_asleep)


def fields_of(declarations: str, structs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The fields of a struct, in order, with their types: "const float *b; number n_in, n_out;". They are numbers and
    addresses, which are words of the same size, or structs of such words. structs: those that are declared before."""
    fields = []
    for declaration in declarations.split(";")[:-1]:
        type_name, _, names = declaration.strip().removeprefix("const ").partition(" ")
        for field in names.split(", "):
            if not field.startswith("*"):
                kind = c_ssize_t if type_name == "number" else structs[type_name]
            else:
                kind = ctypes.POINTER(structs[type_name]) if type_name in structs else c_ssize_t
            fields.append((field.lstrip("*"), kind))
    return fields


@functools.cache
def library() -> Library:
    """The compiled forward pass: kept in the cache, or in a temporary folder if that cannot be, which a line says.
    Raises OSError, RuntimeError or ValueError if it cannot be compiled or loaded there either."""
    try:
        return Library(build(cache_home(), "compiling the forward pass, once on this machine ..."))
    except (OSError, RuntimeError, ValueError) as error:  # no home folder, or an unbalanced quote in CC
        reason = str(error)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a file that is loaded
        compiled = Library(build(Path(folder)))
    print(f"the compiled forward pass cannot be kept, so each run compiles it: {reason}", file=sys.stderr)
    return compiled


@functools.cache
def compiles() -> bool:
    """Return False if there is no library, so that gpt2.py itself computes. A line says so."""
    try:
        library()
    except (OSError, RuntimeError, ValueError) as error:
        print(
            f"engine.c cannot be compiled or loaded ({error}), so gpt2.py itself computes: K+1 rows cost several times "
            "as much as one, and greedy texts may differ by rounding. Install a compiler (pip install ziglang, "
            "gcc or clang); until then OPENBLAS_NUM_THREADS=1 is faster for small models",
            file=sys.stderr,
        )
        return False
    return True


def c_crc32c(content: bytes | np.ndarray) -> int:  # uint8 [n]
    """The CRC32C of these bytes, by the C engine."""
    array = np.frombuffer(content, np.uint8)
    return library().crc32c(array.ctypes.data, array.size)


def use_c_crc32c() -> None:
    """Let checkpoints compute their checksums in C, if the library google-crc32c has no C for this system."""
    if openai.is_slow() and compiles():
        openai.in_c = c_crc32c
