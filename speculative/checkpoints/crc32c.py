"""CRC32C, the checksum that TensorFlow stores for each tensor."""

import sys
from collections.abc import Callable
from typing import Any

SECONDS_PER_BYTE = 1 / 3.5e6  # in Python: 1558M takes half an hour
PATIENCE = 5.0  # seconds after which a line says why it takes so long

in_c: Callable | None = None  # engine.c's function, which the loader sets if it is needed and there


def crc32c(content: Any) -> int:  # bytes, or uint8 [n]
    if in_c:
        return in_c(content)
    from google_crc32c import value  # imported here, as few runs need it

    return value(content)


def is_slow() -> bool:
    """Return True if the sums are computed in Python, because google-crc32c has no C for this system."""
    import google_crc32c

    return google_crc32c.implementation == "python" and in_c is None


def warn_about(n_bytes: int) -> None:
    """Say how long it takes to check so many bytes, if it takes long."""
    seconds = n_bytes * SECONDS_PER_BYTE
    if is_slow() and seconds > PATIENCE:
        print(
            f"checking the weights takes about {seconds / 60:.0f} min, once: google-crc32c has no C here, and there is "
            "no C compiler; pip install ziglang, or a system's gcc or clang, helps",
            file=sys.stderr,
        )
