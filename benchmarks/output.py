"""Write the lists of keys in docs/output.md anew: each is the fields of a class, with their comments.

A list follows a line such as <!-- Counts -->. In the JSON the keys are named as the fields.
"""

import inspect
import re
from pathlib import Path

from benchmarks.tables import parser_of
from speculative.report import record
from speculative.report.document import NOT_WRITTEN
from speculative.support.files import write_text

PAGE = Path(__file__).parents[1] / "docs" / "output.md"
LIST = re.compile(r"(<!-- (\w+) -->\n\n)(?:- .*\n)*\n*")
FIELD = re.compile(r"    (\w+): .*?(?:  # (.*))?")
COMMENT = re.compile(r"    # (.*)")


def comments_of(kind: type) -> dict[str, str]:
    """Return {field: its comment} of a class and of those that it extends. A comment stands behind its field or above
    it."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        above: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if match := FIELD.fullmatch(line):
                comments[match[1]] = " ".join(filter(None, [*above, match[2]]))
            comment = COMMENT.fullmatch(line)
            above = [*above, comment[1]] if comment else []
    return comments


def list_of(kind: type) -> str:
    """Return the fields of a class as a list. A field without a comment is a part that has its own list, or none."""
    lines = []
    for name, comment in comments_of(kind).items():
        if comment and name not in NOT_WRITTEN:
            lines.append(f"- `{name}`: {comment}\n")
    return "".join(lines) + "\n"


def with_lists(page: str) -> str:
    """Return the page with the lists of today."""
    return LIST.sub(lambda match: match[1] + list_of(getattr(record, match[2])), page)


def main(argv: list[str]) -> None:
    parser_of("output", __doc__).parse_args(argv)
    write_text(str(PAGE), with_lists(PAGE.read_text("utf-8")))
