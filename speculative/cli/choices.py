"""Values that the workbench offers, and Tab in a session: not all that an option takes."""

from speculative import drafters

CHOICES = {
    "K": ["auto", "4", "8", "16"],
    "drafter": [*drafters.DRAFTERS, "prompt_lookup+model", "model/ngram", "model/prompt_lookup", "int8/model"],
    "accept": ["token", "block", "lenient:0.5", "typical:0.1"],
    "only": ["autoregressive", "speculative"],
    "stop": ["<|endoftext|>"],
    "tree": ["2,2,1"],
}
