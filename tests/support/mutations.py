"""Mistakes in the C files, which nothing replaces while a program runs: each is an edit of a copy of them, which must
not compile, or must not compute as plain C.

Run it by hand, after a change of the C files: PYTHONPATH=. python tests/support/mutations.py
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from plain_c import amx_is_used, compiler, rows_that_differ

from speculative.engines.c import library


class Mutation(NamedTuple):
    """An edit of a C file, and what sees it: see(sources) of the folder with the edited file."""

    name: str
    see: Callable[[Path], bool]
    file: str
    pattern: str
    replacement: str


def does_not_compile(sources: Path) -> bool:
    words = [*compiler(), "-fsyntax-only", str(sources / "library.c")]
    return subprocess.run(words, capture_output=True).returncode != 0


def differs_from_plain_c(sources: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return rows_that_differ(sources, Path(folder)) > 0


def is_refused(sources: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return not amx_is_used(sources, Path(folder))


MUTATIONS = [
    Mutation("a format is missing", does_not_compile, "arguments.h", r"  F\(INT4, int4.*\n", ""),
    Mutation("a format has no loop", does_not_compile, "products.c", "times_float16", "times_float17"),
    Mutation("a format has no rows", does_not_compile, "rows.c", "prepare_int4", "prepare_int5"),
    Mutation("a format has no weight", does_not_compile, "products.c", r"WEIGHT\(bfloat16\)", "WEIGHT(bfloat17)"),
    Mutation("a format is not packed", does_not_compile, "pack.c", r"PACK\(int8\)", "PACK(int9)"),
    Mutation("a format has two names", does_not_compile, "arguments.h", r"F\(FLOAT16, float16", "F(FLOAT16, float17"),
    Mutation("a row has another's weight", differs_from_plain_c, "products.c", r"(i\]\[0\]\)), w1", r"\1, w0"),
    Mutation("AMX reads another register", is_refused, "amx.c", r"multiply\(3, 5, 7\)", "multiply(3, 5, 6)"),
    Mutation("AMX adds what is no weight", is_refused, "amx.c", r"(memset\(filled_up), 0", r"\1, 255"),
    Mutation("AMX has other rows in pairs", is_refused, "rows.c", r" \|\| has_amx\(\)", ""),
]


def is_seen(mutation: Mutation) -> bool:
    """Edit a copy of the C files, and see whether that is seen."""
    with tempfile.TemporaryDirectory() as folder:
        for source in library.SOURCES:
            shutil.copy(source, folder)
        path = Path(folder, mutation.file)
        text, n = re.subn(mutation.pattern, mutation.replacement, path.read_text(encoding="utf-8"), count=1)
        assert n == 1, f"{mutation.file} was rewritten: write the edit {mutation.name!r} anew"
        path.write_text(text, encoding="utf-8")
        return mutation.see(Path(folder))


def main() -> None:
    sources = library.SOURCES[0].parent
    assert not any(see(sources) for see in (does_not_compile, differs_from_plain_c, is_refused))
    unseen = [mutation.name for mutation in MUTATIONS if not is_seen(mutation)]
    print(f"not seen: {', '.join(unseen)}" if unseen else f"all {len(MUTATIONS)} mutations were seen")
    sys.exit(bool(unseen))


if __name__ == "__main__":
    main()
