"""Facts about this machine's CPU, from the system."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

ROOT = Path("/")  # the folder of the files in which Linux tells
MOST_THREADS = 256  # the same as in c/threads.c
QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")  # the file of version 2, and the two of version 1


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
    labels = ("model name", "flags", "Features", "CPU part")
    about_first = [line for line in takewhile(bool, lines("proc/cpuinfo")) if line.startswith(labels)]
    names = platform.machine(), platform.processor(), sysctl("machdep.cpu.brand_string")
    return "\n".join(about_first or names)


def groups(controller: str) -> Iterator[Path]:
    """Yield the folder of each control group around this process, from the inside out, that may limit this resource.
    The files in it have other names in version 1 than in version 2, which names no controllers."""
    for line in lines("proc/self/cgroup"):
        _, controllers, name = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = Path("sys/fs/cgroup", controllers, name.lstrip("/"))
            yield from (group, *group.parents)


def n_cores() -> int:
    """The cores that this process may use. If there are fast and slow ones, only the fast: the threads have equal
    shares, and each waits for the slowest. At most OMP_NUM_THREADS, and the quotas of the control groups around this
    process, rounded up."""
    if hasattr(os, "sched_getaffinity"):
        n = n_fast(os.sched_getaffinity(0))
    else:
        n = int(sysctl("hw.perflevel0.physicalcpu") or os.cpu_count() or 1)
    for limit in re.findall("^[1-9][0-9]{0,8}", os.environ.get("OMP_NUM_THREADS", "")):  # 4,2 is for nested loops
        n = min(n, int(limit))
    for folder in groups("cpu"):
        texts = [text for file in QUOTA_FILES for text in lines(folder / file)]
        match = re.fullmatch(r"([1-9]\d*) ([1-9]\d*)", " ".join(texts))  # not -1 or max: no quota
        if match:
            quota, period = map(int, match.groups())
            n = min(n, -(-quota // period))
    return min(n, MOST_THREADS)


def n_fast(cpus: set[int]) -> int:
    """The number of these CPUs if they are of one kind; else that of the fast cores among theirs."""
    capacity: dict[int, int] = {}  # on ARM, up to 1024
    core: dict[int, str] = {}  # hyperthreads share a core
    for cpu in cpus:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        capacity[cpu] = int("".join(lines(f"{folder}/cpu_capacity")) or 0)
        core[cpu] = "".join(lines(f"{folder}/topology/core_cpus_list"))
    performance: set[int] = set()  # Intel's performance cores, which the system lists as "0-7,16"
    for first, last in re.findall(r"(\d+)-?(\d*)", "".join(lines("sys/devices/cpu_core/cpus"))):
        performance |= {*range(int(first), int(last or first) + 1)}
    candidates = cpus & performance or cpus
    enough = 0.75 * max(capacity.values())
    fast = {cpu for cpu in candidates if capacity[cpu] >= enough}
    if fast == cpus:
        return len(cpus)
    return len({core[cpu] for cpu in fast})


def seconds_waited() -> float:
    """Return the seconds for which this process's threads were ready and had no core so far, as another program had it;
    0 on a system that does not count them."""
    nanoseconds = 0
    for thread in (ROOT / "proc/self/task").glob("*/schedstat"):
        for line in lines(thread):
            nanoseconds += int(line.split()[1])
    return nanoseconds / 1e9
