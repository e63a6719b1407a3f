"""The chance that a draft is accepted, learned from earlier drafts with a similar margin.

A draft's margin m tells how much the drafter prefers it to its second choice (sampling.Proposal). Assume that the
target's own margin is m plus Laplace noise of scale s. Then the target prefers this token, too, with chance
1 - exp(-m/s)/2. Of the drafts that it prefers, it accepts a share g:

    chance(m) = g (1 - exp(-m/s)/2)

s and g are unknown. Each pair of them on a grid has a weight, its likelihood for the drafts so far, of which older ones
count less.
"""

from collections.abc import Sequence

import numpy as np

DECAY = 0.95  # factor on all older evidence at each proposal: about the last 20 count
SCALES = 2.0 ** np.arange(-4, 5)[:, None]  # [n_scales, 1], as multiples of the s that is expected
SHARES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.995])  # [n_shares], the values of g
PRIOR_DRAFTS = 24  # accepted drafts that count before the first one: g is expected to be large


class Acceptance:
    """The weights of the grid for one drafter, and the means over them."""

    def __init__(self, scale: float):
        """scale: the s that is expected, within a factor of 8."""
        self.scales = scale * SCALES  # [n_scales, 1]
        distance = np.log2(SCALES) / 3  # [n_scales, 1], of s from the one that is expected
        self.log_prior = PRIOR_DRAFTS * np.log(SHARES) - distance**2  # [n_scales, n_shares], log weights
        self.weigh(self.log_prior)
        self.n_tested = 3.0  # discounted, as if three drafts with a margin of two scales had been tested
        self.n_accepted = 3.0 * self.chance(2 * scale)

    @property
    def share(self) -> float:
        """The share of the drafts that are accepted: the chance of a draft whose margin is not known yet."""
        return self.n_accepted / self.n_tested

    def preferred(self, margin: float) -> np.ndarray:  # -> [n_scales, 1]
        """The chance that the target prefers such a draft too, for each s."""
        return 1 - np.exp(-margin / self.scales) / 2

    def chance(self, margin: float) -> float:
        """The chance that a draft with this margin is accepted: the mean over the grid."""
        preferred = self.preferred(margin)[:, 0]  # [n_scales]
        return float(preferred @ self.weighted_shares)

    def weigh(self, evidence: np.ndarray) -> None:  # [n_scales, n_shares], log weights
        weights = np.exp(evidence - np.max(evidence))  # [n_scales, n_shares]
        self.evidence = evidence
        self.weighted_shares = weights @ SHARES / np.sum(weights)  # [n_scales], Σ g · weight: together the mean of g

    def learn(self, margins: Sequence[float], n_accepted: int) -> None:
        """Count the drafts of a proposal that were tested: those that were accepted, and the next if there is any."""
        tested = margins[: n_accepted + 1]
        evidence = DECAY * self.evidence + (1 - DECAY) * self.log_prior  # [n_scales, n_shares]
        for i, margin in enumerate(tested):
            chances = SHARES * self.preferred(margin)  # [n_scales, n_shares]
            likelihood = chances if i < n_accepted else 1 - chances
            evidence += np.log(likelihood)
        self.weigh(evidence)
        self.n_tested = DECAY * self.n_tested + len(tested)
        self.n_accepted = DECAY * self.n_accepted + n_accepted
