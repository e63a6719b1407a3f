"""Formulas of the papers that benchmarks and tables call; those of a run are in speculative/measure/analysis.py."""

from collections.abc import Sequence

from speculative.measure.analysis import leviathan_tokens


def leviathan_operations(alpha: float, K: int, c_operations: float = 0.0) -> float:
    """The factor by which arithmetic operations grow; c_operations is the draft's per token, over the target's.

    Source: Leviathan et al. 2023, theorem 3.11.
    """
    return (K * c_operations + K + 1) / leviathan_tokens(alpha, K)


def largest_beta(alpha: float, K: int, c: float) -> float:
    """The largest β at which speculation still pays: leviathan_speedup is 1."""
    return leviathan_tokens(alpha, K) - K * c


def experts_read(chances: Sequence[float], rows: int) -> float:
    """Expected number of experts that a window reads, if each row is routed to expert e with chances[e], independently.

    With k of E experts a row and equal chances it is E (1 - (1 - k/E)^rows), otherwise less. A mixture of experts reads
    only these, so its β grows with the rows even if reading takes all the time.
    """
    return sum(1 - (1 - chance) ** rows for chance in chances)
