"""The figures of a run, made of two recorders' notes: what was accepted, where the time went, what was to be expected.

What depends on K is an average over the iterations, so the figures also hold where K changes or a window is cut short.
"""

from collections import Counter
from statistics import mean, median

from speculative.costs import best_k, line_through
from speculative.measure.analysis import blog_speedup, leviathan_tokens
from speculative.measure.recorder import Iteration, Recorder

K_MAX = 16  # the largest K that is considered for the best
ENOUGH = 20  # drafts tested at a position, for its own chance of acceptance to be used there

# The keys of predictions(), which are there also where nothing was measured.
PREDICTED = ("t_target", "t_draft", "c", "beta", "mean_beta", "largest_beta", "best_K")
PREDICTED += ("predicted_blog", "predicted_leviathan", "predicted_best", "predicted_if")


def figures(autoregressive: Recorder, speculative: Recorder) -> dict:
    """All that is known of two decoders' runs over the same prompt, ready for JSON; None where nothing was measured."""
    counted = counts(speculative)
    return counted | times(autoregressive, speculative) | predictions(autoregressive, speculative, counted)


def counts(speculative: Recorder) -> dict:
    """What was drafted and what became of it."""
    steps = [i.step for i in speculative.iterations]
    n_tokens, drafted = speculative.n_tokens, sum(step.drafted for step in steps)
    met = Counter(j for i in speculative.iterations for j in range(len(i.alpha)))
    accepted = Counter(j for step in steps for j in range(step.accepted))
    by_proposer = Counter(name for i in speculative.iterations for name in i.by[: len(i.alpha)])
    passed = Counter(name for i in speculative.iterations for name in i.by[: i.step.accepted])
    by_position = [[i.alpha[j] for i in speculative.iterations if j < len(i.alpha)] for j in range(len(met))]
    return {
        "tokens": n_tokens,
        "iterations": len(steps),
        "drafted": drafted,
        "accepted": sum(step.accepted for step in steps),
        "tree": any(i.tree for i in speculative.iterations),
        "usual_K": Counter(step.drafted for step in steps).most_common(1)[0][0] if steps else None,
        "r": share(n_tokens, drafted + len(steps)),
        "tokens_per_iteration": share(n_tokens, len(steps)),
        "tokens_per_iteration_histogram": dict(sorted(Counter(len(step.tokens) for step in steps).items())),
        "met_by_position": [met[j] for j in range(len(met))],
        "accepted_by_position": [accepted[j] for j in range(len(met))],
        "by_proposer": {name: [passed[name], met] for name, met in by_proposer.most_common()},
        "levels": levels(speculative),
        "alpha": average(a for i in speculative.iterations for a in i.alpha),
        "alpha_by_position": [*map(average, by_position)],
        "matching": average(a for i in speculative.iterations for a in i.matching),
        "useful_row_calls": share(len(steps), speculative.row_calls),
    }


def levels(speculative: Recorder) -> list[dict]:
    """What each level of the drafter did, the outermost first: the same figures as of the run itself."""
    of = {}
    for iteration in speculative.iterations:
        for name, iterations in iteration.levels.items():
            of.setdefault(name, []).extend(iterations)
    return [level_figures(name, iterations) for name, iterations in of.items() if iterations]


def level_figures(name: str, iterations: list[Iteration]) -> dict:
    """r, α, c and β of a level, whose drafter drafts for its model; and the seconds that a token of it takes by the
    blog's formula, from what its parts take."""
    drafted = sum(i.step.drafted for i in iterations)
    n_tokens = sum(len(i.step.tokens) for i in iterations)
    found = {
        "name": name,
        "calls": len(iterations),
        "tokens": n_tokens,
        "drafted": drafted,
        "accepted": sum(i.step.accepted for i in iterations),
        "K": drafted / len(iterations),
        "r": share(n_tokens, drafted + len(iterations)),
        "tokens_per_iteration": n_tokens / len(iterations),
        "alpha": average(a for i in iterations for a in i.alpha),
        "drafting": total(i.drafting for i in iterations),
        "scoring": total(i.scoring for i in iterations),
    }
    typical = [i for i in iterations if not i.prefill]
    windows = {rows: s for rows, (_, s) in medians([(i.step.drafted + 1, i.scoring) for i in typical]).items()}
    drafts = [i.drafting / i.step.drafted for i in typical if i.step.drafted]
    found |= dict.fromkeys(("t_row", "t_draft", "c", "beta", "predicted_seconds"))
    if not windows or not drafts:
        return found  # so short a run that there was no call but the first
    t_row = min(windows.values())
    t_draft = median(drafts)
    c = t_draft / t_row
    beta = mean(windows[i.step.drafted + 1] for i in typical) / t_row
    speedup = blog_speedup(found["r"], found["K"], c, beta)
    return found | {"t_row": t_row, "t_draft": t_draft, "c": c, "beta": beta, "predicted_seconds": t_row / speedup}


def times(autoregressive: Recorder, speculative: Recorder) -> dict:
    """Where the seconds went, and the speedup that was measured, with the prefill and without."""
    drafting = total(i.drafting for i in speculative.iterations)
    scoring = total(i.scoring for i in speculative.iterations)
    runs = (autoregressive, speculative)
    prefills = [prefill_seconds(run) for run in runs]
    seconds = [run.seconds / run.n_tokens if run.n_tokens else 0.0 for run in runs]  # per token: --stop may cut a text
    later = [(run.seconds - p) / run.n_tokens if run.n_tokens else 0.0 for run, p in zip(runs, prefills, strict=True)]
    return {
        "seconds": {
            "autoregressive": autoregressive.seconds,
            "speculative": speculative.seconds,
            "drafting": drafting,
            "scoring": scoring,
            "rest": None if drafting is None else speculative.seconds - drafting - scoring,
            "prefill": prefills[1],
        },
        "speedup": share(*seconds),
        "speedup_without_prefill": share(*later),
    }


def predictions(autoregressive: Recorder, speculative: Recorder, counted: dict) -> dict:
    """What the formulas make of the measured costs and acceptance: speedups, and the K that would have been best."""
    t_target = window_seconds(autoregressive).get(1)
    t_window = window_seconds(speculative, at_least=3) or window_seconds(speculative)
    t_draft = seconds_per_draft(speculative)
    found = dict.fromkeys(PREDICTED)
    if not (t_target and t_window) or (counted["drafted"] and t_draft is None):
        return found  # so short a run that there was no call but the first

    if counted["levels"]:  # what a token of the outermost level takes, reckoned from its own parts
        t_draft = counted["levels"][0]["predicted_seconds"] or t_draft
    c = (t_draft or 0.0) / t_target
    beta = line_through({1: 1.0} | {rows: seconds / t_target for rows, seconds in t_window.items() if rows > 1})
    tokens, windows = counted["tokens_per_iteration"], [i.step.drafted for i in speculative.iterations]
    K, mean_beta = mean(windows), mean(beta(m + 1) for m in windows)
    found |= {
        "t_target": t_target,
        "t_draft": t_draft,
        "c": None if t_draft is None else c,
        "beta": {rows: seconds / t_target for rows, seconds in t_window.items()},
        "mean_beta": mean_beta,
        "predicted_blog": blog_speedup(counted["r"], K, c, mean_beta),
    }
    if (alpha := counted["alpha"]) is not None and not counted["tree"]:  # theirs are formulas for a chain
        best, best_speedup = best_k(acceptance(counted), c, beta)
        found |= {
            "predicted_leviathan": mean(leviathan_tokens(alpha, m) for m in windows) / (K * c + mean_beta),
            "largest_beta": tokens - K * c,  # with the tokens that were measured, in place of those that α gives
            "best_K": best,
            "predicted_best": best_speedup,
            "predicted_if": {  # what each obstacle costs: the speedup if it were gone
                "every draft were accepted": (K + 1) / (K * c + mean_beta),
                "drafting were free": tokens / mean_beta,
                "a window cost no more than a row": tokens / (K * c + 1),
            },
        }
    return found


def acceptance(counted: dict) -> list[float]:  # -> [K_MAX]
    """The chance of acceptance at each position: measured where enough drafts were tested there, else α."""
    measured = zip(counted["accepted_by_position"], counted["met_by_position"], strict=True)
    chances = [a / n if n >= ENOUGH else counted["alpha"] for a, n in measured][:K_MAX]
    return chances + [counted["alpha"]] * (K_MAX - len(chances))


# ---- Costs, in seconds -----------------------------------------------------------------------------------------------


def window_seconds(run: Recorder, at_least: int = 1) -> dict[int, float]:
    """t_target, {rows: median seconds}, where at_least this many calls read nothing but these rows."""
    if run.t_target:
        return run.t_target
    typical = [(i.step.drafted + 1, i.scoring) for i in run.iterations if not i.prefill and i.scoring]
    return {rows: s for rows, (n, s) in medians(typical).items() if n >= at_least}


def seconds_per_draft(run: Recorder) -> float | None:
    """t_draft. Calls that propose nothing are a part of what those cost that do."""
    if run.t_draft is not None:
        return run.t_draft
    typical = [(i.step.drafted, i.drafting) for i in run.iterations if not i.draft_prefill and i.drafting is not None]
    return share(sum(n * s for n, s in medians(typical).values()), sum(drafted for drafted, _ in typical))


def prefill_seconds(run: Recorder) -> float:
    """What the prefill took, beyond what the same calls take otherwise."""
    if run.prefill is not None:
        return run.prefill
    t_target, t_draft = window_seconds(run), seconds_per_draft(run) or 0.0
    scoring = [i.scoring - t_target.get(i.step.drafted + 1, 0.0) for i in run.iterations if i.prefill]
    drafting = [i.drafting - i.step.drafted * t_draft for i in run.iterations if i.draft_prefill]
    return sum(max(0.0, seconds) for seconds in scoring + drafting)


def medians(pairs: list[tuple[int, float]]) -> dict[int, tuple[int, float]]:
    """(key, seconds) pairs -> {key: (how many, their median)}"""
    by_key = {}
    for key, seconds in sorted(pairs):
        by_key.setdefault(key, []).append(seconds)
    return {key: (len(seconds), median(seconds)) for key, seconds in by_key.items()}


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def total(seconds) -> float | None:
    """Their sum, None where any of them is not known."""
    seconds = list(seconds)
    return None if None in seconds else sum(seconds)


def average(values) -> float | None:
    values = list(values)
    return mean(values) if values else None
