"""Pictures of measurements, which are drawn by matplotlib."""

import os
import textwrap
from functools import partial

import numpy as np

from speculative.support import extras
from speculative.support.errors import UserError

# Colours that the colour-blind tell apart (Okabe and Ito 2008), on a light grey that shows on white and on black pages.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
PAPER = "#F3F3F0"
INK = "#1A1A1A"
GRID = "#CFCFC8"


def picture(path):
    """The path of a picture. Raises UserError."""
    extras.check("a picture", ["matplotlib"])
    if not path.endswith((".png", ".svg", ".pdf")):
        raise UserError(f"--out must be a .png, .svg or .pdf, not {path:.80}")
    return path


def draw(path, title, caption, n_panels, plot, n_rows=1):
    """Makes the picture at path: n_panels panels in n_rows rows, which plot(axes [n_panels]) fills."""
    from matplotlib import cycler, figure, rc_context

    style = {f"{part}.facecolor": PAPER for part in ("figure", "axes", "savefig", "legend")}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    style |= {"axes.grid": True, "grid.color": GRID, "axes.axisbelow": True, "font.size": 11, "lines.linewidth": 2}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "legend.framealpha": 0.9}
    style |= {"axes.prop_cycle": cycler(color=COLORS, marker=["o", "s", "^", "D", "v", "P"])}
    with rc_context(style):
        n_columns = n_panels // n_rows
        picture = figure.Figure(figsize=(4 * n_columns + 2.4, 4.6 * n_rows), layout="constrained")
        plot(picture.subplots(n_rows, n_columns, squeeze=False).ravel())
        picture.suptitle(title, fontsize=13)
        picture.supxlabel(textwrap.fill(caption, 52 * n_columns + 31), fontsize=9)
        picture.savefig(path, dpi=150)


def pictures(rows, folder, caption):
    """The two pictures for each drafter. -> their paths"""
    paths = []
    for drafter in sorted({row["drafter"] for row in rows if row["K"] not in (0, "auto")}):
        lines = {}  # {label: rows by K}
        for row in rows:
            if row["drafter"] == drafter and row["K"] != "auto":
                top_p = f", top-p {row['top_p']:g}" if row["top_p"] else ""
                lines.setdefault(f"{row['domain']}, T = {row['temperature']:g}{top_p}", []).append(row)
        for name, title, n_panels, plot in (
            ("figure1", "What a longer lookahead brings and costs", 3, plot_figure1),
            ("predicted", "Predicted against measured speedup", 1, plot_predicted),
        ):
            paths.append(os.path.join(folder, f"{name}_{drafter.replace('+', '_')}.png"))
            draw(paths[-1], title, f"drafter {drafter}; {caption}", n_panels, partial(plot, lines))
    return paths


def plot_figure1(lines, axes):
    """The paper's Figure 1: against K, the speedup, the acceptance rate and the time of a loop; medians of times."""
    speedup, acceptance, loop = axes
    for label, rows in lines.items():
        K = [row["K"] for row in rows]
        errors = [row["usual_speedup_error"] for row in rows]
        speedup.errorbar(K, [row["usual_speedup"] for row in rows], errors, capsize=3, label=label)
        acceptance.plot(K, [row["r"] for row in rows])
        loop.plot(K, [row["usual_loop_ms"] for row in rows])
    speedup.axhline(1, color=INK, linewidth=1, linestyle="--")
    speedup.set(ylabel="speedup over autoregressive decoding (×)", title="Speedup ± its standard error")
    acceptance.set(ylabel="r = tokens / Σ (drafted + 1)", title="Acceptance rate", ylim=(0, 1.02))
    loop.set(ylabel="ms per iteration", title="Time of an iteration", ylim=(0, None))
    for panel in axes:
        panel.set(xlabel="lookahead K (tokens)", xticks=sorted({row["K"] for rows in lines.values() for row in rows}))
    speedup.legend()


def plot_predicted(lines, axes):
    [panel] = axes
    gaps = {"predicted_blog": [], "predicted_leviathan": []}  # of each formula, how far off it is
    for (label, rows), color in zip(lines.items(), COLORS * len(lines), strict=False):
        for name, marker, face in (("predicted_blog", "o", color), ("predicted_leviathan", "s", "none")):
            known = [(row[name], row["usual_speedup"]) for row in rows if row[name]]
            panel.scatter(*np.reshape(known, (-1, 2)).T, marker=marker, facecolors=face, edgecolors=color)
            gaps[name] += [p / measured - 1 for p, measured in known]
        panel.scatter([], [], color=color, label=label)
    ends = [min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])]
    panel.plot(ends, ends, color=INK, linewidth=1, linestyle="--", marker="")
    blog, leviathan = map(how_far_off, gaps.values())
    panel.scatter([], [], color=INK, label=f"the blog's r(K + 1) / (Kc + β): {blog}")
    panel.scatter([], [], marker="s", facecolors="none", edgecolors=INK, label=f"Leviathan et al., with β: {leviathan}")
    panel.set(xlabel="predicted speedup (×)", ylabel="measured speedup, at median times (×)", xlim=ends, ylim=ends)
    panel.legend(fontsize=9)


def how_far_off(gaps):
    """predicted / measured - 1 of each point -> in words, which way and how far"""
    if all(gap <= 0 for gap in gaps):
        return f"too low, by up to {-min(gaps, default=0):.0%}"
    if all(gap >= 0 for gap in gaps):
        return f"too high, by up to {max(gaps):.0%}"
    return f"from {-min(gaps):.0%} too low to {max(gaps):.0%} too high"
