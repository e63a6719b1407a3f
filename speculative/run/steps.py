"""A step of a decoder with its text and its times: what the screen, the page and the figures are made from."""

from dataclasses import dataclass, field

from speculative.sampling import Step
from speculative.trees import children_of, path_of


@dataclass
class TextStep:
    """A Step of the loop, with its text and its times: what one call of the target gave.

    Times are in seconds; of texts that are decoded together, the first has them. A text ends with the token that
    completes the stop text; the drafts after it count as rejected. An incomplete last character is yielded as one more
    step, which has no tokens. The names of fields are those of the JSON.
    """

    # ---- Its tokens --------------------------------------------------------------------------------------------------

    tokens: list[int]  # its tokens; in JSON their number, as the sample has their ids
    drafted: int = 0  # number of drafts
    accepted: int = 0  # number of accepted drafts
    pieces: list[str] = field(default_factory=list)  # text of each token
    origins: list[str] = field(default_factory=list)  # of each token: accepted, resampled, bonus or autoregressive
    text_index: int = field(default=0, compare=False)  # of its text, if there are several. Not in JSON

    # ---- Its times ---------------------------------------------------------------------------------------------------

    drafting: float = 0.0  # seconds of Step 1
    scoring: float = 0.0  # seconds of the target's call
    seconds: float = 0.0  # seconds in all
    derived: bool = False  # whether the times are means over a loop on a device
    # of the models, as in their logs: (role, seconds after the step began, seconds)
    calls: list[tuple] = field(default_factory=list)
    draft_prefill: bool = False  # whether the draft model also read the prompt: not counted in t_draft
    prefill: bool = False  # whether the target also read the prompt: not counted in t_target

    # ---- Its chances and where they come from ------------------------------------------------------------------------

    alpha: list[float] = field(default_factory=list)  # chance of acceptance of each tested draft
    alpha_token: list[float] = field(default_factory=list)  # the same by the paper's rule, if the rule changes its test
    # the target's probability of each token, except of a tree. Not in JSON
    q_of_tokens: list[float] = field(default_factory=list, compare=False)
    source: list[str] = field(default_factory=list)  # the drafter of each draft, if its proposal names it
    # of a staged proposal, outermost level first: {drafter: [[tokens, drafted, accepted], ...] of its model's calls}
    levels: dict[str, list] = field(default_factory=dict)
    # "tokens" and "parents" of a tree's nodes, except node 0, the text's last token; "path": the accepted nodes
    tree: dict | None = None
    details: dict | None = None  # the tests and draws, if they were wanted

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def proposers(self) -> list[str]:
        """The drafter of each accepted token, if known."""
        return self.source[: self.accepted]


def origins_of(step: Step) -> list[str]:
    """The origin of each token: "accepted", then "resampled", "bonus" or "autoregressive"."""
    if not step.n_drafted:
        return ["autoregressive"]
    rejected = children_of(step.proposal)[path_of(step)[-1]]  # none of a leaf
    return ["accepted"] * step.n_accepted + ["resampled" if rejected else "bonus"]
