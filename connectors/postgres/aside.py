"""Tables that are set aside: they are Errored, and their source goes on without them. Pure.

What the stream says of such a table goes nowhere. A new load of it reads the table as it is then,
and makes it Ready again; it begins by itself where nothing but the table's form was in the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from cdc.control import ControlState, KeyValue, TableRecord, abandoned
from cdc.errors import CdcError, SourceRefused, SourceStopped, and_then
from cdc.names import TableId
from cdc.position import Position
from cdc.states import ERRORED, RELOADS, WAITS
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.remedies import FIRST, NEVER


def waits_for(error: CdcError) -> str:
    """``reload`` or ``wait``: what a table waits for that was set aside because of ``error``."""
    return WAITS if error.code in FIRST else RELOADS


def ends_load(error: CdcError) -> bool:
    """Whether no other load of the table can help against ``error``, as things are."""
    return isinstance(error, SourceRefused) or error.code in FIRST


def errored_records(
    settings: CaptureSettings,
    records: Mapping[TableId, TableRecord],
    stopped: SourceStopped,
    good: Position,
) -> list[TableRecord]:
    """The records of the tables that end at a frontier: the one concerned, else all.

    Args:
        settings: Of the capture.
        records: Of all tables.
        stopped: Why; it names the table if it is one table's.
        good: The frontier.
    """
    if stopped.table is not None:
        if stopped.position is not None:
            # What no event told of may have been there for a while.
            good = min(good, Position.parse(stopped.position))
        (id,) = [id for id in records if settings.name_of(id) == stopped.table]
        return [set_aside(records[id], stopped, good, stopped.table)]
    return [
        dataclasses.replace(
            record,
            state=ERRORED,
            aside=None,
            last_good=good if record.last_good is None else min(good, record.last_good),
            reason=_reason(stopped),
            remedy=stopped.remedy,
        )
        for record in records.values()
    ]


def set_aside(record: TableRecord, error: CdcError, good: Position, name: str) -> TableRecord:
    """The record of a table from which on its source goes on without it.

    Args:
        record: Of the table.
        error: Why.
        good: Frontier up to which its log is good.
        name: Of the table, for people: ``source.schema.table``.
    """
    # Of a table that was never Ready, nothing is good.
    ready_good = None if record.ready_from is None else good
    return dataclasses.replace(
        record,
        state=ERRORED,
        aside=waits_for(error),
        last_good=_earlier(record.last_good, good) if record.state == ERRORED else ready_good,
        reason=_reason(error),
        remedy=_remedy(error, name),
    )


def ended_loads(errored: Iterable[TableRecord], control: ControlState) -> list[KeyValue]:
    """Control records that end loads under way which would meet the same row again."""
    waiting = {record.id for record in errored if record.aside == WAITS}
    return abandoned(load for load in control.unfinished_loads() if load.id in waiting)


def is_aside(record: TableRecord, frontier: Position) -> bool:
    """Whether the stream goes on without a table.

    Not while the log does not reach its last good position: the transactions before that come
    again, and belong to it.
    """
    if record.state != ERRORED or record.aside is None:
        return False
    return record.last_good is None or record.last_good <= frontier


def to_reload(records: Mapping[TableId, TableRecord]) -> list[TableId]:
    """The tables whose next load begins by itself."""
    return [
        id for id, record in records.items() if record.state == ERRORED and record.aside == RELOADS
    ]


def _earlier(before: Position | None, good: Position) -> Position | None:
    return None if before is None else min(before, good)


def _reason(error: CdcError) -> str:
    where = f", position {error.position}" if error.position else ""
    return f"{error.message} (code {error.code}{where})"


def _remedy(error: CdcError, name: str) -> str:
    if waits_for(error) == WAITS:
        return and_then(error.remedy or FIRST[error.code], f"then cdc snapshot {name}")
    if error.code in NEVER and error.remedy:
        return error.remedy
    again = "a new load of the table begins by itself; cdc status shows how far it is"
    return and_then(error.remedy, f"then {again}") if error.remedy else again
