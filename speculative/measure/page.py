"""A run as one page that replays it: page_data() computes every number and sentence, the scripts in web/ draw them.

The page loads nothing: its own policy forbids that, and any script but these.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

from speculative import drafters
from speculative.decoding import DECODERS
from speculative.filters import Filters
from speculative.measure import report
from speculative.measure.report import digits, duration, many
from speculative.values import as_typed

WEB = Path(__file__).parent / "web"
STYLES = [WEB / "page.css"]
SCRIPTS = [WEB / f"{name}.js" for name in ("elements", "text", "race", "glass", "grid")]
N_FINDINGS = 3  # lines of the summary: whether the texts are equal, the speedup, the acceptance
ORIGINS = {  # of a token -> its explanation
    "accepted": "proposed by the drafter, accepted by the target",
    "resampled": "sampled by the target after it rejected a draft",
    "bonus": "sampled by the target after it accepted all drafts",
    "autoregressive": "sampled by the target without drafts",
}
FACTS = ["draft_model_size", "target_model_size", "drafter", "K", "tree", "accept"]  # options in the header
FACTS += [*Filters._fields, "draft_temperature", "stop", "seed", "engine"]
COMPARISONS = {  # of a draft's test, by the kind of rule
    "token": "u · p = {u} · {p} = {product} {sign}\u00a0{q}\u00a0=\u00a0q",
    "lenient": "B · u · p = {B} · {u} · {p} = {product} {sign}\u00a0{q}\u00a0=\u00a0q",
    "block": "w = {w}; u = {u} {sign}\u00a0{h}\u00a0=\u00a0h",
    "typical": "q = {q}{more}, of the typical tokens",
}
VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})  # white space of a token that is shown alone


def page(run: dict) -> str:
    """Return the page of a run's document, which has one text of each decoder, as HTML."""
    return fill(WEB / "page.html", STYLES, SCRIPTS, page_data(run))


def fill(template: Path, styles: Sequence[Path], scripts: Sequence[Path], data: Any) -> str:
    """Return a template with its style, scripts, data and policy."""
    style, script = ("\n".join(path.read_text("utf-8") for path in paths) for paths in (styles, scripts))
    parts = {"style": style, "script": script, "style hash": sha256(style), "script hash": sha256(script)}
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts["data"] = written.replace("<", r"\u003c")  # so that no text can end its <script> element
    return re.sub(r"\{\{([a-z ]+)\}\}", lambda match: parts[match[1]], template.read_text("utf-8"))


def sha256(text: str) -> str:
    """Return the name by which a Content-Security-Policy allows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- The data --------------------------------------------------------------------------------------------------------


def page_data(run: dict) -> dict:
    """Return all that the page draws, as plain numbers and strings. run: the JSON document of one prompt."""
    o = run["options"]
    f = run["figures"]
    rule = run["rule"]
    kind, lossy = rule["name"].partition(":")[0], "" if rule["lossless"] else f"--accept {rule['name']}"
    decoders = {name: [*placed(run[name])] for name in DECODERS if name in run}
    iterations = decoders["speculative"]
    total = max(one[-1]["end"] for one in decoders.values())
    roles = [*reversed(drafters.roles_of(o["drafter"]) or ["draft"])]  # a line for each, the innermost first
    lines = {"autoregressive": ["target"], "speculative": [*roles, "target"]}
    names = {int(token): text.translate(VISIBLE) for token, text in run["vocabulary"].items()}
    before = accumulate((i["text"] for i in iterations), initial=run["prompt"]["text"])
    return {
        **findings(run),
        "facts": facts(run),
        "options": [[name, as_typed(name, v)] for name, v in (o | run["machine"]).items() if v is not None],
        "prompt": run["prompt"]["text"],
        "legend": legend(iterations),
        "lanes": {name: lane_data(name.capitalize(), one, total, lines[name]) for name, one in decoders.items()},
        "seconds": total,
        "derived": iterations[0]["derived"],
        "greedy": o["temperature"] == 0,
        "rule": {"kind": kind, "lossy": lossy},
        "iterations": [close_up(i, text, rule["name"], names) for i, text in zip(iterations, before, strict=False)],
        "opening": opening(iterations),
        "reasons": [line for line in run["summary"][N_FINDINGS:] if line != run["advice"]],
        "charts": report.charts(f),
        "table": report.table(f, rule["formula"]),
        "advice": run["advice"],
        "drafter": o["drafter"],
        "grid": report.grid(f),
    }


# ---- The result ------------------------------------------------------------------------------------------------------


def findings(run: dict) -> dict:
    """Return the headline, and the summary's lines that say what was measured."""
    f = run["figures"]
    lines = run["summary"][:N_FINDINGS]
    if f["speedup"] is None:
        headline, _, lines[0] = lines[0].partition(". ")
    else:
        headline = f"{f['speedup']:.2f} times as fast" + ", doubtful" * bool(f["doubt"])
        lines = [line.removeprefix("Slower: ").removeprefix(f"{headline}: ") for line in lines]
    return {"headline": headline, "lines": lines}


def facts(run: dict) -> list[list[str]]:
    o = run["options"]
    unused = ["K"] if o["tree"] else []
    unused += [] if "draft" in drafters.roles_of(o["drafter"]) else ["draft_model_size"]
    values = {name: as_typed(name, o[name]) for name in FACTS if o[name] is not None and name not in unused}
    stand_ins = {size: f"{size}, a stand-in: {what}" for size, what in run["stand_ins"].items()}
    rows = [[name.replace("_", " "), stand_ins.get(value, value)] for name, value in values.items()]
    return [*rows, ["machine", f"{run['machine']['processor']}, {many(run['machine']['cpus'], 'core')}"]]


def legend(iterations: list[dict]) -> list[list]:
    """[[origin, drafter or None, explanation], ...] of the origins that occur, then of the drafters if several."""
    tokens = [token for i in iterations for token in i["tokens"]]
    origins = Counter(token["origin"] for token in tokens)
    rows = [[o, None, f"{words}: {many(origins[o], 'token')}"] for o, words in ORIGINS.items() if origins[o]]
    by = Counter(token["by"] for token in tokens if token["by"])
    return rows + [["accepted", b, f"proposed by the {report.words(b)}: {many(n, 'token')}"] for b, n in by.items()]


# ---- The race --------------------------------------------------------------------------------------------------------


def placed(decoder: dict) -> Iterator[dict]:
    """Yield each iteration of a decoder with its number, its place in time [s] and its tokens."""
    [sample] = decoder["samples"]
    several = len({name for i in sample["iterations"] for name in i["source"][: i["accepted"]]}) > 1
    end = 0.0
    for number, i in enumerate(sample["iterations"], start=1):
        by = i["source"][: i["accepted"]] if several else []
        columns = zip_longest(i["pieces"], i["origins"], by)
        tokens = [{"text": text, "origin": origin, "by": name} for text, origin, name in columns]
        begin, end = end, end + i["seconds"]
        yield i | {"number": number, "begin": begin, "end": end, "tokens": tokens}


def lane_data(title: str, iterations: list[dict], total: float, lines: list[str]) -> dict:
    """One decoder's calls, and its tokens with the time at which each is known. lines: the role of each line."""
    tokens = [token | {"time": i["end"], "iteration": i["number"]} for i in iterations for token in i["tokens"]]
    known, stack = -total, 0  # tokens that are known together are drawn on top of each other
    for token in tokens:
        stack = stack + 1 if token["time"] - known < 0.002 * total else 0
        known = token["time"] if stack == 0 else known
        token["stack"] = stack
    return {
        "title": title,
        "label": f"{title}: {many(len(iterations), 'call')} of the target, {duration(iterations[-1]['end'])}",
        "calls": [call for i in iterations for call in calls_of(i, lines)],
        "lines": len(lines),
        "tokens": tokens,
    }


def calls_of(i: dict, lines: list[str]) -> list[dict]:
    """The models' calls in one iteration. A drafter without a model counts as one call."""
    calls = i["calls"]
    if i["drafting"] and len(calls) == 1:
        calls = [["draft", 0.0, i["drafting"]], *calls]
    return [
        {
            "kind": "target" if role == "target" else "draft" if role in lines[:1] else "level",
            "line": lines.index(role) if role in lines else 0,
            "begin": i["begin"] + begin,
            "seconds": seconds,
            "words": f"{report.words(role)} {duration(seconds)}",
            "iteration": i["number"],
        }
        for role, begin, seconds in calls
    ]


# ---- One iteration ---------------------------------------------------------------------------------------------------


def opening(iterations: list[dict]) -> int:
    """Return the number of the iteration to show first: a rejection after an accepted draft teaches most."""
    rejections = [i for i in iterations if i["accepted"] < i["drafted"]]
    return next((i["number"] for i in sorted(rejections, key=lambda i: i["accepted"] == 0)), 1)


def close_up(i: dict, before: str, rule: str, names: dict[int, str]) -> dict:
    """One iteration: its drafts, their tests, and the target's own token; before: the text. Captions: glass.js."""
    shown = {name: i[name] for name in ("accepted", "drafted", "draft_prefill", "prefill")} | {
        "before": ("…" if len(before) > 60 else "") + before[-60:],
        "origin": i["tokens"][-1]["origin"] if len(i["tokens"]) > i["accepted"] else None,
        "drafting": duration(i["drafting"]),
        "scoring": duration(i["scoring"]),
    }
    if i["tree"]:
        return shown | {"tree": branches(i["tree"], names)}
    if not i["details"]:
        return shown
    drafts, tested, own = i["details"].values()
    by = map(report.words, i["source"]) if len({*i["source"]}) > 1 else [""] * len(drafts)
    return shown | {
        "drafts": [[names[draft], name] for draft, name in zip(drafts, by, strict=True)],
        "tested": [{"passed": t["passed"], "formula": comparison(t, rule), **likeliest(t, names)} for t in tested],
        "own": own and {"from": own["from"], "u": digits(own["u"]), **likeliest(own, names)},
    }


def likeliest(drawn: dict, names: dict[int, str]) -> dict:
    """A token, and the likeliest tokens in its place with their probabilities, and the number of the token's row."""
    rows = [[names[token], *chances] for token, *chances in drawn["top"]]
    number = [token for token, *_ in drawn["top"]].index(drawn["token"])
    return {"token": names[drawn["token"]], "rows": rows, "drawn": number}


def branches(tree: dict, names: dict[int, str], node: int = 0) -> list[list]:
    """The children of a node of a tree: [token, whether it was accepted, its children]."""
    return [
        [names[token], n in tree["path"], branches(tree, names, n)]
        for n, (token, parent) in enumerate(zip(tree["tokens"], tree["parents"], strict=True), start=1)
        if parent == node
    ]


def comparison(test: dict, rule: str) -> str:
    """The numbers that a rule compared, in the rule's own letters."""
    kind, _, number = rule.partition(":")
    known = {name: digits(value) for name, value in test.items() if name in ("u", "p", "q", "w", "h")}
    known["product"] = digits(float(number or 1) * test["u"] * test["p"])
    sign, more = ("<", " > 0") if test["passed"] else ("≥", "")
    return COMPARISONS.get(kind, "u = {u}, p = {p}, q = {q}").format(B=number, sign=sign, more=more, **known)
