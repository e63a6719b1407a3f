"""A run as one page that replays it: page_data() computes every number and sentence, the scripts in web/ draw them.

The page loads nothing: its own policy forbids that, and any script but these.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from speculative import drafters
from speculative.filters import Filters
from speculative.measure import report
from speculative.measure.document import DECODERS
from speculative.measure.summary import percent
from speculative.options import as_typed
from speculative.rules import Rule, parse_rule
from speculative.support.errors import UserError
from speculative.support.terminal import without_secrets

WEB = Path(__file__).parent / "web"
SCRIPTS = ("elements.js", "text.js", "race.js", "glass.js", "charts.js", "whatif.js")  # in web/
N_FINDINGS = 3  # lines of the summary: whether the texts are equal, the speedup, the acceptance
ORIGINS = {  # of a token -> its explanation
    "accepted": "proposed by the drafter, accepted by the target",
    "resampled": "sampled by the target after it rejected a draft",
    "bonus": "sampled by the target after it accepted all drafts",
    "autoregressive": "sampled by the target without drafts",
}
FACTS = {  # options in the header -> their names
    "draft_model_size": "draft",
    "target_model_size": "target",
    "drafter": "drafter",
    "K": "lookahead K",
    **{name: name.replace("_", "-") for name in Filters._fields},
    "draft_temperature": "draft temperature",
    "stop": "stop text",
    "seed": "seed",
    "engine": "engine",
}
BY_RATIO = {"step": "Accept from left to right, if u < q / p", "left": "max(0, q − p), normalised"}
RULES = {  # what the page says of Step 3, and of the distribution that is resampled from
    "token": BY_RATIO,
    "lenient": BY_RATIO | {"step": "Accept from left to right, if B · u < q / p"},
    "block": {"step": "Keep the drafts up to the last one that passes: u < h", "left": "max(0, w · q − p), normalised"},
    "typical": {"step": "Accept from left to right what is typical of q", "left": "q, cut to what is typical"},
}
OTHER = {"step": "Accept or reject the drafts", "left": "what the rule leaves of q"}  # for a rule that was added


def kind_of(rule: Rule) -> str:
    return rule.name.partition(":")[0]


def page(run: dict) -> str:
    """Return the page of a run's document, as HTML. Raises UserError if a decoder has not one text."""
    n_texts = [len(run[name]["samples"]) for name in DECODERS]
    if n_texts != [1, 1]:
        raise UserError(f"a page shows one text of each decoder, and this run has {n_texts[0]} and {n_texts[1]}")
    return fill("page.html", ("page.css",), SCRIPTS, page_data(run))


def fill(template: str, styles: Sequence[str], scripts: Sequence[str], data: Any, folder: Path = WEB) -> str:
    """Return a template with its style, scripts, data and policy. A file that folder lacks is read from web/."""

    def read(name):
        path = folder / name
        return (path if path.exists() else WEB / name).read_text("utf-8")

    style = "\n".join(map(read, styles))
    script = "\n".join(map(read, scripts))
    parts = {"style": style, "script": script, "style hash": sha256(style), "script hash": sha256(script)}
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts["data"] = written.replace("<", r"\u003c")  # so that no text can end its <script> element
    return re.sub(r"\{\{([a-z ]+)\}\}", lambda match: parts[match[1]], read(template))


def sha256(text: str) -> str:
    """Return the name by which a Content-Security-Policy allows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- The data --------------------------------------------------------------------------------------------------------


def page_data(run: dict) -> dict:
    """Return all that the page draws, as plain numbers and strings.

    run: the JSON document of one prompt. Its keys that are read: options, machine, stand_ins, prompt, summary, figures,
    vocabulary; of both decoders seconds and samples[0], of that pieces, origins, tokens and iterations.
    """
    o = run["options"]
    f = run["figures"]
    rule = parse_rule(o["accept"])
    lanes = {name: [*placed(run[name])] for name in DECODERS}
    mine = lanes["speculative"]
    total = max((i["end"] for lane in lanes.values() for i in lane), default=0.0)
    return {
        **findings(run),
        "facts": facts(run),
        "options": [
            [name, without_secrets(as_typed(name, v))] for name, v in (o | run["machine"]).items() if v is not None
        ],
        "prompt": run["prompt"]["text"],
        "legend": legend(mine),
        "lanes": {name: lane_data(name, lane, total) for name, lane in lanes.items()},
        "seconds": total,
        "greedy": o["temperature"] == 0,
        "rule": RULES.get(kind_of(rule), OTHER) | {"lossy": "" if rule.lossless else f"--accept {rule.name}"},
        "iterations": [close_up(i, run, rule) for i in mine],
        "opening": opening(mine),
        "reasons": run["summary"][N_FINDINGS:],
        "charts": charts(f),
        "table": report.table(f, rule),
        "what_if": what_if(f),
    }


# ---- The result ------------------------------------------------------------------------------------------------------


def findings(run: dict) -> dict:
    """Return the headline, "" if one decoder alone has run; and the summary's lines that say what was measured."""
    f = run["figures"]
    headline = f"{f['speedup']:.2f} times as fast" + (", doubtful" if f["doubt"] else "") if f["speedup"] else ""
    lines = [line.removeprefix(f"{headline}: ") for line in run["summary"][:N_FINDINGS]]
    return {"headline": headline, "lines": lines, "doubtful": bool(f["doubt"])}


def facts(run: dict) -> list[list[str]]:
    o = run["options"]
    names = [name for name in FACTS if o[name] is not None]
    if "draft" not in drafters.roles_of(o["drafter"]):
        names.remove("draft_model_size")
    stand_ins = {size: f"{size}, a stand-in: {what}" for size, what in run["stand_ins"].items()}
    rows = [[FACTS[name], stand_ins.get(str(o[name])) or shown(name, o[name])] for name in names]
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
    mean = decoder["seconds"] / max(1, len(sample["iterations"]))  # used if the device does not time each call
    several = len({name for i in sample["iterations"] for name in i["source"][: i["accepted"]]}) > 1
    begin, first = 0.0, 0
    for number, i in enumerate(sample["iterations"], start=1):
        end = begin + (mean if i["seconds"] is None else i["seconds"])
        last = first + i["tokens"]
        by = [*(i["source"][: i["accepted"]] if several else []), *[None] * i["tokens"]]
        columns = zip(sample["pieces"][first:last], sample["origins"][first:last], by, strict=False)
        tokens = [{"text": text, "origin": origin, "by": name} for text, origin, name in columns]
        yield i | {"number": number, "first": first, "begin": begin, "end": end, "tokens": tokens}
        begin, first = end, last


def lane_data(name: str, iterations: list[dict], total: float) -> dict:
    """One decoder's calls, and its tokens with the time at which each is known."""
    speculative = name == "speculative"
    target_line = max([len(i["levels"]) for i in iterations], default=0) + 1 if speculative else 0
    seconds = iterations[-1]["end"] if iterations else 0.0
    calls = [call | {"iteration": i["number"]} for i in iterations for call in calls_of(i, target_line)]
    tokens = [token | {"time": i["end"], "iteration": i["number"]} for i in iterations for token in i["tokens"]]
    known, stack = -total, 0  # tokens that are known together are drawn on top of each other
    for token in tokens:
        stack = stack + 1 if token["time"] - known < 0.002 * total else 0
        known = token["time"] if stack == 0 else known
        token["stack"] = stack
    return {
        "title": name.capitalize(),
        "label": f"{name.capitalize()}: {many(len(iterations), 'call')} of the target, {duration(seconds)}",
        "calls": calls,
        "lines": target_line + 1,
        "tokens": tokens,
    }


def calls_of(i: dict, target_line: int) -> list[dict]:
    """The calls of one iteration: the drafter's on line 0, levels below it, the target's on its line."""
    if not i["drafting"] and not i["scoring"]:
        return [call("device", 0, i["begin"], i["end"] - i["begin"])]
    calls = []
    if i["drafting"] and i["levels"]:
        calls = level_calls(i["levels"], i["begin"], i["drafted"])
    elif i["drafting"]:
        calls = [call("draft", 0, i["begin"], i["drafting"])]
    if i["scoring"]:
        calls.append(call("target", target_line, i["begin"] + i["drafting"], i["scoring"]))
    return calls


def level_calls(levels: list[dict], begin: float, drafted: int) -> list[dict]:
    """The calls within one proposal of a multi-level drafter: before each call of a level's model, the level inside it
    drafts."""
    waiting = [iter(level["iterations"]) for level in levels]
    calls = []

    def propose(depth, time, wanted):
        n_tokens = 0
        while n_tokens < wanted and (one := next(waiting[depth], None)):
            if depth + 1 < len(levels) and one["drafted"]:
                propose(depth + 1, time, one["drafted"])
            elif one["drafting"]:
                calls.append(call("draft", 0, time, one["drafting"]))
            time += one["drafting"]
            calls.append(call("level", len(levels) - depth, time, one["scoring"], levels[depth]["name"]))
            time += one["scoring"]
            n_tokens += one["tokens"]

    propose(0, begin, drafted)
    return calls


def call(kind: str, line: int, begin: float, seconds: float, name: str = "") -> dict:
    words = f"{report.words(name) if name else kind} {duration(seconds)}"
    return {"kind": kind, "line": line, "begin": begin, "seconds": seconds, "words": words}


# ---- One iteration ---------------------------------------------------------------------------------------------------


def opening(iterations: list[dict]) -> int:
    """Return the number of the iteration to show first: a rejection after an accepted draft teaches most."""
    for teaches in (lambda i: 0 < i["accepted"] < i["drafted"], lambda i: i["accepted"] < i["drafted"]):
        for i in iterations:
            if teaches(i):
                return i["number"]
    return 1


def close_up(i: dict, run: dict, rule: Rule) -> dict:
    """One iteration: its drafts, their tests, and the target's own token. Captions are in glass.js."""
    vocabulary = run.get("vocabulary", {})
    before = run["prompt"]["text"] + "".join(run["speculative"]["samples"][0]["pieces"][: i["first"]])
    whole = len(i["tokens"]) > i["accepted"]
    shown = {name: i[name] for name in ("accepted", "drafted", "draft_prefill", "prefill")} | {
        "before": ("…" if len(before) > 60 else "") + before[-60:],
        "origin": i["tokens"][-1]["origin"] if whole else None,
        "drafting": duration(i["drafting"]),
        "scoring": duration(i["scoring"]),
    }
    if i["tree"]:
        return shown | {"tree": branches(i["tree"], vocabulary)}
    if not i.get("details"):
        return shown
    drafts, tested, own = (i["details"][name] for name in ("drafts", "tested", "own"))
    several = len({*i["source"]}) > 1
    by = [report.words(name) for name in i["source"]] if several else [""] * len(drafts)
    if own:
        token = run["speculative"]["samples"][0]["tokens"][i["first"] + i["accepted"]]
        own = {"from": own["from"], "u": digits(own["u"]), **top_rows(own["top"], token, vocabulary)}
    return shown | {
        "drafts": [[visible(vocabulary, draft), name] for draft, name in zip(drafts, by, strict=True)],
        "tested": [
            {"passed": t["passed"], "formula": comparison(t, rule), **top_rows(t["top"], draft, vocabulary)}
            for t, draft in zip(tested, drafts, strict=False)
        ],
        "own": own,
    }


def top_rows(top: dict, token: int, vocabulary: dict[str, str]) -> dict:
    """A token, and the likeliest tokens in its place with their probabilities, and the number of the token's row."""
    tokens, *columns = top.values()
    rows = zip([visible(vocabulary, id) for id in tokens], *columns, strict=True)
    return {"token": visible(vocabulary, token), "rows": [*map(list, rows)], "drawn": tokens.index(token)}


def branches(tree: dict, vocabulary: dict[str, str], node: int = 0) -> list[list]:
    """The children of a node of a tree: [token, whether it was accepted, its children]."""
    return [
        [visible(vocabulary, tree["tokens"][n - 1]), n in tree["path"], branches(tree, vocabulary, n)]
        for n, parent in enumerate(tree["parents"], start=1)
        if parent == node
    ]


def comparison(test: dict, rule: Rule) -> str:
    """The numbers that the rule compared, in the rule's own letters."""
    u, p, q = (test[name] for name in "upq")
    less = "<" if test["passed"] else "≥"
    kind = kind_of(rule)
    than_q = f"{less}\u00a0{digits(q)}\u00a0=\u00a0q"
    if kind == "token":
        return f"u · p = {digits(u)} · {digits(p)} = {digits(u * p)} {than_q}"
    if kind == "lenient":
        b = float(rule.name.partition(":")[2])
        return f"B · u · p = {b:g} · {digits(u)} · {digits(p)} = {digits(b * u * p)} {than_q}"
    if kind == "block":
        return f"w = {digits(test['w'])}; u = {digits(u)} {less}\u00a0{digits(test['h'])}\u00a0=\u00a0h"
    if kind == "typical":
        return f"q = {digits(q)} {'>' if test['passed'] else '='} 0, of the typical tokens"
    return f"u = {digits(u)}, p = {digits(p)}, q = {digits(q)}"


# ---- The figures -----------------------------------------------------------------------------------------------------


def charts(f: dict) -> list[dict]:
    """Three tables with bars: acceptance by position, tokens per call, speedups."""
    by_position = zip(f["accepted_by_position"], f["tested_by_position"], strict=True)
    positions = [
        ([str(j), f"{a} of {n}", percent(a / n)], a / n, "accepted") for j, (a, n) in enumerate(by_position, start=1)
    ]
    counts = [
        ([tokens, str(n), percent(n / f["iterations"])], n, "q")
        for tokens, n in f["tokens_per_iteration_histogram"].items()
    ]
    speedups = {
        "measured": f["speedup_without_prefill"],
        "r(K + 1) / (Kc + β), of this run": f["account_blog"],
        "Leviathan's formula, of this run": f["account_leviathan"],
        **{f"predicted for K = {K}": speedup for K, speedup in (f["predicted"] or {}).items()},
    }
    rows = [([name, f"{x:.2f}x"], x, "q" if name == "measured" else "p") for name, x in speedups.items() if x]
    return [
        chart("Accepted, by position in the window", ["position", "accepted", "share"], positions),
        chart("Tokens for each call of the target", ["tokens", "calls", "share"], counts),
        chart("Speedup, without reading the prompt", ["", "speedup"], rows),
    ]


def chart(caption: str, columns: list[str], rows: list[tuple]) -> dict:
    """rows: (cells, value, kind); a bar is as long as its value, the longest 1."""
    longest = max((value for _, value, _ in rows), default=0) or 1
    return {"caption": caption, "columns": columns, "rows": [[cells, v / longest, kind] for cells, v, kind in rows]}


def what_if(f: dict) -> dict:
    """This run's K, α, c and β, examples for those that it could not measure, and its point on the curves."""
    beta = f["mean_beta"] if any(rows != "1" for rows in f["beta"] or ()) else None
    measured = {"alpha": (f["alpha"], 0.8), "c": (f["c"], 0.1), "beta": (beta and max(1.0, beta), 1.0)}
    run = {name: example if value is None else value for name, (value, example) in measured.items()}
    return {
        "run": {"K": max(1, f["usual_K"] or 4), **run},
        "examples": [name for name, (value, _) in measured.items() if value is None],
        "measured": [f["drafted"] / max(1, f["iterations"]), f["tokens_per_iteration"], f["speedup_without_prefill"]],
    }


# ---- Words and numbers -----------------------------------------------------------------------------------------------


def many(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{2 if seconds < 0.01 else 1}f} ms"


def digits(p: float) -> str:
    """Three digits, so that small numbers can be compared."""
    return str(int(p)) if p in (0, 1) else f"{p:#.3g}"


def shown(name: str, value: Any) -> str:
    """Return an option as it is typed, without the password or token of an address."""
    return without_secrets(as_typed(name, value))


def visible(vocabulary: dict[str, str], token: int) -> str:
    """The text of a token, with its white space visible."""
    return vocabulary[str(token)].replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
