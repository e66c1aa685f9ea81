"""How long to wait before a child is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackOffPolicy:
    """Exponential waits; all in seconds.

    Attributes:
        first: The wait after the first failure.
        limit: No wait is longer.
        healthy_after: A child that was ready and lived this long starts at ``first`` again.
    """

    first: float = 0.5
    limit: float = 30.0
    healthy_after: float = 30.0

    def wait(self, failures: int) -> float:
        """The wait after ``failures`` (from 1) in a row."""
        # The exponent is bounded before the float overflows.
        return min(self.limit, self.first * 2.0 ** min(failures - 1, 60))
