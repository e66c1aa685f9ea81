"""From the changes of the stream to records of the table topics. The hot path; no sockets.

A router lives as long as one replication connection: Relation messages are sent once for each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from cdc.control import KeyValue, schema_key_value, truncate_key_value
from cdc.counted import encoder_of
from cdc.envelope import BadValue, TransactionFields
from cdc.errors import LogError, SourceStopped
from cdc.names import TableId
from cdc.position import Position
from cdc.schema import TableSchema
from cdc.unsent import UNSENT
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.collected import CollectedChanges, wrong_width
from connectors.postgres.drift import SchemaDrift
from connectors.postgres.inserts import insert_columns
from connectors.postgres.messages import Begin, Delete, Insert, Relation, Truncate, Update
from connectors.postgres.readahead import ReadAhead
from connectors.postgres.relations import Relations
from connectors.postgres.remedies import FIRST
from connectors.postgres.routes import Change, Route, RoutedTable, Send, SendAll, Source, SpoolRoute
from connectors.postgres.session import XLOG_HEADER_SIZE
from connectors.postgres.spool import truncate_of
from connectors.postgres.spooling import Spooling
from connectors.postgres.toast import Guesses, RowCache

#: A message up to this size holds no row that the cache would keep.
SMALL_MESSAGE: Final = 1000


class Router:
    """Routes the changes of one replication connection.

    Args:
        settings: Of the capture.
        epoch: Of the source's history.
        tables: The captured tables.
        send: Takes a record into the open Kafka transaction.
        send_all: Takes records of one topic, or none of them.
        source: Answers questions about columns and rows.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        epoch: int,
        tables: Mapping[TableId, RoutedTable],
        send: Send,
        send_all: SendAll,
        source: Source,
    ) -> None:
        self._relations = Relations(settings, tables, source)
        self._epoch = epoch
        self._spooling = Spooling(epoch, send)
        # Asked for every change.
        self._spools = self._spooling.routes
        self._send = send
        self._send_all = send_all
        # None: a relation that we do not capture.
        self._routes: dict[int, Route | None] = {}
        self._cache = RowCache()
        # Whether it holds anything is asked for every change.
        self._cached = self._cache.rows
        self._begin: Begin | None = None
        self._fields = TransactionFields(0, 0, None, 0, 0, snapshot=False)
        # The messages from which changes come; set by ``take``.
        self._batch: Sequence[bytes] = ()
        self._rereads = ReadAhead(source)
        # Changes that are written at the end of the transaction.
        self._collected = CollectedChanges()
        #: Changes of the open transaction so far, of whatever table.
        self.ordinal = 0
        #: Records sent since this router was made.
        self.records = 0
        #: Truncated tables since this router was made.
        self.truncates = 0
        # Changes by table, of routes that were replaced.
        self._changes: dict[TableId, int] = dict.fromkeys(tables, 0)
        #: Only for a replay (``replay.py``).
        self.guesses = Guesses()
        #: Control records that the open Kafka transaction must hold.
        self.control: list[KeyValue] = []

    @property
    def schemas(self) -> dict[TableId, TableSchema]:
        """The newest schema of each table, as far as the stream has told."""
        return {id: table.schema for id, table in self._relations.tables.items()}

    @property
    def reduces(self) -> bool:
        """Whether changes of a table are written only at the end of their transaction."""
        return any(table.schema.deferrable for table in self._relations.tables.values())

    @property
    def changes(self) -> dict[TableId, int]:
        """Changes by table since this router was made."""
        counted = dict(self._changes)
        for route in self._routes.values():
            if route is not None:
                counted[route.table] += route.changes
        return counted

    def take_unknown(self) -> set[TableId]:
        """Names of relations that had changes since the last call and that nobody captures."""
        taken, self._relations.unknown = self._relations.unknown, set()
        return taken

    def take_control(self) -> list[KeyValue]:
        """The control records that are waiting; they count as written."""
        taken, self.control = self.control, []
        return taken

    def take(self, batch: Sequence[bytes]) -> None:
        """The messages from which the next changes come."""
        self._batch = batch
        self._rereads.take(batch)

    def relation(self, relation: Relation, message: bytes) -> None:
        """The relation is as told from here on.

        Compared with what we know only when a change needs it: transactions that are in the
        log already may show an older state.

        Args:
            relation: The relation.
            message: The pgoutput message that said so.
        """
        self._spooling.describe(relation.relid, message)
        if self._relations.tell(relation):
            self._end_route(relation.relid)

    def spool(self, relid: int, topic: str, table: TableId) -> None:
        """From here on, events of a relation go to a spool (too)."""
        self._spools[relid] = SpoolRoute(topic, table)

    def end_spool(self, relid: int) -> None:
        """From here on they do not."""
        self._spools.pop(relid, None)

    def adopt(self, table: RoutedTable) -> None:
        """From here on, events of this table go to its topic, instead of another or of none."""
        self._relations.put(table)
        self._changes.setdefault(table.schema.id, 0)
        self._end_route(table.schema.relid)

    def follow(self, schema: TableSchema) -> RoutedTable:
        """From here on, a table has this version of its schema, which control is told of."""
        before = self._relations.tables[schema.id]
        if schema.dropped != before.schema.dropped:
            # Values stand at other places of a row.
            self._cache.clear()
        table = RoutedTable(schema, before.topic, before.partitions)
        self.adopt(table)
        self.control.append(schema_key_value(schema))
        return table

    def use(self, settings: CaptureSettings) -> None:
        """From here on these are the settings."""
        self._relations.settings = settings

    def drop(self, id: TableId) -> None:
        """From here on, events of this table go nowhere."""
        if (table := self._relations.remove(id)) is not None:
            self._end_route(table.schema.relid)
        self._changes.pop(id, None)

    def begin(self, begin: Begin) -> None:
        """A transaction that is not in the log yet starts."""
        self._begin = begin
        self._spooling.begin(begin)
        self.ordinal = 0
        self._collected.clear()
        self._fields = TransactionFields(
            self._epoch,
            begin.final_lsn,
            begin.xid,
            begin.commit_us,
            time.time_ns() // 1_000_000,
            snapshot=False,
        )

    def commit(self) -> None:
        """The transaction is complete.

        Raises:
            SourceStopped: As ``change``.
        """
        for route in list(self._collected.routes):
            self._write_collected(route)
        self._begin = None
        if self._cached:
            self._cache.clear()

    def change(self, event: Change, size: int, index: int) -> None:
        """One row's change.

        Args:
            event: The change.
            size: Of its message in bytes.
            index: Of its message in the batch.

        Raises:
            SourceStopped: It cannot be captured, nor anything of its table at or after its
                transaction.
        """
        ordinal = self.ordinal = self.ordinal + 1
        relid = event.relid
        if self._spools and relid in self._spools:
            self._to_spool(relid, (self._batch[index][XLOG_HEADER_SIZE:],), ordinal)
        try:
            route = self._routes[relid]
        except KeyError:
            route = self._resolve(relid)
        if route is None:
            return
        try:
            if route.net is not None:
                self._collected.take(route, route.net, event, ordinal, size)
            elif type(event) is Insert and UNSENT not in event.new:
                new = event.new
                if len(new) != route.width:
                    raise wrong_width(str(self.position))
                key, value, headers = route.insert(new, self._fields, ordinal)
                if size > SMALL_MESSAGE or self._cached:
                    self._cache.put(relid, key, new)
                self._send(route.topic, crc32(key) % route.partitions, key, value, headers)
                self.records += 1
            elif isinstance(event, Delete):
                self._delete(route, event)
            elif isinstance(event, Update):
                self._update(route, event, size, index)
            else:
                # An update that brought the row past the publication's filter.
                self._update(route, Update(relid, "", None, event.new), size, index)
        except BadValue as bad:
            raise self._stopped(route.table, "bad_value", str(bad)) from None
        except SchemaDrift as drift:
            raise self._stopped(route.table, drift.code, drift.reason) from None
        except LogError as error:
            if error.code not in ("record_too_large", "transaction_too_large"):
                raise
            raise self._stopped(route.table, error.code, error.message) from None
        route.changes += 1

    def inserts(self, relid: int, run: Sequence[bytes]) -> bool:
        """Many inserts at once, after ``change`` has taken one of their relation.

        Args:
            relid: Their relation.
            run: CopyData messages of inserts that follow one another.

        Returns:
            Whether they were taken; if not, they have to go through ``change``.
        """
        route = self._routes[relid]
        if route is not None and not self._inserts(route, run):
            return False
        if relid in self._spools:
            self._to_spool(relid, [data[XLOG_HEADER_SIZE:] for data in run], self.ordinal + 1)
        self.ordinal += len(run)
        return True

    def _inserts(self, route: Route, run: Sequence[bytes]) -> bool:
        if self._cached or route.net is not None or route.schema.counted:
            return False
        columns = insert_columns(run, route.width)
        if columns is None:
            return False
        try:
            keys, values, headers = route.batches.inserts(columns, self._fields, self.ordinal + 1)
        except BadValue:
            return False  # told of by ``change``, with its position
        partitions = [crc32(key) % route.partitions for key in keys]
        if not self._send_all(route.topic, partitions, keys, values, headers):
            return False
        self.records += len(run)
        route.changes += len(run)
        return True

    def truncate(self, event: Truncate) -> None:
        """Tables were emptied: a control record each, all of one position."""
        self.ordinal += 1
        self._cache.clear()
        for relid in event.relids:
            if relid in self._spools:
                message = truncate_of(
                    relid, cascade=event.cascade, restart_identity=event.restart_identity
                )
                self._to_spool(relid, (message,), self.ordinal)
            route = self._routes[relid] if relid in self._routes else self._resolve(relid)
            if route is None:
                continue
            if route.net is not None:
                route.net.truncate()
            self.control.append(
                truncate_key_value(
                    route.table,
                    route.schema.load,
                    self.position,
                    cascade=event.cascade,
                    restart_identity=event.restart_identity,
                )
            )
            route.changes += 1
            self.truncates += 1

    # --- inside ---

    def _to_spool(self, relid: int, messages: Sequence[bytes], ordinal: int) -> None:
        try:
            self.records += self._spooling.write(relid, messages, ordinal)
        except LogError as error:
            if error.code != "record_too_large":
                raise
            raise self._stopped(self._spools[relid].table, error.code, error.message) from None

    def _update(self, route: Route, event: Update, size: int, index: int) -> None:
        encoder, relid = route.encoder, event.relid
        old_kind, old = route.old_kind(event.old_kind, event.old), event.old
        row: Any = event.new
        if len(row) != route.width:
            raise wrong_width(str(self.position))
        unchanged: tuple[str, ...] = ()
        exact = row
        cache = self._cache
        if UNSENT in row:
            row, missing = encoder.complete(old_kind, old, row)
            if missing and self._cached:
                before = encoder.key(row if old is None else old)
                row, missing = cache.fill(relid, before, row, missing)
            exact = row
            if missing:
                xid = self._begin.xid if self._begin else 0
                row = self._rereads.fill(route.schema, row, missing, index, xid)
                moved = old is not None and route.encoder.key(old) != route.encoder.key(row)
                lsn = self._begin.final_lsn if self._begin else 0
                missing = self.guesses.inherited(lsn, row, missing, moved=moved)
                unchanged = tuple(route.schema.column_names[i] for i in missing)
        records = encoder.update(old_kind, old, row, self._fields, self.ordinal, unchanged)
        if size > SMALL_MESSAGE or self._cached or exact is not event.new:
            # A key change leaves the old key first in the list, the new one last.
            cache.forget(relid, records[0][0])
            cache.put(relid, records[-1][0], exact)
        topic, partitions, send = route.topic, route.partitions, self._send
        for key, value, headers in records:
            send(topic, crc32(key) % partitions, key, value, headers)
        self.records += len(records)

    def _end_route(self, relid: int) -> None:
        """From here on, changes of a relation have another route, or none."""
        route = self._routes.pop(relid, None)
        if route is not None:
            # An ALTER; it cannot be done while two of the table's rows have one key.
            self._write_collected(route)
            self._changes[route.table] += route.changes

    def _write_collected(self, route: Route) -> None:
        """Write what is left of the changes of a table whose keys can swap."""
        if route not in self._collected.routes:
            return
        try:
            for key, value, headers in self._collected.records(route, self._fields):
                self._send(route.topic, crc32(key) % route.partitions, key, value, headers)
                self.records += 1
        except BadValue as bad:
            raise self._stopped(route.table, "bad_value", str(bad)) from None
        except SchemaDrift as drift:
            raise self._stopped(route.table, drift.code, drift.reason) from None

    def _delete(self, route: Route, event: Delete) -> None:
        if len(event.old) != route.width:
            raise wrong_width(str(self.position))
        old_kind = route.old_kind(event.old_kind, event.old)
        records = route.encoder.delete(old_kind, event.old, self._fields, self.ordinal)
        if self._cached:
            self._cache.forget(event.relid, records[0][0])
        topic, partitions, send = route.topic, route.partitions, self._send
        for key, value, headers in records:
            send(topic, crc32(key) % partitions, key, value, headers)
        self.records += len(records)

    def _resolve(self, relid: int) -> Route | None:
        """Compare a relation with what we know, and make its route."""
        table = self._relations.table_of(relid)
        if table is None:
            self._routes[relid] = None
            return None
        xid = self._begin.xid if self._begin else 0
        try:
            schema = self._relations.schema_of(table, relid, xid, self.position)
        except SchemaDrift as drift:
            raise self._stopped(table.schema.id, drift.code, drift.reason) from None
        if schema is not table.schema:
            table = self.follow(schema)
        route = Route(table, encoder_of(table.schema, self._relations.settings.origin))
        self._routes[relid] = route
        return route

    @property
    def position(self) -> Position:
        """Of the newest change of the open transaction."""
        lsn = self._begin.final_lsn if self._begin else 0
        return Position(self._epoch, lsn, self.ordinal)

    def _stopped(self, table: TableId, code: str, reason: str) -> SourceStopped:
        return SourceStopped(
            code,
            reason,
            table=self._relations.settings.name_of(table),
            position=str(self.position),
            remedy=FIRST.get(code),
        )
