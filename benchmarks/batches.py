"""Several prompts at a time: tokens a second by the number of texts and by K, and where drafts stop to pay.

    python -m benchmarks batches
    python -m benchmarks batches --target_model_size 1558M --draft_model_size 124M --models_dir full --texts 1 2 4 8
    python -m benchmarks batches --out docs/batches.png

A call of the target has the rows of all texts: B rows without drafts, B (K + 1) with them. β is the time of the second
in multiples of the first, and drafts pay as long as it is below the bound of docs/theory.md, (1 − α^(K+1)) / (1 − α) −
K c. "Gain" is the tokens a second in multiples of those without drafts, with the reading of the prompts. The settings
of a row take turns; medians.
"""

from functools import partial
from operator import itemgetter
from statistics import mean

import numpy as np

from benchmarks import runs
from benchmarks.plots import COLORS, MARKERS, draw
from benchmarks.quiet import add_busy, undisturbed, with_waits
from benchmarks.tables import parser_of, table, take_turns, whole
from speculative.report.figures import leviathan_tokens
from speculative.run.session import Session
from speculative.support.texts import read_prompts

COLUMNS = "texts K tokens/s=tokens_per_second:.1f gain:.2f α=alpha:.2f c:.3f β=beta:.2f bound:.2f"
NO_DRAFTS = "none"


def decode(session: Session, K: str, prompts: list[str], N: int) -> None:
    name = "autoregressive" if K == NO_DRAFTS else "speculative"
    for _ in session.batch(prompts, N, name):
        pass


def costs(session: Session, prompts: list[str], N: int, K: int) -> dict[str, float]:
    """α, c and β of a K, for a batch of these prompts, and the bound on β."""
    n_texts = len(prompts)
    steps = [*session.batch(prompts, N)]
    chances = [chance for step in steps for chance in step.alpha]
    x = np.array(session.encode(prompts[0]))  # [n]
    target, draft = session.models["target"], session.models["draft"]
    seconds = partial(session.engine.window_seconds, target, x)
    row = min(seconds(n_texts) for _ in range(5))
    window = min(seconds(n_texts * (K + 1)) for _ in range(5))
    c = min(session.engine.window_seconds(draft, x, n_texts) for _ in range(5)) / row
    alpha = mean(chances)
    return {"alpha": alpha, "c": c, "beta": window / row, "bound": leviathan_tokens(alpha, K) - K * c}


def plot_batches(rows: list[dict], axes) -> None:
    """Fill two panels: the tokens a second, and β beside its bound, against the number of texts."""
    speed, beta = axes
    ticks = [*dict.fromkeys(row["texts"] for row in rows)]
    for number, K in enumerate(dict.fromkeys(row["K"] for row in rows)):
        looks = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}  # in both panels
        of_K = [row for row in rows if row["K"] == K]
        texts = [row["texts"] for row in of_K]
        label = "no drafts" if K == NO_DRAFTS else f"K = {K}"
        speed.plot(texts, [row["tokens_per_second"] for row in of_K], label=label, **looks)
        if "beta" in of_K[0]:
            beta.plot(texts, [row["beta"] for row in of_K], label=f"β, {label}", **looks)
            bounds = [row["bound"] for row in of_K]
            beta.plot(texts, bounds, color=looks["color"], marker="", linestyle="--", label=f"its bound, {label}")
    speed.set(ylabel="tokens a second", title="All texts together", ylim=(0, None))
    beta.set(ylabel="times of a call without drafts", title="Drafts pay while β is below its bound", ylim=(0, None))
    for panel in axes:
        panel.set(xscale="log", xlabel="texts in a call")
        panel.set_xticks(ticks, ticks)
        panel.minorticks_off()
        panel.legend(fontsize=8)


def main(argv: list[str]) -> None:
    parser = parser_of("batches", __doc__)
    runs.add_models(parser.add_argument)
    parser.add_argument("--texts", nargs="+", type=whole, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--K", nargs="+", default=["1", "2", "4", "auto"])
    parser.add_argument("--prompts", default=str(runs.PROMPTS["prose"]), help="file")
    parser.add_argument("--n_tokens", type=whole, default=24)
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--out", help="file for a picture")
    add_busy(parser.add_argument)
    o = parser.parse_args(argv)
    loaded = runs.load(o, ["model"])
    prompts = read_prompts(o.prompts)
    rows = []
    for n_texts in o.texts:
        some = [prompts[i % len(prompts)] for i in range(n_texts)]
        tasks = {NO_DRAFTS: partial(decode, loaded, NO_DRAFTS, some, o.n_tokens)}
        for K in o.K:
            tasks[K] = partial(decode, loaded.changed(K=K), K, some, o.n_tokens)
        times, _ = undisturbed(partial(with_waits, partial(take_turns, tasks, o.rounds)), itemgetter(1), o.busy)
        for K, seconds in times.items():
            row = {"texts": n_texts, "K": K, "tokens_per_second": n_texts * o.n_tokens / seconds}
            row["gain"] = times[NO_DRAFTS] / seconds
            if K.isdecimal():
                row |= costs(loaded.changed(K=K), some, o.n_tokens, int(K))
            rows.append(row)
    print(table(rows, COLUMNS))
    if o.out:
        draw(o.out, f"Several texts in a call: {o.target_model_size} in {o.dtype}", 2, partial(plot_batches, rows))
