"""Levels of drafting: what the target's own copy brings, alone and with the draft model under it.

    python -m benchmarks.levels
    python -m benchmarks.levels --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M
                                --n_prompts 2 --n_tokens 40 --repeats 1

Each line is a drafter and a K for each of its levels, the outermost first. "Predicted" is the blog's formula, with the
cost of a token of the copy reckoned by the same formula from the level inside. Speedups are medians over prompts.
With --out it also draws levels.png: what a token costs with the best K of each drafter.
"""

from statistics import median

from benchmarks import grid
from benchmarks.common import lookahead, write_results
from benchmarks.pictures import COLORS, draw
from benchmarks.tables import summarise, table
from speculative.support.errors import guarded

COLUMNS = """domain drafter K runs tokens/iteration=tokens_per_iteration:.2f r:.3f c:.3f β=mean_beta:.2f
    copy_r:.2f copy_c:.2f ms/token=ms_per_token:.2f speedup:.2f predicted=predicted_blog:.2f
    off:+.0%"""


def main(argv=None):
    Ks = ["4", "8", "8/4", "16/4", "8/8", "auto"]
    o = grid.options(__doc__, argv, drafters=["model", "self", "self/model"], K=[*map(lookahead, Ks)], repeats=1)
    rows = []
    for row in summarise(grid.measure(o)):
        if row["K"] and row["predicted_blog"]:
            row["off"] = row["predicted_blog"] / row["speedup_without_prefill"] - 1
        if row["levels"]:
            row |= {"copy_r": row["levels"][0]["r"], "copy_c": row["levels"][0]["c"]}
        rows.append(row)
    write_results(o.out and f"{o.out}/levels.json", o, rows=rows)
    for temperature in sorted({row["temperature"] for row in rows}):
        lines = [row for row in rows if row["temperature"] == temperature]
        print(f"\ntemperature {temperature:g}\n{table(lines, COLUMNS)}")
        if off := [abs(row["off"]) for row in lines if "off" in row]:
            print(f"predicted within {median(off):.1%} (median)")
    if o.out:
        picture(rows, f"{o.out}/levels.png")


def picture(rows, path):
    """Bars, one for each drafter at its best K: the milliseconds of a token, spent on scoring and on drafting."""
    kinds = sorted({(row["temperature"], row["domain"]) for row in rows})

    def plot(panels):
        for axes, kind in zip(panels, kinds, strict=True):
            plot_bars(axes, [row for row in rows if (row["temperature"], row["domain"]) == kind])
            axes.set_title(f"{kind[1]}, temperature {kind[0]:g}")
        panels[-1].legend(loc="lower right", fontsize="small")

    title = "What a token costs, for each drafter at its best K"
    caption = "Of the speculative decoders, the mean of whole runs, the prefill apart. Beside each bar: speedup."
    draw(path, title, caption, len(kinds), plot, n_rows=len(kinds) // 2 or 1)


def plot_bars(axes, rows):
    names = list(dict.fromkeys(row["drafter"] for row in rows))
    for place, name in enumerate(names):
        best = max((row for row in rows if row["drafter"] == name), key=lambda row: row["speedup"])
        drafting = best["ms_per_token"] * best["seconds"]["drafting"] / best["seconds"]["speculative"]
        scoring = best["ms_per_token"] - drafting
        axes.barh(place, scoring, color=COLORS[0], label="scoring by the target" if place == 0 else None)
        axes.barh(place, drafting, left=scoring, color=COLORS[1], label="drafting" if place == 0 else None)
        K = f", K = {best['K']}" if best["K"] else ""
        axes.text(best["ms_per_token"], place, f" {best['speedup']:.2f}×{K}", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.8 * max(bar.get_x() + bar.get_width() for bar in axes.patches))  # with room for the speedups
    axes.set_xlabel("milliseconds a token")
    axes.grid(False)


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")
