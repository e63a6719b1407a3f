"""What a run shows beyond the blog's lines: why it was this fast, where each token came from, and all of it as JSON."""

import codecs
import itertools
import os
import sys
import textwrap
from collections.abc import Iterable

from speculative.engines import memory
from speculative.measure.analysis import plain_ceiling
from speculative.measure.files import write_json
from speculative.measure.machine import machine, read_bandwidth
from speculative.measure.recorder import Iteration, Recorder, figures
from speculative.sampling import Step
from speculative.stop import split_stops, text_before_stop

COLUMNS = 100

# ---- Where each token came from --------------------------------------------------------------------------------------

# A colour, and for those who do not tell colours apart something else: bold, underlined, or neither.
STYLES = {
    "accepted draft": "\033[32m",  # green
    "resampled": "\033[4;31m",  # red, underlined
    "bonus": "\033[1;36m",  # cyan, bold
    "plain": "\033[33m",  # yellow
}
RESET = "\033[0m"


def origins(step: Step) -> list[str]:
    """For each of a step's tokens, a key of STYLES. The drafts come first; the last token is the target's own."""
    own = "plain" if step.drafted == 0 else "bonus" if step.accepted == step.drafted else "resampled"
    return [*["accepted draft"] * step.accepted, own][: len(step.tokens)]


def use_color(wanted: bool, out=None) -> bool:
    """Whether to colour: not in a file or a pipe, and not where NO_COLOR (no-color.org) is set to anything."""
    out = out or sys.stdout
    return wanted and out.isatty() and not os.environ.get("NO_COLOR")


def legend() -> str:
    return "  ".join(f"{style}{origin}{RESET}" for origin, style in STYLES.items())


class TextWriter:
    """The text of a run, step by step: push(step) gives what can be shown by now, end() what is left.

    A character that is spread over several tokens waits for its last byte, and has the colour of that token. What may
    be the beginning of the stop text waits as well: the text ends before it (see stop.py).
    """

    def __init__(self, encoder, color: bool = False, stop: str | None = None):
        self.encoder, self.color = encoder, color
        self.eot, stops = split_stops(encoder, [stop] if stop else [])
        self.stop = stops[0] if stops else b""
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.waiting = []  # (byte, style) of what was not given yet
        self.text = ""  # all that was given so far

    def push(self, step: Step) -> str:
        for token, origin in zip(step.tokens, origins(step), strict=True):
            shown = b"" if token == self.eot else self.encoder.to_bytes([token])
            self.waiting += [(byte, STYLES[origin]) for byte in shown]
        data = bytes(byte for byte, _ in self.waiting)
        if self.stop and self.stop in data:
            del self.waiting[data.index(self.stop) :]
            return self.give(len(self.waiting))
        begun = [n for n in range(1, min(len(self.stop), len(data) + 1)) if data.endswith(self.stop[:n])]
        return self.give(len(data) - max(begun, default=0))

    def end(self) -> str:
        return self.give(len(self.waiting), final=True)

    def give(self, n_bytes: int, final: bool = False) -> str:
        now, self.waiting = self.waiting[:n_bytes], self.waiting[n_bytes:]
        new = ""
        for style, part in itertools.groupby(now, key=lambda pair: pair[1]):
            new += self.paint(self.utf8.decode(bytes(byte for byte, _ in part)), style)
        new += self.utf8.decode(b"", final)
        self.text += new
        return new

    def paint(self, text: str, style: str) -> str:
        text = text.replace("\033", "␛")  # the model's own escapes are text, and not to be obeyed
        return f"{style}{text}{RESET}" if self.color and text else text


def colored_text(encoder, steps: Iterable[Step], color: bool = True) -> str:
    writer = TextWriter(encoder, color)
    return "".join([*map(writer.push, steps), writer.end()])


# ---- Why it was this fast --------------------------------------------------------------------------------------------


def show(o, encoder, prompts, input_ids, plain: Recorder, speculative: Recorder, models, more_notes=()) -> None:
    """What the flags in o ask for after the texts: the legend, a line for each iteration, the summary, the JSON file.

    prompts and input_ids are lists: one prompt, or with --batch several, and the ids of each. models: the target, and
    the draft where there is one.
    """
    if o.json:
        write_json(o.json, document(vars(o), encoder, prompts, input_ids, plain, speculative))
    if o.quiet:
        return
    if use_color(o.color):
        print(f"\n{legend()}")
    if o.verbose:
        lines = (iteration_line(n, i, encoder) for n, i in enumerate(speculative.iterations, start=1))
        print("\nIterations\n----------", *lines, sep="\n")
    if o.engine == "numpy":  # on JAX, weights lie and are read elsewhere
        taken, bandwidth = memory_line(models), read_bandwidth(n_bytes=2**28, repeats=30)
        print("\n" + summary(plain, speculative, models[0].weight_bytes, bandwidth, also=taken))
    else:
        print("\n" + summary(plain, speculative))
    for note in [*notes(o), *more_notes]:
        print(textwrap.fill(f"Note: {note}", COLUMNS))


def memory_line(models) -> list[str]:
    """The most that the process has held, beside what the weights take; empty where the system does not tell."""
    peak, weights = memory.peak(), sum(model.weight_bytes for model in models)
    return [f"Peak memory = {peak / 1e9:.2f} GB  (the models' weights take {weights / 1e9:.2f} GB)"] if peak else []


def notes(o) -> list[str]:
    """What a reader has to know of runs with such flags."""
    found = []
    if o.lenience < 1:
        found.append(f"with lenience {o.lenience:g} the speculative text is no longer distributed as the target's.")
    if o.K == "auto" and o.temperature > 0:
        found.append("--K auto goes by measured times, so another run with the same seed may give another text.")
    return found


def summary(
    plain: Recorder,
    speculative: Recorder,
    weight_bytes: float | None = None,
    bandwidth: float | None = None,
    also: Iterable[str] = (),
) -> str:
    """The block after both texts: each figure with its formula, then a sentence or two on what they mean.

    weight_bytes of the target and the machine's bandwidth in bytes/s add the ceiling of plain decoding; `also`
    are lines of the caller's.
    """
    f = figures(plain, speculative)
    lines = [
        *counted_lines(f, speculative.lenience),
        *cost_lines(f),
        *ceiling_lines(f, plain, weight_bytes, bandwidth),
        *also,
    ]
    lines = [textwrap.fill(line, COLUMNS, subsequent_indent="    ") for line in [*lines, advice(f)]]
    return "\n".join(["Speedup", "-------", *lines])


def counted_lines(f: dict, lenience: float = 1.0) -> list[str]:
    """What was drafted and what became of it."""
    seconds, n_tokens = f["seconds"], f["tokens"]
    if not n_tokens:
        return ["No token was decoded."]
    lines = [
        f"Speedup = {f['speedup']:.2f}x  (autoregressive time / speculative time, per token)",
        f"Tokens per second = {n_tokens / seconds['speculative'] / f['speedup']:.1f} autoregressive, "
        f"{n_tokens / seconds['speculative']:.1f} speculative",
        f"r = {f['r']:.3f}  (tokens / Σ over iterations of drafted + 1)",
    ]
    histogram = f["tokens_per_iteration_histogram"]
    shares = "  ".join(f"{tokens}:{count / f['iterations']:.0%}" for tokens, count in histogram.items())
    lines.append(f"Tokens per iteration = {f['tokens_per_iteration']:.2f}  ({shares})")
    if f["met_by_position"]:
        shares = " ".join(f"{a / n:.2f}" for a, n in zip(f["accepted_by_position"], f["met_by_position"], strict=True))
        chance = "Σ min(p, q) = 1 - TVD(p, q)" if lenience == 1 else f"Σ min(p, q / {lenience:g})"
        lines += [
            f"Acceptance by position = {shares}  (accepted / met, first to last of the window)",
            f"α = {f['alpha']:.3f}  (mean {chance}; naive matching, Σ p q, would accept {f['matching']:.3f})",
        ]
    return lines


def cost_lines(f: dict) -> list[str]:
    """What drafting and scoring cost, and what the formulas make of it."""
    seconds, lines = f["seconds"], []
    if f["c"] is not None:
        lines.append(f"c = {f['c']:.3f}  (t_draft / t_target = {ms(f['t_draft'])} / {ms(f['t_target'])} a token)")
    if f["mean_beta"] is not None and f["drafted"]:
        limit = "" if f["largest_beta"] is None else f"; above {f['largest_beta']:.2f} speculation loses"
        by_rows = "  ".join(f"{rows} rows: {beta:.2f}" for rows, beta in f["beta"].items() if rows > 1)
        lines.append(f"β = {f['mean_beta']:.2f}  (t_target of a window / of 1 row: {by_rows}){limit}")
    if seconds["scoring"]:
        parts = ", ".join(f"{seconds[part] / seconds['speculative']:.0%} {part}" for part in ("drafting", "scoring"))
        lines.append(f"Time = {parts}, {seconds['rest'] / seconds['speculative']:.0%} the rest (sampling, the loop)")
    if f["predicted_leviathan"] is not None:
        lines += [
            f"Predicted speedup = {f['predicted_chen']:.2f}x Chen, r(K + 1) / (Kc + β)",
            f"Predicted speedup = {f['predicted_leviathan']:.2f}x Leviathan, (1 - α^(K+1)) / ((1 - α)(Kc + β))",
            f"Measured speedup = {f['speedup_without_prefill']:.2f}x without the reading of the prompt, to compare",
            f"Best K = {f['best_K']}, {f['predicted_best']:.2f}x predicted  (most expected tokens / (Kc + β))",
        ]
    return lines


def ceiling_lines(f: dict, plain: Recorder, weight_bytes: float | None, bandwidth: float | None) -> list[str]:
    if not (weight_bytes and bandwidth and f["tokens"]):
        return []
    ceiling = plain_ceiling(weight_bytes, bandwidth)
    plain_share = plain.n_tokens / plain.seconds / ceiling
    share = f["tokens"] / f["seconds"]["speculative"] / ceiling
    line = f"Ceiling of plain decoding = {ceiling:.1f} tokens/s  ({bandwidth / 1e9:.1f} GB/s read / "
    line += f"{weight_bytes / 1e9:.3g} GB of weights); plain decoding reached {plain_share:.0%} of it, "
    line += f"speculation {share:.0%}"
    if plain_share > 1.1:
        line += ": the weights stay in the processor's cache, or the machine was busy while it was measured"
    return [line]


def advice(f: dict) -> str:
    """In words: what would make it faster, or why speculation cannot pay here."""
    if not f["drafted"]:
        return "Nothing was drafted, so this was plain decoding."
    if not f["seconds"]["scoring"]:
        return "All of it ran on the device, in one loop, which does not tell how long its parts took."
    if f["predicted_leviathan"] is None:
        return "Too short a run to say more: every call also read the prompt."
    obstacle, without = max(f["predicted_if"].items(), key=lambda item: item[1])
    K = f["drafted"] / f["iterations"]
    gain = f"The most would be gained if {obstacle}: {without:.2f}x."
    if f["best_K"] == 0:
        window, drafting = f["mean_beta"], K * f["c"]
        words = (
            f"Speculation cannot pay here: an iteration gives {f['tokens_per_iteration']:.2f} tokens and takes the "
            f"time of {window + drafting:.2f} in plain decoding ({window:.2f} the window, {drafting:.2f} the drafts), "
            "and no other K does better."
        )
        gain = gain if without > 1 else "Nor would a perfect draft, a free one or a window at the price of a row do."
    elif f["best_K"] != f["usual_K"] and f["predicted_best"] > 1.03 * f["predicted_chen"]:
        words = f"K = {f['best_K']} would be faster: {f['predicted_best']:.2f}x is predicted for it."
    else:
        words = "No other K would be much faster here."
    doubt = ""
    if f["seconds"]["rest"] > 0.25 * f["seconds"]["speculative"]:
        doubt = " Much of the time passes outside of both models; with larger ones it would matter less."
    elif not 2 / 3 < f["speedup_without_prefill"] / f["predicted_chen"] < 1.5:
        measured, predicted = f"{f['speedup_without_prefill']:.2f}x", f"{f['predicted_chen']:.2f}x"
        doubt = f" Measured ({measured}) and predicted ({predicted}) speedup are far apart: something else on this"
        doubt += " machine probably took time, so run it again."
    return f"{words} {gain}{doubt}"


def iteration_line(number: int, iteration: Iteration, encoder) -> str:
    """--verbose: what one iteration did and what it took."""
    step, chances = iteration.step, " ".join(f"{a:.2f}" for a in iteration.alpha)
    times = f"draft {ms(iteration.drafting)}, score {ms(iteration.scoring)}, all {ms(iteration.seconds)}"
    text = repr(encoder.decode(step.tokens))
    return f"{number:4}  {step.accepted} of {step.drafted} accepted  {times}  α {chances or '-'}  {text}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


# ---- All of it, as JSON ----------------------------------------------------------------------------------------------

SCHEMA = 1


def document(options: dict, encoder, prompts, input_ids, plain: Recorder, speculative: Recorder) -> dict:
    """What --json writes. Seconds throughout; null where a run was too short to measure something.

    {schema, options, machine, prompts [{text, tokens}], prompt (the first of them), autoregressive {seconds, samples},
    speculative (likewise), figures}; a sample is {text, tokens, origins, iterations}. docs/json.md explains every key.
    SCHEMA changes when a key is renamed or means something else, not when one is added.
    """
    read = [{"text": p, "tokens": [int(token) for token in ids]} for p, ids in zip(prompts, input_ids, strict=True)]
    return {
        "schema": SCHEMA,
        "options": options,
        "machine": machine(),
        "prompt": read[0],
        "prompts": read,
        "autoregressive": run_document(plain, encoder, options.get("stop")),
        "speculative": run_document(speculative, encoder, options.get("stop")),
        "figures": figures(plain, speculative),
    }


def run_document(recorder: Recorder, encoder, stop: str | None) -> dict:
    samples = [sample_document(sample, encoder, stop) for sample in recorder.samples]
    return {"seconds": recorder.seconds, "samples": samples}


def sample_document(sample: list[Iteration], encoder, stop: str | None) -> dict:
    tokens = [int(token) for i in sample for token in i.step.tokens]
    return {
        "text": text_before_stop(tokens, encoder, [stop] if stop else []),
        "tokens": tokens,
        "origins": [origin for i in sample for origin in origins(i.step)],
        "iterations": [
            {
                **{"tokens": len(i.step.tokens), "drafted": i.step.drafted, "accepted": i.step.accepted},
                **{key: value for key, value in vars(i).items() if key != "step"},
            }
            for i in sample
        ],
    }
