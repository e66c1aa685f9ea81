"""How a stream is asked to end, and how it tells that it cannot go on. Pure."""

from __future__ import annotations

import time

from cdc.errors import SourceStopped


class StopRequest:
    """Asked to stop; set by a signal handler or a command."""

    __slots__ = ("requested_at",)

    def __init__(self) -> None:
        self.requested_at: float | None = None

    def request(self) -> None:
        """Ask; again does nothing."""
        if self.requested_at is None:
            self.requested_at = time.monotonic()

    @property
    def requested(self) -> bool:
        """Whether it was asked."""
        return self.requested_at is not None


class StoppedAt(Exception):
    """What is at hand cannot be captured.

    Args:
        lsn: Where the commit record of its transaction starts; None outside of a transaction,
            when everything before is committed.
        stopped: Why.
    """

    def __init__(self, lsn: int | None, stopped: SourceStopped) -> None:
        super().__init__(stopped.message)
        self.lsn = lsn
        self.stopped = stopped
