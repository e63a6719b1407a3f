"""Names of drafters and rules, for tests of whatever is registered."""

from speculative.drafters import DRAFTERS
from speculative.rules import RULES

COMPOUND = ["prompt_lookup+model", "prompt_lookup+ngram", "model/ngram", "int8/model", "model/prompt_lookup+ngram"]
COMPOUND += ["model/ngram/prompt_lookup", "int8/prompt_lookup+model"]


RULE_NAMES = [f"{name}:0.3" if entry.letter else name for name, entry in RULES.items()]


def drafts_trees(drafter):
    return drafter != "users" and "/" not in drafter and all(DRAFTERS[name].tree for name in drafter.split("+"))
