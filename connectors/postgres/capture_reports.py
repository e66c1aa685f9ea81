"""What capture tells the daemon of itself: readiness, metrics, and how far loads are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from cdc.control import TableRecord
from cdc.daemon.channel import ChildChannel
from cdc.load import LoadProgress
from cdc.names import TableId
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.load_figures import LoadFigures
from connectors.postgres.load_state import Load
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.router import Router
from connectors.postgres.stream import Stream

_EVERY_S: Final = 1.0


class CaptureReports:
    """Tells the daemon.

    Args:
        settings: Of the capture.
        channel: To the daemon.
    """

    def __init__(self, settings: CaptureSettings, channel: ChildChannel) -> None:
        self._settings = settings
        self._channel = channel
        self._figures = LoadFigures(settings.name_of)
        self._reported = 0.0
        #: Rows of loads, as far as they are copied.
        self.rows: dict[TableId, int] = {}

    @property
    def due(self) -> bool:
        """Whether it is time to report; true once per second."""
        now = time.monotonic()
        if now - self._reported < _EVERY_S:
            return False
        self._reported = now
        return True

    def report(
        self,
        stream: Stream,
        router: Router,
        writer: LogWriter,
        records: Mapping[TableId, TableRecord],
        loads: Sequence[Load],
    ) -> None:
        """How the stream and the loads stand."""
        if not self._channel.connected:
            return
        # Not while a table was never Ready, unless it was set aside.
        self._channel.ready(all(r.ready_from is not None or r.aside for r in records.values()))
        self._channel.metrics(
            lag_bytes=stream.lag_bytes,
            records=router.records,
            transactions=stream.transactions,
            commits=writer.commits,
            position=str(writer.position),
            changes={self._settings.name_of(id): count for id, count in router.changes.items()},
            loads=self._figures.of(loads),
            # Those that only one of source and derived table has.
            columns={
                self._settings.name_of(id): {
                    "dropped": len(schema.kept),
                    "ignored": len(schema.ignored),
                }
                for id, schema in router.schemas.items()
            },
        )

    def load(self, progress: LoadProgress) -> None:
        """Rows of a load were copied."""
        self.rows[progress.table] = progress.rows
        self._channel.state(
            "loading",
            table=self._settings.name_of(progress.table),
            rows=progress.rows,
            total=progress.estimate,
            done=progress.done,
            all_rows=sum(self.rows.values()),
        )
