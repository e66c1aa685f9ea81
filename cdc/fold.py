"""The fold: what a range of a table's log does to each key. Pure.

A range [P, F) of records is reduced to one outcome per key, per column: the newest value that
the log carries. A column that an update did not carry (``unchanged``) is inherited from the
row before it: from earlier records of the range, also across a key change, else from the
replica's row at P. Truncates cut. The result is the same as applying every record in order.

Spark's SQL fold must agree with this one; a property test holds both to ``apply_in_order``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cdc.envelope import LogRecord
from cdc.errors import LogError
from cdc.position import Position


class _Lost(enum.Enum):
    """A column whose value is nowhere; an error only if the key's outcome still holds it."""

    LOST = "lost"


_LOST = _Lost.LOST
_REMOVALS = ("d", "tombstone")


@dataclass(frozen=True, slots=True)
class Inherit:
    """Stands for a column's value in the replica's row at P.

    Args:
        key: Key of that row at P.
        fallback: The value that capture re-read, for a reader whose replica has no such row.
        has_fallback: Whether the re-read found one.
    """

    key: bytes
    fallback: Any = None
    has_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one key.

    Args:
        row: Column name to JSON value or Inherit; None: the key is gone.
        position: Of the newest record of the key.
    """

    row: dict[str, Any] | None
    position: Position

    @property
    def inherits(self) -> bool:
        """Whether a column has to be looked up in the replica."""
        return self.row is not None and any(isinstance(v, Inherit) for v in self.row.values())


def _order(record: LogRecord) -> tuple[Position, bool, int]:
    # The delete and the create of a key change share a position, maybe in two partitions:
    # the delete comes first.
    return record.position, record.op in ("c", "r", "u"), record.offset


def effective(
    records: Iterable[LogRecord], frontier: Position, truncate: Position | None
) -> list[LogRecord]:
    """The records that count, in order of history.

    Left out: tombstones (the delete before each says the same, unless compaction took it while
    we read), records at or above the frontier, records below the newest truncate, and all but
    the last copy of a redelivered one.
    """
    newest: dict[tuple[bytes, Position, bool], LogRecord] = {}
    for record in records:
        if record.position >= frontier:
            continue
        if truncate is not None and record.position < truncate:
            continue
        identity = (record.key, record.position, record.op in _REMOVALS)
        known = newest.get(identity)
        if known is None or _copy_order(known) < _copy_order(record):
            newest[identity] = record
    return sorted(newest.values(), key=_order)


def _copy_order(record: LogRecord) -> tuple[bool, int]:
    return record.op != "tombstone", record.offset


def fold(
    records: Iterable[LogRecord],
    frontier: Position,
    truncate: Position | None = None,
    *,
    start: Position | None = None,
    columns: Collection[str] | None = None,
) -> dict[bytes, Outcome]:
    """Fold a range to one outcome per key.

    Args:
        records: In any order; each partition's range complete.
        frontier: Exclusive end F of the range.
        truncate: The table's newest truncate below F, if any. When it lies in the range
            the caller also drops the replica's rows: nothing is inherited from them.
        start: P, the replica's position: records below it are left out. None: from the
            beginning, so there is no replica to inherit from.
        columns: Those of the derived table at F: records of earlier schemas may lack values of
            others, which nobody needs. None: all.

    Returns:
        Key bytes to outcome. Keys that the range does not touch are not in it.

    Raises:
        LogError: ``value_lost`` when a column's value is nowhere to be found.
    """
    has_base = start is not None and (truncate is None or truncate < start)
    outcomes: dict[bytes, Outcome] = {}
    moved: dict[tuple[Position, bytes], dict[str, Any] | None] = {}
    for record in effective(records, frontier, truncate):
        if start is not None and record.position < start:
            continue
        if record.op in _REMOVALS:
            if record.new_key is not None:
                before = outcomes.get(record.key)
                moved[record.position, record.key] = before.row if before else {}
            outcomes[record.key] = Outcome(None, record.position)
            continue
        row = dict(record.after or {})
        if record.unchanged:
            lacking = [c for c in record.unchanged if columns is None or c in columns]
            _inherit(record, lacking, row, outcomes, moved, has_base)
        outcomes[record.key] = Outcome(row, record.position)
    for outcome in outcomes.values():
        for column, value in (outcome.row or {}).items():
            if value is _LOST:
                raise _value_lost(column, outcome.position)
    return outcomes


def _inherit(
    record: LogRecord,
    lacking: Iterable[str],
    row: dict[str, Any],
    outcomes: Mapping[bytes, Outcome],
    moved: Mapping[tuple[Position, bytes], dict[str, Any] | None],
    has_base: bool,
) -> None:
    """Put the values of the row before into the columns that the record did not carry."""
    previous: dict[str, Any] | None
    if record.old_key is not None:
        key = record.old_key
        # {} stands for: not touched in this range, so the replica's row.
        previous = moved.get((record.position, key), {})
    else:
        key = record.key
        outcome = outcomes.get(key)
        previous = {} if outcome is None else outcome.row
    for column in lacking:
        has_fallback = column in row
        if previous and previous.get(column, _LOST) is not _LOST:
            row[column] = previous[column]
        elif previous is not None and not previous and has_base:
            row[column] = Inherit(key, row.get(column), has_fallback)
        elif not has_fallback:
            row[column] = _LOST


def _value_lost(column: str, position: Position | None) -> LogError:
    return LogError(
        "value_lost",
        f"neither the replica nor the log has a value for column {column}",
        position=None if position is None else str(position),
        remedy="start a new load of the table; REPLICA IDENTITY FULL avoids this",
    )


def settle(row: Mapping[str, Any], base: Mapping[bytes, Mapping[str, Any]]) -> dict[str, Any]:
    """Replace Inherit marks by the replica's values.

    Args:
        row: Of an outcome.
        base: Key to the replica's row at P, in JSON values, for all keys that marks name.

    Raises:
        LogError: ``value_lost`` when neither the replica nor the log has a value.
    """
    settled = {}
    for column, value in row.items():
        if isinstance(value, Inherit):
            held = base.get(value.key)
            if held is not None and column in held:
                value = held[column]
            elif value.has_fallback:
                value = value.fallback
            else:
                raise _value_lost(column, None)
        settled[column] = value
    return settled


def apply_in_order(
    state: dict[bytes, dict[str, Any]],
    records: Iterable[LogRecord],
    frontier: Position,
    truncate: Position | None = None,
) -> dict[bytes, dict[str, Any]]:
    """The definition: apply each record to the rows, one by one. For tests.

    Args:
        state: Key to row; a truncate in the range empties it before.
        records: As for ``fold``.
        frontier: Exclusive end of the range.
        truncate: As for ``fold``, only if it lies in the range.
    """
    rows = {} if truncate is not None else {k: dict(v) for k, v in state.items()}
    moved: dict[tuple[Position, bytes], dict[str, Any]] = {}
    for record in effective(records, frontier, truncate):
        if record.op in _REMOVALS:
            gone = rows.pop(record.key, None)
            if record.new_key is not None and gone is not None:
                moved[record.position, record.key] = gone
            continue
        if record.old_key is not None:
            held = moved.get((record.position, record.old_key))
        else:
            held = rows.get(record.key)
        row = dict(record.after or {})
        for column in record.unchanged:
            if held is not None and column in held:
                row[column] = held[column]
        rows[record.key] = row
    return rows
