"""A run as one page that replays it: page_data() computes every number and sentence, the scripts in web/ draw them.

The page loads nothing: its own policy forbids that, and any script but these.
"""

import base64
import hashlib
import html
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from speculative.checkpoints.names import MODEL_SIZES
from speculative.drafters import DRAFTERS
from speculative.filters import Filters
from speculative.report import ending, tables
from speculative.report.advice import advice
from speculative.report.close_up import close_ups, opening
from speculative.report.race import Placed, lanes, placed_steps, race_seconds
from speculative.report.record import Machine, RuleUsed, RunRecord
from speculative.report.words import functions_used, label, listed, many
from speculative.run.options import DEMO, FIELDS, Options
from speculative.run.values import as_typed

WEB = Path(__file__).parent / "web"
FRAME = WEB / "frame.html"
STYLES = [WEB / "page.css"]
SCRIPTS = [WEB / f"{name}.js" for name in ("elements", "text", "race", "glass", "grid")]
ORIGINS = {  # a token's origin -> its explanation
    "accepted": "proposed by the drafter, accepted by the target",
    "resampled": "sampled by the target after it rejected a draft",
    "bonus": "sampled by the target after it accepted all drafts",
    "autoregressive": "sampled by the target without drafts",
}
FACTS = ["draft_model_size", "target_model_size", "drafter", "K", "tree", "accept"]  # options in the header
FACTS += [*Filters._fields, "draft_temperature", "stop", "seed", "engine"]
# Options that are not in a run's command: where it was shown.
NOT_IN_COMMAND = {"quiet", "verbose", "stream", "json", "html", "interactive", "serve"}
FAST = ("drafter", "K", "accept")  # options that --fast stands for


def page(record: RunRecord) -> str:
    """Return the page of a run, which has one text of each decoder, as HTML."""
    data = page_data(record)
    return fill(WEB / "page.html", STYLES, SCRIPTS, data, f"{data['headline']}: speculative sampling")


def fill(
    body: Path, styles: Sequence[Path], scripts: Sequence[Path], data: dict, title: str, more_policy: str = ""
) -> str:
    """Return the page with this body: web/frame.html with the title, styles, scripts, and the policy that allows
    no others. more_policy: what else it says."""
    style = "\n".join(path.read_text("utf-8") for path in styles)
    script = "\n".join(path.read_text("utf-8") for path in scripts)
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "body": body.read_text("utf-8"),
        "policy": more_policy,
        "title": html.escape(title),
        "style": style,
        "style hash": sha256(style),
        "script": script,
        "script hash": sha256(script),
        "data": written.replace("<", r"\u003c"),  # so that no text can end its <script> element
    }
    return re.sub(r"\{\{([a-z ]+)\}\}", lambda match: parts[match[1]], FRAME.read_text("utf-8"))


def sha256(text: str) -> str:
    """Return the name by which a Content-Security-Policy allows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- The data --------------------------------------------------------------------------------------------------------


def page_data(record: RunRecord) -> dict:
    """Return all that the page draws, as plain numbers and strings."""
    o = record.options
    f = record.figures
    prompt = record.prompts[0].text
    placed = {name: placed_steps(decoder) for name, decoder in record.decoders.items()}
    speculative = placed["speculative"]
    grid = tables.grid(f)
    return {
        **findings(record),
        "command": command(o, functions_used(record.models, o), prompt),
        "facts": facts(record),
        "options": every_option(o, record.machine),
        "prompt": prompt,
        "legend": legend(speculative),
        "marks": marks(f.by_source if f else []),
        "lanes": lanes(record, placed),
        "seconds": race_seconds(placed),
        "derived": speculative[0].step.derived,
        "rule": rule_data(record.rule, o.temperature == 0),
        "iterations": close_ups(record, speculative),
        "opening": opening(speculative),
        "reasons": ending.texts_of(record, ending.REASONS),
        "charts": tables.charts(f),
        "table": tables.figure_rows(record),
        "advice": advice(record),
        "grid": grid and grid._asdict(),
    }


def findings(record: RunRecord) -> dict:
    """Return the headline, and the lines below it about the measurement."""
    pace = ending.pace(record)
    lines = [*([ending.sentence(pace)] if pace else []), *ending.texts_of(record, ending.RESULT)]
    return {"headline": ending.headline(record), "lines": lines}


def rule_data(rule: RuleUsed, is_greedy: bool) -> dict:
    """Return the sentences about the rule, and those that stand where tests are not known or say nothing."""
    about = []
    if not rule.lossless:
        about.append(f"With --accept {rule.name} the text does not follow q.")
    if is_greedy:
        about.append("At temperature 0 a draft is accepted exactly if it is the target's likeliest token.")
    reason = f"The rule {rule.name} is a function of yours, whose tests are not known."
    if not rule.claim:
        reason = "This run was one compiled loop on the device, which does not return u, p and q."
        reason += " With --engine numpy they are here."
    return {
        "about": " ".join(about),
        "certain": "The target's likeliest token: ",
        "no_tests": reason,
    }


# ---- The header ------------------------------------------------------------------------------------------------------


def command(o: Options, functions: Sequence[str], prompt: str | None) -> str:
    """Return the command that runs with these options again, or why there is none. functions: those of the user."""
    if functions:
        return f"# none: {listed(functions)} came from Python"
    left_out = {*NOT_IN_COMMAND, *(FAST if o.fast else ())}
    values = vars(o) | {"prompt": None if o.prompt_file else prompt}
    words = ["python", "main.py"]
    for name, f in FIELDS.items():
        value = values[name]
        usual = DEMO.get(name, f.default) if o.demo else f.default
        if name in left_out or value in (None, usual):
            continue
        for each in value if name == "stop" and isinstance(value, tuple) else [value]:
            words += [f"--{name}"] if each is True else [f"--{name}", as_typed(name, each)]
    return shlex.join(words)


def facts(record: RunRecord) -> list[list]:
    """Return [name, value] of the options in the header, and the machine."""
    o = record.options
    unused = {"K"} if o.tree else set()
    if "draft" not in record.roles:
        unused.add("draft_model_size")
    stand_ins = {model.size for model in record.models if model.stand_in and model.size in MODEL_SIZES}  # see the notes
    rows = []
    for name in FACTS:
        value = getattr(o, name)
        if value is not None and name not in unused:
            typed = as_typed(name, value)
            rows.append([name.replace("_", " "), f"{typed}, a stand-in" if typed in stand_ins else typed])
    return [*rows, ["machine", f"{record.machine.processor}, {many(record.machine.cpus, 'core')}"]]


def every_option(o: Options, machine: Machine) -> list[list]:
    """Return [name, value] of all options that are set, and of the machine."""
    values = vars(o) | vars(machine)
    return [[name, as_typed(name, value)] for name, value in values.items() if value is not None]


# ---- The key ---------------------------------------------------------------------------------------------------------


def legend(steps: Sequence[Placed]) -> list[list]:
    """Return [origin, drafter or None, explanation] of the origins that occur; of accepted tokens, if several drafters
    proposed them, of each drafter."""
    kinds = Counter((token.origin, token.by) for placed in steps for token in placed.tokens)
    rows = []
    for origin, explanation in ORIGINS.items():
        for (kind, by), n in kinds.items():
            if kind == origin:
                words = f"proposed by the {label(by)}, accepted by the target" if by else explanation
                rows.append([origin, by, f"{words}: {many(n, 'token')}"])
    return rows


def marks(names: Iterable[str]) -> dict:
    """Return {drafter: the letter at its tokens}. The draft model's have none."""
    letters = {}
    for name in names:
        spec = DRAFTERS.get(name)
        if letter := spec.mark if spec else name[:1]:
            letters[name] = letter
    return letters
