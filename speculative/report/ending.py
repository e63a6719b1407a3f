"""The words of a run's ending, which are the same on the screen, in the JSON document and on the page.

To add a line: a function of the record, and its row in LINES.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from speculative.checkpoints.names import MODEL_SIZES, packs_folder
from speculative.report.advice import advice
from speculative.report.doubt import MIN_ITERATIONS, disturbance
from speculative.report.record import Model, RunRecord
from speculative.report.words import duration, functions_used, listed, percent, rate_text
from speculative.run.options import ModelOptions
from speculative.support.files import bytes_in_words
from speculative.support.terminal import one_line

# The parts of the screen, and those of the page.
CAME, WHY = "what came", "why it came so"
RESULT, REASONS = "below the headline", "the reasons"
FEW = 5  # tokens of a run whose ending is brief
NOT_BRIEF = ("time", "account", "advice", "pack")  # kinds of lines that a brief ending leaves out
ROLES = {"target": "Target", "draft": "draft"}  # in a sentence; the others are copies of the target


class Line(NamedTuple):
    """A line of the ending."""

    kind: str
    text: str


class Kind(NamedTuple):
    """A row of LINES."""

    say: Callable[[RunRecord], str | list[str] | None]  # record -> the line, or several; None if there is none
    on_screen: str  # the part of the screen
    on_page: str = ""  # the part of the page; "" if it is elsewhere there, or not at all


def lines(record: RunRecord, *wanted: str) -> list[Line]:
    """Return the lines of these kinds or parts, in the order of LINES."""
    is_brief = max(decoder.n_tokens for decoder in record.decoders.values()) <= FEW
    result = []
    for name, kind in LINES.items():
        is_left_out = name in NOT_BRIEF and is_brief
        if not is_left_out and (name in wanted or kind.on_screen in wanted or kind.on_page in wanted):
            said = kind.say(record) or []
            texts = [said] if isinstance(said, str) else said
            if is_brief and texts:
                texts = [" ".join(texts)]
            result += [Line(name, one_line(text)) for text in texts]
    return result


def texts_of(record: RunRecord, *wanted: str) -> list[str]:
    return [line.text for line in lines(record, *wanted)]


# ---- The results -----------------------------------------------------------------------------------------------------


def speed_line(record: RunRecord) -> str:
    after = pace(record)
    return f"{headline(record)}: {after}" if after else f"{headline(record)}."


def headline(record: RunRecord) -> str:
    """Return the speedup, or how fast the one decoder was that has run."""
    comparison = record.comparison
    if comparison:
        doubtful = ", but do not trust it" if comparison.doubt else ""
        return f"{comparison.speedup:.2f} times as fast{doubtful}"
    [decoder] = record.decoders.values()
    return f"{rate_text(decoder.n_tokens / decoder.seconds)} tokens a second"


def pace(record: RunRecord) -> str | None:
    """Return the words after the speedup: the reason to doubt it, or both decoders' tokens a second. None if one
    decoder alone has run."""
    f = record.figures
    if not f or not f.comparison:
        return None
    if f.doubt:
        cause = disturbance(f) or "another program probably used the processor"
        return f"{f.doubt}. {sentence(cause)}: try again."
    autoregressive = rate_text(f.rate / f.comparison.speedup)
    line = f"{rate_text(f.rate)} tokens a second instead of {autoregressive}"
    if f.runs > 1:
        line += f", medians of {f.runs} runs"
    return f"{line}."


def sentence(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[0].upper() + text[1:]


def texts_line(record: RunRecord) -> str | None:
    """Say whether the texts are equal, and if not, why."""
    if not record.comparison:
        return None
    if not record.texts_differ:
        always = ", as always at temperature 0" if record.options.temperature == 0 else ""
        return f"The texts are equal, token for token{always}."
    if record.difference:
        return f"The texts differ: {record.difference.text}"
    if record.rule.claim or not record.rule.lossless:
        return "The texts differ."
    return "The texts differ, as they may above temperature 0: both are samples of the target's distribution."


def law_line(record: RunRecord) -> str | None:
    """State the claim of a user's rule, and that a rule is not lossless where it is not."""
    rule = record.rule
    if not record.speculative or (record.options.temperature == 0 and not record.texts_differ):
        return None
    lossy = f"--accept {rule.name} does not keep the target's distribution."
    return rule.claim or (None if rule.lossless else lossy)


def blog_line(record: RunRecord) -> str | None:
    """Say whether the text is the one that the blog printed."""
    if record.blog_text is None:
        return None
    if record.blog_text == 0:
        return "The blog printed this text too."
    text = f"This is not the text that the blog printed (it differs from token {record.blog_text} on)"
    if record.target.stand_in:
        return f"{text}, because these are stand-ins."
    return (
        f"{text}: these are not the official weights, or rounding decided between two tokens with nearly equal logits."
    )


# ---- Why -------------------------------------------------------------------------------------------------------------


def acceptance_line(record: RunRecord) -> str | None:
    f = record.figures
    if not f:
        return None
    if not f.drafted:
        return "Nothing was drafted, so this was autoregressive decoding."
    if not f.accepted:
        return f"None of the {f.drafted} drafts was accepted, so each target call gives one token."
    accepted = f"{f.accepted} of {f.drafted} drafts accepted ({percent(f.accepted / f.drafted)})."
    gives = f"{accepted} A target call gives {f.tokens_per_iteration:.2f}"
    if f.tree:
        return f"{gives} tokens on average; a tree has several drafts for each place."
    most = 1 + max(step.drafted for step in record.decoders["speculative"].steps)
    return f"{gives} of at most {most} tokens: acceptance rate r = {f.r:.2f}."


def alpha_line(record: RunRecord) -> str | None:
    """The chance of acceptance, if the rule changes the paper's test or the speculative decoder has run alone. Then the
    time of a draft comes too."""
    f = record.figures
    if not f or f.alpha is None or (f.comparison and f.alpha_token is None):
        return None
    line = f"A tested draft is accepted with the chance α = {f.alpha:.2f}"
    line += "." if f.alpha_token is None else f", by the paper's rule with {f.alpha_token:.2f}."
    if f.t_draft and not f.comparison:
        line += f" A draft takes {duration(f.t_draft)}."
    return line


def time_line(record: RunRecord) -> str | None:
    f = record.figures
    if not f or not f.drafted:
        return None
    seconds = f.seconds
    parts = (seconds.drafting, seconds.scoring, seconds.rest)
    drafting, scoring, rest = [percent(part / seconds.speculative) for part in parts]
    line = f"Time: {drafting} drafting, {scoring} in the target, {rest} elsewhere."
    if f.account:
        line += f" A draft takes c = {f.account.c:.2f} of a target token's time."
    return line


def account_line(record: RunRecord) -> str | None:
    """The blog's formula, the β that it takes as 1, and the formula with β beside the measured speedup."""
    f = record.figures
    if not f or not f.drafted or not f.comparison or not f.account or f.doubt:
        return None
    if f.iterations < MIN_ITERATIONS and disturbance(f):  # a few such calls need not agree with the sum of all
        return None
    account = f.account
    measured = f.comparison.speedup_without_prefill
    n, nodes = ("n", " for n nodes") if f.tree else ("K", "")
    windows = f.mean_K  # no whole number if windows were cut short at the end
    mean = "" if windows.is_integer() else f" (mean {n} = {windows:.2f})"
    fewer = f", and {percent(1 - account.occupancy)} fewer texts in a call," if account.occupancy < 0.995 else ""
    return (
        f"The blog's formula{nodes} r({n} + 1) / ({n}c + 1) gives {account.blog_speedup:.2f}{mean}. Scoring {n} + 1 "
        f"tokens costs β = {account.mean_beta:.2f} times one token here; the blog takes it as 1. With β{fewer} the "
        f"formula gives {account.account_blog:.2f}; measured, without the prompt: {measured:.2f}."
    )


def engine_line(record: RunRecord) -> str:
    return what_runs(record.machine.engine_words, record.models, record.options)


def what_runs(engine: str, models: Sequence[Model], o: ModelOptions) -> str:
    """Return the parts of the run, before it or after it: the engine, and each model with its weight format."""
    names = []
    for model in models:
        role = ROLES.get(model.role, "copy")
        if model.weight_bytes:
            names.append(f"{role} {model.size} in {model.dtype}")
    sentences = []
    if names:
        names[0] = names[0][0].upper() + names[0][1:]
        sentences.append(f"Engine: {engine}. {', '.join(names)}.")
    functions = functions_used(models, o)
    if functions:
        kind = "functions" if len(functions) > 1 else "a function"
        verb = "are" if len(functions) > 1 else "is"
        words = f"{listed(functions)} {verb} {kind} of yours."
        sentences.append(words[0].upper() + words[1:])
    line = " ".join(sentences)
    if o.fast:
        line += f" {fast_words(models, o)}"
    return one_line(line)


def fast_words(models: Sequence[Model], o: ModelOptions) -> str:
    """Name the options that --fast is short for, and the bytes of its copy."""
    line = f"--fast is short for --drafter {o.drafter} --K auto"
    if o.accept == "block":
        line += " --accept block"
    copies = [model.weight_bytes for model in models if model.role not in ROLES]
    if copies:
        line += f"; the copy takes {bytes_in_words(sum(copies))}"
    return f"{line}."


def notes(record: RunRecord) -> list[str]:
    """Return the notes that a reader of the figures needs."""
    f = record.figures
    notes = []
    stand_ins = {model.size: model.stand_in for model in record.models if model.stand_in}
    official = [size for size in stand_ins if size in MODEL_SIZES]
    if official:
        what = "is a stand-in for the official model" if len(official) == 1 else "are stand-ins for the official models"
        reasons = dict.fromkeys(stand_ins[size] for size in official)
        notes.append(f"{listed(official)} {what}: {'; '.join(reasons)}")
    notes += [f"{size} {stand_ins[size].removeprefix('it ')}" for size in stand_ins if size not in official]
    if f and not f.doubt:
        disturbed = disturbance(f)
        if disturbed and f.withheld != disturbed:
            notes.append(disturbed)
    if record.timed and record.options.temperature > 0:
        notes.append("--K auto depends on measured times, so the same seed may give another text next time")
    return [f"Note: {note}." for note in notes]


def pack_line(record: RunRecord) -> str | None:
    """Say how much --pack would save. Not if threads waited for cores: reading the weights then took longer, too."""
    saves = record.packable
    if not saves or (record.figures and disturbance(record.figures)):
        return None
    where = packs_folder(record.options.models_dir)
    return f"The next run begins {saves.seconds:.0f} s sooner with --pack: {bytes_in_words(saves.n_bytes)} in {where}."


# ---- All of them, in order -------------------------------------------------------------------------------------------

LINES = {
    "speed": Kind(speed_line, CAME),  # the page's headline
    "texts": Kind(texts_line, CAME, RESULT),
    "law": Kind(law_line, CAME, RESULT),
    "blog": Kind(blog_line, CAME, RESULT),
    "acceptance": Kind(acceptance_line, WHY, RESULT),
    "alpha": Kind(alpha_line, WHY, REASONS),
    "time": Kind(time_line, WHY, REASONS),
    "account": Kind(account_line, WHY, REASONS),
    "advice": Kind(advice, WHY),  # below the page's predictions
    "engine": Kind(engine_line, WHY, REASONS),
    "note": Kind(notes, WHY, REASONS),
    "pack": Kind(pack_line, WHY),
}
