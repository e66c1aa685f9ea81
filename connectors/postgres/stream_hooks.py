"""What the stream tells and asks the process around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from connectors.postgres.stopping import StopRequest

#: How long a read waits for the server, seconds, unless there is something else to do.
LONGEST_READ_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class StreamHooks:
    """What the stream tells and asks.

    Args:
        stop: Ends the stream at the next border between transactions.
        tick: Called after each read, at least twice a second; may raise.
        frontier_stable: Last stable offset of the frontier topic, asked of the broker.
        border_wanted: Whether ``at_border`` has something to do.
        at_border: Called between two source transactions, with everything before committed.
        longest_read: How long a read may wait at most, seconds.
    """

    stop: StopRequest
    tick: Callable[[], None]
    frontier_stable: Callable[[], int]
    border_wanted: Callable[[], bool] = lambda: False
    at_border: Callable[[], None] = lambda: None
    longest_read: Callable[[], float] = lambda: LONGEST_READ_S
