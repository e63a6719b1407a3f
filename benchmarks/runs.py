"""The one file of the benchmarks that decodes: a prompt, decoded with both decoders, becomes a row of figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.latency import waits
from benchmarks.quiet import trouble
from speculative import load_pair
from speculative.report.run import Run
from speculative.run.session import Session

MODELS = Path(__file__).parents[1] / "models"
PROMPTS = {"prose": MODELS / "tiny-target" / "prompts.jsonl", "code": Path(__file__).parent / "prompts" / "code.jsonl"}
FIGURES = ("r", "alpha", "c", "mean_beta", "iterations", "tokens_per_iteration", "account_blog", "account_leviathan")
DECODERS = {"plain": "autoregressive", "spec": "speculative"}  # their names in a row


def add_models(add) -> None:
    add("--draft_model_size", default="tiny-draft", help="draft model")
    add("--target_model_size", default="tiny-target", help="target model")
    add("--models_dir", default=str(MODELS), help="folder of the models")
    add("--dtype", default="float32", help="weight format of the target")
    add("--draft_dtype", default="int8", help="weight format of the draft model")


def load(o, drafters: list[str], **options) -> Session:
    """Load the models of these drafters, once. options: others of load_pair. Raises UserError."""
    drafters = sorted(drafters, key=lambda drafter: "model" not in drafter)  # first one with the draft model
    names = ["draft_model_size", "target_model_size", "models_dir", "dtype"]
    if "model" in drafters[0].replace("/", "+").split("+"):
        names.append("draft_dtype")
    given = {name: getattr(o, name) for name in names}
    session = load_pair(**given, drafter=drafters[0], **options)
    for drafter in drafters[1:]:
        session.changed(drafter=drafter)
    return session


class Setting(NamedTuple):
    """How a prompt is decoded."""

    drafter: str
    K: Any  # a number, "auto", "8/4" for levels, or a tree as "2,2,1"
    temperature: float
    top_p: float | None
    accept: str
    seed: int

    def uncounted(self) -> "Setting":
        """Return the setting of a first run, which does not count."""
        return self._replace(temperature=1.0, top_p=None, seed=0)

    def options(self) -> dict[str, Any]:
        """Return the options of load_pair. A tree takes no K and no rule, and greedy decoding no top-p."""
        options = {"drafter": self.drafter, "temperature": self.temperature, "seed": self.seed}
        if "," in str(self.K):
            options["tree"] = self.K
        else:
            options |= {"K": self.K, "accept": self.accept}
        if self.temperature:
            options["top_p"] = self.top_p
        return options


def run(session: Session, prompt: str, N: int, setting: Setting) -> dict[str, Any]:
    """Decode N tokens with both decoders -> {name of a figure: value}, None if it could not be measured. Times in ms; a
    speedup leaves the prefill out."""
    run = session.changed(**setting.options()).compare(prompt, N)
    row = {name: run.figures[name] for name in FIGURES}
    for name in DECODERS:
        row |= decoder_row(name, run)
    row["loop_ms"] = row["spec_text_ms"] / run.figures["iterations"]
    row["speedup"] = run.figures["speedup_without_prefill"]
    row["trouble"] = trouble(run.record.figures)
    return row


def decoder_row(name: str, run: Run) -> dict[str, Any]:
    """Return the tokens and the times of a decoder. name: in the row."""
    decoder = run.document[DECODERS[name]]
    [sample] = decoder["samples"]
    tokens = sample["tokens"]
    ms = 1e3 * decoder["seconds"]
    return {
        f"{name}_tokens": tokens,
        f"{name}_text_ms": ms,
        f"{name}_ms": ms / len(tokens),
        f"{name}_waits": waits(sample["iterations"]),
    }


def models_of(session: Session, temperature: float = 1.0) -> Sequence:
    """-> (draft model, target model): model(x, n_last) -> [n_last, n_vocab], the distributions at this temperature."""
    session = session.changed(temperature=temperature)
    draft = session.model("draft") if "draft" in session.plan.roles else None
    return draft, session.model("target")
