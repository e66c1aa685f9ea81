"""Holds a worker to its share of rows per second. Pure."""

from __future__ import annotations

_SLICE_SECONDS = 0.25


class RateLimit:
    """Says how long to pause after rows; no credit is saved up while nothing is copied.

    Attributes:
        rows_per_second: May be set at any time; None: no limit.
    """

    def __init__(self) -> None:
        self.rows_per_second: float | None = None
        self._free_at = 0.0

    def batch_rows(self, most: int) -> int:
        """How many rows to take at once, so that pauses stay short."""
        if self.rows_per_second is None:
            return most
        return max(1, min(most, int(self.rows_per_second * _SLICE_SECONDS)))

    def pause(self, rows: int, now: float) -> float:
        """Seconds to wait after ``rows`` rows were copied by ``now`` (monotonic)."""
        if self.rows_per_second is None:
            return 0.0
        # Work of up to a slice counts as waiting.
        self._free_at = max(self._free_at, now - _SLICE_SECONDS) + rows / self.rows_per_second
        return max(0.0, self._free_at - now)
