"""engine.c as a library: compiled at its first use, in a second or two, and kept for this user.

The file's name holds a hash of the source, the flags and the CPU, and it takes its place in one stroke: so two first
starts at once, or one that is killed, leave a file that is whole or none.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from ctypes import c_char_p, c_int64, c_void_p
from pathlib import Path

SOURCES = [Path(__file__).with_name(name) for name in ("pack.c", "engine.c")]  # the first includes the second


def first_cache() -> int:
    """The bytes of a core's first data cache; 32 KB if the system does not tell."""
    try:
        return 1024 * int(Path("/sys/devices/system/cpu/cpu0/cache/index0/size").read_text().rstrip("K\n"))
    except (OSError, ValueError):
        return 2**15


# Contracted as the source says and nowhere else: else a last bit could depend on which copy of a loop computes it.
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
FLAGS += ["-shared", "-fPIC", f"-DFIRST_CACHE={first_cache()}"]


def cache_home() -> Path:
    """The folder for files that this user's programs can make again. A relative one does not count, says the XDG Base
    Directory Specification: it would be another one in each folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "speculative-sampling"


def cpu() -> str:
    """This CPU's name and instructions, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part")))


def native() -> str:
    """The flag that lets a compiler use all instructions of this CPU."""
    return "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"


def compilers() -> list[list[str]]:
    """The commands to try: the one in CC, or cc; then the clang of the package ziglang."""
    return [shlex.split(os.environ.get("CC") or "cc"), [sys.executable, "-m", "ziglang", "cc"]]


def compile_with(compiler: list[str], flags: list[str], path: str) -> bool:
    """Compile engine.c into a library; False if this compiler cannot."""
    try:
        command = [*compiler, *FLAGS, *flags, str(SOURCES[0]), "-o", path, "-lm"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:  # there is no such command
        return False


def build(folder: Path) -> Path | None:
    """The library in this folder, compiled now if it is missing; None if nothing compiles it."""
    depends_on = repr([*FLAGS, native(), *compilers(), cpu(), *(source.read_bytes() for source in SOURCES)])
    path = folder / f"engine-{hashlib.sha256(depends_on.encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as making:
        part = os.path.join(making, path.name)
        print("compiling the forward pass, once on this machine ...", file=sys.stderr, flush=True)
        if not any(compile_with(compiler, [native()], part) for compiler in compilers()):
            return None
        os.replace(part, path)
    return path


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled forward pass; None if there is no compiler: gpt2.py itself then computes."""
    try:
        path = build(cache_home())
    except (OSError, RuntimeError):  # the folder cannot be written to, or there is no home
        library.folder = tempfile.TemporaryDirectory()  # until this process ends
        path = build(Path(library.folder.name))
    if not path:
        print(
            "there is no C compiler, so gpt2.py itself computes: K+1 rows cost several times as much as one, and "
            "greedy texts may differ by rounding. pip install ziglang, or a system's gcc or clang, helps",
            file=sys.stderr,
        )
        return None
    found = ctypes.CDLL(str(path))
    for name in ("lanes", "rows_of_a_group", "tile_bytes", "gpt2"):
        getattr(found, name).restype = c_int64
    found.tile_bytes.argtypes = [c_int64, c_int64]
    found.pack.argtypes = [c_int64, c_void_p, *[c_int64] * 6, c_void_p]
    found.gpt2.argtypes = [c_void_p, c_int64]
    found.worker.argtypes = [c_int64]
    found.instructions.restype = c_char_p
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.all_asleep)
    return found


def lanes() -> int:
    """Output channels in a tile of a packed weight."""
    return library().lanes()


def n_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
