"""Somebody's function, whose parameters are told by their names."""

import inspect
from collections.abc import Callable

from speculative.support.errors import UserError

LENGTHS = ("N", "K")
RANDOM = ("rng", "seed", "key")
OUR_NAMES = {
    **dict.fromkeys(("max_new_tokens", "num_tokens", "n_tokens", "n_tokens_to_generate"), "N"),
    **dict.fromkeys(("k", "gamma", "lookahead", "num_speculative_tokens"), "K"),
    **dict.fromkeys(("generator", "gen", "random_state"), "rng"),
    "probs": "p",
}


class Function:
    """Somebody's function, whose parameters are told by their names."""

    def __init__(self, function: Callable):
        self.function = function
        self.names: dict = {}  # {a parameter: our name for it}
        for name, parameter in inspect.signature(function).parameters.items():
            ours = OUR_NAMES.get(name, name)
            # rng, N and K may have defaults, which the check does not want; what else has a default keeps it.
            if is_needed(parameter) or name == "rng" or ours in LENGTHS:
                self.names[name] = ours

    def __call__(self, rng, **given):
        """Call it with those of these values, by our names, that it takes. Raises UserError if it takes more."""
        given |= {"rng": rng, "seed": 0}
        if "key" in self.names:
            import jax

            given["key"] = jax.random.PRNGKey(0)
        missing = self.names.values() - given.keys()
        if missing:
            raise UserError(f"there is no value for the parameter {min(missing)}")
        return self.function(**{name: given[ours] for name, ours in self.names.items()})


def is_needed(parameter: inspect.Parameter) -> bool:
    """Whether a function is not called without this parameter."""
    takes_any = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not takes_any
