"""Compares two sides: sums by range first, single keys only in the ranges that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc.schema import TableSchema
from cdc.verify.derived import DerivedTable
from cdc.verify.forms import compared, digest, shown
from cdc.verify.result import CHANGED, Difference
from cdc.verify.sides import Key, Row, SourceTable, Sum


@dataclass(frozen=True, slots=True)
class Findings:
    """What differs.

    Args:
        differing: How many ranges' sums differ.
        differences: Single keys, in order.
        complete: Whether these are all of them.
    """

    differing: int
    differences: tuple[Difference, ...] = ()
    complete: bool = True


def differing_ranges(source: Mapping[int, Sum], derived: Mapping[int, Sum]) -> list[int]:
    """The ranges whose rows are not the same, in order."""
    return sorted(
        part for part in source.keys() | derived.keys() if source.get(part) != derived.get(part)
    )


def find_differences(
    schema: TableSchema,
    source: SourceTable,
    derived: DerivedTable,
    ranges: Sequence[int],
    *,
    limit: int,
    with_values: bool,
) -> Findings:
    """Look into ranges that differ.

    Args:
        schema: Of the table.
        source: Its side.
        derived: Our side.
        ranges: Whose sums differ.
        limit: List so many keys at most.
        with_values: Tell the values, too.
    """
    if not ranges:
        return Findings(0)
    # A key at the least differs in each of them.
    looked_at = ranges[:limit]
    found = derived.against(source.rows(looked_at), looked_at, limit + 1)
    complete = len(looked_at) == len(ranges) and len(found) <= limit
    found = found[:limit]
    wanted = [key for key, kind in found if with_values or kind == CHANGED]
    theirs = source.values(wanted) if wanted else {}
    ours = derived.values(wanted) if wanted else {}
    differences = tuple(
        _difference(schema, key, kind, theirs.get(key), ours.get(key), with_values)
        for key, kind in found
    )
    return Findings(len(ranges), differences, complete)


def _difference(
    schema: TableSchema, key: Key, kind: str, theirs: Row | None, ours: Row | None, values: bool
) -> Difference:
    named: dict[str, Any]
    if schema.counted and not values:
        # The row itself is what tells it from others.
        named = {"md5 of the row": digest(key)}
    else:
        named = {
            name: shown(schema.column(name), text)
            for name, text in zip(compared(schema).key, key, strict=True)
        }
    columns: tuple[str, ...] = ()
    if theirs is not None and ours is not None:
        columns = tuple(
            name
            for name, left, right in zip(schema.column_names, theirs, ours, strict=True)
            if left != right
        )
    if not values:
        return Difference(kind, named, columns)
    return Difference(
        kind, named, columns, _values(schema, theirs, columns), _values(schema, ours, columns)
    )


def _values(
    schema: TableSchema, row: Row | None, columns: tuple[str, ...]
) -> dict[str, Any] | None:
    """The columns that differ; all of them where only one side has the row."""
    if row is None:
        return None
    return {
        column.name: shown(column, text)
        for column, text in zip(schema.columns, row, strict=True)
        if not columns or column.name in columns
    }
