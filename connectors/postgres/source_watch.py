"""Looks, now and then, at what the stream never tells: publication, relations and their files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Final

from cdc.control import TableRecord
from cdc.names import TableId
from cdc.schema import TableSchema
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.publication import PublicationInfo
from connectors.postgres.router import Router
from connectors.postgres.side_connection import SideConnection
from connectors.postgres.startcheck import check_identities, check_publication

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
        for record in records.values():
            if record.relid is not None and record.filenode is not None:
                side.filenodes[record.relid] = record.filenode

    def tick(self) -> None:
        """Look, if it is time.

        Raises:
            CdcError: As ``look``.
        """
        now = time.monotonic()
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
        records = {id: r for id, r in self._records.items() if id in schemas or id in loading}
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
