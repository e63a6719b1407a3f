"""Pictures of measurements, drawn by matplotlib."""

from collections.abc import Callable

from speculative.measure.document import machine

# Colours that the colour-blind tell apart (Okabe and Ito 2008), on a light grey that shows on white and on black pages.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
PAPER, INK, GRID = "#F3F3F0", "#1A1A1A", "#CFCFC8"


def draw(path: str, title: str, n_panels: int, plot: Callable) -> str:
    """Write a picture of n_panels panels, which plot(axes [n_panels]) fills -> its path."""
    from matplotlib import cycler, figure, rc_context

    style = {f"{part}.facecolor": PAPER for part in ("figure", "axes", "savefig", "legend")}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    style |= {"axes.grid": True, "grid.color": GRID, "axes.axisbelow": True, "font.size": 11, "lines.linewidth": 2}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "legend.framealpha": 0.9}
    style |= {"axes.prop_cycle": cycler(color=COLORS, marker=["o", "s", "^", "D", "v", "P"])}
    with rc_context(style):
        picture = figure.Figure(figsize=(4 * n_panels + 2.4, 4.6), layout="constrained")
        plot(picture.subplots(1, n_panels, squeeze=False)[0])
        picture.suptitle(title, fontsize=13)
        picture.supxlabel(f"{machine()['processor']}, {machine()['cpus']} CPUs", fontsize=9)
        picture.savefig(path, dpi=150)
    return path


def by_text(lines: list[dict]) -> dict[str, list[dict]]:
    """{label: the lines of one drafter and kind of text that have a whole number for K}"""
    found = {}
    for line in lines:
        if isinstance(line["K"], int):
            top_p = f", top-p {line['top_p']:g}" if line["top_p"] else ""
            label = f"{line['drafter']}, {line['domain']}, T = {line['temperature']:g}{top_p}"
            found.setdefault(label, []).append(line)
    return found


def figure1(lines: list[dict], path: str) -> str:
    """Chen et al., Figure 1: against K, the time of a text, the acceptance rate and the time of an iteration."""

    def plot(axes):
        time, acceptance, loop = axes
        for label, of in by_text(lines).items():
            K = [line["K"] for line in of]
            time.plot([0, *K], [of[0]["plain_text_ms"], *(line["spec_text_ms"] for line in of)], label=label)
            acceptance.plot(K, [line["r"] for line in of])
            loop.plot(K, [line["loop_ms"] for line in of])
        time.set(ylabel="ms", title="Time of a text; K = 0: autoregressive", ylim=(0, None))
        acceptance.set(ylabel="r = tokens / Σ (drafted + 1)", title="Acceptance rate", ylim=(0, 1.02))
        loop.set(ylabel="ms", title="Time of an iteration", ylim=(0, None))
        for panel in axes:
            panel.set(xlabel="lookahead K (tokens)")
        time.legend(fontsize=8)

    return draw(path, "The lookahead: its gain and its cost", 3, plot)


def levels(lines: list[dict], path: str) -> str:
    """A bar for each drafter at its best K: the milliseconds of a token, spent on scoring and on drafting."""
    kinds = sorted({(line["temperature"], line["domain"]) for line in lines})

    def plot(axes):
        for panel, (temperature, domain) in zip(axes, kinds, strict=True):
            of = [line for line in lines if (line["temperature"], line["domain"]) == (temperature, domain)]
            best = {}
            for line in sorted(of, key=lambda line: line["speedup"]):
                best[line["drafter"]] = line
            panel.barh("autoregressive", of[0]["plain_ms"], color=COLORS[0], label="scoring by the target")
            for name, line in best.items():
                drafting = line["spec_ms"] * line["drafting"]
                panel.barh(name, line["spec_ms"] - drafting, color=COLORS[0])
                panel.barh(name, drafting, left=line["spec_ms"] - drafting, color=COLORS[1])
                panel.text(line["spec_ms"], name, f" {line['speedup']:.2f}×, K = {line['K']}", va="center")
            panel.invert_yaxis()
            panel.set(xlabel="ms a token; right part: drafting", title=f"{domain}, temperature {temperature:g}")
            panel.grid(False)

    return draw(path, "The cost of a token, for each drafter at its best K", len(kinds), plot)
