"""The table of --verbose and of the page: every figure with its formula."""

from speculative import drafters
from speculative.measure.analysis import blog_speedup
from speculative.rules import TOKEN, Rule

Row = tuple[str, str, str]  # a figure's name, its value, its formula


def table(f: dict, rule: Rule = TOKEN) -> list[Row]:
    """figures() -> a row for each figure that was measured."""
    rows = acceptance_rows(f, rule) if f["drafted"] else []
    histogram = f["tokens_per_iteration_histogram"].items()
    shares = "  ".join(f"{tokens}: {count / f['iterations']:.0%}" for tokens, count in histogram)
    return [
        ("r", f"{f['r']:.3f}", "tokens / Σ over iterations of (drafted + 1)"),
        ("tokens per iteration", f"{f['tokens_per_iteration']:.2f}", shares),
        *rows,
        *(speed_rows(f) if f["drafted"] and f["account_blog"] else []),
    ]


def acceptance_rows(f: dict, rule: Rule) -> list[Row]:
    rows = [("accepted", f"{f['accepted'] / f['drafted']:.3f}", "accepted / drafted")]
    if f["tested_by_position"]:
        counted = zip(f["accepted_by_position"], f["tested_by_position"], strict=True)
        by_position = " ".join(f"{accepted}/{tested}" for accepted, tested in counted)
        chance = "the chance that one of the siblings is accepted" if f["tree"] else rule.formula
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


def speed_rows(f: dict) -> list[Row]:
    by_rows = "  ".join(f"{n} rows: {beta:.2f}" for n, beta in f["beta"].items() if n != "1")
    blog = blog_speedup(f["r"], f["drafted"] / f["iterations"], f["c"])
    rows = [
        ("c", f"{f['c']:.3f}", f"t_draft / t_target = {duration(f['t_draft'])} / {duration(f['t_target'])}"),
        ("β", f"{f['mean_beta']:.2f}", f"t_target of a window / of one row; {by_rows}"),
        ("measured", f"{f['speedup_without_prefill']:.2f}x", "without the prefill, to compare with the formulas"),
        ("the blog's formula", f"{blog:.2f}x", "r(K + 1) / (Kc + 1)"),
        ("account", f"{f['account_blog']:.2f}x", "r(K + 1) / (Kc + β)"),
    ]
    if f["account_leviathan"]:
        leviathan = "(1 - α^(K + 1)) / ((1 - α)(Kc + β))"
        rows.append(("account, Leviathan", f"{f['account_leviathan']:.2f}x", leviathan))
    if f["predicted"]:
        speedups = "  ".join(f"{K}: {speedup:.2f}x" for K, speedup in f["predicted"].items())
        rows.append(("predicted, by K", speedups, "windows of K drafts over this text, by c and β; with prefill"))
    return rows


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.{2 if seconds < 0.01 else 1}f} ms"


def words(name: str) -> str:
    """Return the name of a drafter in a sentence."""
    spec = drafters.DRAFTERS.get(name)
    return (spec and spec.words) or name
