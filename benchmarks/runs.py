"""The one file of the benchmarks that decodes: a prompt, decoded with both decoders, becomes a row of figures."""

from pathlib import Path

from speculative import load_pair
from speculative.session import Session

MODELS = Path(__file__).parents[1] / "models"
PROMPTS = {"prose": MODELS / "tiny-target" / "prompts.jsonl", "code": Path(__file__).parent / "prompts" / "code.jsonl"}
FIGURES = ("r", "alpha", "c", "mean_beta", "iterations", "tokens_per_iteration", "account_blog", "account_leviathan")


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
    names += ["draft_dtype"] * ("model" in drafters[0].replace("/", "+").split("+"))
    session = load_pair(**{name: getattr(o, name) for name in names}, drafter=drafters[0], **options)
    for drafter in drafters[1:]:
        session.changed(drafter=drafter)
    return session


def run(session: Session, prompt: str, N: int, drafter: str, K, temperature: float, top_p, accept: str, seed: int):
    """Decode N tokens with both decoders -> {name of a figure: value}, None if it could not be measured. Times in ms; a
    speedup leaves the prefill out."""
    flags = {"tree": K} if "," in str(K) else {"K": K, "accept": accept}
    flags |= {"top_p": top_p} if temperature else {}
    session = session.changed(drafter=drafter, temperature=temperature, seed=seed, **flags)
    document = session.compare(prompt, N).document
    figures = document["figures"]
    row = {name: figures[name] for name in FIGURES}
    for name, decoder in (("plain", "autoregressive"), ("spec", "speculative")):
        tokens = document[decoder]["samples"][0]["tokens"]
        ms = 1e3 * document[decoder]["seconds"]
        row |= {f"{name}_tokens": tokens, f"{name}_text_ms": ms, f"{name}_ms": ms / len(tokens)}
    row["loop_ms"] = row["spec_text_ms"] / figures["iterations"]
    row["speedup"] = figures["speedup_without_prefill"]
    return row


def models_of(session: Session, temperature: float = 1.0) -> tuple:
    """-> (draft model, target model): model(x, n_last) -> [n_last, n_vocab], the distributions at this temperature."""
    session = session.changed(temperature=temperature)
    return (session.model("draft") if "draft" in session.plan.roles else None), session.model("target")
