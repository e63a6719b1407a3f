"""The end of a run: in plain words, which are the same on the screen, in the JSON document and on the page; and as the
table of --verbose and of the page, every figure with its formula."""

from collections.abc import Sequence

from speculative import drafters
from speculative.checkpoints.official import HPARAMS
from speculative.law import VERDICTS
from speculative.loading import networks_of
from speculative.measure.analysis import blog_speedup
from speculative.measure.figures import NOISE
from speculative.measure.recorder import Recorder
from speculative.options import FIELDS
from speculative.rules import TOKEN, Rule
from speculative.session import Session
from speculative.support.terminal import one_line

ALONE = "The speedup needs the autoregressive decoder: the same command without --only measures it."
GAIN = 1.08  # another setting is recommended from this factor on: a prediction errs by about as much

DISTURBED = 0.25  # share of the decodes' time; threads that waited longer for a core disturbed the figures
ROLES = {"target": "Target", "draft": "draft"}  # in a sentence; the others are copies of the target

BLOG_TEXT = (  # 40 tokens, which the blog's run printed after its prompt, with the official 1558M
    " so powerful that they would be able to think like humans.\n\nIn the 1950s, he proposed a way to build a computer "
    'that could think like a human. He called it the "T'
)

Row = tuple[str, str, str]  # a figure's name, its value, its formula


def summary(session: Session, records: Sequence[Recorder], f: dict) -> list[str]:
    """Return the lines of the ending. records: of the autoregressive decoder and the speculative one; f: figures()."""
    if len(records) == 1:
        return [*filter(None, lines_alone(session, f))]
    texts = " ".join(filter(None, [texts_line(session, records), blog_line(session, records)]))
    lines = [texts, speed_line(f)]
    if f["drafted"]:
        lines += [acceptance_line(f), time_line(f), account_line(f), advice(f, session)]
    else:
        lines.append("Nothing was drafted, so this was autoregressive decoding.")
    lines.append(engine_line(session))
    replaced = stand_ins(session).items()
    lines += [f"Note: {size} is a stand-in for the official model: {words}." for size, words in replaced]
    if disturbance(f) and not f["doubt"]:
        lines.append(f"Note: {disturbance(f)}")
    if session.timed and session.options.temperature > 0:
        lines.append("Note: --K auto depends on measured times, so the same seed may give another text next time.")
    return [*map(one_line, filter(None, lines))]


def lines_alone(session: Session, f: dict) -> list[str | None]:
    """The ending of --only speculative."""
    rate = rate_text(f["tokens"] / f["seconds"]["speculative"])
    drafts = [acceptance_line(f), alpha_line(f), time_line(f)] if f["drafted"] else []
    return [f"{rate} tokens a second.", *drafts, ALONE, engine_line(session)]


def alpha_line(f: dict) -> str | None:
    if f["alpha"] is None:
        return None
    draft = "" if not f["t_draft"] else f" A draft takes {duration(f['t_draft'])}."
    return f"A tested draft is accepted with the chance α = {f['alpha']:.2f}.{draft}"


def engine_line(session: Session) -> str:
    """What ran: the engine, and each model with its weight format."""
    specs = [session.models.spec(role) for role in networks_of(session.roles)]
    models = [f"{ROLES.get(spec.role, 'copy')} {spec.size} in {spec.dtype}" for spec in specs]
    o = session.options
    fast = ""
    if o.fast:
        copies = sum(session.models[role].weight_bytes for role in session.roles if role not in ROLES)
        more = f"; the copy takes {copies / 1e9:.1f} GB" if copies else ""
        rule = " --accept block" if o.accept == "block" else ""
        fast = f" --fast: --drafter {o.drafter} --K auto{rule}{more}."
    return one_line(f"Engine: {session.engine.words()}. {', '.join(models)}.{fast}")


def texts_line(session: Session, records: Sequence[Recorder]) -> str:
    """Say whether the texts are equal, and if not, why."""
    o = session.options
    autoregressive, speculative = (record.tokens for record in records)
    if autoregressive == speculative:
        return "The texts are equal, token for token" + (", as always at temperature 0." if o.temperature == 0 else ".")
    if o.accept in session.functions.rules:
        return f"The texts differ. {claim(session.rule)}"
    if o.temperature > 0 and not session.rule.lossless:
        return f"The texts differ: --accept {o.accept} does not keep the target's distribution."
    if o.temperature > 0:
        return "The texts differ, as they may above temperature 0: both are samples of the target's distribution."
    texts = autoregressive, speculative
    return session.engine.greedy_differences(records[0].inputs, session.models["target"], texts, o.dtype)


def claim(rule: Rule) -> str:
    """Say whether a user's rule claims to be lossless, and what the law of it is, if that was asked."""
    verdict = VERDICTS.get(rule.accept.__wrapped__)  # type: ignore[attr-defined]  # the function
    found = verdict.words.splitlines()[0] if verdict else f"speculative.law({rule.name}) tells if it does."
    says = "claims" if rule.lossless else "does not claim"
    return f"The rule {rule.name} {says} to keep the target's distribution. {found}"


def blog_line(session: Session, records: Sequence[Recorder]) -> str | None:
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
    runs = f", medians of {f['runs']} runs" if f["runs"] > 1 else ""
    times = f"{f['speedup']:.2f} times as fast"
    if f["doubt"]:
        cause = disturbance(f) or "Another program probably used the processor."
        return f"Doubtful: {times}{runs}, but {f['doubt']}. {cause} Try again."
    slower = "Slower: " if f["speedup"] < 1 - NOISE else ""
    return f"{slower}{times}: {rate_text(rate)} tokens a second instead of {rate_text(rate / f['speedup'])}{runs}."


def disturbance(f: dict) -> str | None:
    """Say for how long threads had no core, as other programs had it. None if that took little of the decodes' time."""
    whole = f["seconds"]["speculative"] + (f["seconds"]["autoregressive"] or 0.0)
    if f["waited"] < DISTURBED * whole:
        return None
    return f"Other programs used the processor: threads waited {duration(f['waited'])} for a core."


def acceptance_line(f: dict) -> str:
    accepted = f"{f['accepted']} of {f['drafted']} drafts accepted ({percent(f['accepted'] / f['drafted'])})."
    if not f["accepted"]:
        return f"None of the {f['drafted']} drafts was accepted, so each target call gives one token."
    gives = f"A target call gives {f['tokens_per_iteration']:.2f}"
    if f["tree"]:
        return f"{accepted} {gives} tokens; a tree has several drafts for each place."
    most = f["drafted"] / f["iterations"] + 1  # tokens: the drafts and one more; K + 1, if no window was shorter
    return f"{accepted} {gives} of at most {most:.2f} tokens: acceptance rate r = {f['r']:.2f}."


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
    n = "n" if f["tree"] else "K"
    mean_K = f["drafted"] / f["iterations"]
    blog = blog_speedup(f["r"], mean_K, f["c"])
    mean = "" if mean_K.is_integer() else f" (mean {n} = {mean_K:.2f})"  # windows were cut short at the end
    nodes = " for n nodes" if f["tree"] else ""
    return (
        f"The blog's formula{nodes} r({n} + 1) / ({n}c + 1) gives {blog:.2f}{mean}. Scoring {n} + 1 tokens costs "
        f"β = {f['mean_beta']:.2f} times one token here; the blog takes it as 1. With β the formula gives "
        f"{f['account_blog']:.2f}; measured, without the prompt: {f['speedup_without_prefill']:.2f}."
    )


def advice(f: dict, session: Session) -> str | None:
    """One sentence: the setting to try, as it is typed, and the speedup that it should bring on this text."""
    o = session.options
    if f["doubt"]:
        return None
    if f["account_blog"] is None:
        return "The run is too short to say why: every call also read the prompt."
    predicted = f["predicted"]
    if not predicted:
        return f"It does not pay here, because {loss(f)}." if f["speedup"] < 1 else None
    name, K = best_setting(f)
    speedup = predicted[name][K]
    outer, *inner = o.K if isinstance(o.K, tuple) else (o.K,)
    now = max(f["speedup"], predicted.get(o.drafter, {}).get(str(outer), 0.0))
    typed = f"--drafter {name} --K {K}"
    if name == o.drafter and not o.fast:
        typed = f"--K {'/'.join(map(str, (K, *inner)))}"
    if speedup < 1 + NOISE or (speedup <= GAIN * now and f["speedup"] < 1 - NOISE):
        return f"Nothing pays here, because {loss(f)}."
    if speedup > GAIN * now:
        return f"Prediction: {typed} would be {speedup:.2f} times as fast on this text."
    fast = " Not predicted: --fast." if session.engine.exact and not o.fast else ""
    return f"Prediction: no other K or drafter of this run would be clearly faster on this text.{fast}"


def best_setting(f: dict) -> tuple[str, str]:
    """Return the drafter and the K with the largest predicted speedup."""
    predicted = f["predicted"]
    return max(((name, K) for name in predicted for K in predicted[name]), key=lambda at: predicted[at[0]][at[1]])


def loss(f: dict) -> str:
    """Return the reason that a run brought no gain."""
    took = f["mean_beta"] + f["c"] * f["drafted"] / f["iterations"]
    gives = f["tokens_per_iteration"]
    if gives > took:
        return "reading the prompt takes longer than the drafts save"
    return f"a call with its drafts takes as long as {took:.2f} autoregressive tokens and gives {gives:.2f}"


def stand_ins(session: Session) -> dict[str, str]:
    """{model with an official name, but not the official weights: what it is instead}"""
    found = {spec.size: spec.hparams.get("stand_in") for spec in session.models.specs.values()}
    return {size: what for size, what in found.items() if what}


# ---- The table -------------------------------------------------------------------------------------------------------


def table(f: dict, formula: str = TOKEN.formula) -> list[Row]:
    """figures() -> a row for each figure that was measured."""
    rows = acceptance_rows(f, formula) if f["drafted"] else []
    histogram = f["tokens_per_iteration_histogram"].items()
    shares = "  ".join(f"{tokens}: {count / f['iterations']:.0%}" for tokens, count in histogram)
    return [
        ("r", f"{f['r']:.3f}", "tokens / Σ over iterations of (drafted + 1)"),
        ("tokens per iteration", f"{f['tokens_per_iteration']:.2f}", shares),
        *rows,
        *(speed_rows(f) if f["drafted"] and f["account_blog"] else []),
    ]


def acceptance_rows(f: dict, formula: str) -> list[Row]:
    rows = [("accepted", f"{f['accepted'] / f['drafted']:.3f}", "accepted / drafted")]
    if f["tested_by_position"]:
        counted = zip(f["accepted_by_position"], f["tested_by_position"], strict=True)
        by_position = " ".join(f"{accepted}/{tested}" for accepted, tested in counted)
        chance = "the chance that one of the siblings is accepted" if f["tree"] else formula
        order = "by depth" if f["tree"] else "first to last of the window"
        rows.append(("by position", by_position, f"accepted / tested, {order}"))
        rows.append(("α", f"{f['alpha']:.3f}", f"mean of {chance}"))
    if len(f["by_source"]) > 1:
        shares = ", ".join(f"{words(name)} {a}/{n}" for name, (a, n) in f["by_source"].items())
        rows.append(("by drafter", shares, "accepted / tested, by the drafter that proposed the token"))
    for level in f["levels"]:  # of a staged drafter
        tokens = f"r {level['r']:.2f}, {level['tokens_per_iteration']:.1f} tokens a call"
        accepted = f"{level['accepted']} of {level['drafted']} drafts accepted"
        rows.append((f"level: {words(level['name'])}", tokens, accepted))
    return rows


def some(speedups: dict[str, float]) -> dict[str, float]:
    """Of the predictions by K return those for 1, 2, 4, 8, ... and the best."""
    best = max(speedups, key=speedups.__getitem__)
    return {K: speedup for K, speedup in speedups.items() if int(K).bit_count() == 1 or best == K}


def speed_rows(f: dict) -> list[Row]:
    by_rows = "  ".join(f"{n} rows: {beta:.2f}" for n, beta in f["beta"].items() if n != "1")
    blog = blog_speedup(f["r"], f["drafted"] / f["iterations"], f["c"])
    rows = [
        ("c", f"{f['c']:.3f}", f"t_draft / t_target = {duration(f['t_draft'])} / {duration(f['t_target'])}"),
        ("β", f"{f['mean_beta']:.2f}", f"t_target of a window / of one row; {by_rows}"),
        ("measured", f"{f['speedup_without_prefill']:.2f}x", "without the prefill, to compare with the formulas"),
        ("the blog's formula", f"{blog:.2f}x", "r(K + 1) / (Kc + 1)"),
        ("the formula with β", f"{f['account_blog']:.2f}x", "r(K + 1) / (Kc + β)"),
    ]
    if f["account_leviathan"]:
        leviathan = "(1 - α^(K + 1)) / ((1 - α)(Kc + β))"
        rows.append(("Leviathan's, with β", f"{f['account_leviathan']:.2f}x", leviathan))
    for name, speedups in (f["predicted"] or {}).items():
        by_K = "  ".join(f"{K}: {speedup:.2f}x" for K, speedup in some(speedups).items())
        rows.append((f"predicted, {name}", by_K, "by K: windows of K drafts over this text; with prefill"))
    return rows


# ---- Words and numbers -----------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{2 if seconds < 0.01 else 1}f} ms"


def words(name: str) -> str:
    """Return the name of a drafter in a sentence."""
    spec = drafters.DRAFTERS.get(name)
    return (spec and spec.words) or name


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def many(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def digits(p: float) -> str:
    """Three digits, so that small numbers can be compared."""
    return str(int(p)) if p in (0, 1) else f"{p:#.3g}"
