"""The figures of a run, from two recorders' notes: what was accepted, where the time went, what was to be expected.

What depends on K is an average over the iterations, so the figures also hold where K changes or a window is cut short.
"""

from collections import Counter
from statistics import mean, median

from speculative.measure.analysis import blog_speedup, expected_tokens, leviathan_tokens
from speculative.measure.better import NOISE, better_K, gains_of_other_K, most_gaining_K
from speculative.measure.recorder import Iteration, Recorder
from speculative.measure.timing import by_key, cost_of_rows, costs, prefill_seconds, share

# The keys of predictions(), which are there also where nothing was measured.
PREDICTED = (
    *("t_target", "t_draft", "c", "beta", "mean_beta", "largest_beta", "best_K", "better_K"),
    *("predicted_blog", "predicted_leviathan", "predicted_by_position", "predicted_best", "predicted_if"),
)


def figures(autoregressive: Recorder, speculative: Recorder) -> dict:
    """All that is known of two decoders' runs over the same prompt, ready for JSON; None where nothing was measured."""
    counted = counts(speculative)
    return counted | times(autoregressive, speculative) | predictions(autoregressive, speculative, counted)


def counts(speculative: Recorder) -> dict:
    """What was drafted and what became of it."""
    steps = [i.step for i in speculative.iterations]
    n_tokens = speculative.n_tokens
    drafted = sum(step.drafted for step in steps)
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
        "largest_K": max((step.drafted for step in steps), default=0),
        "usual_K": Counter(step.drafted for step in steps).most_common(1)[0][0] if steps else None,
        "r": share(n_tokens, drafted + len(steps)),
        "tokens_per_iteration": share(n_tokens, len(steps)),
        "tokens_per_iteration_histogram": dict(sorted(Counter(len(step.tokens) for step in steps).items())),
        "met_by_position": [met[j] for j in range(len(met))],
        "accepted_by_position": [accepted[j] for j in range(len(met))],
        "by_proposer": {name: [passed[name], n_met] for name, n_met in by_proposer.most_common()},
        "levels": levels(speculative),
        "alpha": average(a for i in speculative.iterations for a in i.alpha),
        "alpha_by_position": [*map(average, by_position)],
        "matching": average(a for i in speculative.iterations for a in i.matching),
        "useful_row_calls": share(len(steps), speculative.row_calls),
    }


def levels(speculative: Recorder) -> list[dict]:
    """What each level with another one inside it did, the outermost first."""
    of = {}
    for iteration in speculative.iterations:
        for name, iterations in iteration.levels.items():
            of.setdefault(name, []).extend(iterations)
    return [level_figures(name, iterations) for name, iterations in of.items() if iterations]


def level_figures(name: str, iterations: list[Iteration]) -> dict:
    """r, α, c and β of a level: of its model, and of what drafts for that. c and β are in units of its cheapest window,
    as it need not have had one of a single row. predicted_seconds is what one of its tokens takes by the blog's
    formula."""
    drafted = sum(i.step.drafted for i in iterations)
    n_tokens = sum(len(i.step.tokens) for i in iterations)
    level = {
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
    timed = [i for i in iterations if not i.prefill]
    windows = {rows: median(s) for rows, s in by_key([(i.step.drafted + 1, i.scoring) for i in timed]).items()}
    drafts = [i.drafting / i.step.drafted for i in timed if i.step.drafted]
    level |= dict.fromkeys(("t_row", "t_draft", "c", "beta", "predicted_seconds"))
    if not windows or not drafts:
        return level  # so short a run that there was no call but the first
    t_row = min(windows.values())
    t_draft = median(drafts)
    c = t_draft / t_row
    beta = mean(windows[i.step.drafted + 1] for i in timed) / t_row
    speedup = blog_speedup(level["r"], level["K"], c, beta)
    return level | {"t_row": t_row, "t_draft": t_draft, "c": c, "beta": beta, "predicted_seconds": t_row / speedup}


def times(autoregressive: Recorder, speculative: Recorder) -> dict:
    """Where the seconds went, and the speedup that was measured, with the prefill and without."""
    drafting = total(i.drafting for i in speculative.iterations)
    scoring = total(i.scoring for i in speculative.iterations)
    runs = (autoregressive, speculative)
    prefills = [prefill_seconds(run) for run in runs]
    seconds = [per_token(run, run.seconds) for run in runs]
    later = [per_token(run, run.seconds - prefill) for run, prefill in zip(runs, prefills, strict=True)]
    return {
        "seconds": {
            "autoregressive": autoregressive.seconds,
            "speculative": speculative.seconds,
            "drafting": drafting,
            "scoring": scoring,
            "rest": None if drafting is None else speculative.seconds - drafting - scoring,
            "prefill": prefills[1],
        },
        "speedup": share(*seconds) or None,  # where one decoder was not asked, there is nothing to compare
        "speedup_without_prefill": share(*later) or None,
    }


def predictions(autoregressive: Recorder, speculative: Recorder, counted: dict) -> dict:
    """What the formulas make of the measured costs and acceptance: speedups, and the K that would have been best."""
    predicted = dict.fromkeys(PREDICTED) | {"busy": False}
    measured = costs(autoregressive, speculative)
    if measured is None:
        return predicted
    of_levels = None
    if counted["levels"]:  # what a token of the outermost level takes, reckoned from its own parts
        of_levels = counted["levels"][0]["predicted_seconds"]
    if of_levels:
        measured = measured._replace(t_draft=of_levels)
    c = measured.c
    beta = cost_of_rows(measured.beta)
    windows = [i.step.drafted for i in speculative.iterations]
    K = mean(windows)
    mean_beta = mean(beta(m + 1) for m in windows)
    predicted |= {"t_target": measured.t_target, "t_draft": measured.t_draft}
    if mean_beta < 1 - NOISE:  # no window takes less time than one of its rows
        return predicted | {"busy": True}

    by_blog = blog_speedup(counted["r"], K, c, mean_beta)
    predicted |= {
        "c": None if measured.t_draft is None else c,
        "beta": measured.beta,
        "mean_beta": mean_beta,
        "predicted_blog": by_blog,
    }
    alpha = counted["alpha"]
    if alpha is None or counted["tree"]:  # theirs are formulas for a chain
        return predicted
    tokens = counted["tokens_per_iteration"]
    cost = K * c + mean_beta
    if speculative.rule.independent:
        predicted["predicted_leviathan"] = mean(leviathan_tokens(alpha, m) for m in windows) / cost
    predicted |= {
        "predicted_by_position": mean(expected_tokens(counted["alpha_by_position"], m) for m in windows) / cost,
        "largest_beta": tokens - K * c,  # with the tokens that were measured, in place of those that α gives
        "predicted_if": {  # what each obstacle costs: the speedup if it were gone
            "every draft were accepted": (K + 1) / (K * c + mean_beta),
            "drafting were free": tokens / mean_beta,
            "a window cost no more than a row": tokens / (K * c + 1),
        },
    }
    gains = gains_of_other_K(autoregressive, speculative, of_levels)
    best, gain = most_gaining_K(gains)
    return predicted | {"best_K": best, "predicted_best": gain * by_blog, "better_K": better_K(gains)}


def per_token(run: Recorder, seconds: float) -> float:
    """As a stop text may cut the texts of the two decoders at different places. 0 where nothing was decoded."""
    return seconds / run.n_tokens if run.n_tokens else 0.0


def total(seconds) -> float | None:
    """Their sum, None where any of them is not known."""
    seconds = list(seconds)
    return None if None in seconds else sum(seconds)


def average(values) -> float | None:
    values = list(values)
    return mean(values) if values else None
