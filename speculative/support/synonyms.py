"""Names that other programs and papers have for our options and models. Each is answered with "did you mean", and never
taken silently."""

from collections.abc import Collection, Mapping

from speculative.support.errors import Option, UserError, alike

OPTIONS = {  # an option -> its names elsewhere
    "K": "lookahead gamma num_draft_tokens num_speculative_tokens num_assistant_tokens draft_max spec_draft_n_max "
    "draft_length draft_len",
    "n_tokens_to_generate": "max_tokens max_new_tokens num_tokens n_tokens tokens length max_length n_predict n",
    "target_model_size": "model m model_size target target_model",
    "draft_model_size": "draft_model md model_draft assistant_model draft",
    "temperature": "temp T t greedy",
    "quiet": "no_stream",
    "verbose": "verbose_prompt v",
    "seed": "s",
    "prompt": "input p",
    "prompt_file": "file f",
    "threads": "n_threads num_threads",
    "interactive": "chat i",
    "html": "page",
}
MODELS = {  # an official size -> what it is called elsewhere
    "124M": "117M small gpt2-small",
    "355M": "345M medium",
    "774M": "762M large",
    "1558M": "1542M 1.5B 1.6B xl",
}


def meant(name: str, names: Collection[str], synonyms: Mapping[str, str]) -> str:
    """Return K for a synonym of K, or a name like it; "" if none of the names is meant."""
    for ours, others in synonyms.items():
        if ours in names and name in others.split():
            return ours
    return alike(name, names)


def unknown_option(typed: str, names: Collection[str]) -> UserError:
    """Return the error of an option that is none of the names. typed: with its dashes, if it has any."""
    typed = type(typed)(typed[:80])  # an Option stays one
    name = typed.lstrip("-").replace("-", "_")
    ours = meant(name, names, OPTIONS)
    value = " 0" if name == "greedy" else ""
    hint = ("did you mean ", Option(ours), f"{value}?") if ours else ("see ", Option("help"))
    return UserError("unknown option ", typed, hint=hint)
