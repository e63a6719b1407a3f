"""What `ulimit` has to leave a command, so that the libraries it loads can start."""

import contextlib

MEGABYTE = 2**20

# What a run of the smallest models needs, on two cores. With less, one of the libraries ends the process with a stack
# trace, or tries again for ever and hears no signal.
LEAST = {"RLIMIT_AS": ("-v", "addresses", 600 * MEGABYTE), "RLIMIT_DATA": ("-d", "data", 400 * MEGABYTE)}


def too_low() -> str | None:
    """What is too low, and how high it has to be; None where all limits leave enough, or the system knows of none."""
    with contextlib.suppress(ImportError):  # Windows
        import resource

        for name, (flag, what, least) in LEAST.items():
            limit = resource.getrlimit(getattr(resource, name))[0]
            if limit != resource.RLIM_INFINITY and limit < least:
                given = f"`ulimit {flag}` gives {limit / 1e9:.2f} GB of {what}"
                return f"{given}, and NumPy and numba take {least / 1e9:.2f} GB to start with: set it higher"
    return None
