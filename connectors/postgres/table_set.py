"""Brings the captured tables in line with those of cdc.yaml, before streaming goes on.

A new table is published first and intended then: until it is spooled, what the stream tells of
it is dropped, and the load's barrier waits for every transaction of that time. A table that is
gone from cdc.yaml is written off first and taken out of the publication then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from cdc.control import ControlState, KeyValue, LoadRecord, TableRecord, abandoned
from cdc.errors import CdcError
from cdc.failpoints import failpoint
from cdc.log.admin import LogAdmin
from cdc.names import TableId, quote_ident
from cdc.position import Position
from cdc.states import ADDED, ERRORED, REMOVED
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.catalog import read_tables
from connectors.postgres.client import connect_sql
from connectors.postgres.failures import is_retryable, mapped_errors
from connectors.postgres.load_topics import intended_load, topics_of
from connectors.postgres.log_state import read_control
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.matching import matching_tables, refused_record
from connectors.postgres.preflight import not_published, refusal, table_findings
from connectors.postgres.publication import inspect_publication, members
from connectors.postgres.publishing import Publishing
from connectors.postgres.rekeying import key_changes, with_chosen_keys
from connectors.postgres.table_checks import Finding

log = structlog.get_logger(__name__)

Connection = psycopg.Connection[Any]

#: How long the publication waits for the locks of tables that somebody asked for, milliseconds.
_LONG_LOCK_MS: Final = 10_000
#: And of those that only match a pattern, for which the stream does not wait long.
_SHORT_LOCK_MS: Final = 1000


class NothingChanged(Exception):
    """The tables stay as they are, because of ``error``."""

    def __init__(self, error: CdcError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What cdc.yaml wants beyond what is captured.

    Args:
        new: Not captured, or not any more.
        gone: Captured, and not in cdc.yaml any more, or not in the source if they only matched
            a pattern.
    """

    new: tuple[TableId, ...]
    gone: tuple[TableId, ...]


def table_changes(
    settings: CaptureSettings, captured: Collection[TableId], matched: Collection[TableId]
) -> TableChanges:
    """Compare. Pure.

    Args:
        settings: Of the capture.
        captured: The tables that are captured, or set aside.
        matched: The tables of the source that match a pattern.
    """
    wanted = dict.fromkeys([*settings.tables, *matched])
    return TableChanges(
        tuple(id for id in wanted if id not in captured),
        tuple(sorted(set(captured) - wanted.keys())),
    )


class TableSet:
    """Carries changes out.

    Args:
        settings: Of the capture.
        connection: As from ``client.connect_sql``.
    """

    def __init__(self, settings: CaptureSettings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection

    def findings(self, tables: Sequence[TableId]) -> dict[TableId, list[Finding]]:
        """What keeps each of these tables from being captured, if anything does.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        settings = self._settings
        publication = inspect_publication(self._connection, settings.publication)
        definitions = read_tables(self._connection, tables, settings.publication, settings.keys)
        managed = settings.manage_publication
        publishing = Publishing(
            settings.publication, publication, managed, {*settings.tables, *tables}
        )
        role = str(settings.conninfo.get("user", ""))
        found = {}
        for id in tables:
            definition = definitions.get(id)
            problems = table_findings(id, definition, role, publishing)
            if definition is not None and not publishing.has(id, definition.ancestors):
                if not (managed and definition.ours):
                    problems.append(not_published(id, settings.publication))
            if problems:
                found[id] = problems
        return found

    def with_other_keys(self, tables: Sequence[TableId], control: ControlState) -> list[TableId]:
        """Tables that are served with another key than cdc.yaml gives.

        Raises:
            SourceRefused: A key cannot be.
            CdcError: As ``failures.server_error``.
        """
        if not tables:
            return []
        settings = self._settings
        found = read_tables(self._connection, tables, settings.publication, settings.keys)
        again, problems = key_changes(control, found.values())
        if problems:
            raise refusal(problems)
        return again

    def publish(self, tables: Sequence[TableId], lock_ms: int = _LONG_LOCK_MS) -> None:
        """Put tables that ``findings`` has nothing against into the publication, if it is ours.

        Args:
            tables: All of them, or none if that fails.
            lock_ms: How long to wait for their locks, milliseconds.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        if not self._settings.manage_publication:
            return
        publication = inspect_publication(self._connection, self._settings.publication)
        if missing := [id for id in tables if not (publication and publication.publishes(id))]:
            self._execute(_alter(self._settings, "ADD", missing), "publish the new tables", lock_ms)

    def publish_each(self, tables: Sequence[TableId]) -> dict[TableId, CdcError]:
        """The same, but what keeps one table back is no matter of the others.

        Returns:
            Why tables could not be published, for the time being.

        Raises:
            CdcError: The connection is lost.
        """
        try:
            self.publish(tables, _SHORT_LOCK_MS)
        except CdcError as error:
            if is_retryable(error):
                raise
            if len(tables) == 1:
                return {tables[0]: error}
            half = len(tables) // 2
            return self.publish_each(tables[:half]) | self.publish_each(tables[half:])
        return {}

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
            doing = "take tables out of the publication"
            self._execute(_alter(settings, "DROP", listed), doing, _LONG_LOCK_MS)

    def _execute(self, statement: str, doing: str, lock_ms: int) -> None:
        with mapped_errors(doing):
            self._connection.execute(f"SET lock_timeout = {lock_ms:d}".encode())
            # The text is built from quoted names only.
            self._connection.execute(statement.encode())


def removed_records(
    gone: Iterable[TableId], control: ControlState, frontier: Position
) -> list[KeyValue]:
    """Control records of tables that are not captured any more."""
    found: list[KeyValue] = []
    for id in gone:
        record = control.tables[id]
        good = record.last_good if record.state == ERRORED else frontier
        removed = dataclasses.replace(
            record,
            state=REMOVED,
            last_good=good if record.ready_from is not None else None,
            aside=None,
            reason=None,
            remedy=None,
        )
        found.append(removed.to_key_value())
        found += abandoned(load for load in control.unfinished_loads() if load.id == id)
    return found


def first_loads(
    settings: CaptureSettings, new: Iterable[TableId], control: ControlState
) -> dict[TableId, LoadRecord]:
    """The load with which each new table begins."""
    numbers: dict[TableId, int] = {}
    for id, number in control.loads:
        numbers[id] = max(number, numbers.get(id, 0))
    return {id: intended_load(settings, id, 1 + numbers.get(id, 0)) for id in new}


def topic_findings(
    loads: Mapping[TableId, LoadRecord], there: Callable[[Sequence[str]], Collection[str]]
) -> dict[TableId, Finding]:
    """Tables whose topics are there already.

    Args:
        loads: Of which nothing exists yet.
        there: Which of some topics are on the broker.
    """
    taken = set(there(topics_of(loads.values())))
    found = {}
    for id, load in loads.items():
        if topics := sorted(taken.intersection(topics_of([load]))):
            found[id] = Finding(
                "topic_exists",
                str(id),
                f"topic {topics[0]} exists already: another log lives there",
                "delete the topic if nobody needs it",
                of_table=True,
            )
    return found


def settle_tables(
    settings: CaptureSettings, admin: LogAdmin, writer: LogWriter, control: ControlState
) -> ControlState:
    """Begin with the tables that are new in cdc.yaml or have another key, end with those gone.

    No source transaction may be half written.

    Returns:
        Control as it is then.

    Raises:
        NothingChanged: The new tables cannot be captured, or not now: control is as it was.
        CdcError: From Postgres or Kafka, after something was changed.
    """
    captured = {id for id, record in control.tables.items() if record.state != REMOVED}
    removed = control.tables.keys() - captured
    keyed = with_chosen_keys(settings.keys, control)
    if not (settings.patterns or removed or keyed) and set(settings.tables) == captured:
        return control
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(connect_sql(settings.conninfo))
            tables = TableSet(settings, connection)
            changes = table_changes(settings, captured, matching_tables(connection, settings))
            rekeyed = tables.with_other_keys(
                [id for id in keyed if id not in changes.gone], control
            )
            if not (changes.new or changes.gone or removed or rekeyed):
                return control
            again = _loaded_again(settings, admin, control, rekeyed)
            loads, refused = _begun(tables, settings, admin, control, changes.new)
        except CdcError as error:
            raise NothingChanged(error) from None
        failpoint("after_publishing")
        records = removed_records(changes.gone, control, writer.position)
        records += [load.to_key_value() for load in again.values()]
        for id, load in loads.items():
            table = TableRecord(id, ADDED, load.load, load.topic, None, settings.partitions)
            records += [table.to_key_value(), load.to_key_value()]
        records += [
            refused_record(settings, id, control.tables.get(id), error).to_key_value()
            for id, error in refused.items()
        ]
        if records:
            writer.advance(writer.end_lsn, writer.last, records)
        failpoint("after_table_changes")
        for id in changes.gone:
            log.info("not captured any more", table=settings.name_of(id))
        for id in loads:
            log.info("captured from now on", table=settings.name_of(id))
        for id in again:
            log.info("loaded anew with another key", table=settings.name_of(id))
        tables.unpublish({*removed, *changes.gone} - loads.keys())
    return read_control(settings) if records else control


def _loaded_again(
    settings: CaptureSettings, admin: LogAdmin, control: ControlState, ids: Sequence[TableId]
) -> dict[TableId, LoadRecord]:
    """The next loads of tables that are captured.

    Raises:
        CdcError: A topic of theirs is there already.
    """
    loads = first_loads(settings, ids, control)
    if taken := topic_findings(loads, lambda names: admin.topic_ids(names).keys()):
        raise refusal(list(taken.values()))
    return loads


def _begun(
    tables: TableSet,
    settings: CaptureSettings,
    admin: LogAdmin,
    control: ControlState,
    new: Sequence[TableId],
) -> tuple[dict[TableId, LoadRecord], dict[TableId, CdcError]]:
    """Check and publish new tables.

    Returns:
        The first loads of those that are captured, and why others, which only match a pattern,
        are not.

    Raises:
        CdcError: One that is given by its name cannot be captured; nothing was changed.
    """
    loads = first_loads(settings, new, control)
    findings = tables.findings(new)
    taken = topic_findings(loads, lambda names: admin.topic_ids(names).keys())
    for id, finding in taken.items():
        findings.setdefault(id, []).append(finding)
    named = [id for id in new if id in settings.tables]
    if problems := [finding for id in named for finding in findings.get(id, ())]:
        raise refusal(problems)
    tables.publish(named)
    refused = {id: refusal(found, alone=True) for id, found in findings.items()}
    matched = [id for id in new if id not in named and id not in refused]
    refused |= tables.publish_each(matched)
    return {id: load for id, load in loads.items() if id not in refused}, refused


def publish_again(settings: CaptureSettings, asked: Sequence[TableId]) -> dict[TableId, CdcError]:
    """Check tables that were set aside, and put them into the publication if they are not in it.

    Returns:
        Why tables cannot be captured as they are.

    Raises:
        CdcError: From Postgres.
    """
    with connect_sql(settings.conninfo) as connection:
        tables = TableSet(settings, connection)
        refused = {id: refusal(found, alone=True) for id, found in tables.findings(asked).items()}
        return refused | tables.publish_each([id for id in asked if id not in refused])


def _alter(settings: CaptureSettings, verb: str, tables: Sequence[TableId]) -> str:
    return f"ALTER PUBLICATION {quote_ident(settings.publication)} {verb} TABLE {members(tables)}"
