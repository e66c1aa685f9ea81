"""Small batches: the outcomes of the Python fold as an Arrow table of exact values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from cdc import codecs
from cdc.errors import LakeError, LogError
from cdc.fold import Inherit, Outcome
from cdc.schema import Column
from spark_jobs.base import BaseRows, key_value
from spark_jobs.layout import Layout

#: Number of a row, and column, whose value the Delta type cannot hold.
OutOfRange = tuple[int, str]
_Base = Mapping[bytes, Mapping[str, Any]]


def outcome_table(
    layout: Layout,
    outcomes: Mapping[bytes, Outcome],
    base: BaseRows | None,
    far: list[OutOfRange] | None = None,
) -> pa.Table:
    """One row per key of a fold, in the replica's columns and ``_cdc_gone``.

    Args:
        layout: The replica's columns.
        outcomes: Of ``cdc.fold.fold``.
        base: The replica at the start of the range; None: nothing can be inherited.
        far: Takes the values that were replaced because their Delta type cannot hold them.

    Raises:
        LakeError: ``value_out_of_range``, naming table and column.
        LogError: ``value_lost``, naming table and column.
    """
    held = _inherited(outcomes, base)
    items = list(outcomes.items())
    arrays = []
    fields = layout.arrow_schema(gone=True)
    simple = layout.simple_key
    for column, field in zip(layout.schema.columns, fields, strict=False):
        convert = _converter(layout, codecs.from_json(column))
        is_key = simple is not None and column.name == simple.name
        if far is not None and codecs.bends(column):
            far += _far(column, items)
        values = []
        for key, outcome in items:
            if is_key:
                values.append(_key(layout, key))
            elif outcome.row is None:
                values.append(None)
            else:
                values.append(_value(layout, column.name, outcome.row, convert, held))
        arrays.append(_array(layout, column.name, values, field.type))
    arrays.append(pa.array([outcome.position.lsn for _, outcome in items], pa.int64()))
    if simple is None:
        arrays.append(pa.array([key.decode() for key, _ in items], pa.string()))
    arrays.append(pa.array([outcome.row is None for _, outcome in items], pa.bool_()))
    return pa.Table.from_arrays(arrays, schema=fields)


def _far(column: Column, items: Iterable[tuple[bytes, Outcome]]) -> Iterator[OutOfRange]:
    for number, (_, outcome) in enumerate(items):
        value = None if outcome.row is None else outcome.row.get(column.name)
        # What is inherited was counted when it came.
        if value is None or isinstance(value, Inherit):
            continue
        if codecs.is_out_of_range(column, value):
            yield number, column.name


def _inherited(outcomes: Mapping[bytes, Outcome], base: BaseRows | None) -> _Base:
    keys: set[bytes] = set()
    columns: set[str] = set()
    for outcome in outcomes.values():
        for name, value in (outcome.row or {}).items():
            if isinstance(value, Inherit):
                keys.add(value.key)
                columns.add(name)
    return base.rows(keys, columns) if base is not None and keys else {}


def _key(layout: Layout, key: bytes) -> Any:
    return _converter(layout, lambda value: key_value(layout, value))(key)


def _value(
    layout: Layout,
    name: str,
    row: Mapping[str, Any],
    convert: Callable[[Any], Any],
    held: _Base,
) -> Any:
    value = row.get(name)
    if isinstance(value, Inherit):
        kept = held.get(value.key)
        if kept is not None and name in kept:
            return kept[name]
        if not value.has_fallback:
            raise LogError(
                "value_lost",
                f"neither the replica nor the log has a value for column {name}",
                table=layout.table,
                remedy="start a new load of the table; REPLICA IDENTITY FULL avoids this",
            )
        value = value.fallback
    return None if value is None else convert(value)


def _converter(layout: Layout, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def named(value: Any) -> Any:
        try:
            return convert(value)
        except LakeError as error:
            raise LakeError(
                error.code, error.message, table=layout.table, remedy=error.remedy
            ) from None

    return named


def _array(layout: Layout, name: str, values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise LakeError(
            "value_out_of_range",
            f"column {name} holds a value that its Delta type cannot hold",
            table=layout.table,
            remedy="change the value at the source, or start a new load if its type has changed",
        ) from None
