"""Kafka transactions of capture: records, control records, frontier and offset, in this order.

Readers at a frontier F begin at its ends, so no record at or above F may lie below them: a
frontier is written only between source transactions, and the parts of a large one carry none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.control import KeyValue, OffsetRecord
from cdc.failpoints import failpoint
from cdc.frontier import Ends, FrontierRecord, LastTransaction, merge_ends
from cdc.log.producer import TransactionalProducer
from cdc.position import Position, frontier

#: A full frontier record after so many others, or so many seconds, whichever is first.
FULL_EVERY_RECORDS: Final = 1000
FULL_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where the log of a source stands; what a writer goes on from.

    Args:
        position: The newest frontier.
        end_lsn: Its LSN, the capture offset.
        sysid: System identifier of the source.
        timeline: Of the source.
        slot: The replication slot.
        last: The last transaction, if the newest frontier record tells it.
        max_commit_us: Highest commit time so far.
        control_end: Where the control topic ends.
        ends: Next offset of every partition of every table topic.
    """

    position: Position
    end_lsn: int
    sysid: str
    timeline: int
    slot: str
    last: LastTransaction | None
    max_commit_us: int
    control_end: int
    ends: Ends


class LogWriter:
    """Groups whole source transactions into Kafka transactions, in the order of history.

    Args:
        producer: After ``init()``.
        control_topic: Of the source.
        frontier_topic: Of the source.
        start: Where the log stands.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        control_topic: str,
        frontier_topic: str,
        start: LogPosition,
    ) -> None:
        self._producer = producer
        self._control_topic = control_topic
        self._frontier_topic = frontier_topic
        self._identity = start
        self._all_ends: Ends = {t: dict(parts) for t, parts in start.ends.items()}
        self._control_end = start.control_end
        self._max_commit_us = start.max_commit_us
        self._part_ends: Ends = {}
        self._full_at: int | None = None
        self._since_full = 0
        self._full_time = 0.0
        self._opened = 0.0
        self._offset_written = False
        #: A Kafka transaction is open.
        self.is_open = False
        #: The newest committed frontier; nothing beyond it may be confirmed.
        self.position = start.position
        self.end_lsn = start.end_lsn
        #: Offset after its record in the frontier topic; 0 before this writer wrote one.
        self.frontier_end = 0
        #: Its last source transaction, if known.
        self.last = start.last
        #: Kafka transactions committed since this writer was made.
        self.commits = 0

    @property
    def age(self) -> float:
        """Seconds for which the Kafka transaction has been open; 0 when none is."""
        return time.monotonic() - self._opened if self.is_open else 0.0

    @property
    def seconds_since_full(self) -> float:
        """Seconds since this writer wrote a full frontier record (or was made)."""
        return time.monotonic() - self._full_time if self._full_at is not None else 0.0

    def open(self) -> None:
        """Open a Kafka transaction, if none is."""
        if not self.is_open:
            self._producer.begin()
            self.is_open = True
            self._opened = time.monotonic()

    def part(self, control: Sequence[KeyValue]) -> None:
        """Commit what there is of an unfinished source transaction; the frontier stays."""
        if not self.is_open:
            return
        merge_ends(self._part_ends, self._table_ends(self._producer.ends()))
        self._send_control(control)
        failpoint("before_part_commit")
        self._commit()
        failpoint("after_part_commit")

    def advance(
        self, end_lsn: int, last: LastTransaction | None, control: Sequence[KeyValue] = ()
    ) -> None:
        """Commit, with a frontier at ``end_lsn``; no source transaction may be half written.

        Args:
            end_lsn: End of the last transaction, or a keepalive's WAL end.
            last: The last transaction, or None for a keepalive.
            control: Control records of this Kafka transaction.
        """
        if end_lsn < self.end_lsn:
            raise RuntimeError("a frontier never goes back")
        self.open()
        now = time.monotonic()
        touched = self._part_ends
        merge_ends(touched, self._table_ends(self._producer.ends()))
        merge_ends(self._all_ends, touched)
        self._send_control(control)
        if last is not None and last.commit_us > self._max_commit_us:
            self._max_commit_us = last.commit_us
        full = (
            self._full_at is None
            or self._since_full >= FULL_EVERY_RECORDS
            or now - self._full_time >= FULL_EVERY_S
        )
        position = frontier(self.position.epoch, end_lsn)
        record = FrontierRecord(
            position=position,
            end_lsn=end_lsn,
            sysid=self._identity.sysid,
            timeline=self._identity.timeline,
            slot=self._identity.slot,
            last=last,
            max_commit_us=self._max_commit_us,
            control_end=self._control_end,
            full=full,
            full_at=None if full else self._full_at,
            ends=self._all_ends if full else touched,
        )
        at = self._producer.send_reported(self._frontier_topic, 0, None, record.to_value()) - 1
        if full:
            self._send_control([self._offset_record(position, end_lsn, at).to_key_value()])
        failpoint("before_kafka_commit")
        self._commit()
        failpoint("after_kafka_commit_before_feedback")
        self._part_ends = {}
        if full:
            self._full_at, self._full_time, self._since_full = at, now, 0
        else:
            self._since_full += 1
        self._offset_written = full
        self.position, self.end_lsn, self.frontier_end = position, end_lsn, at + 1
        if last is not None or self.last is None:
            self.last = last

    def write_offset(self) -> None:
        """Write the offset record of the newest frontier, as at a stop, if it is not there."""
        if self._offset_written or self._full_at is None:
            return
        self.open()
        offset = self._offset_record(self.position, self.end_lsn, self._full_at)
        self._send_control([offset.to_key_value()])
        self._commit()
        self._offset_written = True

    def ends_of(self, topic: str) -> dict[int, int]:
        """Next offsets of a topic's partitions as of the newest frontier; none: never written."""
        return dict(self._all_ends.get(topic, {}))

    def include(self, ends: Ends) -> None:
        """What others wrote belongs to the next frontier."""
        merge_ends(self._part_ends, ends)

    def forget(self, topic: str) -> None:
        """A topic is about to be deleted: frontiers do not speak of it any more."""
        self._all_ends.pop(topic, None)
        self._part_ends.pop(topic, None)

    def abort(self) -> None:
        """Throw away what is not committed."""
        self.is_open = False
        self._part_ends = {}
        self._producer.abort()

    # --- inside ---

    def _offset_record(self, position: Position, end_lsn: int, full_at: int) -> OffsetRecord:
        identity = self._identity
        return OffsetRecord(
            position, end_lsn, identity.sysid, identity.timeline, identity.slot, full_at
        )

    def _send_control(self, control: Sequence[KeyValue | tuple[bytes, None]]) -> None:
        if not control:
            return
        for key, value in control:
            self._producer.send(self._control_topic, 0, key, value, None)
        self._control_end = self._producer.ends()[self._control_topic][0]

    def _table_ends(self, ends: Ends) -> Ends:
        own = (self._control_topic, self._frontier_topic)
        return {topic: parts for topic, parts in ends.items() if topic not in own}

    def _commit(self) -> None:
        self._producer.commit()
        self.is_open = False
        self.commits += 1
