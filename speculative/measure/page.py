"""A run as one page that replays it.

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

from speculative import drafters
from speculative.filters import Filters
from speculative.measure import report
from speculative.rules import parse_rule
from speculative.support.errors import UserError

# What the page says of each rule: its Step 3, its test, and the distribution that it resamples from.
BY_RATIO = {
    "step": "Accept from left to right, while u · p < q",
    "test": "u · p < q",
    "left": "max(0, q − p), normalised: what q has and p lacks",
}
RULE_WORDS = {
    "token": BY_RATIO,
    "lenient": BY_RATIO,
    "block": {
        "step": "Keep the drafts up to the last one that passes: u < h",
        "test": "u < h",
        "left": "max(0, w · q − p), normalised",
    },
    "typical": {
        "step": "Accept from left to right what is typical of q",
        "test": "q > 0",
        "left": "q, cut to what is typical",
    },
}

SCRIPTS = ("elements.js", "run.js", "text.js", "race.js", "glass.js", "why.js", "whatif.js")  # in web/
WEB = Path(__file__).parent / "web"


def page(run: dict) -> str:
    """run: the document of a run, which should hold details -> HTML. Raises UserError where it has several texts."""
    samples = run["autoregressive"]["samples"] + run["speculative"]["samples"]
    if len(samples) != 2:
        raise UserError(f"a page shows one text, and this run has {len(run['speculative']['samples'])}")
    rule = parse_rule(run["options"]["accept"])
    words = {
        "rule": {"lossless": rule.lossless, "words": rule.name} | RULE_WORDS[rule.name.partition(":")[0]],
        "table": report.table(run["figures"], rule),
        "filters": Filters._fields,
        "drafters": {name: report.words(name) for name in drafters.DRAFTERS},
        "has_draft": "draft" in drafters.roles_of(run["options"]["drafter"]),
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
