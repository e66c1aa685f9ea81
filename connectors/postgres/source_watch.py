"""Looks, now and then, at what the stream never tells: publication, relations and their files.

And at which tables match the patterns of cdc.yaml.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from cdc.control import TableRecord
from cdc.errors import SourceStopped
from cdc.names import TableId
from cdc.position import Position, snapshot_position
from cdc.schema import TableSchema
from connectors.postgres.aside import errored_records
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.drift import (
    CatalogColumn,
    SchemaDrift,
    next_schema,
    not_followed,
    without_columns,
)
from connectors.postgres.load_catalog import reachable
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.matching import matching_tables
from connectors.postgres.publishing import Publishing
from connectors.postgres.router import Router
from connectors.postgres.side_connection import SideConnection
from connectors.postgres.silent import (
    PUBLICATION_ALTERED,
    Partition,
    SilentChange,
    TableIdentity,
    known_types,
    published_otherwise,
    silent_changes,
    silent_partitions,
    to_act_on,
    width_of,
)
from connectors.postgres.startcheck import check_identity, check_publication
from connectors.postgres.table_set import table_changes

log = structlog.get_logger(__name__)

_EVERY_S: Final = 30.0
_LATER: Final = SilentChange("later", "not judged yet")
#: After a truncate, which gives a table a new file: soon and often, before a new column makes
#: the file suspicious.
_OFTEN_S: Final = 1.0
_OFTEN_FOR_S: Final = 5.0


class SourceWatch:
    """Compares the source with what was recorded of it; of one streaming connection.

    Args:
        settings: Of the capture.
        records: Of all tables; kept up to date.
        router: Of the stream.
        side: To ask the source.
        loading: Schemas of the tables that are being loaded.
        writer: Of the log: how far the stream is.
        hurry: Makes a quiet server tell how far it is.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        records: dict[TableId, TableRecord],
        router: Router,
        side: SideConnection,
        loading: Callable[[], Mapping[TableId, TableSchema]],
        writer: LogWriter,
        hurry: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._records = records
        self._router = router
        self._side = side
        self._loading = loading
        self._writer = writer
        self._hurry = hurry
        # Differences that the stream may still tell of: the table then, and the end of WAL.
        self._suspects: dict[TableId, tuple[TableIdentity, int]] = {}
        # The frontier when a table was last as it should be.
        self._good: dict[TableId, Position] = {}
        self._partitions: dict[TableId, dict[int, Partition]] = {}
        self._looked = 0.0
        self._often_until = 0.0
        self._truncates = 0
        #: Tables that match a pattern came or went: ``table_set`` has something to do.
        self.tables_changed = False
        #: Tables that were set aside since somebody looked here: what their spools hold is not all.
        self.gaps: dict[TableId, SourceStopped] = {}
        for record in records.values():
            self._tell_side(record)

    def tick(self) -> None:
        """Look, if it is time.

        Raises:
            CdcError: As ``look``.
        """
        now = time.monotonic()
        seen = self._router.take_unknown() - self._records.keys()
        if any(self._settings.matches(id) for id in seen):
            self._looked = 0.0
        if self._router.truncates > self._truncates:
            self._truncates = self._router.truncates
            self._looked, self._often_until = 0.0, now + _OFTEN_FOR_S
        if now - self._looked >= (_OFTEN_S if now < self._often_until else _EVERY_S):
            self.look()

    def look(self) -> None:
        """Compare now.

        Raises:
            HistoryGap: Changes of the whole source may have been missed.
            CdcError: From Postgres.
        """
        self._looked = time.monotonic()
        schemas, loading = self._router.schemas, self._loading()
        publication = self._side.publication()
        # Tables that are missing in it are told of one by one.
        listed = [id for id in self._records if publication and publication.publishes(id)]
        roots = [id for id in listed if id in schemas and schemas[id].partitioned]
        check_publication(self._settings, publication, listed, roots)
        gone = self._came_and_went()
        records = {
            id: record
            for id, record in self._records.items()
            if (id in schemas or id in loading) and id not in gone
        }
        found = self._side.identities({**loading, **schemas}, publication)
        publishing = Publishing(
            self._settings.publication, publication, self._settings.manage_publication
        )
        for id, record in records.items():
            try:
                check_identity(self._settings, record, found.get(id))
                partitioned = (schemas if id in schemas else loading)[id].partitioned
                ancestors = found[id].ancestors
                for problem in publishing.problems(id, ancestors, partitioned=partitioned):
                    raise self._stopped(id, *problem)
                if id not in loading:
                    self._compare(id, schemas[id], found[id])
                elif published_otherwise(record.types or {}, found[id]):
                    # All else of it is compared by each chunk.
                    raise self._stopped(id, "publication_changed", PUBLICATION_ALTERED)
            except SourceStopped as stopped:
                self._set_aside(stopped)

    def _compare(self, id: TableId, schema: TableSchema, now: TableIdentity) -> None:
        """Compare a table with what the stream has told of it.

        Raises:
            SourceStopped: The stream has not told of a change, and will not.
        """
        policy = self._settings.schema_policies.of(id)
        change, gone = to_act_on(silent_changes(schema, self._records[id], now), policy)
        change = change or self._partitions_changed(id, now)
        if change is _LATER:
            return
        added = {column.name for column in now.columns} - set(schema.column_names)
        if change is None and not gone and not added:
            self._suspects.pop(id, None)
            self._as_known(id, schema, now)
        elif self._stream_is_past(id, now):
            if change is not None:
                raise self._stopped(id, change.code, change.reason)
            told = {"table": self._settings.name_of(id)}
            if gone:
                names = [column.name for column in gone]
                log.info("columns dropped", **told, columns=names)
                schema = without_columns(schema, gone, policy, self._just_now)
            else:
                log.info("columns added", **told, columns=sorted(added))
                schema = self._with_columns(schema, now)
            self._router.follow(schema)

    def _with_columns(self, schema: TableSchema, now: TableIdentity) -> TableSchema:
        """The version with columns that no event has told of, as one would tell of them.

        Raises:
            SourceStopped: They are not followed.
        """

        def ask(names: Sequence[str]) -> Mapping[str, CatalogColumn]:
            return self._side.columns(schema, names, None)

        policy = self._settings.schema_policies.of(schema.id)
        try:
            return next_schema(schema, now.relation(schema), ask, policy, self._just_now)
        except SchemaDrift as drift:
            raise self._stopped(schema.id, drift.code, drift.reason) from None

    @property
    def _just_now(self) -> Position:
        """Below the frontier, above every record: what the stream is past is so at the frontier."""
        return snapshot_position(self._writer.position.epoch, self._writer.end_lsn)

    def _stopped(
        self, id: TableId, code: str, reason: str, remedy: str | None = None
    ) -> SourceStopped:
        return SourceStopped(
            code,
            reason,
            table=self._settings.name_of(id),
            position=str(self._good.get(id, self._writer.position)),
            remedy=remedy,
        )

    def _set_aside(self, stopped: SourceStopped) -> None:
        """From here on the source goes on without a table; its next load begins anew."""
        stopped = self._by_policy(stopped)
        log.error("set aside", **stopped.to_json())
        for record in errored_records(
            self._settings, self._records, stopped, self._writer.position
        ):
            self._records[record.id] = record
            self._router.drop(record.id)
            self._router.control.append(record.to_key_value())
            self.gaps[record.id] = stopped

    def _as_known(self, id: TableId, schema: TableSchema, now: TableIdentity) -> None:
        """Remember how a table looks that is as the stream has told."""
        if not now.has_columns_of(schema):
            # A column that is on its way: whether it was added by a rewrite is judged by the
            # file from before.
            return
        self._good[id] = self._writer.position
        record = self._records[id]
        types = known_types(schema, record, now)
        changed = dataclasses.replace(record, filenode=now.filenode, types=types)
        self._tell_side(changed)
        if changed != record:
            self._records[id] = changed
            self._router.control.append(changed.to_key_value())

    def _tell_side(self, record: TableRecord) -> None:
        """What a new column of the table is judged by."""
        if record.relid is None:
            return
        if record.filenode is not None:
            self._side.filenodes[record.relid] = record.filenode
        self._side.widths[record.relid] = width_of(record)

    def _partitions_changed(self, id: TableId, now: TableIdentity) -> SilentChange | None:
        schema, record = self._router.schemas[id], self._records[id]
        if not schema.partitioned:
            return None
        known = self._partitions.get(id)
        if known is not None and record.filenode == now.filenode:
            return None
        number, there = self._side.partitions(schema.relid)
        if number != now.filenode:
            # Changed since it was looked at: to be judged as it is next time.
            self._looked = 0.0
            return _LATER
        change = None
        if record.filenode not in (None, now.filenode):
            change = silent_partitions(known, there)
        if change is None:
            self._partitions[id] = there
        return change

    def _by_policy(self, stopped: SourceStopped) -> SourceStopped:
        """The same, of the code that says whether the next load begins by itself."""
        (id,) = [id for id in self._records if self._settings.name_of(id) == stopped.table]
        policy = self._settings.schema_policies.of(id)
        drift = not_followed(stopped.code, stopped.message, policy)
        return SourceStopped(
            drift.code,
            drift.reason,
            table=stopped.table,
            position=stopped.position,
            remedy=stopped.remedy,
        )

    def _stream_is_past(self, id: TableId, now: TableIdentity) -> bool:
        """Whether no event can be on its way that tells why a table differs."""
        seen, lsn = self._suspects.get(id, (None, 0))
        if seen != now:
            self._suspects[id] = now, reachable(self._side.insert_lsn())
            self._often_until = time.monotonic() + _OFTEN_FOR_S
            return False
        if self._writer.end_lsn < lsn:
            self._hurry()
            self._often_until = time.monotonic() + _OFTEN_FOR_S
            return False
        del self._suspects[id]
        return True

    def use(self, settings: CaptureSettings) -> None:
        """From here on these are the settings, the router's, too."""
        self._settings = settings
        self._router.use(settings)

    def _came_and_went(self) -> tuple[TableId, ...]:
        """Compare the tables that match patterns with those that we have; which are gone."""
        if not self._settings.patterns:
            return ()
        matched = matching_tables(self._side.connected(), self._settings)
        changes = table_changes(self._settings, self._records, matched)
        self.tables_changed |= bool(changes.new or changes.gone)
        return changes.gone
