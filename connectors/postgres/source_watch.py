"""Looks, now and then, at what the stream never tells: publication, relations and their files.

And at which tables match the patterns of cdc.yaml.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Final

from cdc.control import TableRecord
from cdc.names import TableId
from cdc.schema import TableSchema
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.matching import matching_tables
from connectors.postgres.publication import PublicationInfo
from connectors.postgres.router import Router
from connectors.postgres.side_connection import SideConnection
from connectors.postgres.startcheck import check_identities, check_publication
from connectors.postgres.table_set import table_changes

_EVERY_S: Final = 30.0
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
    """

    def __init__(
        self,
        settings: CaptureSettings,
        records: dict[TableId, TableRecord],
        router: Router,
        side: SideConnection,
        loading: Callable[[], Mapping[TableId, TableSchema]],
    ) -> None:
        self._settings = settings
        self._records = records
        self._router = router
        self._side = side
        self._loading = loading
        self._publication: PublicationInfo | None = None
        self._looked = 0.0
        self._often_until = 0.0
        self._truncates = 0
        #: Tables that match a pattern came or went: ``table_set`` has something to do.
        self.tables_changed = False
        for record in records.values():
            if record.relid is not None and record.filenode is not None:
                side.filenodes[record.relid] = record.filenode

    def tick(self) -> None:
        """Look, if it is time.

        Raises:
            CdcError: As ``look``.
        """
        now = time.monotonic()
        if self._router.unknown:
            seen, self._router.unknown = self._router.unknown, set()
            if any(self._settings.matches(id) for id in seen - self._records.keys()):
                self._looked = 0.0
        if self._router.truncates > self._truncates:
            self._truncates = self._router.truncates
            self._looked, self._often_until = 0.0, now + _OFTEN_FOR_S
        if now - self._looked >= (_OFTEN_S if now < self._often_until else _EVERY_S):
            self.look()

    def look(self) -> None:
        """Compare now.

        Raises:
            HistoryGap: Changes may have been missed.
            SourceStopped: Changes of one table may have been missed.
            CdcError: From Postgres.
        """
        self._looked = time.monotonic()
        schemas, loading = self._router.schemas, self._loading()
        publication = self._side.publication()
        # Tables that are missing in it are told of one by one.
        listed = [id for id in self._records if publication and publication.publishes(id)]
        check_publication(self._settings, publication, listed, self._publication)
        self._publication = publication
        gone = self._came_and_went()
        records = {
            id: record
            for id, record in self._records.items()
            if (id in schemas or id in loading) and id not in gone
        }
        found = self._side.identities({**loading, **schemas})
        check_identities(self._settings, records, found)
        for id, now in found.items():
            if id in loading:
                continue  # compared by each chunk
            schema, record = schemas[id], self._records[id]
            if now.columns != schema.column_names:
                # A column that is on its way: whether it was added by a rewrite is judged by
                # the file from before.
                continue
            self._side.filenodes[schema.relid] = now.filenode
            if record.filenode != now.filenode:
                changed = dataclasses.replace(record, filenode=now.filenode)
                self._records[id] = changed
                self._router.control.append(changed.to_key_value())

    def use(self, settings: CaptureSettings) -> None:
        """From here on these are the settings."""
        self._settings = settings

    def _came_and_went(self) -> tuple[TableId, ...]:
        """Compare the tables that match patterns with those that we have; which are gone."""
        if not self._settings.patterns:
            return ()
        matched = matching_tables(self._side.connected(), self._settings)
        changes = table_changes(self._settings, self._records, matched)
        self.tables_changed |= bool(changes.new or changes.gone)
        return changes.gone
