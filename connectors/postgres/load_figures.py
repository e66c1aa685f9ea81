"""Figures of loads under way, for the daemon: how far they are, how fast, and what is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from cdc.load import LoadKey
from cdc.load_progress import chunks_done
from cdc.names import TableId
from cdc.states import COPYING
from connectors.postgres.load_state import Load

#: A speed is that of so many seconds, and of none below a second.
_WINDOW_S: Final = 30.0
_SHORTEST_S: Final = 1.0


class LoadFigures:
    """Remembers what loads had, because a speed takes two moments.

    Args:
        name_of: ``source.schema.table`` of a table.
        clock: Monotonic seconds.
    """

    def __init__(
        self, name_of: Callable[[TableId], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name_of = name_of
        self._clock = clock
        self._seen: dict[LoadKey, deque[tuple[float, int]]] = {}

    def of(self, loads: Iterable[Load]) -> dict[str, dict[str, float]]:
        """Figures by table; to be called about once a second.

        Args:
            loads: All that are under way.

        Returns:
            ``number``, ``rows``, ``chunks_done``, ``chunks``; ``rows_estimate`` if the planner has
            one; while chunks are copied ``rows_per_second`` and ``seconds_left`` if known.
        """
        now = self._clock()
        under_way = {load.key: load for load in loads}
        self._seen = {key: self._seen.get(key, deque()) for key in under_way}
        found = {}
        for key, load in under_way.items():
            record, seen = load.record, self._seen[key]
            figures: dict[str, float] = {
                "number": record.load,
                "rows": load.rows,
                "chunks_done": chunks_done(record),
                "chunks": record.chunks,
            }
            if record.estimate is not None:
                figures["rows_estimate"] = record.estimate
            if record.state == COPYING and load.clear:
                seen.append((now, load.rows))
                while len(seen) > 2 and now - seen[0][0] > _WINDOW_S:
                    seen.popleft()
                figures |= _speed(load, seen)
            found[self._name_of(key[0])] = figures
        return found


def _speed(load: Load, seen: deque[tuple[float, int]]) -> dict[str, float]:
    (began, before), (now, rows) = seen[0], seen[-1]
    if now - began < _SHORTEST_S:
        return {}
    # A chunk that a worker took down with it is copied again: rows go back.
    speed = max(0, rows - before) / (now - began)
    record = load.record
    expected = record.estimate or 0
    if expected < rows and record.chunks and (done := chunks_done(record)):
        expected = record.rows * record.chunks // done
    if speed == 0 or expected < rows or not expected:
        return {"rows_per_second": speed}
    return {"rows_per_second": speed, "seconds_left": (expected - rows) / speed}
