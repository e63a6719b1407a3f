"""python -m speculative, and the command speculative-sampling: main.py, also where a wheel was installed."""

import runpy
import sys
from pathlib import Path

from speculative import check_neighbours


def command() -> None:
    """By its path, as a main.py in the current folder would be found by the name."""
    try:
        check_neighbours()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    runpy.run_path(str(Path(__file__).parents[1] / "main.py"), run_name="__main__")


if __name__ == "__main__":
    command()
