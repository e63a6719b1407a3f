"""What the system tells about this machine's CPU."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

ROOT = Path("/")  # of the files in which Linux tells
MOST_THREADS = 256  # as in engine.c


def lines(path: str | Path) -> list[str]:
    """The lines of a file of Linux; none if it does not exist."""
    try:
        return (ROOT / path).read_text().splitlines()
    except OSError:
        return []


def sysctl(name: str) -> str:
    """A value of macOS; "" if it has none of this name, and on other systems."""
    if sys.platform != "darwin":
        return ""
    return subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True).stdout.strip()


def first_cache() -> int:
    """The bytes of a core's first data cache; 32 KB if the system does not tell."""
    kilobytes = "".join(lines("sys/devices/system/cpu/cpu0/cache/index0/size")).rstrip("K")
    return int(sysctl("hw.l1dcachesize") or 1024 * int(kilobytes or 32))


def cpu() -> str:
    """This CPU's name and instructions, as far as the system tells."""
    known = ("model name", "flags", "Features", "CPU part")
    found = [line for line in takewhile(bool, lines("proc/cpuinfo")) if line.startswith(known)]
    names = platform.machine(), platform.processor(), sysctl("machdep.cpu.brand_string")
    return "\n".join(found or names)


def n_cores() -> int:
    """The cores that this process may use. If there are fast and slow ones, only the fast: the threads have equal
    shares, and each waits for the slowest. At most OMP_NUM_THREADS, and a container's quota rounded up."""
    if hasattr(os, "sched_getaffinity"):
        n = len(fast_cpus(os.sched_getaffinity(0)))
    else:
        n = int(sysctl("hw.perflevel0.physicalcpu") or os.cpu_count() or 1)
    asked = re.match("[1-9][0-9]{0,8}", os.environ.get("OMP_NUM_THREADS", ""))  # 4,2 is for nested loops
    return min(n, MOST_THREADS, int(asked[0]) if asked else n, *quotas())


def groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group around this process, from the inside out, that limits this resource; and
    whether it is of version 1."""
    for line in lines("proc/self/cgroup"):
        _, controllers, name = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = Path("sys/fs/cgroup", controllers, name.lstrip("/"))
            yield from ((folder, bool(controllers)) for folder in (group, *group.parents))


def quotas() -> list[int]:
    """The CPUs that each control group around this process may use at a time, rounded up."""
    found = []
    for folder, is_first in groups("cpu"):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        words = " ".join(word for file in files for word in lines(folder / file)).split()
        if len(words) == 2 and min(words) > "0" and "".join(words).isdigit():  # not -1 or max: no quota
            found.append(-(-int(words[0]) // int(words[1])))
    return found


def fast_cpus(cpus: set[int]) -> set:
    """These CPUs if they are of one kind; else the lists of CPUs of each fast core."""
    folder = "sys/devices/system/cpu/cpu"
    ranges = [part.split("-") for line in lines("sys/devices/cpu_core/cpus") for part in line.split(",")]
    intel = {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}  # performance cores
    capacity = {cpu: int("".join(lines(f"{folder}{cpu}/cpu_capacity")) or 0) for cpu in cpus}  # of ARM: up to 1024
    fast = {cpu for cpu in (cpus & intel or cpus) if capacity[cpu] >= 0.75 * max(capacity.values())}
    if fast == cpus:
        return cpus
    return {"".join(lines(f"{folder}{cpu}/topology/core_cpus_list")) for cpu in fast}  # hyperthreads share a core


def seconds_waited() -> float:
    """Return the seconds for which this process's threads were ready and had no core so far, as another program had it;
    0 on a system that does not count them."""
    threads = (ROOT / "proc/self/task").glob("*/schedstat")
    return sum(int(line.split()[1]) for path in threads for line in lines(path)) / 1e9  # of nanoseconds
