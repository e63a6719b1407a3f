"""Pictures of measurements, drawn by matplotlib."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.tables import without_numbers
from speculative.engines.system import n_cores
from speculative.report.make_record import processor

# Colours that the colour-blind tell apart (Okabe and Ito 2008). The pictures have no background: their ink shows on
# white and on black pages.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
INK, NOTHING = "#7A7A7A", "none"


def style() -> dict[str, Any]:
    """Return matplotlib's settings."""
    from matplotlib import cycler

    settings: dict[str, Any] = {"axes.prop_cycle": cycler(color=COLORS, marker=MARKERS)}
    for part in ("figure", "axes", "savefig", "legend"):
        settings[f"{part}.facecolor"] = NOTHING
    for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        settings[name] = INK
    settings |= {"axes.grid": True, "grid.color": INK, "grid.alpha": 0.25, "axes.axisbelow": True}
    settings |= {"axes.spines.top": False, "axes.spines.right": False}
    settings |= {"legend.edgecolor": INK, "legend.framealpha": 0.25}
    return settings | {"font.size": 11, "lines.linewidth": 2}


def draw(path: str, title: str, n_panels: int, plot: Callable) -> str:
    """Write a picture of n_panels panels, which plot(axes [n_panels]) fills -> its path."""
    from matplotlib import figure, rc_context

    with rc_context(style()):
        picture = figure.Figure(figsize=(4 * n_panels + 2.4, 4.6), layout="constrained")
        axes = picture.subplots(1, n_panels, squeeze=False)[0]
        plot(axes)
        whole_numbers_of_K(axes)
        picture.suptitle(title, fontsize=13)
        picture.supxlabel(f"{processor()}, {n_cores()} CPUs", fontsize=9)
        words = "\n".join(map(without_numbers, [title, *words_of(axes)]))
        picture.savefig(path, dpi=150, metadata={"Description": words})
    return path


def whole_numbers_of_K(axes) -> None:
    """Mark the axes of K at whole numbers."""
    from matplotlib import ticker

    for panel in axes:
        if "K" in panel.get_xlabel():
            panel.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def words_of(axes) -> list[str]:
    """Return the titles and the labels of panels."""
    words = []
    for panel in axes:
        words += [panel.get_title(), panel.get_xlabel(), panel.get_ylabel()]
    return words


# ---- Lines over K ----------------------------------------------------------------------------------------------------


class Panel(NamedTuple):
    """The words of a panel."""

    label: str  # the label of its vertical axis
    title: str


PANELS = {  # {key of a line: its panel}
    "speedup": Panel("times as fast", "Speedup; K = 0: autoregressive"),
    "spec_text_ms": Panel("ms", "Time of a text; K = 0: autoregressive"),
    "r": Panel("r = tokens / Σ (drafted + 1)", "Acceptance rate"),
    "loop_ms": Panel("ms", "Time of an iteration"),
}


def by_text(lines: Sequence[dict]) -> dict[str, list[dict]]:
    """{label: the lines of one drafter and kind of text that have a whole number for K}"""
    curves: dict[str, list[dict]] = {}
    for line in lines:
        if isinstance(line["K"], int):
            top_p = f", top-p {line['top_p']:g}" if line["top_p"] else ""
            label = f"--drafter {line['drafter']}, {line['domain']}, T = {line['temperature']:g}{top_p}"
            curves.setdefault(label, []).append(line)
    return curves


def curve(lines: Sequence[dict], key: str) -> tuple[list[int], list[float]]:
    """Return the Ks and the values of a curve, with those of autoregressive decoding at K = 0, if it has any."""
    autoregressive = {"K": 0, "speedup": 1.0, "spec_text_ms": lines[0]["plain_text_ms"]}
    points = [line for line in (autoregressive, *lines) if key in line]
    return [line["K"] for line in points], [line[key] for line in points]


def plot_curves(keys: Sequence[str], curves: dict[str, list[dict]], axes) -> None:
    """Fill a panel for each key."""
    for panel, key in zip(axes, keys, strict=True):
        for label, lines in curves.items():
            panel.plot(*curve(lines, key), label=label)
        words = PANELS[key]
        panel.set(xlabel="lookahead K (tokens)", ylabel=words.label)
        panel.set(title=words.title, ylim=(0, None))
    axes[0].legend(fontsize=8)


def against_K(title: str, keys: Sequence[str], lines: Sequence[dict], path: str) -> str:
    """Write a picture with a panel for each of these keys of PANELS -> its path."""
    return draw(path, title, len(keys), partial(plot_curves, keys, by_text(lines)))


speedup = partial(against_K, "The lookahead: speedup and acceptance", ["speedup", "r"])
figure1 = partial(against_K, "As in Chen et al., Figure 1", ["spec_text_ms", "r", "loop_ms"])
