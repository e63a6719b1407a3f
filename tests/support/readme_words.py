"""Parts of README and of the pages: their programs and their sentences."""

import re

from tiny import ROOT

from benchmarks.tables import without_numbers


def fences(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def sentences(text: str) -> set[str]:
    return {*re.split(r"(?<=[.:;]) ", without_numbers(text))}


def words_of_today() -> str:
    """All golden screens: test_screens.py compares them with the product's."""
    return without_numbers("\n".join(path.read_text("utf-8") for path in (ROOT / "tests" / "cli" / "golden").iterdir()))
