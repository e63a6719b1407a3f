"""Pictures of measurements, drawn by matplotlib."""

from collections.abc import Callable
from functools import partial

from benchmarks.tables import without_numbers
from speculative.engines.system import n_cores
from speculative.measure.observe import processor

# Colours that the colour-blind tell apart (Okabe and Ito 2008), on a light grey that shows on white and on black pages.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
PAPER, INK, GRID = "#F3F3F0", "#1A1A1A", "#CFCFC8"


def draw(path: str, title: str, n_panels: int, plot: Callable) -> str:
    """Write a picture of n_panels panels, which plot(axes [n_panels]) fills -> its path."""
    from matplotlib import cycler, figure, rc_context, ticker

    style = {f"{part}.facecolor": PAPER for part in ("figure", "axes", "savefig", "legend")}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    style |= {"axes.grid": True, "grid.color": GRID, "axes.axisbelow": True, "font.size": 11, "lines.linewidth": 2}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "legend.framealpha": 0.9}
    style |= {"axes.prop_cycle": cycler(color=COLORS, marker=["o", "s", "^", "D", "v", "P"])}
    with rc_context(style):
        picture = figure.Figure(figsize=(4 * n_panels + 2.4, 4.6), layout="constrained")
        axes = picture.subplots(1, n_panels, squeeze=False)[0]
        plot(axes)
        for panel in axes:
            if "K" in panel.get_xlabel():
                panel.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        words = [title, *(getattr(panel, f"get_{part}")() for panel in axes for part in ("title", "xlabel", "ylabel"))]
        picture.suptitle(title, fontsize=13)
        picture.supxlabel(f"{processor()}, {n_cores()} CPUs", fontsize=9)
        picture.savefig(path, dpi=150, metadata={"Description": "\n".join(map(without_numbers, words))})
    return path


def by_text(lines: list[dict]) -> dict[str, list[dict]]:
    """{label: the lines of one drafter and kind of text that have a whole number for K}"""
    found = {}
    for line in lines:
        if isinstance(line["K"], int):
            top_p = f", top-p {line['top_p']:g}" if line["top_p"] else ""
            label = f"--drafter {line['drafter']}, {line['domain']}, T = {line['temperature']:g}{top_p}"
            found.setdefault(label, []).append(line)
    return found


PANELS = {  # {key of a line: (label of the axis, title)}
    "speedup": ("times as fast", "Speedup; K = 0: autoregressive"),
    "spec_text_ms": ("ms", "Time of a text; K = 0: autoregressive"),
    "r": ("r = tokens / Σ (drafted + 1)", "Acceptance rate"),
    "loop_ms": ("ms", "Time of an iteration"),
}


def against_K(title: str, keys: list[str], lines: list[dict], path: str) -> str:
    """A panel for each of these keys of PANELS."""

    def plot(axes):
        for panel, key in zip(axes, keys, strict=True):
            for label, of in by_text(lines).items():
                autoregressive = {"K": 0, "speedup": 1, "spec_text_ms": of[0]["plain_text_ms"]}
                points = [(line["K"], line[key]) for line in (autoregressive, *of) if key in line]
                panel.plot(*zip(*points, strict=True), label=label)
            ylabel, title = PANELS[key]
            panel.set(xlabel="lookahead K (tokens)", ylabel=ylabel, title=title, ylim=(0, None))
        axes[0].legend(fontsize=8)

    return draw(path, title, len(keys), plot)


speedup = partial(against_K, "The lookahead: speedup and acceptance", ["speedup", "r"])
figure1 = partial(against_K, "As in Chen et al., Figure 1", ["spec_text_ms", "r", "loop_ms"])
