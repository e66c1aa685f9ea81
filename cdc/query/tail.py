"""The log's tail of a table: what happened from the replica's position up to the frontier.

Folded to typed rows: each key that the range touches, with its row or without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.codecs import delta_type, from_json, is_simple_key, same
from cdc.envelope import LogRecord, parse_record
from cdc.errors import LakeError, LogError
from cdc.fold import Inherit, fold
from cdc.position import Position
from cdc.schema import Column, TableSchema
from cdc.tally import Tally

#: Replica column with the record key's JSON, where the key is not one simple column.
KEY_COLUMN: Final = "_cdc_key"

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Inherited:
    """Record keys and columns of the replica that a tail refers to."""

    keys: set[bytes]
    columns: set[str]


@dataclass(frozen=True, slots=True)
class Tail:
    """A folded range, in Python values that DuckDB takes exactly.

    Args:
        keys: Encoded keys that the range touches: the replica's rows of these are void. Of a
            table without a key, while there is a ``tally``: the digests of its rows.
        rows: Rows as of F, in the order of the schema's columns; a value may be an Inherit.
        keeps_base: Whether the replica's other rows count; a truncate voids them all.
        settled: Whether no value is an Inherit.
        tally: By how much rows of a table without a key are more or fewer; see ``number_copies``.
    """

    keys: Sequence[Any]
    rows: Sequence[tuple[Any, ...]]
    keeps_base: bool
    settled: bool = False
    tally: Tally | None = None

    def inherited(self, names: Sequence[str]) -> Inherited:
        """What the rows take over from the replica's; ``names`` are the schema's columns."""
        found = Inherited(set(), set())
        for row in () if self.settled else self.rows:
            for name, value in zip(names, row, strict=True):
                if isinstance(value, Inherit):
                    found.keys.add(value.key)
                    found.columns.add(name)
        return found


class KeyEncoder:
    """Record key to the value that stands for it in the replica.

    Args:
        schema: Of the table; its key is pinned for the load.
    """

    def __init__(self, schema: TableSchema) -> None:
        key = [schema.column(name) for name in schema.key]
        self.column: Column | None = None
        self._convert: Convert | None = None
        if len(key) == 1 and is_simple_key(key[0]):
            self.column = key[0]
            self._convert = from_json(key[0])

    @property
    def name(self) -> str:
        """The replica's column that holds it."""
        return KEY_COLUMN if self.column is None else self.column.target

    def __call__(self, key: bytes) -> Any:
        """The value for a record's key."""
        if self.column is None or self._convert is None:
            return key.decode()
        return self._convert(orjson.loads(key)[self.column.name])


def fold_tail(
    records: Iterable[LogRecord],
    schema: TableSchema,
    frontier: Position,
    start: Position | None,
    truncate: Position | None,
    versions: Mapping[int, TableSchema],
) -> Tail:
    """Fold the records of a range and type them by the schema at F.

    Args:
        records: Of the range, in any order; those outside of ``[start, frontier)`` are left out.
        schema: Valid at F.
        frontier: F.
        start: P, or None when there is no replica.
        truncate: The newest truncate below F, or None.
        versions: Schema versions of the load, from control.

    Raises:
        LogError: ``value_lost``, ``schema_unknown``.
        LakeError: ``value_out_of_range``, ``schema_change_unsupported``.
    """
    checked = list(_checked(records, frontier, versions, schema))
    outcomes = fold(checked, frontier, truncate, start=start, columns=set(schema.column_names))
    encode = KeyEncoder(schema)
    converters = [(c.name, _converter(c)) for c in schema.columns]
    rows = [
        _typed(outcome.row, converters) for outcome in outcomes.values() if outcome.row is not None
    ]
    return Tail(
        [encode(key) for key in outcomes],
        rows,
        keeps_base=start is not None and (truncate is None or truncate < start),
        settled=not any(record.unchanged for record in checked),
    )


def count_tail(tally: Tally, start: Position | None, truncate: Position | None) -> Tail:
    """The tail of a table without a key.

    Args:
        tally: Of the range.
        start: P, or None when there is no replica.
        truncate: The newest truncate below F, or None.
    """
    keeps_base = start is not None and (truncate is None or truncate < start)
    return Tail(list(tally.changes), (), keeps_base, settled=True, tally=tally)


def number_copies(tail: Tail, held: Mapping[str, int], schema: TableSchema) -> Tail:
    """The tail of a table without a key, with a key for each copy of a row.

    Args:
        tail: As counted.
        held: Digest to how many copies the replica has, of the rows that it has.
        schema: Valid at F; such a table has one version in a load.

    Raises:
        LogError: ``row_missing``, ``schema_unknown``.
        LakeError: ``value_out_of_range``.
    """
    tally = tail.tally
    if tally is None:
        return tail
    keys, brought = [], []
    for partition, (offset, key, value, headers) in tally.copies(held):
        keys.append(key.decode())
        if value is not None:
            brought.append(parse_record(tally.topic, partition, offset, key, value, headers))
    for record in {record.schema_version: record for record in brought}.values():
        known = schema if record.schema_version == schema.version else None
        _check_version(record, known, schema)
    converters = [(c.name, _converter(c)) for c in schema.columns]
    rows = [_typed(record.after or {}, converters) for record in brought]
    return Tail(keys, rows, tail.keeps_base, settled=True)


def settle_tail(tail: Tail, names: Sequence[str], base: Mapping[bytes, Mapping[str, Any]]) -> Tail:
    """Replace the Inherit marks by the replica's values.

    Args:
        tail: As folded.
        names: Of the schema's columns.
        base: Record key to the replica's row, in Python values.

    Raises:
        LogError: ``value_lost`` when neither the replica nor the log has a value.
    """
    if tail.settled:
        return tail
    return Tail(
        tail.keys,
        [
            tuple(_settled(value, names[i], base) for i, value in enumerate(row))
            for row in tail.rows
        ],
        tail.keeps_base,
        settled=True,
    )


def _settled(value: Any, column: str, base: Mapping[bytes, Mapping[str, Any]]) -> Any:
    if not isinstance(value, Inherit):
        return value
    held = base.get(value.key)
    if held is not None and column in held:
        return held[column]
    if value.has_fallback:
        return value.fallback
    raise LogError(
        "value_lost",
        f"neither the replica nor the log has a value for column {column}",
        remedy="start a new load of the table; REPLICA IDENTITY FULL avoids this",
    )


def _checked(
    records: Iterable[LogRecord],
    frontier: Position,
    versions: Mapping[int, TableSchema],
    schema: TableSchema,
) -> Iterable[LogRecord]:
    """The records below F, each of a version whose values the schema at F can read."""
    known: set[int] = set()
    for record in records:
        if record.position >= frontier:
            continue
        if record.schema_version not in known:
            _check_version(record, versions.get(record.schema_version), schema)
            known.add(record.schema_version)
        yield record


def _check_version(record: LogRecord, version: TableSchema | None, schema: TableSchema) -> None:
    if version is None:
        raise LogError(
            "schema_unknown",
            f"control has no schema version {record.schema_version}, which a record at "
            f"offset {record.offset} names",
            position=str(record.position),
        )
    now = {c.id: (c.name, delta_type(c)) for c in schema.columns}
    gone = {c.id for c in schema.dropped}
    for column in version.columns:
        if column.id not in gone and now.get(column.id) != (column.name, delta_type(column)):
            raise LakeError(
                "schema_change_unsupported",
                f"column {column.name} of schema version {version.version} was renamed, dropped "
                "or has another type by now",
                position=str(record.position),
                remedy="start a new load of the table",
            )


def _typed(
    row: Mapping[str, Any], converters: Sequence[tuple[str, Convert | None]]
) -> tuple[Any, ...]:
    # A column that a record's schema does not have yet was added later: its value is NULL.
    return tuple(
        [
            row.get(name) if convert is None else convert(row.get(name))
            for name, convert in converters
        ]
    )


def _converter(column: Column) -> Convert | None:
    """To the exact Python value; None where that is the JSON value itself."""
    exact = from_json(column)
    if exact is same:
        return None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Inherit):
            fallback = None if value.fallback is None else exact(value.fallback)
            return Inherit(value.key, fallback, value.has_fallback)
        return exact(value)

    return convert
