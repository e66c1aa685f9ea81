"""Reads the log: control, frontier and the records of tables; committed transactions only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cdc.closing import Closing
from cdc.control import ControlState
from cdc.envelope import LogRecord, parse_record
from cdc.errors import LogError
from cdc.frontier import Ends, FrontierRecord, FrontierView, view_of
from cdc.log.ranges import Bounds, Range, RangeReader, RawRecord
from cdc.names import control_topic, frontier_topic
from cdc.position import Position

# Enough to meet a record: each transaction leaves one record and one marker.
_TAIL: Final = 16
# Below this a binary search costs more round trips than reading on.
_LINEAR: Final = 256


class LogReader(Closing):
    """Reader of one Kafka log; holds one consumer; not for use by several threads.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        security: ``log.security`` with its secrets resolved.
        topic_prefix: ``log.topic_prefix``.
        timeout: Longest wait without any progress, seconds.
        refused_after: As of ``RangeReader``.

    All methods raise EnvironmentProblem ``kafka_unreachable`` or ``kafka_denied``, LogError
    ``topic_missing``, and what ``RangeReader.read`` raises.
    """

    def __init__(
        self,
        bootstrap: str,
        security: Mapping[str, str] | None = None,
        *,
        topic_prefix: str = "",
        timeout: float = 30.0,
        refused_after: float | None = None,
    ) -> None:
        self._prefix = topic_prefix
        self._ranges = RangeReader(
            bootstrap, security, timeout=timeout, refused_after=refused_after
        )

    def bounds(self, topic: str, partition: int = 0) -> Bounds:
        """Start and last stable offset of a partition."""
        return self._ranges.bounds(topic, partition)

    def control_state(self, source: str, up_to: int | None = None) -> ControlState:
        """The source's control topic, folded.

        Args:
            source: The source's name in cdc.yaml.
            up_to: Exclusive offset, a frontier's ``control_end``; the last stable offset if None.

        Returns:
            The state, with ``end`` = where reading stopped.

        Raises:
            LogError: ``topic_missing`` when the source was never started.
        """
        topic = control_topic(self._prefix, source)
        bounds = self.bounds(topic)
        end = bounds.last_stable if up_to is None else up_to
        state = ControlState()
        for batch in self.raw_records(topic, 0, bounds.start, end):
            for offset, key, value, _ in batch:
                if key is None:
                    raise LogError("bad_record", f"{topic}@{offset} has no key")
                state.apply(key, value)
        state.end = end
        return state

    def newest(self, source: str) -> tuple[FrontierView | None, ControlState]:
        """The newest committed frontier, and control as it was at that frontier.

        Returns:
            None and all of control when no frontier was ever written.

        Raises:
            LogError: As ``frontier``.
        """
        view = self.frontier(source)
        return view, self.control_state(source, None if view is None else view.record.control_end)

    def frontier(self, source: str) -> FrontierView | None:
        """The newest committed frontier, or None when none was ever written.

        Raises:
            LogError: ``topic_missing`` when the source was never started;
                ``frontier_incomplete`` when the topic lost the full record it builds on.
        """
        topic = frontier_topic(self._prefix, source)
        bounds = self.bounds(topic)
        return self._view_below(topic, bounds, bounds.last_stable)

    def frontier_at(self, source: str, position: Position) -> FrontierView | None:
        """The newest frontier at or below a position; None when that is no longer kept.

        Every record at or above ``position`` lies at or above the ends of this view.
        """
        topic = frontier_topic(self._prefix, source)
        bounds = self.bounds(topic)
        found = self._newest_at(topic, bounds, position)
        return None if found is None else self._view_below(topic, bounds, found + 1)

    def ends_at(self, source: str, position: Position) -> Ends | None:
        """Where to begin reading for records from ``position`` on; None: at the log's start.

        The offsets are a hint that saves reading: what counts is always the records' Position.
        """
        try:
            view = self.frontier_at(source, position)
        except LogError as error:
            if error.code != "frontier_incomplete":
                raise
            return None
        return None if view is None else view.ends

    def frontier_history(
        self, source: str, since: Position | None = None
    ) -> Iterator[tuple[int, FrontierRecord]]:
        """Offset and record of the frontiers above ``since`` (of all kept if None), in order."""
        topic = frontier_topic(self._prefix, source)
        bounds = self.bounds(topic)
        found = None if since is None else self._newest_at(topic, bounds, since)
        start = bounds.start if found is None else found + 1
        yield from self._frontiers(topic, start, bounds.last_stable)

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[LogRecord]:
        """The records of a table topic's partition with offsets in ``[start, end)``, parsed.

        Raises:
            LogError: ``bad_record`` with topic, partition and offset.
        """
        for batch in self.raw_records(topic, partition, start, end):
            for offset, key, value, headers in batch:
                yield parse_record(topic, partition, offset, key, value, headers)

    def raw_records(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[list[RawRecord]]:
        """The same unparsed, in batches of (offset, key, value, headers)."""
        for _, _, batch in self._ranges.read([Range(topic, partition, start, end)]):
            yield batch

    def ranges(self, ranges: Iterable[Range]) -> Iterator[tuple[str, int, list[RawRecord]]]:
        """Several partitions at once: many small ranges cost little more than one.

        Yields:
            Topic, partition and its next records, in the order of offsets per partition.
        """
        return self._ranges.read(ranges)

    def close(self) -> None:
        """Let go of the consumer."""
        self._ranges.close()

    # --- inside ---

    def _frontiers(self, topic: str, start: int, end: int) -> Iterator[tuple[int, FrontierRecord]]:
        for batch in self.raw_records(topic, 0, start, end):
            for offset, _, value, _ in batch:
                yield offset, FrontierRecord.from_value(value or b"")

    def _view_below(self, topic: str, bounds: Bounds, end: int) -> FrontierView | None:
        """The view of the newest record below offset ``end``."""
        span = _TAIL
        while True:
            start = max(bounds.start, end - span)
            tail = list(self._frontiers(topic, start, end))
            if tail or start == bounds.start:
                break
            # A run of aborted transactions leaves offsets without records.
            span *= 8
        if not tail:
            return None
        offset, newest = tail[-1]
        full_at = offset if newest.full else newest.full_at
        if full_at is None or full_at < bounds.start:
            raise LogError(
                "frontier_incomplete",
                f"topic {topic} no longer holds the full record that offset {offset} builds on",
                remedy="its retention must exceed log.history; start capture to write a new one",
            )
        if full_at < tail[0][0]:
            tail = [*self._frontiers(topic, full_at, tail[0][0]), *tail]
        return view_of(pair for pair in tail if pair[0] >= full_at)

    def _newest_at(self, topic: str, bounds: Bounds, position: Position) -> int | None:
        """Offset of the newest frontier record with a position ≤ ``position``."""
        low, high = bounds
        best = None
        while high - low > _LINEAR:
            middle = (low + high) // 2
            first = next(self._frontiers(topic, middle, high), None)
            if first is None or first[1].position > position:
                high = middle
            else:
                best = first[0]
                low = best + 1
        for offset, record in self._frontiers(topic, low, high):
            if record.position > position:
                break
            best = offset
        return best
