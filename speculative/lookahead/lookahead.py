"""The lookahead of a level of drafters: K is a number, or it chooses itself.

A draft is of use if it is accepted and all drafts before it are. One more draft pays if the chance of that, times the
seconds that a token takes at present, is more than the seconds of the draft and of its row in the target's call. If not
even the first one pays, the target decodes alone. auto_drafter.py decides this after each draft, by what was learned
(learned.py): the chance at each margin (acceptance.py), and the costs of drafts and windows (costs.py).

Source: Leviathan et al. 2023, sections 3.1 to 3.5, with a chance for each draft instead of one α for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from speculative.drafters import first_of
from speculative.lookahead.auto_drafter import AutoDrafter
from speculative.lookahead.learned import Learned


class Lookahead(Protocol):
    """What decides how many drafts a window has."""

    @property
    def K_max(self) -> int:
        """The most drafts in a window."""

    def drafter_of(self, drafters: Sequence, model: Any) -> Callable:
        """The drafter draft(x, k) for one decode, of these drafters and their target."""


@dataclass(frozen=True)
class FixedK:
    """A K that is a number."""

    K_max: int

    def drafter_of(self, drafters: Sequence, model: Any) -> Callable:
        """The first of these drafters that proposes anything."""
        return first_of(drafters)


class AutoK(Learned):
    """A K that is chosen by what was learned about the drafters of a+b and their target; it is kept for the next
    decode."""

    def drafter_of(self, drafters: Sequence, model: Any) -> AutoDrafter:
        return AutoDrafter(self, drafters, model)
