"""Brings the captured tables in line with those of cdc.yaml, before streaming goes on.

A new table is published first and intended then: until it is spooled, what the stream tells of
it is dropped, and the load's barrier waits for every transaction of that time. A table that is
gone from cdc.yaml is written off first and taken out of the publication then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from cdc.control import ControlState, KeyValue, TableRecord
from cdc.errors import CdcError, SourceRefused
from cdc.failpoints import failpoint
from cdc.log.admin import LogAdmin
from cdc.names import TableId, quote_ident
from cdc.position import Position
from cdc.states import ABANDONED, ADDED, REMOVED
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.catalog import read_tables
from connectors.postgres.client import connect_sql
from connectors.postgres.failures import mapped_errors
from connectors.postgres.load_topics import intended_load, topics_of
from connectors.postgres.log_state import read_control
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.preflight import no_select, refusal
from connectors.postgres.publication import inspect_publication, quote_table
from connectors.postgres.table_checks import Finding, table_problems

log = structlog.get_logger(__name__)

Connection = psycopg.Connection[Any]


class NothingChanged(Exception):
    """The tables stay as they are, because of ``error``."""

    def __init__(self, error: CdcError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What cdc.yaml wants beyond what control has.

    Args:
        new: Not captured, or not any more.
        gone: Captured, and not in cdc.yaml any more.
    """

    new: tuple[TableId, ...]
    gone: tuple[TableId, ...]


def table_changes(settings: CaptureSettings, control: ControlState) -> TableChanges:
    """Compare. Pure."""
    captured = {id for id, record in control.tables.items() if record.state != REMOVED}
    return TableChanges(
        tuple(id for id in settings.tables if id not in captured),
        tuple(sorted(captured - set(settings.tables))),
    )


class TableSet:
    """Carries changes out.

    Args:
        settings: Of the capture.
        connection: As from ``client.connect_sql``.
        topics_there: Which of some topics are on the broker.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        connection: Connection,
        topics_there: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._topics_there = topics_there

    def publish(self, new: Sequence[TableId]) -> None:
        """Check new tables, and put them into the publication.

        Raises:
            SourceRefused: Lists all findings; nothing was changed.
            CdcError: As ``failures.server_error``.
        """
        if not new:
            return
        settings = self._settings
        publication = inspect_publication(self._connection, settings.publication)
        missing = [id for id in new if publication is None or not publication.publishes(id)]
        definitions = read_tables(self._connection, new, settings.publication)
        findings: list[Finding] = []
        for id in new:
            definition = definitions.get(id)
            if definition is None:
                findings.append(
                    Finding(
                        "table_missing",
                        str(id),
                        "does not exist in the database (names are case-sensitive)",
                        f"take {id} out of `tables` in cdc.yaml, or create it",
                        of_table=True,
                    )
                )
                continue
            findings += table_problems(definition)
            if not definition.readable:
                findings.append(no_select(definition, settings.conninfo.get("user", "")))
            if id in missing and not (settings.manage_publication and definition.ours):
                findings.append(
                    Finding(
                        "not_published",
                        str(id),
                        f"is not in the publication {settings.publication}",
                        f"let its owner run: {_alter(settings, 'ADD', [id])};",
                        of_table=True,
                    )
                )
        if findings:
            raise refusal(findings)
        if missing:
            self._execute(_alter(settings, "ADD", missing), "publish the new tables")

    def unpublish(self, gone: Collection[TableId]) -> None:
        """Take tables out of the publication, if it is ours.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        settings = self._settings
        publication = inspect_publication(self._connection, settings.publication)
        if publication is None or not settings.manage_publication:
            return
        if listed := sorted(set(gone) & publication.tables):
            self._execute(_alter(settings, "DROP", listed), "take tables out of the publication")

    def records(
        self, changes: TableChanges, control: ControlState, frontier: Position
    ) -> list[KeyValue]:
        """The control records that carry the changes out.

        Raises:
            SourceRefused: ``topic_exists``.
        """
        settings = self._settings
        found: list[KeyValue] = []
        for id in changes.gone:
            record = control.tables[id]
            good = frontier if record.ready_from is not None else None
            removed = dataclasses.replace(record, state=REMOVED, last_good=good)
            found.append(removed.to_key_value())
            found += [
                dataclasses.replace(load, state=ABANDONED).to_key_value()
                for load in control.unfinished_loads()
                if load.id == id
            ]
        for id in changes.new:
            number = 1 + max((n for table, n in control.loads if table == id), default=0)
            load = intended_load(settings, id, number)
            if taken := self._topics_there(topics_of([load])):
                raise SourceRefused(
                    "topic_exists",
                    f"topic {min(taken)} exists already: another log lives there",
                    table=settings.name_of(id),
                    remedy="delete the topic if nobody needs it",
                )
            table = TableRecord(id, ADDED, number, load.topic, None, settings.partitions)
            found += [table.to_key_value(), load.to_key_value()]
        return found

    def _execute(self, statement: str, doing: str) -> None:
        with mapped_errors(doing):
            self._connection.execute("SET lock_timeout = 10000")
            # The text is built from quoted names only.
            self._connection.execute(statement.encode())


def settle_tables(
    settings: CaptureSettings, admin: LogAdmin, writer: LogWriter, control: ControlState
) -> ControlState:
    """Begin with the tables that are new in cdc.yaml, end with those that are gone.

    No source transaction may be half written.

    Returns:
        Control as it is then.

    Raises:
        NothingChanged: The new tables cannot be captured, or not now.
        CdcError: From Postgres or Kafka, after something was changed.
    """
    changes = table_changes(settings, control)
    removed = [r.id for r in control.tables.values() if r.state == REMOVED]
    if not (changes.new or changes.gone or removed):
        return control
    with connect_sql(settings.conninfo) as connection:
        tables = TableSet(settings, connection, lambda names: [*admin.topic_ids(names)])
        try:
            records = tables.records(changes, control, writer.position)
            tables.publish(changes.new)
        except CdcError as error:
            raise NothingChanged(error) from None
        failpoint("after_publishing")
        if records:
            writer.advance(writer.end_lsn, writer.last, records)
        failpoint("after_table_changes")
        for id in changes.gone:
            log.info("not captured any more", table=settings.name_of(id))
        for id in changes.new:
            log.info("captured from now on", table=settings.name_of(id))
        tables.unpublish({*removed, *changes.gone} - set(settings.tables))
    return read_control(settings) if records else control


def publish_again(settings: CaptureSettings, id: TableId) -> None:
    """Check a table that was set aside, and put it into the publication if it is not in it.

    Raises:
        SourceRefused: It cannot be captured as it is; nothing was changed.
        CdcError: From Postgres.
    """
    with connect_sql(settings.conninfo) as connection:
        TableSet(settings, connection, lambda names: ()).publish([id])


def _alter(settings: CaptureSettings, verb: str, tables: Sequence[TableId]) -> str:
    listed = ", ".join(map(quote_table, tables))
    return f"ALTER PUBLICATION {quote_ident(settings.publication)} {verb} TABLE {listed}"
