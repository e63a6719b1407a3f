"""A run as one page that replays it: python -m speculative.measure.page run.json -o run.html

The page is web/page.html with the style, the scripts and the run's document put in. It loads nothing: its own policy
forbids that, and any script but these.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculative import accept, drafters
from speculative.filters import Filters
from speculative.measure import report
from speculative.measure.document import check_version, read_document
from speculative.support.errors import UserError, guarded
from speculative.support.files import check_outputs, write_text

SCRIPTS = ("elements.js", "run.js", "text.js", "race.js", "glass.js", "why.js", "whatif.js")  # in web/
WEB = Path(__file__).parent / "web"


def page(run: dict) -> str:
    """run: the document of a run, which should hold details -> HTML. Raises UserError where it has several texts."""
    samples = run["autoregressive"]["samples"] + run["speculative"]["samples"]
    if len(samples) != 2:
        raise UserError(f"a page shows one text, and this run has {len(run['speculative']['samples'])}")
    rule = accept.choose(**run["options"])
    words = {
        "rule": {name: getattr(rule, name) for name in ("lossless", "words", "step", "test", "left")},
        "table": report.table(run["figures"], rule),
        "filters": Filters._fields,
        "drafters": {name: report.words(name) for name in drafters.KINDS},
        "has_draft": drafters.needs(run["options"]["drafter"], "draft"),
    }
    return fill("page.html", ("page.css",), SCRIPTS, run | {"report": words})


def fill(template: str, styles: Sequence[str], scripts: Sequence[str], data: Any, folder: Path = WEB) -> str:
    """A page of these files, with its policy, and with data for its scripts. What is not in folder is in web/."""

    def read(name):
        path = folder / name
        if not path.exists():
            path = WEB / name
        return path.read_text("utf-8")

    style = "\n".join(map(read, styles))
    script = "\n".join(map(read, scripts))
    parts = {"style": style, "script": script, "style hash": sha256(style), "script hash": sha256(script)}
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts["data"] = written.replace("<", r"\u003c")  # so that no text can end the element that it stands in
    return re.sub(r"\{\{([a-z ]+)\}\}", lambda match: parts[match[1]], read(template))


def sha256(text: str) -> str:
    """The names by which a Content-Security-Policy allows something."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def main(words: Sequence[str] | None = None) -> None:
    from speculative.support.arguments import Parser

    parser = Parser("A run as one page.", prog="python -m speculative.measure.page")
    parser.add_argument("run", help="what main.py --json FILE --details wrote")
    parser.add_argument("-o", "--output", required=True, help="the page, an HTML file")
    arguments = parser.parse_args(words)
    check_outputs([arguments.output], [arguments.run])
    write_text(arguments.output, read_page(arguments.run))


def read_page(path: str) -> str:
    """The page of a file that --json wrote. Raises UserError."""
    try:
        with open(path, "rb") as f:
            run = json.load(f)
        check_version(run, path)
        return page(read_document(run))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        raise UserError(f"{path} is not a run: it should be what main.py --json writes") from None


if __name__ == "__main__":
    guarded(main)
