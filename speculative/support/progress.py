"""Progress on standard error: a bar on a terminal; elsewhere a line for work that takes longer than 2 seconds."""

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator

from speculative.support.terminal import one_line

# tqdm takes defaults from variables while it is imported, TQDM_ASCII for example. It fails there or in the middle of
# the work if one makes no sense.
hidden = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("TQDM_")}
from tqdm import tqdm  # noqa: E402

os.environ.update(hidden)

SECONDS = 2


@contextlib.contextmanager
def working(what: str, total: float | None, unit: str, quiet: bool = False, **options) -> Iterator[tqdm]:
    """Show a bar that counts units, or a line, while the body of the `with` runs. options: tqdm's."""
    what = one_line(what)  # it may hold the name of a folder
    line = threading.Timer(SECONDS, print, [f"{what} ..."], {"file": sys.stderr, "flush": True})
    line.daemon = True
    file = sys.stderr or io.StringIO()  # a service may have none
    with tqdm(file=file, desc=what, total=total, unit=unit, leave=False, disable=quiet or None, **options) as bar:
        if bar.disable and not quiet and sys.stderr:  # tqdm has found that it is not a terminal
            line.start()
        try:
            yield bar
        finally:
            line.cancel()
