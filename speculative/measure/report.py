"""A run in words: six lines after the blog's, and with --verbose every figure with its formula."""

from speculative import drafters
from speculative.measure.analysis import ceiling
from speculative.rules import TOKEN, Rule

Row = tuple[str, str, str]  # a figure's name, its value, its formula

REST = "no time passed outside of both models"


def summary(f: dict, K: int | str | tuple | None = None) -> list[str]:
    """figures() -> the lines after the blog's, without those of which nothing was measured.

    K: what --K asked for, None where that is not known. Where the longest window had another number of drafts, as it
    may with "auto", no K is advised.
    """
    seconds = f["seconds"]
    n_tokens = f["tokens"]
    if not n_tokens:
        return ["No token was decoded."]
    rate = n_tokens / seconds["speculative"]  # tokens per second
    if f["speedup"] is None:  # the other decoder was not asked
        return [f"Tokens per second = {rate:.1f}"]
    lines = [
        f"Speedup = {f['speedup']:.2f}x  (autoregressive time / speculative time, per token{of_decodes(f)})",
        f"Tokens per second = {rate / f['speedup']:.1f} autoregressive, {rate:.1f} speculative",
        f"Acceptance rate r = {f['r']:.3f}  ({f['tokens_per_iteration']:.2f} tokens per iteration)",
    ]
    if seconds["scoring"]:
        parts = [f"{seconds[part] / seconds['speculative']:.0%} {part}" for part in ("drafting", "scoring", "rest")]
        lines.append(f"Time = {', '.join(parts)}")
    if f["predicted_blog"] is not None and f["drafted"]:
        costs = f"c = {f['c']:.3f}, β = {f['mean_beta']:.2f}"
        measured = f"{f['speedup_without_prefill']:.2f}x"
        n = "n" if f["tree"] else "K"  # the nodes of a tree, or the drafts of a window
        formula = f"r({n} + 1) / ({n}c + β), {costs}; measured {measured} without the prefill"
        lines.append(f"Predicted = {f['predicted_blog']:.2f}x  ({formula})")
    return [*lines, advice(f, K)]


def of_decodes(f: dict) -> str:
    """The number of decodes, if each decoder decoded the same several times."""
    n = f["decodes"]
    if max(n.values()) == 1:
        return ""
    return f"; the middle of {n['autoregressive']} and {n['speculative']} decodes"


def advice(f: dict, K: int | str | tuple | None = None) -> str:
    """One sentence: what would make it faster, or why speculation cannot pay here."""
    if not f["drafted"]:
        return "Nothing was drafted, so this was autoregressive decoding."
    if f["busy"]:
        return "The machine was too busy to tell more: a window of several rows seemed to take less time than one row."
    if f["predicted_blog"] is None:
        if not f["seconds"]["scoring"]:
            return ""
        return "Too little was drafted to tell more: every call with drafts included a prefill."
    obstacle, gain = largest_gain(f)
    measured = f["speedup_without_prefill"]
    if obstacle == REST and gain > 1:
        return "Most of the time passes outside of both models; with larger ones it would matter less."
    if f["disagree"]:
        return "Measured and predicted speedup disagree: is something else running? Try again."
    drafts = f["drafted"] / f["iterations"]
    if f["tree"]:
        accepted = f"Of {drafts:.1f} draft tokens an iteration, {f['accepted'] / f['iterations']:.1f} were accepted"
        if measured > 1:
            return f"{accepted}: more than pays for them."
        return f"{accepted}; speculative decoding did not pay."
    fixed = K in (None, f["largest_K"])  # not auto; and the drafter's windows can be as long as was asked for
    other = f["better_K"] if fixed else None
    if other and measured * (1 + other["gain"]) > 1:
        return better(other)
    if measured < 1:
        takes = f["mean_beta"] + drafts * f["c"]
        return (
            f"Speculative decoding did not pay: {f['tokens_per_iteration']:.2f} tokens per iteration, for the time of "
            f"{takes:.2f} autoregressive ones."
        )
    largest = f"largest gain would come if {obstacle}: {gain:.0%}."
    if fixed:
        return f"No other K is sure to be faster; the {largest}"
    return f"The {largest}"


def better(other: dict) -> str:
    """In words what better.better_K gives, and nothing that the measured speedup could contradict."""
    first = other["from"]
    last = other["to"]
    Ks = f"K = {first}" if first == last else f"K = {first} to {last}"
    gains = f"about {other['gain']:.0%}, at least {other['at_least']:.0%}"
    return f"{Ks} would be faster: by {gains} ({other['sure']:.0%} sure)."


def largest_gain(f: dict) -> tuple[str, float]:
    """The obstacle that costs most, and how much faster this run would be without it."""
    gains = {obstacle: speedup / f["predicted_blog"] - 1 for obstacle, speedup in (f["predicted_if"] or {}).items()}
    seconds = f["seconds"]
    if seconds["rest"] is not None:
        gains[REST] = seconds["rest"] / (seconds["speculative"] - seconds["rest"])
    return max(gains.items(), key=lambda item: item[1])


def table(f: dict, rule: Rule = TOKEN, weight_bytes: float | None = None, bandwidth: float | None = None) -> list[Row]:
    """Every figure with its formula. weight_bytes of the target and the machine's bandwidth in bytes/s add the ceiling
    of autoregressive decoding."""
    rows = [*rows_of_tokens(f), *rows_of_acceptance(f, rule), *rows_of_costs(f), *rows_of_predictions(f)]
    if weight_bytes and bandwidth and f["tokens"]:
        rows += rows_of_ceiling(f, weight_bytes, bandwidth)
    return rows


def rows_of_tokens(f: dict) -> list[Row]:
    if not f["tokens"]:
        return []
    histogram = f["tokens_per_iteration_histogram"].items()
    shares = "  ".join(f"{tokens}: {count / f['iterations']:.0%}" for tokens, count in histogram)
    return [
        ("r", f"{f['r']:.3f}", "tokens / Σ over iterations of (drafted + 1)"),
        ("tokens per iteration", f"{f['tokens_per_iteration']:.2f}", shares),
    ]


def rows_of_acceptance(f: dict, rule: Rule) -> list[Row]:
    """Acceptance by position, by who proposed the token, and by level."""
    rows = []
    if f["met_by_position"]:
        counted = zip(f["accepted_by_position"], f["met_by_position"], strict=True)
        by_position = " ".join(f"{accepted}/{tested}" for accepted, tested in counted)
        chance, order = chance_and_order(f["tree"], rule)
        rows.append(("by position", by_position, f"accepted / tested, {order}"))
        rows.append(("α", f"{f['alpha']:.3f}", f"mean of {chance}"))
    if len(f["by_proposer"]) > 1:
        shares = ", ".join(f"{words(name)} {a}/{n}" for name, (a, n) in f["by_proposer"].items())
        rows.append(("by proposer", shares, "accepted / tested, by who proposed the token"))
    rows += [level_row(level) for level in f["levels"]]
    if f["matching"] is not None:
        rows.append(("naive matching", f"{f['matching']:.3f}", "mean of Σ p q: what sample-and-compare would accept"))
    return rows


def chance_and_order(tree: bool, rule: Rule) -> tuple[str, str]:
    """The chance of acceptance at a position, in words; and the order of the positions."""
    if tree:
        return "the chance that one of the siblings is accepted", "by depth"
    return rule.formula, "first to last of the window"


def rows_of_costs(f: dict) -> list[Row]:
    rows = []
    if f["c"] is not None:
        rows.append(("c", f"{f['c']:.3f}", f"t_draft / t_target = {ms(f['t_draft'])} / {ms(f['t_target'])}"))
    if f["mean_beta"] is not None and f["drafted"]:
        by_rows = "  ".join(f"{n} rows: {beta:.2f}" for n, beta in f["beta"].items() if n != "1")
        rows.append(("β", f"{f['mean_beta']:.2f}", f"t_target of a window / of one row; {by_rows}"))
    return rows


def rows_of_predictions(f: dict) -> list[Row]:
    if f["predicted_by_position"] is None:
        return []
    formula = ("predicted, Leviathan", f["predicted_leviathan"], "(1 - α^(K + 1)) / ((1 - α)(Kc + β))")
    if f["predicted_leviathan"] is None:  # with one α for all positions, as by block there is none
        formula = ("predicted, by position", f["predicted_by_position"], "(1 + α_1 + α_1 α_2 + ...) / (Kc + β)")
    name, speedup, how = formula
    return [
        ("largest β", f"{f['largest_beta']:.2f}", "tokens per iteration - Kc: above it, speculation loses"),
        ("predicted, blog", f"{f['predicted_blog']:.2f}x", "r(K + 1) / (Kc + β)"),
        (name, f"{speedup:.2f}x", how),
        ("measured", f"{f['speedup_without_prefill']:.2f}x", "without the prefill, to compare"),
        (
            "best K",
            f"{f['best_K']}, {f['predicted_best']:.2f}x",
            "of 0 to 2K: most expected tokens / (Kc + β); times measured / predicted",
        ),
        *((f"if {what}", f"{speedup:.2f}x", "predicted") for what, speedup in f["predicted_if"].items()),
    ]


def rows_of_ceiling(f: dict, weight_bytes: float, bandwidth: float) -> list[Row]:
    """The limit that memory sets to autoregressive decoding, and how near both decoders came to it."""
    most = ceiling(weight_bytes, bandwidth)
    per_second = f["tokens"] / f["seconds"]["speculative"]
    reached = f"{per_second / f['speedup'] / most:.0%} autoregressive, {per_second / most:.0%} speculative"
    read = f"{bandwidth / 1e9:.1f} GB/s / {weight_bytes / 1e9:.3g} GB of weights, autoregressive decoding's limit"
    return [("ceiling", f"{most:.1f} tokens/s", read), ("of the ceiling", reached, "")]


def level_row(level: dict) -> Row:
    """The row of a level, that is of a drafter for which another one drafts."""
    accepted = f"r {level['r']:.2f}, {level['tokens_per_iteration']:.1f} tokens a call, K = {level['K']:.1f} on average"
    if level["alpha"] is not None:
        accepted += f", α {level['alpha']:.2f}"
    how = "too few calls to time"
    if level["c"] is not None:
        costs = f"c = {level['c']:.3f}, β = {level['beta']:.2f}"
        how = f"a row {ms(level['t_row'])}; {costs}: a token {ms(level['predicted_seconds'])}"
    return f"level: {words(level['name'])}", accepted, how


def ms(seconds: float) -> str:
    digits = 2 if seconds < 0.01 else 1
    return f"{seconds * 1e3:.{digits}f} ms"


def words(name: str) -> str:
    """The name of a drafter in a sentence."""
    spec = drafters.DRAFTERS.get(name)
    return (spec and spec.words) or name
