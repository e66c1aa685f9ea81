"""Replays a load's spool behind its chunks, into the load's topic.

The router that does it is of the replay alone, so schema versions, unsent values and truncates
come out as they would have, had the events gone there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc.control import KeyValue
from cdc.log.ranges import RawRecord
from cdc.log.reader import LogReader
from cdc.position import Position
from cdc.schema import TableSchema
from connectors.postgres.messages import Delete, Insert, Relation, Truncate, Update
from connectors.postgres.router import Router
from connectors.postgres.seen import Snapshot
from connectors.postgres.spool import Spooled, read_spooled

#: Records of a spool that are written in one Kafka transaction.
BATCH_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a replay came.

    Args:
        offset: Of the next record of the spool.
        position: Of the newest event that is in the topic; None: of none.
        relation_offset: Of the newest Relation below ``offset``.
    """

    offset: int
    position: Position | None
    relation_offset: int


class Replay:
    """The replay of one spool.

    Args:
        reader: Of the log.
        router: Made for this replay, with the load's topic as the table's.
        topic: The spool.
        start: How far an earlier replay came.
        copied_at: LSN behind all that a chunk can have.
        keep_alive: Called now and then.
        snapshot: Of the copy of a table without a key: what it sees is in the topic already.
    """

    def __init__(
        self,
        reader: LogReader,
        router: Router,
        topic: str,
        start: Replayed,
        copied_at: int,
        keep_alive: Callable[[], None],
        snapshot: Snapshot | None = None,
    ) -> None:
        self._reader = reader
        self._router = router
        router.guesses.copied_at = router.guesses.exact_from = copied_at
        self._topic = topic
        self._keep_alive = keep_alive
        self._snapshot = snapshot
        self._transaction: tuple[int, int] | None = None
        self._resumed = start.offset > 0
        #: How far it came.
        self.at = start

    def step(self, end: int) -> list[KeyValue]:
        """Send the next events of the spool.

        Args:
            end: Where the spool ends.

        Returns:
            The control records that belong to them.

        Raises:
            SourceStopped: An event does not fit the load: it has to begin anew.
            CdcError: From Postgres or Kafka.
        """
        if self._resumed:
            # The relation in force was told of before the place where we go on.
            at = self.at.relation_offset
            for record in self._records(at, at + 1):
                self._take(record)
            self._resumed = False
        stop = min(end, self.at.offset + BATCH_RECORDS)
        if self._router.reduces:
            # What a transaction does to such a table is known only at its end.
            stop = end
        for n, record in enumerate(self._records(self.at.offset, stop)):
            if n % 1000 == 0:
                self._keep_alive()
            self._take(record)
        if stop == end and self._transaction is not None:
            # Spools end, while they are replayed, with a whole transaction.
            self._router.commit()
            self._transaction = None
        # Markers of transactions take offsets, too.
        self.at = Replayed(stop, self.at.position, self.at.relation_offset)
        return self._router.take_control()

    @property
    def guessed(self) -> bool:
        """Whether the events so far took values that may be later ones, since ``exact_from``."""
        return self._router.guesses.any

    def exact_from(self, lsn: int) -> None:
        """All values that were re-read so far are in the stream by this LSN, if they are later."""
        self._router.guesses.exact_from, self._router.guesses.any = lsn, False

    def schema(self) -> TableSchema:
        """The newest schema of the table."""
        (schema,) = self._router.schemas.values()
        return schema

    def _records(self, start: int, end: int) -> list[RawRecord]:
        return [r for batch in self._reader.raw_records(self._topic, 0, start, end) for r in batch]

    def _take(self, record: RawRecord) -> None:
        offset, _, value, headers = record
        spooled = read_spooled(self._topic, offset, value, headers)
        message = spooled.message
        if isinstance(message, Relation):
            self._router.relation(message, spooled.data)
            self.at = Replayed(self.at.offset, self.at.position, offset)
            return
        position = spooled.position
        # Parts of a large transaction that came again after a restart.
        if self.at.position is not None and position <= self.at.position:
            return
        if self._snapshot is not None and self._snapshot.sees(spooled.xid, position.lsn):
            self.at = Replayed(self.at.offset, position, self.at.relation_offset)
            return
        self._enter(spooled)
        self._router.ordinal = position.ordinal - 1
        if isinstance(message, Insert | Update | Delete):
            self._router.change(message, len(spooled.data), 0)
        elif isinstance(message, Truncate):
            self._router.truncate(message)
        self.at = Replayed(self.at.offset, position, self.at.relation_offset)

    def _enter(self, spooled: Spooled) -> None:
        transaction = (spooled.position.epoch, spooled.position.lsn)
        if transaction != self._transaction:
            if self._transaction is not None:
                self._router.commit()
            self._router.begin(spooled.begin)
            self._transaction = transaction
