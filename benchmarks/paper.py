"""The figures and tables of Chen et al. 2023, for GPT-2; and Leviathan's lenience.

    python -m benchmarks.paper figure1 --K 1 2 3 4 6 8
    python -m benchmarks.paper table1 --repeats 10
    python -m benchmarks.paper iterations --K 4 --settings 0 0.5 1 1:0.9 1:0.8 --repeats 10
    python -m benchmarks.paper lenience

Each prompt is decoded --repeats times in each way, each time with another seed. 100 texts of 40 tokens take about 4
seconds.

figure1     their Figure 1: time, acceptance rate and the time of an iteration, against K
table1      their Table 1: both decoders, greedy and nucleus sampling. The quality figure is the mean log-likelihood of
            a new token under the target itself (temperature 1, no filter), with its standard error over the texts;
            theirs is ROUGE-2 for XSum and, for HumanEval, one with "100 Shot". Nothing is lost if ArS, autoregressive
            sampling, and SpS, speculative, agree within that. Greedy texts are the same, and so are their figures.
iterations  how many iterations a text takes, and how that varies, without the noise of the machine. Autoregressive
            decoding takes as many as tokens. They name the variance as a price of speculation.
lenience    what lenience brings and costs (Leviathan et al. 2023). All tokens, and all pairs, that can come first in a
            window are enumerated, to say how far their distribution is from the target's: 3 seconds for each of
            --n_exact texts.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from benchmarks import grid
from benchmarks.common import PROMPTS, Parser, count, write_results, writing
from benchmarks.pictures import draw, picture
from benchmarks.tables import by_setting, mean_and_error, summarise, table, tokens, unlike_texts
from speculative.measure.machine import machine
from speculative.support import arguments as values
from speculative.support import files
from speculative.support.errors import UserError, guarded

# ---- What is measured ------------------------------------------------------------------------------------------------


def count_sd(o, session, rows, texts):
    """The standard deviation of a text's time, if all iterations took as long."""
    for row in rows:
        row["by_count"] = (row["text_iterations_sd"] or 0) * row["loop_ms"]


def likelihood(o, session, rows, texts):
    """The mean log-likelihood of a new token under the target, and its standard error over the texts."""
    target = session.changed(temperature=1.0).pair.target
    for row in rows:
        of = texts[tuple(row[name] for name in grid.Setting._fields[3:])]
        each = [log_likelihood(target, session.encode(prompt), new) for prompt, new in of]
        row["log_likelihood"], row["standard_error"] = mean_and_error(each)
        row["decoder"] = "SpS" if row["K"] else "ArS"


def log_likelihood(target, x, new):
    """The mean log-likelihood of new tokens after x under the target's distribution."""
    q = target([*x, *new[:-1]], len(new))  # [len(new), n_vocab]
    return float(np.mean(np.log(q[np.arange(len(new)), new])))


def distances(o, session, rows, texts):
    """The distance of a window's first tokens from the target's; and the speedup of all texts together."""
    likelihood(o, session, rows, texts)
    sampled = session.changed(temperature=1.0).pair
    xs = [session.encode(prompt) for prompt in [*chain(*o.prompts.values())][: o.n_exact]]
    found = [exact_distances(sampled.models["draft"], sampled.target, x, o.lenience) for x in xs]
    for plain, *lenient in by_setting(rows):
        for row in lenient:
            row["in_all"] = plain["text_ms"] / row["text_ms"]
            row["one"], row["two"] = np.mean([of[row["lenience"]] for of in found], axis=0).tolist()


def plot_figure1(rows, o, axes):
    time, acceptance, loop = axes
    for number, of in enumerate(by_setting(rows)):
        top_p = f", top-p {of[0]['top_p']:g}" if of[0]["top_p"] else ""
        label = f"{of[0]['domain']}, T = {of[0]['temperature']:g}{top_p}"
        beside = [row["K"] + 0.08 * (number - 1.5) for row in of]  # so that no bar hides another
        time.errorbar(beside, [row["text_ms"] for row in of], [row["text_ms_sd"] for row in of], capsize=3, label=label)
        acceptance.plot([row["K"] for row in of[1:]], [row["text_r"] for row in of[1:]], label=label)
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
    from max(0, q - p): at b = 1 it is q.

    It holds for each of a window's first K tokens, given those before it.
    """
    accepted = np.minimum(p, q / b)  # [..., n_vocab]
    residual = np.maximum(q - p, 0)  # [..., n_vocab]
    mass = residual.sum(-1, keepdims=True)  # [..., 1]
    rejected = 1 - accepted.sum(-1, keepdims=True)  # [..., 1]
    return accepted + rejected * np.where(mass > 0, residual / np.where(mass > 0, mass, 1), q)


def total_variation(a, b):  # [...] twice -> a number
    return float(np.abs(a - b).sum() / 2)


def exact_distances(draft, target, x, leniences):
    """{b: (total variation from the target of the first token's distribution, of the first two tokens')} after x.

    By enumeration, for any K of 2 or more.
    """
    [p] = draft(x)  # [n_vocab]
    [q] = target(x)  # [n_vocab]
    after = [(draft([*x, token])[0], target([*x, token])[0]) for token in range(len(q))]
    p_after, q_after = np.swapaxes(after, 0, 1)  # [n_vocab, n_vocab]
    found = {}
    for b in leniences:
        one = lenient_distribution(p, q, b)  # [n_vocab]
        both = one[:, None] * lenient_distribution(p_after, q_after, b)  # [n_vocab, n_vocab]
        found[b] = total_variation(one, q), total_variation(both, q[:, None] * q_after)
    return found


def plot_lenience(rows, o, axes):
    speed, away, likely = axes
    for K in o.K:
        of = [row for row in rows if row["K"] == K]
        speed.plot(o.lenience, [row["in_all"] for row in of], label=f"K = {K}")
        errors = [row["standard_error"] for row in of]
        likely.errorbar(o.lenience, [row["log_likelihood"] for row in of], errors, capsize=3, label=f"K = {K}")
    away.plot(o.lenience, [row["one"] for row in of], label="first token")
    away.plot(o.lenience, [row["two"] for row in of], label="first two tokens")
    speed.set(ylabel="speedup (×)", title="What lenience brings")
    away.set(ylabel="total variation", title="How far the distribution is from the target's", ylim=(0, None))
    likely.set(ylabel="log-likelihood a token, under the target", title="What the text becomes")
    for panel in axes:
        panel.set(xlabel="lenience b")
        panel.legend(fontsize=9)


# ---- The command -----------------------------------------------------------------------------------------------------

FIGURE1 = """domain T=temperature:g top-p=top_p:g K sequences=runs ms=text_ms:.1f sd=text_ms_sd:.2f loop=loop_ms:.2f
    iterations=text_iterations:.1f sd=text_iterations_sd:.2f sd_×_loop=by_count:.2f r=text_r:.3f ±=text_r_error:.3f"""
TABLE1 = """domain T=temperature:g top-p=top_p:g decoder ms/token=ms_per_token:.2f sd:.2f speedup:.2f r:.2f
    log-likelihood_a_token=log_likelihood:.3f ±=standard_error:.3f texts"""
ITERATIONS = """T=temperature:g top-p=top_p:g K sequences=texts r=text_r:.3f ±=text_r_error:.3f
    iterations=text_iterations:.1f sd=text_iterations_sd:.2f P50=p50:.0f P90=p90:.0f P99=p99:.0f"""
LENIENCE = """K b=lenience sequences=runs r=text_r:.3f ±=text_r_error:.3f tokens/iteration=tokens_per_iteration:.2f
    speedup=in_all:.2f TVD_of_1=one:.3f TVD_of_2=two:.3f log-likelihood_a_token=log_likelihood:.3f
    ±=standard_error:.3f"""
MEASURED = """target {target_model_size}, draft {draft_model_size}, {n_tokens} tokens, {runs} sequences each;
    {processor}, {cpus} CPUs"""


class Preset(NamedTuple):
    """One of the figures and tables."""

    columns: str
    defaults: dict  # of flags that are not given
    add: Callable | None = None  # (options, session, rows, texts): adds figures of its own to the rows
    plot: Callable | None = None  # (rows, options, axes), where it is drawn
    title: str = ""


PAPERS = {"n_tokens": 40, "settings": [(0.0, None), (1.0, 0.9)], "lenience": [None]}
PROSE = PAPERS | {"prompts": [PROMPTS["prose"]]}
OF_ITERATIONS = PROSE | {"K": [1, 2, 4, 8], "settings": [(1.0, 0.9)]}
OF_LENIENCE = PROSE | {"K": [2, 4, 8], "settings": [(1.0, None)], "lenience": [1.0, 0.8, 0.6, 0.4, 0.2, 0.1]}
PRESETS = {
    "figure1": Preset(FIGURE1, PAPERS | {"K": [2, 4, 8]}, count_sd, plot_figure1, "The paper's Figure 1"),
    "table1": Preset(TABLE1, PAPERS | {"K": [4], "n_tokens": 64}, likelihood),
    "iterations": Preset(ITERATIONS, OF_ITERATIONS),
    "lenience": Preset(LENIENCE, OF_LENIENCE, distances, plot_lenience, "Lenience"),
}


def main(argv=None):
    parser = Parser(__doc__)
    add = parser.add_argument
    add("figure", choices=PRESETS)
    add("--out", dest="picture", help="a file for the picture [FIGURE.png]")
    grid.add_grid(parser)
    parser.add_json()
    add("--n_exact", type=count, default=8, help="texts after which the distance is computed by enumeration")
    add("--lenience", nargs="+", type=values.argument(values.lenience), help="below 1, more drafts are accepted")
    parser.set_defaults(n_prompts=20, n_tokens=None, repeats=5, out=None)
    o = parser.parse_args(argv)
    preset = PRESETS[o.figure]
    for name, value in preset.defaults.items():
        if not getattr(o, name):
            setattr(o, name, value)
    if not all(isinstance(K, int) for K in o.K):
        raise UserError("--K: the papers have whole numbers")
    if preset.plot:
        o.picture = picture(o.picture or f"{o.figure}.png")
    elif o.picture:
        raise UserError(f"{o.figure} is a table, without a picture for --out")
    files.check_outputs([o.picture, o.json], [])
    grid.read(o)
    if o.figure == "lenience" and (o.settings != [(1.0, None)] or o.drafters != ["model"]):
        raise UserError("lenience is measured with --settings 1 and --drafters model, as the distances are computed")
    session = grid.loaded(o)
    runs = grid.measure(o, partial(grid.decode, session))
    rows = summarise(runs)
    texts = defaultdict(list)  # {kind: [(prompt, its new tokens)]}
    for s, run in runs.items():
        if s.temperature or s.repeat == 0:  # else it is the same text again, and no further evidence
            texts[s[3:]].append((s.prompt, tokens(run)))
    if preset.add:
        preset.add(o, session, rows, texts)
    write_results(o.json, o, rows=rows)
    print(table(rows, preset.columns))
    print(unlike_texts(rows))
    if preset.plot:
        caption = MEASURED.format(**vars(o), **machine(), runs=rows[0]["runs"])
        with writing(o.picture):
            draw(o.picture, preset.title, caption, 3, partial(preset.plot, rows, o))


if __name__ == "__main__":
    guarded(main)
