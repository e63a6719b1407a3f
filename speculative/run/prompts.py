"""Prompts: their ids, which have to fit into the context of each model with the tokens to generate."""

import sys
from collections.abc import Sequence

from speculative.blog.encoder import Encoder
from speculative.run.plan import Plan
from speculative.run.values import as_text, checked, n_nodes
from speculative.support.errors import Option, UserError


class PromptReader:
    """Encodes prompts. Those that a run knows before it begins are encoded once."""

    def __init__(self, plan: Plan, encoder: Encoder, n_ctx: int, whose: str):
        """n_ctx: tokens of the smallest context. whose: the model that has it, in messages; "" for the target."""
        self.plan = plan
        self.encoder = encoder
        self.n_ctx = n_ctx
        self.whose = whose
        self.max_bytes = n_ctx * max(map(len, encoder.id_to_bytes.values()))
        self.known: dict[str, list[int]] = {}  # the ids of prompts that fit

    def encode(self, prompt: str) -> list[int]:
        """Return the prompt's ids; an empty one begins with <|endoftext|>. Raises UserError if it is not a text."""
        n_bytes = len(checked("the prompt", as_text, prompt).encode())
        if n_bytes > self.max_bytes:  # encoding more takes much memory
            raise UserError(
                f"the prompt's {n_bytes:,} bytes exceed the context of {self.n_ctx} tokens: shorten the prompt"
            )
        ids = self.encoder.encode(prompt, self.plan.special)
        if not ids and self.encoder.eot < 0:
            raise UserError("the prompt has no tokens, and the model has no end token to begin with: give it a text")
        return ids or [self.encoder.eot]

    def ids_of(self, prompt: str) -> list[int]:
        """Return the prompt's ids as encode does, if they are not known yet."""
        is_known = isinstance(prompt, str) and prompt in self.known  # a list is refused by encode
        return [*self.known[prompt]] if is_known else self.encode(prompt)

    def input_ids(self, prompt: str, N: int) -> list[int]:
        """Return the prompt's ids. Raises UserError if they and N more tokens do not fit into the context."""
        x = self.ids_of(prompt)
        tree = self.plan.tree
        if len(tree) >= N:
            raise UserError(
                f"a tree of depth {len(tree)} needs ", Option("n_tokens_to_generate"), f" of at least {len(tree) + 1}"
            )
        more = N + n_nodes(tree)
        if len(x) + more > self.n_ctx:
            whose = f" that {self.whose} has" if self.whose else ""
            raise UserError(
                f"the prompt's {len(x)} tokens and {more} more exceed the context of {self.n_ctx} tokens{whose}: "
                "shorten the prompt or lower ",
                Option("n_tokens_to_generate"),
            )
        return x

    def all_input_ids(self, prompts: Sequence[str], N: int) -> list[list[int]]:
        """Return the ids of each prompt. Raises UserError as input_ids does, with the number of the prompt if there are
        several."""
        inputs = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                inputs.append(self.input_ids(prompt, N))
            except UserError as error:
                if len(prompts) == 1:
                    raise
                raise UserError(f"prompt {number}: ", *error.sentence, hint=error.hint) from None
        return inputs

    def keep_those_that_fit(self, prompts: Sequence[str], N: int) -> list[str]:
        """Return the prompts that fit with N more tokens, whose ids are kept. If others of a batch do not fit, a line
        names each. Raises UserError if none does."""
        fitting: list[str] = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                self.known[prompt] = self.input_ids(prompt, N)
                fitting.append(prompt)
            except UserError as error:
                if self.plan.batch == 1 or (number == len(prompts) and not fitting):
                    raise
                print(f"prompt {number} is left out: {error}", file=sys.stderr)
        return fitting
