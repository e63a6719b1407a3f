"""The papers' figures: their formulas with a run's point on each; Figure 1 of Chen et al.; lenience.

    python main.py --demo --temperature 1 --json run.json
    python -m benchmarks.paper theory --run run.json --out docs/theory.png
    python -m benchmarks.paper figure1 --K 1 2 3 4 6 8
    python -m benchmarks.paper lenience

theory decodes nothing and takes seconds. The formulas are those of Leviathan et al. 2023, whose γ is our K; they take a
window to cost what a row does (β = 1). figure1 decodes --sequences texts with each K, in turn: about 4 seconds for 100
texts of 40 tokens. lenience enumerates all tokens, and all pairs, that can come first in a window, to say how far their
distribution is from the target's (3 seconds for each of --n_exact texts), and then decodes: less than two minutes in
all.
"""

import json
from functools import partial
from itertools import product

import numpy as np

from benchmarks.common import BASELINE, PROMPTS, Pair, Parser, Setting, count, setting, write_results, writing
from benchmarks.iterations import summarise
from benchmarks.sweep import INK, draw
from benchmarks.table1 import log_likelihood
from benchmarks.tables import mean_and_error, table, tokens
from plumbing import arguments as values
from plumbing import files
from plumbing.errors import UserError
from plumbing.exits import guarded
from plumbing.texts import read_prompts
from speculative import accept
from speculative.measure.analysis import leviathan_operations, leviathan_speedup, leviathan_tokens
from speculative.measure.machine import machine

LOOKAHEADS = [1, 2, 4, 8]
COSTS = [0.01, 0.05, 0.1, 0.2, 0.4]
K_MAX = 16
ALPHAS = np.linspace(0, 0.99, 100)


def read_point(path):
    """{"alpha", "c", "mean_beta", "K"} of a run, from the JSON file of main.py. Raises UserError."""
    try:
        with files.open_to_read(path) as f:
            found = json.load(f)["figures"]
        point = {name: float(found[name]) for name in ("alpha", "c", "mean_beta")}
        return point | {"K": int(found["usual_K"])}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not what main.py --json writes of a run long enough to measure α and c") from None


def best_lookahead(alpha, c):
    """The K from 0, not to speculate, to K_MAX with the highest expected speedup at β = 1."""
    return max(range(K_MAX + 1), key=lambda K: leviathan_speedup(alpha, K, c))


def plot_theory(point, axes):
    expected, time, best, operations = axes
    alpha = point["alpha"]
    c = point["c"]
    K = point["K"]
    here = {"marker": "*", "color": INK, "markersize": 15, "linestyle": "", "zorder": 5}
    for lookahead in LOOKAHEADS:
        expected.plot(ALPHAS, [leviathan_tokens(a, lookahead) for a in ALPHAS], marker="", label=f"K = {lookahead}")
    expected.plot(alpha, leviathan_tokens(alpha, K), label=f"the run: α = {alpha:.2f}, K = {K}", **here)
    expected.set(xlabel="α", ylabel="expected tokens per iteration", title="What acceptance brings")

    lookaheads = [*range(K_MAX + 1)]
    for cost in COSTS:
        time.plot(lookaheads, [1 / leviathan_speedup(alpha, k, cost) for k in lookaheads], label=f"c = {cost:g}", ms=4)
    time.plot(K, 1 / leviathan_speedup(alpha, K, c), label=f"the run: c = {c:.2f}", **here)
    time.set(xlabel="K", ylabel="time, of autoregressive decoding's", xticks=range(0, K_MAX + 1, 2))
    time.set_title(f"Time at α = {alpha:.2f}")

    costs = np.linspace(0.005, 0.6, 60)
    grid = [[best_lookahead(a, cost) for a in ALPHAS] for cost in costs]  # [n_costs, n_alphas]
    drawn = best.pcolormesh(ALPHAS, costs, grid, cmap="viridis", vmin=0, vmax=K_MAX)
    best.figure.colorbar(drawn, ax=best, label=f"best K (at most {K_MAX}; 0: do not speculate)")
    best.plot(alpha, c, **(here | {"color": "white", "markeredgecolor": INK}))
    best.grid(False)
    best.set(xlabel="α", ylabel="c = t_draft / t_target", title="The best K")

    for a in (0.6, 0.7, 0.8, 0.9):
        known = [(leviathan_speedup(a, k, 0.0), leviathan_operations(a, k)) for k in range(11)]
        operations.plot(*np.transpose(known), label=f"α = {a:g}, K = 0 to 10", ms=4)
    operations.set(xlabel="speedup (×), if drafting is free", ylabel="operations (×)", title="What it is paid with")
    for panel in (expected, time, operations):
        panel.legend(fontsize=8)


# ---- Figure 1 --------------------------------------------------------------------------------------------------------


def sequences(pair, o, domain, setting, Ks):
    """{K: [[Iteration, ...] of each sequence]}. The K take turns; 0 is autoregressive decoding."""
    prompts = o.prompts[domain]
    runs = {K: [] for K in Ks}
    for turn, i in enumerate([0, 1, *range(o.sequences)]):
        for K in Ks:
            where = ("model" if K else BASELINE, *setting, domain, K)
            run = pair.decode(Setting("", i // len(prompts), prompts[i % len(prompts)], *where), o.n_tokens)
            runs[K] += [run] if turn > 1 else []  # the first two warm up
    return runs


def figure1(o):
    pair = Pair(o)
    rows = []
    for domain, (temperature, top_p) in product(o.prompts, o.settings):
        for K, runs in sequences(pair, o, domain, (temperature, top_p), [0, *o.K]).items():
            row = {"domain": domain, "temperature": temperature, "top_p": top_p, "K": K} | summarise(runs)
            rows.append(row | {"by_count": row["sd"] * row["loop_ms"]})
    return rows


def plot_figure1(rows, o, axes):
    time, acceptance, loop = axes
    for number, (domain, (temperature, top_p)) in enumerate(product(o.prompts, o.settings)):
        of = [row for row in rows if (row["domain"], row["temperature"], row["top_p"]) == (domain, temperature, top_p)]
        label = f"{domain}, " + (f"T = {temperature:g}" + (f", top-p {top_p:g}" if top_p else ""))
        beside = [row["K"] + 0.08 * (number - 1.5) for row in of]  # so that no bar hides another
        time.errorbar(beside, [row["ms"] for row in of], [row["ms_sd"] for row in of], capsize=3, label=label)
        acceptance.plot([row["K"] for row in of[1:]], [row["r"] for row in of[1:]], label=label)
        loop.plot([row["K"] for row in of], [row["loop_ms"] for row in of])
    time.set(ylabel=f"ms for {o.n_tokens} tokens", title="Time of a text ± its sd")
    acceptance.set(ylabel="r = tokens / Σ (drafted + 1)", title="Acceptance rate", ylim=(0, 1.02))
    loop.set(ylabel="ms", title="Time of an iteration")
    for panel in axes:
        panel.set(xlabel="lookahead K; 0: autoregressive", xticks=[0, *o.K])
        panel.set_ylim(bottom=0)
    acceptance.legend(fontsize=8)


# ---- Lenience --------------------------------------------------------------------------------------------------------


def lenient_distribution(p, q, b):  # [..., n_vocab] twice -> [..., n_vocab]
    """The distribution of a token that was drafted from p and accepted with chance min(1, q / (b p)), else resampled
    from max(0, q - p): at b = 1 it is q. It holds for each of a window's first K tokens, given those before it."""
    accepted = np.minimum(p, q / b)  # [..., n_vocab]
    residual = np.maximum(q - p, 0)  # [..., n_vocab]
    mass = residual.sum(-1, keepdims=True)  # [..., 1]
    rejected = 1 - accepted.sum(-1, keepdims=True)  # [..., 1]
    return accepted + rejected * np.where(mass > 0, residual / np.where(mass > 0, mass, 1), q)


def total_variation(a, b):  # [...] twice -> a number
    return float(np.abs(a - b).sum() / 2)


def exact_distances(pair, x, leniences):
    """{b: (total variation from the target of the first token's distribution, of the first two tokens')} after x, for
    any K of 2 or more, by enumeration."""
    [p] = pair.draft(x)  # [n_vocab]
    [q] = pair.target(x)  # [n_vocab]
    after = [(pair.draft([*x, token])[0], pair.target([*x, token])[0]) for token in range(len(q))]
    p_after, q_after = np.swapaxes(after, 0, 1)  # [n_vocab, n_vocab]
    found = {}
    for b in leniences:
        one = lenient_distribution(p, q, b)  # [n_vocab]
        both = one[:, None] * lenient_distribution(p_after, q_after, b)  # [n_vocab, n_vocab]
        found[b] = total_variation(one, q), total_variation(both, q[:, None] * q_after)
    return found


def lenience(o):
    pair = Pair(o)
    rows = []
    prompts = o.prompts["prose"]
    pair.sample_with(temperature=1.0)
    distances = [exact_distances(pair, pair.ids[prompt], o.lenience) for prompt in prompts[: o.n_exact]]
    for K in o.K:
        runs = {b: [] for b in (None, *o.lenience)}  # None: autoregressive
        for (turn, i), b in product(enumerate([0, *range(o.sequences)]), runs):
            s = Setting("", i, prompts[i % len(prompts)], "model" if b else BASELINE, 1.0, None, "prose", K if b else 0)
            run = pair.decode(s, o.n_tokens, accept.choose(lenience=b or 1.0))
            runs[b] += [(s.prompt, run)] if turn else []  # the first warms up
        plain = sum(i.seconds for _, run in runs[None] for i in run)
        for b in o.lenience:
            row = {"K": K, "b": b} | summarise([run for _, run in runs[b]])
            row["per_iteration"] = o.n_tokens / row["iterations"]
            row["speedup"] = plain / sum(i.seconds for _, run in runs[b] for i in run)
            row["one"], row["two"] = np.mean([of[b] for of in distances], axis=0).tolist()
            each = [log_likelihood(pair, pair.ids[prompt], tokens(run)) for prompt, run in runs[b]]
            row["log_likelihood"], row["error"] = mean_and_error(each)
            rows.append(row)
    return rows


def plot_lenience(rows, o, axes):
    speed, away, likelihood = axes
    for K in o.K:
        of = [row for row in rows if row["K"] == K]
        speed.plot(o.lenience, [row["speedup"] for row in of], label=f"K = {K}")
        likelihood.errorbar(
            o.lenience, [row["log_likelihood"] for row in of], [row["error"] for row in of], capsize=3, label=f"K = {K}"
        )
    away.plot(o.lenience, [row["one"] for row in of], label="first token")
    away.plot(o.lenience, [row["two"] for row in of], label="first two tokens")
    speed.set(ylabel="speedup (×)", title="What lenience brings")
    away.set(ylabel="total variation", title="How far the distribution is from the target's", ylim=(0, None))
    likelihood.set(ylabel="log-likelihood a token, under the target", title="What the text becomes")
    for panel in axes:
        panel.set(xlabel="lenience b")
        panel.legend(fontsize=9)


# ---- The command -----------------------------------------------------------------------------------------------------

FIGURE1 = """domain T=temperature:g top-p=top_p:g K sequences ms:.1f sd=ms_sd:.2f loop=loop_ms:.2f iterations:.1f
    sd=sd:.2f sd_×_loop=by_count:.2f r:.3f ±=standard_error:.3f"""
LENIENCE = """K b sequences r:.3f ±=standard_error:.3f tokens/iteration=per_iteration:.2f speedup:.2f TVD_of_1=one:.3f
    TVD_of_2=two:.3f log-likelihood_a_token=log_likelihood:.3f ±=error:.3f"""
THEORY = "Formulas of Leviathan et al. 2023 with β = 1 (the run's was {mean_beta:.2f}); the star is the run."
MEASURED = """target {target_model_size}, draft {draft_model_size}, {n_tokens} tokens, {sequences} sequences each;
    {processor}, {cpus} CPUs"""
DRAWN = {  # figure: (what measures it, columns, what draws it, title)
    "figure1": (figure1, FIGURE1, plot_figure1, "The paper's Figure 1"),
    "lenience": (lenience, LENIENCE, plot_lenience, "Lenience"),
}


def theory(o):
    """Prints a run's point in the formulas, and returns it."""
    point = read_point(o.run)
    alpha, c, K = (point[name] for name in ("alpha", "c", "K"))
    rows = []
    for which, k in (("the run's", K), ("the best", best_lookahead(alpha, c))):
        row = {"which": which, "K": k, "tokens": leviathan_tokens(alpha, k), "speedup": leviathan_speedup(alpha, k, c)}
        rows.append(row | {"operations": leviathan_operations(alpha, k)})
    print(f"α = {alpha:.3f}, c = {c:.3f}; β = 1 below, and {point['mean_beta']:.2f} in the run")
    print(table(rows, "which K tokens/iteration=tokens:.2f speedup:.2f operations:.2f"))
    return point


def main(argv=None):
    parser = Parser(__doc__)
    add = parser.add_argument
    add("figure", choices=["theory", *DRAWN])
    add("--run", help="for theory, the JSON file of a run, whose point is drawn")
    add("--out", help="a file for the picture [FIGURE.png]")
    parser.add_models()
    parser.add_json()
    add("--sequences", type=values.argument(values.integer(2)), default=100, help="texts for each line")
    add("--n_tokens", type=values.argument(values.integer(2)), default=40)
    add("--n_prompts", type=count, default=20)
    add("--n_exact", type=count, default=8, help="texts after which the distance is computed by enumeration")
    add("--domains", nargs="+", choices=PROMPTS, default=[*PROMPTS])
    add("--K", nargs="+", type=count, default=[2, 4, 8])
    add("--settings", nargs="+", type=values.argument(setting), default=[(0.0, None), (1.0, 0.9)])
    add("--lenience", nargs="+", type=values.argument(values.lenience), default=[1.0, 0.8, 0.6, 0.4, 0.2, 0.1])
    o = parser.parse_args(argv)
    o.out = o.out or f"{o.figure}.png"
    o.drafters = ["model"]
    if (o.figure == "theory") != bool(o.run):
        raise UserError("theory needs --run FILE, a run of main.py --json; the other figures measure by themselves")
    files.check_outputs([o.out, o.json], [o.run])
    if not o.out.endswith((".png", ".svg", ".pdf")):
        raise UserError(f"--out must be a .png, .svg or .pdf, not {o.out}")
    o.prompts = {domain: read_prompts(PROMPTS[domain], o.n_prompts) for domain in o.domains}
    if o.figure == "theory":
        point = theory(o)
        picture = ("What the theory expects", THEORY.format(**point), 4, partial(plot_theory, point), 2)
    else:
        measure, columns, plot, title = DRAWN[o.figure]
        rows = measure(o)
        write_results(o.json, o, rows=rows)
        print(table(rows, columns))
        picture = (title, MEASURED.format(**vars(o), **machine()), 3, partial(plot, rows, o))
    with writing(o.out):
        draw(o.out, *picture)


if __name__ == "__main__":
    guarded(main)
