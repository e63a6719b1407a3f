"""The end of a run: in plain words, which are the same on the screen, in the JSON document and on the page; and as the
tables of --verbose and of the page: every figure with its formula, counts, and predictions."""

from collections.abc import Sequence

from speculative import drafters
from speculative.checkpoints.official import HPARAMS
from speculative.measure.figures import NOISE, disturbance
from speculative.measure.turns import Record
from speculative.options import FIELDS
from speculative.rules import TOKEN, Rule
from speculative.session import Session
from speculative.support.terminal import one_line

ALONE = "The speedup needs both decoders: the same command without --only."
GAIN = 1.08  # another setting is recommended from this factor on: a prediction errs by about as much
ROLES = {"target": "Target", "draft": "draft"}  # in a sentence; the others are copies of the target

BLOG_TEXT = (  # 40 tokens, which the blog's run printed after its prompt, with the official 1558M
    " so powerful that they would be able to think like humans.\n\nIn the 1950s, he proposed a way to build a computer "
    'that could think like a human. He called it the "T'
)

Row = tuple[str, str, str]  # a figure's name, its value, its formula


def summary(session: Session, records: Sequence[Record], f: dict) -> list[str]:
    """Return the lines of the ending. records: of both decoders, or of the speculative one alone; f: figures()."""
    texts = [texts_line(session, records), blog_line(session, records)] if len(records) == 2 else []
    lines = [" ".join(filter(None, texts)), speed_line(f)]
    if f["drafted"]:
        lines += [acceptance_line(f), alpha_line(f), time_line(f), account_line(f), advice(f, session)]
    else:
        lines.append("Nothing was drafted, so this was autoregressive decoding.")
    lines.append(engine_line(session))
    replaced = stand_ins(session).items()
    lines += [f"Note: {size} is a stand-in for the official model: {words}." for size, words in replaced]
    if disturbance(f) and not f["doubt"] and not f["withheld"]:
        lines.append(f"Note: {disturbance(f)}.")
    if session.plan.depends_on_times and session.options.temperature > 0:
        lines.append("Note: --K auto depends on measured times, so the same seed may give another text next time.")
    return [*map(one_line, filter(None, lines))]


def engine_line(session: Session) -> str:
    """What ran: the engine, and each model with its weight format."""
    specs = [session.models.spec(role) for role in session.plan.networks]
    models = [f"{ROLES.get(spec.role, 'copy')} {spec.size} in {spec.dtype}" for spec in specs]
    o = session.options
    fast = ""
    if o.fast:
        copies = sum(session.models[role].weight_bytes for role in session.plan.roles if role not in ROLES)
        more = f"; the copy takes {copies / 1e9:.1f} GB" if copies else ""
        rule = " --accept block" if o.accept == "block" else ""
        fast = f" --fast is short for --drafter {o.drafter} --K auto{rule}{more}."
    return one_line(f"Engine: {session.engine.words()}. {', '.join(models)}.{fast}")


def texts_line(session: Session, records: Sequence[Record]) -> str:
    """Say whether the texts are equal, and if not, why."""
    o = session.options
    autoregressive, speculative = (record.tokens for record in records)
    if autoregressive == speculative:
        return "The texts are equal, token for token" + (", as always at temperature 0." if o.temperature == 0 else ".")
    if o.accept in session.functions.rules:
        return f"The texts differ. {claim(session.plan.rule)}"
    if o.temperature > 0 and not session.plan.rule.lossless:
        return f"The texts differ: --accept {o.accept} does not keep the target's distribution."
    if o.temperature > 0:
        return "The texts differ, as they may above temperature 0: both are samples of the target's distribution."
    texts = autoregressive, speculative
    return session.engine.greedy_differences(records[0].inputs, session.models["target"], texts, o.dtype)


def claim(rule: Rule) -> str:
    """Say whether a user's rule claims to be lossless, and what the law of it is, if that was asked."""
    verdict = getattr(rule.accept.__wrapped__, "verdict", None)  # type: ignore[attr-defined]  # the function's
    found = verdict.words.splitlines()[0] if verdict else f"speculative.law({rule.name}) tells if it does."
    says = "claims" if rule.lossless else "does not claim"
    return f"The rule {rule.name} {says} to keep the target's distribution. {found}"


def blog_line(session: Session, records: Sequence[Record]) -> str | None:
    """Say whether the text is the one that the blog printed. None if this is not the blog's run, with its target."""
    o, target = session.options, session.models.spec("target")
    if (target.size, target.dtype, o.temperature) != ("1558M", "float32", 0) or target.hparams != HPARAMS["1558M"]:
        return None  # the hparams of a stand-in say so, too
    prompt = session.encoder.encode(FIELDS["prompt"].default)
    tokens = session.encoder.encode(BLOG_TEXT)
    if [*map(list, records[0].inputs)] != [prompt] or len(records[0].tokens[0]) != len(tokens):
        return None
    different = [n for n, (a, b) in enumerate(zip(records[0].tokens[0], tokens, strict=True), start=1) if a != b]
    if not different:
        return "The blog printed this text too."
    return (
        f"The blog printed another text from token {different[0]} on: these are not the official weights, or rounding "
        "decided between two tokens with nearly equal logits."
    )


def speed_line(f: dict) -> str:
    """The measured speedup, with its doubt if there is one."""
    rate = f["tokens"] / f["seconds"]["speculative"]  # tokens a second
    if f["speedup"] is None:
        return f"{rate_text(rate)} tokens a second. {ALONE}"
    runs = f", medians of {f['runs']} runs" if f["runs"] > 1 else ""
    times = f"{f['speedup']:.2f} times as fast"
    if f["doubt"]:
        cause = disturbance(f) or "another program probably used the processor"
        return f"Doubtful: {times}{runs}, but {f['doubt']}: {cause}. Try again."
    slower = "Slower: " if f["speedup"] < 1 - NOISE else ""
    return f"{slower}{times}: {rate_text(rate)} tokens a second instead of {rate_text(rate / f['speedup'])}{runs}."


def acceptance_line(f: dict) -> str:
    if not f["accepted"]:
        return f"None of the {f['drafted']} drafts was accepted, so each target call gives one token."
    accepted = f"{f['accepted']} of {f['drafted']} drafts accepted ({percent(f['accepted_share'])})."
    gives = f"{accepted} A target call gives {f['tokens_per_iteration']:.2f}"
    if f["tree"]:
        return f"{gives} tokens; a tree has several drafts for each place."
    return f"{gives} of at most {f['mean_K'] + 1:.2f} tokens: acceptance rate r = {f['r']:.2f}."


def alpha_line(f: dict) -> str | None:
    """The chance of acceptance and the time of a draft, if the speculative decoder has run alone."""
    if f["alpha"] is None or f["speedup"] is not None:
        return None
    draft = f" A draft takes {duration(f['t_draft'])}." if f["t_draft"] else ""
    return f"A tested draft is accepted with the chance α = {f['alpha']:.2f}.{draft}"


def time_line(f: dict) -> str:
    seconds = f["seconds"]
    drafting, scoring, rest = (
        percent(seconds[part] / seconds["speculative"]) for part in ("drafting", "scoring", "rest")
    )
    draft = "" if f["c"] is None else f" A draft takes c = {f['c']:.2f} of a target token's time."
    return f"Time: {drafting} drafting, {scoring} in the target, {rest} elsewhere.{draft}"


def account_line(f: dict) -> str | None:
    """The blog's formula, the β that it takes as 1, and the formula with β beside the measured speedup."""
    if f["account_blog"] is None or f["doubt"]:
        return None
    n, nodes = ("n", " for n nodes") if f["tree"] else ("K", "")
    mean = "" if f["mean_K"].is_integer() else f" (mean {n} = {f['mean_K']:.2f})"  # windows were cut short at the end
    return (
        f"The blog's formula{nodes} r({n} + 1) / ({n}c + 1) gives {f['blog_speedup']:.2f}{mean}. Scoring {n} + 1 "
        f"tokens costs β = {f['mean_beta']:.2f} times one token here; the blog takes it as 1. With β the formula gives "
        f"{f['account_blog']:.2f}; measured, without the prompt: {f['speedup_without_prefill']:.2f}."
    )


def advice(f: dict, session: Session) -> str | None:
    """One sentence: the setting to try, as it is typed, and the speedup that it should bring on this text."""
    o = session.options
    if f["doubt"] or f["speedup"] is None or not f["drafted"]:
        return None
    if f["account_blog"] is None:
        return "The run is too short to say why: every call also read the prompt."
    if f["withheld"]:
        return f"No prediction, because {f['withheld']}."
    if not f["predicted"]:
        return f"It does not pay here, because {loss(f)}." if f["speedup"] < 1 else None
    outer, *inner = o.K if isinstance(o.K, tuple) else (o.K,)
    predicted = f["predicted"]
    now = max(f["speedup"], predicted.get(o.drafter, {}).get(str(outer), 0.0))
    auto = {name: {"auto": speedups["auto"]} for name, speedups in predicted.items()}
    for settings in (auto, predicted):  # a K that chooses itself also suits another text
        name, K = best_setting(settings)
        speedup = settings[name][K]
        if speedup > GAIN * now:
            break
    fast = session.models.fast_drafter()
    if speedup < 1 + NOISE or (speedup <= GAIN * now and f["speedup"] < 1 - NOISE):
        return f"Nothing pays here, because {loss(f)}."
    if speedup <= GAIN * now:
        unknown = " Not predicted: --fast." if session.engine.exact and not o.fast and fast not in auto else ""
        return f"Prediction: no other K or drafter of this run would be clearly faster on this text.{unknown}"
    typed = f"--drafter {name} --K {K}"
    if name == o.drafter and not o.fast:
        typed = f"--K {'/'.join(map(str, (K, *inner)))}"
    if (name, K) == (fast, "auto") and session.plan.rule.lossless:
        typed = "--fast"
    return f"Prediction: {typed} would be {speedup:.2f} times as fast on this text."


def best_setting(predicted: dict[str, dict[str, float]]) -> tuple[str, str]:
    """Return the drafter and the K with the largest predicted speedup."""
    return max(((name, K) for name in predicted for K in predicted[name]), key=lambda at: predicted[at[0]][at[1]])


def loss(f: dict) -> str:
    """Return the reason that a run brought no gain."""
    took = f["mean_beta"] + f["c"] * f["mean_K"]
    gives = f["tokens_per_iteration"]
    if gives > took:
        return "reading the prompt takes longer than the drafts save"
    return f"a call with its drafts takes as long as {took:.2f} autoregressive tokens and gives {gives:.2f}"


def stand_ins(session: Session) -> dict[str, str]:
    """{model with an official name, but not the official weights: what it is instead}"""
    found = {spec.size: spec.hparams.get("stand_in") for spec in session.models.specs.values()}
    return {size: what for size, what in found.items() if what}


# ---- The tables ------------------------------------------------------------------------------------------------------

ROWS = (  # a figure's name, its key in figures(), its value, its formula
    ("r", "r", "{:.3f}", "tokens / Σ over iterations of (drafted + 1)"),
    ("tokens per iteration", "tokens_per_iteration", "{:.2f}", "tokens / iterations"),
    ("accepted", "accepted_share", "{:.3f}", "accepted / drafted, untested drafts too"),
    ("α", "alpha", "{:.3f}", "mean of {chance}, of the tested drafts"),
    ("c", "c", "{:.3f}", "t_draft / t_target = {t_draft} / {t_target}"),
    ("β", "mean_beta", "{:.2f}", "t_target of a window / of one row; {by_rows}"),
    ("measured", "speedup_without_prefill", "{:.2f}x", "without the prefill, to compare with the formulas"),
    ("the blog's formula", "blog_speedup", "{:.2f}x", "r(K + 1) / (Kc + 1)"),
    ("the formula with β", "account_blog", "{:.2f}x", "r(K + 1) / (Kc + β)"),
    ("Leviathan's, with β", "account_leviathan", "{:.2f}x", "(1 - α^(K + 1)) / ((1 - α)(Kc + β))"),
)


def table(f: dict, chance: str = TOKEN.formula) -> list[Row]:
    """Return a row for each figure that was measured. chance: the rule's formula for the acceptance of a draft."""
    known = {name: duration(f[name]) for name in ("t_draft", "t_target") if f[name] is not None}
    known["chance"] = "the chance that one of the siblings is accepted" if f["tree"] else chance
    known["by_rows"] = "  ".join(f"{n} rows: {beta:.2f}" for n, beta in (f["beta"] or {}).items() if n != "1")
    measured = [row for row in ROWS if f[row[1]] is not None]
    rows = [(name, value.format(f[key]), formula.format(**known)) for name, key, value, formula in measured]
    for level in f["levels"]:  # of a staged drafter
        tokens = f"r {level['r']:.2f}, {level['tokens_per_iteration']:.1f} tokens a call"
        accepted = f"{level['accepted']} of {level['drafted']} drafts accepted"
        rows.append((f"level: {words(level['name'])}", tokens, accepted))
    return rows


def charts(f: dict) -> list[tuple[str, Row, list[Row]]]:
    """Return (caption, columns, rows) of the accepted drafts by position, and by drafter if there are several; and of
    the target's calls by their tokens."""
    place = "depth" if f["tree"] else "position"
    counted = zip(f["accepted_by_position"], f["tested_by_position"], strict=True)
    positions = [(str(j), accepted, tested) for j, (accepted, tested) in enumerate(counted, start=1)]
    sources = [(words(name), accepted, tested) for name, (accepted, tested) in f["by_source"].items()]
    calls = [(tokens, n, f["iterations"]) for tokens, n in f["tokens_per_iteration_histogram"].items()]
    found = [
        (f"Accepted, by {place}", (place, "accepted", "share"), positions),
        ("Accepted, by drafter", ("drafter", "accepted", "share"), sources if len(sources) > 1 else []),
        ("Tokens for each call of the target", ("tokens", "calls", "share"), calls),
    ]
    return [(caption, columns, [*map(part_of, counts)]) for caption, columns, counts in found if counts]


def part_of(counts: tuple[str, int, int]) -> Row:  # (name, part, whole)
    name, part, whole = counts
    return name, f"{part} of {whole}", percent(part / whole)


def grid(f: dict) -> dict | None:
    """Return the predictions by K and drafter; None if there are none. rows: [K, β, the speedup with each drafter]; the
    last is that of "auto", without β."""
    predicted = f["predicted"]
    if not predicted:
        return None
    return {
        "drafters": [*predicted],
        "rows": [
            [K, f["window_beta"].get(K), *(one[K] for one in predicted.values())] for K in [*f["window_beta"], "auto"]
        ],
        "best": best_setting(predicted),
        "run": [f["usual_K"], f["speedup"]],
    }


# ---- Words and numbers -----------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{2 if seconds < 0.01 else 1}f} ms"


def words(name: str) -> str:
    """Return the name of a drafter in a sentence."""
    spec = drafters.DRAFTERS.get(name)
    return spec.label if spec else name


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def many(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def digits(p: float) -> str:
    """Three digits, so that small numbers can be compared."""
    return str(int(p)) if p in (0, 1) else f"{p:#.3g}"
