"""The machine of a run."""

import platform
from pathlib import Path

import numpy as np

from speculative.engines.library import n_cores


def machine(engine: str = "numpy") -> dict:
    """Return the names and versions of the machine; with engine "jax", of its devices too."""
    names = {
        "engine": engine,
        "platform": platform.platform(),
        "processor": processor(),
        "cpus": n_cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if engine == "jax":
        import jax

        devices = jax.devices()
        names |= {"device_platform": devices[0].platform, "device_kind": devices[0].device_kind}
        names |= {"devices": len(devices), "jax": jax.__version__}
    return names


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
